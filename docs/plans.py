"""Trainings and hours of each command of `nbs/places.csv`, into `nbs/plans.csv`: `make plans` calls this.

The notebook or the sweep says what it would train, by a dry run; nothing is trained. A command whose notebooks and
sweeps are as they were is not asked again.
"""
import os
import shlex
import sys
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pandas as pd

from calibnb.cli.command import parser
from calibnb.notebooks.execute import code_hash, find_notebook, run_notebook
from calibnb.params import notebook_parameters
from calibnb.runs.many import plan_table
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
    return [(find_notebook(name), given) for name in args.experiments]


def parts(command):
    return command.split(" && ")


def made_of(command):
    "The hash of what decides the plan: the code of its notebooks, or the text of its sweep."
    def of(part):
        args = parser().parse_args(shlex.split(part)[1:])
        names = [args.what] if hasattr(args, "what") else args.experiments
        return [Path(n).read_text() if Path(n).suffix == ".yaml" else code_hash(find_notebook(n)) for n in names]
    return sha256("\n".join(text for part in parts(command) for text in of(part)).encode()).hexdigest()[:16]


@contextmanager
def empty_runs():
    "A folder for runs in which there are none, so that every training counts."
    before = os.environ.get("CALIBNB_RUNS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CALIBNB_RUNS"] = folder
        try:
            yield folder
        finally:
            del os.environ["CALIBNB_RUNS"]
            if before is not None:
                os.environ["CALIBNB_RUNS"] = before


NONE = pd.DataFrame(dict(gpu_hours=[]))
asked = {}  # notebooks with their parameters, which several commands may have in common -> table


def trainings(job):
    "The table of the trainings of a job; of a notebook that trains nothing an empty one."
    if not isinstance(job, tuple):
        return plan_table([job], estimate=True)
    notebook, given = job
    key = str(notebook), str(sorted(given.items()))
    if key not in asked:
        asked[key] = dry_run(notebook, given) if "dry_run" in notebook_parameters(notebook) else NONE
    return asked[key]


def dry_run(notebook, given):
    folder = run_notebook(notebook, given | dict(dry_run=True))
    try:
        return pd.read_csv(folder/"tables"/"plan.csv")
    except pd.errors.EmptyDataError:
        return NONE


def plan(command):
    "A row of the file."
    with empty_runs():
        tables = [trainings(job) for part in parts(command) for job in jobs(part)]
    hours = sum(table.gpu_hours.sum(skipna=False) for table in tables)
    known = hours == hours  # NaN where one is not known
    return dict(command=command, runs=sum(map(len, tables)), gpu_hours=f"{hours:.1f}" if known else "",
                source=made_of(command))


def main():
    os.chdir(ROOT)
    rows = pd.read_csv("nbs/places.csv", keep_default_na=False)
    known = {row["command"]: row for row in pd.read_csv(FILE, dtype=str, keep_default_na=False).to_dict("records")}
    commands = [command for command in dict.fromkeys(rows.command) if command]
    made = []
    for command in commands:
        old = known.get(command)
        made.append(old if old and old["source"] == made_of(command) else plan(command))
        print(f"{made[-1]['runs']} trainings, {made[-1]['gpu_hours'] or '?'} hours: {command}", flush=True)
    pd.DataFrame(made).to_csv(FILE, index=False)


if __name__ == "__main__":
    sys.exit(main())
