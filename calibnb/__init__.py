"""Calibrated probabilities for classifiers; names are imported from their wings when first used."""
from importlib import import_module
from sys import modules

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
_wings = ["core", "params", "names", "processes", "metrics", "losses", "posthoc", "plots", "evaluate", "data", "models",
          "train", "meta", "runs", "checks", "notebooks", "widgets", "sweep", "cli"]
__all__ = [name for names in _home.values() for name in names]


def _door(wing, *rooms):
    """`__getattr__` and `__dir__` of a wing that is opened when a name of it is first used.

    Then all its rooms are imported, in order, and what they have of the wing's `__all__` is handed out."""
    home = vars(modules[wing])

    def handed_out():
        return home.get("__all__", ())  # none where the notebook of a door runs

    def __getattr__(name):
        if name in rooms:
            return import_module(f"{wing}.{name}")
        if name not in handed_out():
            raise AttributeError(f"module {wing!r} has no attribute {name!r}")
        for room in rooms:
            inside = import_module(f"{wing}.{room}")
            home.update({each: getattr(inside, each) for each in inside.__all__ if each in handed_out()})
        return home[name]

    def __dir__():
        return sorted({*home, *handed_out(), *rooms})
    return __getattr__, __dir__


def __getattr__(name):
    if name in _wings:
        return import_module(f"calibnb.{name}")
    for wing, names in _home.items():
        if name in names:
            return getattr(import_module(f"calibnb.{wing}"), name)
    raise AttributeError(f"module 'calibnb' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__, *_wings])
