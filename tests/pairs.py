"Pairs of commands that write to one place at once: in the end that is what one of them alone would have left."
import os
import random
import re
import sys

import numpy as np
import torch
from conftest import Command, forks, main_with_forked_kernels, wait_for

from calibnb.cli.folder import _foreign
from calibnb.models import make_model
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import RunConfig, get_run
from calibnb.train import Recipe

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
    "n pairs: (kind, which of its commands is first, which second); the kinds take turns."
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


def command(line, here, folder, notebooks, meet=None):
    env = os.environ | dict(CALIBNB_RUNS=str(here / "runs"), CALIBNB_DATA=str(here / "data"))
    return Command(called, line, str(here), notebooks, meet, env=env, folder=folder)


def called(line, folder, notebooks, meet):
    "The command line in a folder; without notebooks, as where papermill is not installed."
    os.chdir(folder)
    if not notebooks:
        sys.modules["papermill"] = None
    if meet:
        flush_together(meet)
    return main_with_forked_kernels(line.split())


def flush_together(folder):
    "Let the first flush to the disk wait for that of another process: both have then begun to write."
    flush, here = os.fsync, folder / str(os.getpid())

    def fsync(handle):
        if not here.exists():
            here.touch()
            wait_for(lambda: len([*folder.iterdir()]) > 1)
        flush(handle)

    os.fsync = fsync


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


class Place:
    "A folder with files to audit, calibrate, predict and collect, and what each command alone leaves there."
    def __init__(self, here, notebooks):
        self.here, self.notebooks, self.known = here, notebooks, {}
        make_files(here)

    def alone(self, line, folder):
        "What a command leaves that has the place for itself."
        if line not in self.known:
            ended([command(line, self.here, folder, self.notebooks)])
            self.known[line] = contents(self.here / line.split()[-1])
            assert self.known[line]
        return self.known[line]

    def check(self, kind, first, second, folder):
        "Two commands at once leave what one of them alone would have left, and nothing else."
        forks()
        ends = [self.alone(line, folder) for line in (first, second)]
        (folder / "meet").mkdir()
        meet = None if self.notebooks else folder / "meet"  # one of two that share a run waits for the other
        ended([command(line, self.here, folder, self.notebooks, meet) for line in (first, second)])
        for line in (first, second):
            left = self.here / line.split()[-1]
            assert contents(left) in ends
            assert left.is_file() or _foreign(left) == []
        assert not [p.name for p in self.here.iterdir() if p.name.startswith(".")]
