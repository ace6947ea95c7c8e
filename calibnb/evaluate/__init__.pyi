# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .measures import ece_text as ece_text
from .measures import Scored as Scored
from .measures import measure_all as measure_all
from .measures import Resamples as Resamples
from .measures import resampled_measures as resampled_measures
from .resampled import resampled_errors as resampled_errors
from .resampled import resampled_top_label as resampled_top_label
from .table import UNCALIBRATED as UNCALIBRATED
from .table import SAME_NLL as SAME_NLL
from .table import Evaluation as Evaluation
from .audit import evaluate as evaluate
from .audit import check_sets as check_sets
from .shifted import check_shifted as check_shifted
from .shifted import evaluate_shifted as evaluate_shifted
from .shifted import Shifted as Shifted
from .shifted import ShiftResult as ShiftResult
