"An import brings what it needs and nothing heavy beside, in a process of its own."
import subprocess
import sys

from conftest import patience
from test_house import DOORS


def printed(code):
    "By a process of its own."
    command, wait = [sys.executable, "-c", code], patience(60)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=wait).stdout.strip()


def loaded_by(imported, among):
    "Those of the heavy modules that an import brings, in a new process."
    return printed(f"import sys, {imported}; print(*(m for m in {among} if m in sys.modules))")


HEAVY = ("torch", "sklearn", "pandas", "pydantic", "matplotlib", "torchvision", "torchmetrics", "papermill")


def test_import_is_light():
    doors = ", ".join(f"calibnb.{door}" for door in DOORS)
    assert loaded_by(f"calibnb, {doors}", HEAVY) == ""


NEEDED = {
    "losses import make_loss, focal_loss": "torch", "metrics import ece": "torch",
    "data import load_data, Splits": "torch", "models import make_model": "torch",
    "train import Trainer": "torch pydantic", "runs import get_run": "torch pydantic",
    "sweep import sweep": "torch pydantic", "notebooks import run_notebook, Experiment": "torch pydantic"}
EACH_ALONE = """
import os, sys, torch
for names in {names}:
    child = os.fork()  # of a process that has torch, which takes longer than all the rest
    if not child:
        exec("from calibnb." + names)
        print(*(m for m in {among} if m in sys.modules), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, names
"""


def test_names_bring_what_they_need():
    "scikit-learn comes with calibrators; pandas, matplotlib and papermill when a table, a figure, a notebook is made."
    lines = printed(EACH_ALONE.format(names=[*NEEDED], among=HEAVY)).splitlines()
    assert dict(zip(NEEDED, lines, strict=True)) == NEEDED


def test_checking_parameters_is_light():
    "A wrong parameter is refused before anything heavy is imported."
    assert loaded_by("calibnb.notebooks.parameters", ("torch", "numpy", "pandas", "matplotlib", "papermill")) == ""
