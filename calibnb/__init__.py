"""Calibrated probabilities for classifiers; names are imported from their wings when first used."""

__version__ = "0.1.0"

_home = {
    "core": ["Predictions", "seed_everything"],
    "losses": ["make_loss", "list_losses"],
    "posthoc": ["Calibrator", "make_calibrator", "list_calibrators"],
    "models": ["make_model", "list_models"],
    "data": ["load_data", "list_data"],
    "train": ["Recipe", "Trainer"],
    "runs": ["RunConfig", "Run", "get_run", "get_runs", "collect"],
}
_wings = ["core", "params", "processes", "metrics", "losses", "posthoc", "plots", "evaluate", "data", "models", "train",
          "meta", "runs", "checks", "notebooks", "widgets", "sweep", "cli"]
__all__ = [name for names in _home.values() for name in names]


def __getattr__(name):
    from importlib import import_module
    if name in _wings:
        return import_module(f"calibnb.{name}")
    for wing, names in _home.items():
        if name in names:
            return getattr(import_module(f"calibnb.{wing}"), name)
    raise AttributeError(f"module 'calibnb' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__, *_wings])
