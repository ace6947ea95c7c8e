"""Calibrated probabilities for classifiers; names are imported from their wings when first used."""
import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=[
    "core", "processes", "files", "metrics", "losses", "posthoc", "plots", "evaluate", "data", "models", "train",
    "meta", "runs", "studies", "notebooks", "widgets", "sweep", "cli"
], submod_attrs={
    "core": ["Predictions", "seed_everything"],
    "losses": ["make_loss", "list_losses"],
    "posthoc": ["Calibrator", "make_calibrator", "list_calibrators"],
    "models": ["make_model", "list_models"],
    "data": ["load_data", "list_data"],
    "train": ["Recipe", "Trainer"],
    "runs": ["RunConfig", "Run", "get_run", "get_runs", "collect"],
})
