# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .spec import PRESETS as PRESETS
from .spec import SweepSpec as SweepSpec
from .spec import grid_values as grid_values
from .spec import Job as Job
from .spec import expand as expand
from .engines import gpu_slots as gpu_slots
from .running import sweep as sweep
from .more_seeds import until_decided as until_decided
from .more_seeds import minutes_of_a_seed as minutes_of_a_seed
