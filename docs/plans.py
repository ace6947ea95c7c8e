"""Trainings and hours of each command of `nbs/places.csv`, into `nbs/plans.csv`: `make plans` calls this.

A sweep's file says what it trains. A notebook is gone through up to the cell that plans its trainings, and no further.
"""
import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pandas as pd

import calibnb.runs
from calibnb.cli.command import parser
from calibnb.notebooks.execute import Notebook
from calibnb.notebooks.parameters import read_notebook
from calibnb.runs.plans import estimate_gpu_seconds
from calibnb.sweep.spec import expand
from calibnb.sweep.typed import typed_spec

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT/"nbs"/"plans.csv"


def jobs(part):
    "What a command runs: RunConfigs, or notebooks as (path, parameters)."
    args = parser().parse_args(shlex.split(part)[1:])
    given = dict(args.parameters)
    if hasattr(args, "what"):
        return [job.config for job in expand(typed_spec(args.what, given, args.grid))]
    notebooks = map(Notebook, args.experiments)
    return [(notebook.path, notebook.plan(given)) for notebook in notebooks]


class Planned(Exception):
    "A notebook has come to its plan; its RunConfigs are the argument."


def planned(configs, *_, **__):
    raise Planned(list(configs))


def gone_through(job):
    "Return the RunConfigs of a notebook and its variables after the cell that plans its trainings."
    path, settings = job
    cells = ["".join(cell["source"]) for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    names = settings | dict(settings=settings)
    with tempfile.TemporaryDirectory() as folder, patch.object(calibnb.runs, "plan_table", planned):
        with patch.dict(os.environ, CALIBNB_RUNS=folder):
            try:
                for cell in cells[2:]:  # after the parameters and their checks, which `Notebook.plan` has made
                    exec(cell, names)
            except Planned as plan:
                return plan.args[0], names
    raise ValueError(f"{path}: has a parameter dry_run and makes no plan")


def trainings(job):
    "The RunConfigs of a job; none of a notebook that trains nothing."
    if not isinstance(job, tuple):
        return [job]
    return gone_through(job)[0] if "dry_run" in job[1] else []


def plan(command):
    "A row of the file."
    configs = [config for part in command.split(" && ") for job in jobs(part) for config in trainings(job)]
    seconds = [estimate_gpu_seconds(config) for config in configs]
    hours = "" if None in seconds else f"{sum(seconds)/3600:.1f}"
    return dict(command=command, runs=len(configs), gpu_hours=hours)


def main(file=FILE):
    commands = pd.read_csv(ROOT/"nbs"/"places.csv", keep_default_na=False).command
    os.chdir(ROOT)
    rows = [plan(command) for command in dict.fromkeys(commands) if command]
    pd.DataFrame(rows).to_csv(file, index=False)
    for row in rows:
        print(f"{row['runs']} trainings, {row['gpu_hours'] or '?'} hours: {row['command']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
