"""Pairs of commands that write to one place at once: in the end that is what one of them alone would have left.

`CALIBNB_TEST_PAIRS=50 pytest tests/cli/test_side_by_side.py` tries as many; the kinds take turns, the rest is drawn.
"""

import errno
import os
import random
import re

import numpy as np
import pytest
import torch
from conftest import Command, forks

from calibnb import cli
from calibnb.cli.folder import _foreign
from calibnb.core import atomic
from calibnb.models import make_model
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import RunConfig, get_run
from calibnb.train import Recipe

N_PAIRS = int(os.environ.get("CALIBNB_TEST_PAIRS", 5))
LOGITS = 4 * torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
TARGET = torch.multinomial((LOGITS / 2).softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
AUDIT = "audit {file}.npz --logits --bins 5 --calibrator temperature --title {file} --to {to}"
KINDS = {  # what the two may be, and where they write
    "two audits of one file into two folders": ([AUDIT.format(file="a", to=to) for to in ("out", "other")], "out"),
    "two audits into one folder": ([AUDIT.format(file=file, to="out") for file in "ab"], "out"),
    "two calibrators to one file": ([f"apply {c}.safetensors a.npz --logits --out out.csv" for c in "ab"], "out.csv"),
    "two networks to one file": (
        [f"predict {w}.pt digits --model mlp --option hidden [8] --out out.npz" for w in "ab"], "out.npz"),
    "two tables to one file": ([f"collect --root runs-{r} --csv out.csv" for r in "ab"], "out.csv"),
}


def pairs(n, seed=0):
    "n pairs: (kind, which of its commands is first, which second)."
    draw = random.Random(seed)
    for kind in [*list(KINDS) * (n // len(KINDS)), *draw.sample(list(KINDS), n % len(KINDS))]:
        yield kind, *draw.sample(KINDS[kind][0], 2)


def make_files(here):
    for name, logits in dict(a=LOGITS, b=2 * LOGITS).items():
        np.savez(here / f"{name}.npz", logits=logits.numpy(), target=TARGET.numpy())
        TemperatureScaling().fit(logits, TARGET).save(here / f"{name}.safetensors")
        weights = make_model("mlp", 10, (1, 4, 4), hidden=[8], seed=ord(name)).state_dict()
        torch.save(weights, here / f"{name}.pt")
        get_run(RunConfig(recipe=Recipe.quick(1, seed=ord(name))), here / f"runs-{name}", progress=False)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    here = tmp_path_factory.mktemp("here")
    make_files(here)
    return here


def command(line, here, folder):
    env = os.environ | dict(CALIBNB_RUNS=str(here / "runs"), CALIBNB_DATA=str(here / "data"))
    return Command(called, line, str(here), env=env, folder=folder)


def called(line, folder):
    os.chdir(folder)
    return cli.main(line.split())


def contents(path):
    "Name -> text of the files at a path; without what is drawn anew each time, such as the names of cells."
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    texts = {p.relative_to(path).as_posix(): p.read_bytes().decode("latin-1") for p in files}
    known = {name: re.sub(r"T_[0-9a-f]{5}", "T", text) for name, text in texts.items()}
    return {name: text for name, text in known.items() if name not in ("audit.ipynb", "audit.json")}


def ended(commands):
    for one in commands:
        out, err = one.communicate(600)
        assert one.returncode == 0 and "Traceback" not in err + out, (one.returncode, err)


@pytest.fixture(scope="module")
def alone(here, tmp_path_factory):
    "What a command leaves that has the place for itself, by command."
    known = {}

    def left(line, place):
        if line not in known:
            ended([command(line, here, tmp_path_factory.mktemp("ends"))])
            known[line] = contents(here / line.split()[-1])
            assert known[line]
        return known[line]

    return left


@pytest.mark.parametrize("kind, first, second", list(pairs(N_PAIRS)))
def test_of_two_commands_one_stands(here, alone, tmp_path, kind, first, second):
    forks()
    place = here / KINDS[kind][1]
    ends = [alone(line, place) for line in (first, second)]
    ended([command(line, here, tmp_path) for line in (first, second)])
    for line in (first, second):
        left = here / line.split()[-1]
        assert contents(left) in ends
        assert left.is_file() or _foreign(left) == []
    assert not [p.name for p in here.iterdir() if p.name.startswith(".")]


def broken(*args):
    raise OSError(errno.EIO, "no luck")


def not_exchanged(a, b):
    return False


STEPS = {  # what fails -> which functions of `atomic` are replaced
    "the disk is full": dict(_flush=broken),
    "the exchange": dict(_exchange=broken),
    "the second of two renamings": dict(_exchange=not_exchanged, _rename=broken),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch, step):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    renamed = atomic._rename
    for name, function in STEPS[step].items():
        monkeypatch.setattr(atomic, name, function)
    calls = iter([renamed])  # the first renaming finds the folder occupied
    if "_rename" in STEPS[step]:
        monkeypatch.setattr(atomic, "_rename", lambda *args: next(calls, broken)(*args))
    with pytest.raises(OSError), atomic.atomic_folder(tmp_path / "made") as new:
        (new / "new").write_text("new")
    assert {p.name: [q.name for q in p.iterdir()] for p in tmp_path.iterdir()} == {"made": ["old"]}
