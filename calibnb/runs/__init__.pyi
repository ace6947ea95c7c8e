# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .config import RunConfig as RunConfig
from .run import Run as Run
from .run import get_run as get_run
from .run import get_runs as get_runs
from .run import train_file as train_file
from .plans import estimate_seconds as estimate_seconds
from .plans import estimate_gpu_seconds as estimate_gpu_seconds
from .plans import plan_table as plan_table
from .plans import sum_text as sum_text
from .tables import collect as collect
from .tables import list_runs as list_runs
from .tables import find_run as find_run
from .watch import watch_lines as watch_lines
from .comparison import compare as compare
from .comparison import comparison_table as comparison_table
from .comparison import choose_coefficient as choose_coefficient
from .comparison import choices_text as choices_text
