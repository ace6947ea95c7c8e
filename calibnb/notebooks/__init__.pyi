# Made by docs/doors.py (make sync) from the door beside it; do not edit.
from .experiment import FOLDER_VARIABLE as FOLDER_VARIABLE
from .experiment import Experiment as Experiment
from .experiment import show_markdown as show_markdown
from .experiment import show_summary as show_summary
from .client import NotebookError as NotebookError
from .index import write_index as write_index
from .execute import list_experiments as list_experiments
from .execute import find_notebook as find_notebook
from .execute import Notebook as Notebook
from .execute import run_notebook as run_notebook
from .description import describe as describe
