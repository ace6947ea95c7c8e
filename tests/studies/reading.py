"What the tests of the studies share: how the tables, trainings and findings of a run are read."
import csv
import os
import sys
import warnings
from unittest.mock import patch

import matplotlib as mpl
import numpy as np
from conftest import ROOT

from calibnb.data import load_data
from calibnb.metrics import ece
from calibnb.notebooks import Notebook
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import Run
from calibnb.runs.folder import find_runs
from calibnb.studies import CANNOT, HOLDS, OPEN

sys.path.insert(0, str(ROOT/"docs"))
import plans  # noqa: E402


def table(folder, name):
    "Return the rows of a table that a study kept, as text."
    with open(folder/"tables"/f"{name}.csv", newline="") as file:
        return list(csv.reader(file))


def rows(folder, name):
    "Return a table that a study kept as a dictionary: first cell of a row -> column -> text."
    head, *lines = table(folder, name)
    return {line[0]: dict(zip(head[1:], line[1:])) for line in lines}


def trainings(root, experiment):
    "Return the runs that a study has trained, by seed."
    folders = [f for f in find_runs(root) if f.path.parent.name == experiment and f.info["kind"] == "train"]
    return sorted((Run(f.path) for f in folders), key=lambda run: run.config.seed)


def with_loss(root, experiment, loss, data="ambiguous_digits", **options):
    "Return the trainings of a study with a loss, its options and data, by seed; other tests leave those on other data."
    def wanted(config):
        return config.loss == loss and config.data == data and options.items() <= config.loss_args.items()
    return [run for run in trainings(root, experiment) if wanted(run.config)]


def percent(values, digits=2):
    "Return text as the tables have it: mean ± standard deviation over repetitions."
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def ece_percent(run):
    preds = run.predictions("test")
    return 100*ece(preds.probs, preds.target).item()


def eces(runs):
    return np.array([ece_percent(run) for run in runs])


def scaled(run, measure=ece, scaling=TemperatureScaling()):
    "Return a measure of the test set in percent, with the temperature that fits the validation set."
    val, test = run.predictions("val"), run.predictions("test")
    return 100*measure(scaling.fit(val.logits, val.target).transform(test.logits), test.target).item()


def accuracy_percent(run):
    return 100*run.predictions("test").hit.double().mean().item()


def true_ce(run):
    "Return, in percent, the root of the calibration part of the squared distance to the true probabilities."
    posterior = load_data(run.config.data, seed=run.config.seed, **run.config.data_args).test.posterior
    conf, pred = run.predictions("test").probs.double().max(1)
    return 100*np.sqrt(max(0, calibration_part(conf.numpy(), posterior.gather(1, pred[:, None])[:, 0].numpy())))


def calibration_part(conf, truth):
    "The part of the squared distance that a function of the confidence could remove, from 20 bins of equal mass."
    # of equal confidences, each bin has the share that falls into it
    gap = truth - conf
    edges = np.cumsum([0, *map(len, np.array_split(conf, 20))])
    start, end = (np.searchsorted(np.sort(conf), conf, side) for side in ("left", "right"))
    def part(lo, hi):
        share = (np.minimum(end, hi) - np.maximum(start, lo)).clip(0)/(end - start)
        n, mean = share.sum(), (share*gap).sum()/share.sum()
        return n*(mean**2 - (share*(gap - mean)**2).sum()/n/(n - 1))
    return sum(map(part, edges, edges[1:]))/len(conf)


DRAWS_NOTHING = "experiment.figure = lambda fig, *name, **options: plt.close(fig)"


def run_here(name, source, settings, root, until="", figures=True):
    """Run a study in this process, with a cell after its imports; return its variables.

    No kernel starts and nothing is drawn, which takes most of the time. It ends when the variable `until` is there.
    Without `figures` the cells that draw are left out.
    """
    notebook = Notebook(name)
    settings = notebook.plan(settings)
    imports, *cells = plans.cells_after_checks(notebook.path)
    cells = [cell for cell in cells if figures or "experiment.figure(" not in cell]
    names = settings | dict(settings=settings)
    with mpl.rc_context(), patch.dict(os.environ, CALIBNB_RUNS=str(root)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in imports, DRAWS_NOTHING, source, *cells:
            exec(cell, names)
            if until and until in names:
                break
    return names


def plan(name, **settings):
    "Return the RunConfigs that a study would train, without a kernel."
    notebook = Notebook(name)
    with mpl.rc_context():  # notebooks set a style
        return plans.trainings((notebook.path, notebook.plan(dict(quick=False) | settings)))


def finding(folder, start):
    "Return the one finding whose claim begins like this."
    found, = [f for f in folder.result.findings if f.claim.startswith(start)]
    return found


def margin(folder, start):
    "Return by how much a claim is right: above 0 where it is, whatever the verdict."
    return finding(folder, start).effect.value


def shown_rival(found):
    "Return the rival whose margin a finding shows: the one that decides or, if no other is named, the nearest."
    for start in ("margin and p are against ", "the smallest margin is against "):
        if start in found.effect.note: return found.effect.note.split(start)[1].split(";")[0]
    raise AssertionError(found.effect.note)


def assert_open(folder, *kinds, seeds=2):
    "The findings of few repetitions are of these kinds; identities hold, every other claim that is asked waits."
    assert {f.kind for f in folder.result.findings} == set(kinds)
    for found in folder.result.findings:
        if found.verdict == CANNOT: continue
        assert found.verdict == (HOLDS if found.kind == "identity" else OPEN), found.claim
        assert found.kind == "identity" or f"n = {seeds} seed{'s'*(seeds > 1)}, want 5" in found.effect.note
