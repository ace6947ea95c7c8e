"""Calibrated probabilities for classifiers; names are imported from their wings when first used."""
import importlib
import warnings

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=[
    "core", "processes", "metrics", "losses", "posthoc", "plots", "evaluate", "data", "models", "train",
    "meta", "runs", "notebooks", "params", "widgets", "sweep", "cli"
], submod_attrs={
    "core": ["Predictions", "seed_everything"],
    "losses": ["make_loss", "list_losses"],
    "posthoc": ["Calibrator", "make_calibrator", "list_calibrators"],
    "models": ["make_model", "list_models"],
    "data": ["load_data", "list_data"],
    "train": ["Recipe", "Trainer"],
    "runs": ["RunConfig", "Run", "get_run", "get_runs", "collect"],
})


def _renamed(find, wing, **new_names):
    "Let a wing's `__getattr__` find a name by its old name too, for one release, with a DeprecationWarning."
    def __getattr__(name):
        if name not in new_names:
            return find(name)
        warnings.warn(f"{wing}.{name} is now {wing}.{new_names[name]}", DeprecationWarning, stacklevel=2)
        return find(new_names[name])
    return __getattr__


_find = __getattr__
__getattr__ = _renamed(lambda name: importlib.import_module(f".{name}", __name__) if "." in name else _find(name),
                       __name__, names="core.names")
