# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .reliability import reliability_explorer as reliability_explorer
from .losses import loss_explorer as loss_explorer
from .simplex import simplex_points as simplex_points
from .simplex import simplex_explorer as simplex_explorer
from .runs import run_explorer as run_explorer
