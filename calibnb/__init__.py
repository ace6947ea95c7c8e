"""Calibrated probabilities for classifiers; names are imported from their modules when first used."""

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
_modules = ["core", "params", "bins", "smoothing", "intervals", "cache", "trees", "parallel", "pool", "metrics", "surrogates", "synth", "models", "gamma_net", "folder", "weights", "temperature", "score_maps", "files", "images", "texts", "recipe", "kernels", "losses", "posthoc", "streaming", "plots", "data", "batches", "recorders", "checkpoint", "papers", "train", "evaluate", "meta", "runs", "notebooks", "pages", "sweep", "widgets", "checks", "cli"]
__all__ = [name for names in _home.values() for name in names]


def __getattr__(name):
    from importlib import import_module
    if name in _modules:
        return import_module(f"calibnb.{name}")
    for module, names in _home.items():
        if name in names:
            return getattr(import_module(f"calibnb.{module}"), name)
    raise AttributeError(f"module 'calibnb' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__, *_modules])
