"What the tests of the studies share: how the tables, trainings and findings of a run are read."
import csv
import sys

import matplotlib as mpl
import nbformat
import numpy as np
from conftest import EXPERIMENTS, ROOT

from calibnb.data import load_data
from calibnb.metrics import ece
from calibnb.notebooks import HOLDS, UNDECIDED, Notebook
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import Run
from calibnb.runs.folder import find_runs

sys.path.insert(0, str(ROOT/"docs"))
import plans  # noqa: E402


def table(folder, name):
    "The rows of a table that a study kept, as text."
    with open(folder/"tables"/f"{name}.csv", newline="") as file:
        return list(csv.reader(file))


def trainings(root, experiment):
    "The runs that a study has trained."
    folders = [f for f in find_runs(root) if f.path.parent.name == experiment and f.info["kind"] == "train"]
    return [Run(f.path) for f in folders]


def percent(values):
    "As the tables have it: mean ± standard deviation over repetitions."
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def ece_percent(run):
    preds = run.predictions("test")
    return 100*ece(preds.probs, preds.target).item()


def scaled_ece(run):
    "In percent, after temperature scaling on the validation samples."
    val, test = run.predictions("val"), run.predictions("test")
    probs = TemperatureScaling().fit(val.logits, val.target).transform(test.logits)
    return 100*ece(probs, test.target).item()


def true_error(run):
    "In percent: how far the confidences of test samples are from the true probabilities of the predicted classes."
    posterior = load_data(run.config.data, seed=run.config.seed, **run.config.data_args).test.posterior
    conf, pred = run.predictions("test").probs.max(1)
    return 100*(posterior.gather(1, pred[:, None])[:, 0] - conf).abs().mean().item()


OPENED = "experiment = Experiment("
DRAWS_NOTHING = "experiment.figure = lambda fig, *name, **options: plt.close(fig)"


def with_cell(name, tmp_path, source=""):
    "A copy of a study with a cell after its imports; it draws no figures, which takes half of the time."
    nb = nbformat.read(EXPERIMENTS/f"{name}.ipynb", 4)
    opens, = [i for i, c in enumerate(nb.cells) if OPENED in c.source]
    nb.cells.insert(opens + 1, nbformat.v4.new_code_cell(f"{DRAWS_NOTHING}\n{source}"))
    nbformat.write(nb, tmp_path/f"{name}.ipynb")
    return tmp_path/f"{name}.ipynb"


def plan(name, **settings):
    "The RunConfigs that a study would train, without a kernel."
    notebook = Notebook(name)
    with mpl.rc_context():  # notebooks set a style
        return plans.trainings((notebook.path, notebook.plan(dict(quick=False) | settings)))


def finding(folder, start):
    "The one finding whose claim begins like this."
    found, = [f for f in folder.result.findings if f.claim.startswith(start)]
    return found


def margin(folder, start):
    "By how much a claim is right: above 0 where it is, whatever the verdict."
    return finding(folder, start).effect.value


def kinds(folder):
    return {f.kind for f in folder.result.findings}


def assert_undecided_by_two(folder):
    "Of two repetitions: identities hold, every other claim waits for more."
    for found in folder.result.findings:
        assert found.verdict == (HOLDS if found.kind == "identity" else UNDECIDED), found.claim
        assert found.kind == "identity" or "n = 2 seeds, want 5" in found.effect.note
