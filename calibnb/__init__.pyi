# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from . import core as core
from . import processes as processes
from . import metrics as metrics
from . import losses as losses
from . import posthoc as posthoc
from . import plots as plots
from . import evaluate as evaluate
from . import data as data
from . import models as models
from . import train as train
from . import meta as meta
from . import runs as runs
from . import notebooks as notebooks
from . import widgets as widgets
from . import sweep as sweep
from . import cli as cli
from .core import Predictions as Predictions
from .core import seed_everything as seed_everything
from .losses import make_loss as make_loss
from .losses import list_losses as list_losses
from .posthoc import Calibrator as Calibrator
from .posthoc import make_calibrator as make_calibrator
from .posthoc import list_calibrators as list_calibrators
from .models import make_model as make_model
from .models import list_models as list_models
from .data import load_data as load_data
from .data import list_data as list_data
from .train import Recipe as Recipe
from .train import Trainer as Trainer
from .runs import RunConfig as RunConfig
from .runs import Run as Run
from .runs import get_run as get_run
from .runs import get_runs as get_runs
from .runs import collect as collect

__version__: str
