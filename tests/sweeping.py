"What tests of sweeps share: a notebook that fails as it is told, a file of a user's, commands that can be ended."
import os

import pytest
import yaml
from conftest import Command, forks, write_notebook
from holding import main_held
from yours import forget

from calibnb.cli import main
from calibnb.runs import collect
from calibnb.runs.folder import find_runs
from calibnb.sweep import sweep

HOW = """import os, signal, time
from calibnb.notebooks import Experiment
experiment = Experiment('faulty', dict(seed=seed, how=how, seconds=seconds))
time.sleep(seconds)
if how == 'raises': raise ValueError('no luck today')
if how == 'killed': os.kill(os.getpid(), signal.SIGKILL)
if how == 'stuck': time.sleep(3600)
if how == 'gpu': experiment.file('gpu.txt').write_text(os.environ['CUDA_VISIBLE_DEVICES'])
if how == 'no result': raise SystemExit(0)
if how == 'full': experiment.file('big.bin').write_bytes(bytes(8_000_000))
experiment.findings([])"""
LONG = dict(preset="quick", base={"recipe.epochs": 20}, grid=dict(seed=[0, 1]))
OWN = """from torch import nn
from calibnb.data import digits, register_data
from calibnb.losses import register_loss
from calibnb.models import MLP, register_model
register_loss("own_loss")(lambda z, y, k=2.: k*nn.functional.cross_entropy(z, y, reduction="none"))
register_model("own_net")(lambda num_classes, in_shape, width=8: MLP(num_classes, in_shape, hidden=(width,)))
register_data("own_data")(lambda seed, n_train=200: digits(seed, n_train=n_train))
"""


@pytest.fixture(name="faulty")
def faulty_notebook(tmp_path):
    "A notebook that fails in the way that its parameter names."
    return write_notebook(tmp_path/"faulty.ipynb", "how: str = 'well'\nseed: int = 0\nseconds: float = 0.0", HOW)


@pytest.fixture(name="own")
def own_names(tmp_path, monkeypatch):
    "A loss, a network and a data set that a file of the user's registers, beside cross-entropy."
    (tmp_path/"own.py").write_text(OWN)
    monkeypatch.setenv("CALIBNB_PLUGINS", str(tmp_path/"own.py"))
    base = {"data": "own_data", "model": "own_net", "recipe.epochs": 1}
    yield dict(preset="quick", base=base, grid=dict(loss="ce,own_loss"))
    forget(tmp_path/"own.py")


@pytest.fixture(autouse=True)
def two_workers(monkeypatch):
    forks()
    monkeypatch.setenv("CALIBNB_WORKERS", "2")


started = []


@pytest.fixture(autouse=True)
def nothing_goes_on():
    "What a test that fails has started ends with it."
    yield
    while started:
        started.pop().kill()


def command(args, root, function=main, env={}):
    process = Command(function, args, env=os.environ | dict(CALIBNB_RUNS=str(root)) | env, folder=root.parent)
    started.append(process)
    return process


def held_command(args, root, go):
    "One whose trainings save after a step and wait until the file `go` is there: they cannot be over too soon."
    return command(args, root, main_held, dict(CALIBNB_TEST_GO=str(go)))


def spec_file(tmp_path, spec):
    path = tmp_path/"sweep.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def begun(folder):
    "How often a run was begun."
    return (folder/"log.txt").read_text().count("begun by")


def running(root, file=""):
    "Return the runs that are at work and have a file."
    return [f for f in find_runs(root) if f.status.get("state") == "running" and (f/file).exists()]


def with_checkpoint(root):
    return running(root, "checkpoint.pt")


def measures(root):
    "Settings and results of all runs, but not when they were made."
    return collect(root).sort_values("run").reset_index(drop=True)


def same_tables(own, tmp_path, **how):
    "Make a sweep with a failure with the options `how` and in processes here; compare the tables, return the first."
    with open(tmp_path/"own.py", "a") as file:
        file.write("""
@register_loss("unlucky")
def unlucky(z, y):
    if len(z) > 2: raise ValueError("no luck today")
    return nn.functional.cross_entropy(z, y)
""")
    spec = own | dict(grid=dict(loss="ce,unlucky"))
    there = sweep(spec, tmp_path/"there", progress=False, **how)
    here = sweep(spec, tmp_path/"here", workers=1, progress=False)
    for table in there, here:
        assert list(table.state) == ["done", "failed"] and "no luck today" in table.reason[1]
    assert measures(tmp_path/"there").equals(measures(tmp_path/"here"))
    return there
