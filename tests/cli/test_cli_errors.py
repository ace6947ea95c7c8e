"""Wrong usages of the command line, by the hundred.

Each ends with a code that is not 0, one line on stderr that names what is wrong, no traceback, and nothing written.
"""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, code_cell, on_processes, write_cells
from fuzz import run_case
from safetensors.torch import save_file

from calibnb import cli
from calibnb.cli import command as command_room
from calibnb.data.downloads import downloads
from calibnb.models import make_model
from calibnb.notebooks.description import _describe_plan
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import RunConfig, get_run
from calibnb.train import Recipe

SETTINGS_FOLDERS = "IPYTHONDIR", "MPLCONFIGDIR", "JUPYTER_RUNTIME_DIR", "XDG_CONFIG_HOME"
DRAW = torch.Generator().manual_seed(0)
LOGITS = 4 * torch.randn(60, 3, generator=DRAW)
TARGET = torch.multinomial((LOGITS / 2).softmax(1), 1, generator=DRAW)[:, 0]


def arrays(path, logits=LOGITS, target=TARGET, name="logits"):
    np.savez(path, **{name: logits.numpy(), "target": target.numpy()})


def notebook(path, *parameters, tags=("parameters",)):
    write_cells(path, *(code_cell(source, *tags) for source in parameters), code_cell("open('executed', 'w')"))


def make_predictions(here):
    "Files of predictions, most of them wrong in a way that their names say."
    arrays(here / "good.npz")
    arrays(here / "back\\good.npz")
    arrays(here / "other.npz", LOGITS.flip(0), TARGET.flip(0))
    arrays(here / "probs.npz", LOGITS.softmax(1), name="probs")
    arrays(here / "two.npz", LOGITS[:, :2], TARGET.clamp_max(1))
    arrays(here / "three.npz", LOGITS[:3], TARGET[:3])
    arrays(here / "label.npz", LOGITS, TARGET + 1)
    arrays(here / "short.npz", LOGITS, TARGET[:-1])
    arrays(here / "nan.npz", LOGITS.clone().index_fill_(0, torch.tensor([4]), float("nan")))
    arrays(here / "oneclass.npz", LOGITS[:, :1], 0 * TARGET + 2)  # of one column labels are 0 and 1
    arrays(here / "disguised.npz", LOGITS.softmax(1))
    np.save(here / "z.npy", LOGITS.numpy())
    np.save(here / "y.npy", TARGET.numpy())
    np.savez(here / "unnamed.npz", LOGITS.numpy())
    whole = (here / "good.npz").read_bytes()
    (here / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for suffix in "npz", "npy", "csv", "pt", "safetensors":
        (here / f"damaged.{suffix}").write_bytes(b"\x00\xffno such thing\n\n" * 3)
        (here / f"empty.{suffix}").write_bytes(b"")
        (here / f"folder.{suffix}").mkdir()
    (here / "words.csv").write_text("a,b,target\nx,1,0\n")


def make_links(here):
    "Other names of files that commands read."
    for link, target in dict(round=".", linked="good.npz", network="calibrator.safetensors").items():
        (here / f"{link}{Path(target).suffix}").symlink_to(target)
    os.link(here / "good.npz", here / "hard.npz")
    (here / "images" / "a").mkdir(parents=True)
    (here / "images" / "a" / "1.png").write_bytes(b"an image")
    (here / "image.npz").symlink_to("images/a/1.png")
    (here / "mine" / "tables").mkdir(parents=True)
    for name in "report.html", "tables/reliability_mine.csv":
        (here / "mine" / name).write_text("written by hand")


def make_calibrators(here):
    TemperatureScaling().fit(LOGITS, TARGET).save(here / "calibrator.safetensors")
    TemperatureScaling().fit(torch.cat([LOGITS, LOGITS[:, :1]], 1), TARGET).save(here / "four.safetensors")
    save_file(dict(a=LOGITS), here / "tensors.safetensors")
    whole = (here / "calibrator.safetensors").read_bytes()
    (here / "cut.safetensors").write_bytes(whole[:-3])


def make_notebooks(here):
    notebook(here / "fine.ipynb", "seed: int = 0\nrate: float = 0.1")
    notebook(here / "untagged.ipynb", "seed: int = 0", tags=())
    notebook(here / "twice.ipynb", "seed: int = 0", "rate: float = 0.1")
    notebook(here / "seedless.ipynb", "rate: float = 0.1")
    notebook(here / "untyped.ipynb", "seed = 0")
    notebook(here / "broken.ipynb", "seed: int = 0 +")
    notebook(here / "computed.ipynb", "seed: int = int('3')")
    notebook(here / "annotated.ipynb", "seed: int = 0\nx: open('executed', 'w') = 1")
    notebook(here / "mistyped.ipynb", "seed: int = 'three'")
    for name, text in dict(empty="", list="[]", cells='{"cells": 3}', cut='{"cells": [').items():
        (here / f"{name}.ipynb").write_text(text)
    (here / "binary.ipynb").write_bytes(b"\xff\xfe\x00")
    (here / "folder.ipynb").mkdir()
    (here / "script.py").write_text("open('executed', 'w')")


GOOD_SPECS = {
    "fine.yaml": "preset: quick\ngrid: {seed: '0:2'}", "npz.yaml": "base: {data: 'npz:absent.npz'}",
    "images.yaml": "base: {data: 'imagefolder:absent'}", "corrupted.yaml": "base: {data: 'corrupted:npz:absent.npz'}",
}
SPECS = {  # file -> (its text, what is said of it); what a configuration refuses: BAD in tests/runs/test_runs.py
    "empty.yaml": ("", "empty.yaml"), "list.yaml": ("[1, 2]", "list.yaml"), "text.yaml": ("just text", "text.yaml"),
    "tabs.yaml": ('grid:\n\t- 3', "tabs.yaml"), "open.yaml": ("grid: {loss: [ce", "open.yaml"),
    "two.yaml": ('a: 1\n---\nb: 2', "two.yaml"),
    "python.yaml": ("base: !!python/object/apply:os.system ['touch executed']", "python.yaml"),
    "unknown.yaml": ("bses: {}", "bses: not known"), "numbers.yaml": ("base: {1: 2}", "base"),
    "flat.yaml": ("base: 3", "base"), "cases.yaml": ("cases: 3", "cases"), "nocase.yaml": ("cases: []", "cases"),
    "case.yaml": ("cases: [3]", "cases"), "axis.yaml": ("grid: {seed: 3}", "grid.seed"),
    "axes.yaml": ("grid: [seed]", "grid"), "void.yaml": ("grid: {seed: []}", "seed: [] holds no value"),
    "range.yaml": ("grid: {seed: 1:x}", "recipe.seed"), "preset.yaml": ("preset: quik", "did you mean 'quick'"),
    "presets.yaml": ("preset: [quick]", "preset"),
    "both.yaml": ('preset: quick\nnotebook: train', "preset: only for training runs"),
    "recipe.yaml": ("base: {recipe.lrr: 2}", "recipe.lrr: not known"),
    "conflict.yaml": ("base: {seed: 1}\ngrid: {seed: '0:2'}", "seed is in base too"),
    "notebook.yaml": ("notebook: trian", "did you mean 'train'"),
    "absent.yaml": ("notebook: absent.ipynb", "absent.ipynb does not exist"),
    "parameter.yaml": ('notebook: toy_gaussian\nbase: {sede: 1}', "sede is not declared"),
    "wide.yaml": ("grid: {seed: '0:5000', data_seed: '0:5000', recipe.epochs: '1:5000'}", "grid"),
    "still.yaml": ("grid: {seed: '0:5:0'}", "seed: '0:5:0'"),
    "preset3.yaml": ('preset: quick\nbase: {recipe: 3}', "recipe: 3"), "bad.json": ("{", "bad.json"),
    "nested.yaml": ("base: " + "["*600, "nested.yaml: it is nested too deeply"),
    "nested.json": ('{"base": ' + "["*600, "nested.json: it is nested too deeply"),
    "twice.yaml": ('base: {loss: ce}\nbase: {loss: brier}', "base is given twice"),
    "twice.json": ('{"base": {"loss": "ce", "loss": "brier"}}',
                   "loss is given twice in the settings that begin in line 1"),
    "long.yaml": ("grid: {seed: '0:99999999999'}", "seed: '0:99999999999'"),
    "binary.yaml": (b'\xff\xfe\x00\x00', "binary.yaml"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    "A working directory with everything in it that can be named wrongly."
    here = tmp_path_factory.mktemp("here")
    make_predictions(here)
    make_calibrators(here)
    make_notebooks(here)
    make_links(here)
    for name, (text, _) in SPECS.items():
        (here / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, text in GOOD_SPECS.items():
        (here / name).write_text(text)
    (here / "broken.py").write_text("no_such_name")
    (here / "file").write_text("a file where a folder should be")
    (here / "nothing").mkdir()
    return here


def listing(here):
    return {str(p.relative_to(here)): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(here.rglob("*"))}


GENERAL = [
    ("runn", "'runn'"), ("--nope", "COMMAND"), ("run", "experiments"), ("sweep", "FILE|NAME"),
    ("audit", "file"), ("apply", "calibrator"), ("download", "DATA"), ("list what", "'what'"),
    ("list data models", "models"), ("collect --nope", "--nope"), ("download cifar11", "cifar11"),
    ("download cifar10 svhn", "svhn"), ("run fine.ipynb --nope", "--nope"),
    ("run fine.ipynb -p rate", "-p/--parameters"), ("sweep fine.yaml --grid", "--grid"), ("collect --csv", "--csv"),
]
RUN = [
    ("toy_gausian", "did you mean 'toy_gaussian'"), ("''", "experiment: ''"),
    ("toy_gaussian nll_overfiting", "nll_overfiting"), ("absent.ipynb", "absent.ipynb does not exist"),
    ("script.py", "script.py"), ("folder.ipynb", "folder.ipynb does not exist"), ("empty.ipynb", "empty.ipynb"),
    ("list.ipynb", "list.ipynb"), ("cells.ipynb", "cells.ipynb"), ("cut.ipynb", "cut.ipynb"),
    ("binary.ipynb", "binary.ipynb"), ("untagged.ipynb", "0 cells tagged"), ("twice.ipynb", "2 cells tagged"),
    ("seedless.ipynb", "no parameter seed, want one"), ("untyped.ipynb", "'seed = 0'"), ("broken.ipynb", "line 1"),
    ("computed.ipynb", "want a literal"), ("annotated.ipynb", "x: annotation"), ("mistyped.ipynb", "seed: 'three'"),
    ("fine.ipynb -p rat 1", "did you mean rate"), ("fine.ipynb -p rate fast", "rate: 'fast'"),
    ("fine.ipynb -p rate NaN", "rate: nan"), ("fine.ipynb -p rate Infinity", "rate: inf"),
    ("fine.ipynb -p rate None", "rate: None"), ("fine.ipynb -p rate 1 -p rate 2", "-p rate: given twice"),
    ("fine.ipynb -p seed -1", "seed: -1"), ("fine.ipynb -p seed 1.5", "seed: 1.5"),
    ("fine.ipynb -p seed 99999999999999999999", "seed: 99999999999999999999"),
    ("fine.ipynb -p seed true", "seed: True"), ("fine.ipynb --timeout 0", "--timeout: 0"),
    ("fine.ipynb --timeout -3", "--timeout: -3"), ("fine.ipynb --timeout x", "--timeout"),
    ("fine.ipynb --copy-to file", "--copy-to: file"), ("fine.ipynb --copy-to file/sub", "--copy-to: file/sub"),
    ("fine.ipynb absent.ipynb", "absent.ipynb"),
    ("fine.ipynb --copy-to .", "--copy-to: fine.ipynb is an input file (experiment)"),
    ("./fine.ipynb --copy-to round", "--copy-to: round/fine.ipynb is an input file (experiment)"),
    ("fine.ipynb nothing/../fine.ipynb --copy-to new", "--copy-to: new/fine.ipynb would be written twice"),
    (f"toy_gaussian --page {ROOT/'nbs/experiments/toy_gaussian.ipynb'}", "is an input file (experiment)"),
    ("fine.ipynb toy_gaussian -p rate 1", "rate is not declared"), ("toy_gaussian -p n_seeds 0", "n_seeds: 0"),
    ("train -p loss focall", "did you mean 'focal'"),
]
SWEEP = [
    *((name, message) for name, (_, message) in SPECS.items()), ("no.yaml", "sweep: no.yaml does not exist"),
    ("nothing", "'nothing' is not known"), ("folder.ipynb", "folder.ipynb does not exist"),
    ("trian", "did you mean 'train'"), ("'' --dry-run", "sweep: '', want the name of a file"),
    ("fine.yaml --dry-run --plugin broken.py", "broken.py cannot be imported (NameError"),
    ("fine.yaml --grid loss", "--grid loss"), ("fine.yaml --grid =3", "--grid =3"),
    ("fine.yaml --grid loss=", "--grid loss="), ("fine.yaml --grid loss=ce --grid loss=brier", "--grid loss=brier"),
    ("fine.yaml --grid los=ce", "los: not known"), ("fine.yaml --grid loss=ce,focall", "focall"),
    ("fine.yaml --grid recipe.lr=fast", "recipe.lr"), ("fine.yaml -p recipe.epochs 0", "recipe.epochs"),
    ("fine.yaml -p recipe.epochs", "-p/--parameters"), ("fine.yaml -p seed 3", "seed is in base too"),
    ("fine.yaml -p recipe.lr 1 -p recipe.lr 2", "-p recipe.lr: given twice"),
    ("fine.yaml --option a 1 --option a 2", "--option a: given twice"), ("fine.yaml --workers 0", "--workers: '0'"),
    ("fine.yaml --workers -1", "--workers: '-1'"), ("fine.yaml --workers x", "--workers: 'x'"),
    ("fine.yaml --workers 1.5", "--workers: '1.5'"), ("fine.yaml --per-gpu 0", "--per-gpu: 0"),
    ("fine.yaml --per-gpu x", "--per-gpu"), ("fine.yaml --engine rya", "--engine"),
    ("fine.yaml --timeout 0", "--timeout: 0"), ("fine.yaml --timeout -5", "--timeout: -5"),
    ("fine.yaml --timeout nan", "--timeout: nan"), ("fine.yaml --timeout x", "--timeout"),
    ("fine.yaml --retries -1", "--retries: -1"), ("fine.yaml --retries x", "--retries"),
    ("fine.yaml --option num_cpus 2", "--option: num_cpus"), ("fine.yaml --engine slurm --per-gpu 2", "--per-gpu: 2"),
    ("train --grid loss=ce,focall", "did you mean 'focal'"), ("train --grid sede=0:3", "sede is not declared"),
    ("train --grid seed=-1", "seed: -1"), ("train -p seed 3 --grid seed=0:2", "seed is in base too"),
    ("train --workers 0", "--workers: '0'"), ("toy_gaussian --grid n_seeds=1,0", "n_seeds: 0"),
    ("fine.ipynb --grid rate=.1,fast", "rate: 'fast'"),
]
COLLECT = [
    ("", "no trainings in"), ("--root absent", "--root: absent is not a folder"),
    ("--root file", "--root: file is not a folder"), ("--root nothing", "no trainings in nothing"),
    ("--experiment train", "no trainings of train in"), ("--csv file/sub.csv", "--csv: file/sub.csv"),
    ("--csv nothing", "--csv: nothing"), ("--root nothing --parquet file/sub.parquet", "--parquet: file/sub.parquet"),
    ("--csv new.csv", "no trainings in"),
    ("--csv new.csv --parquet ./new.csv", "--parquet: ./new.csv would be written twice"),
]
RUNS = [
    ("", "no runs in"),
    ("--root absent", "--root: absent is not a folder"),
    ("train --root nothing", "no runs of train in nothing"),
    ("--csv file/sub.csv", "--csv: file/sub.csv"),
]
AUDIT = [
    ("good.npz --logits --shifted absent.npz", "--shifted: absent.npz does not exist"),
    ("good.npz --logits --shifted good.npz", "--shifted: "), ("good.npz --logits --shifted probs.npz", "probs.npz"),
    ("back\\good.npz --logits --shifted good.npz", "samples are in back\\good.npz too"),
    ("scores.npz", "scores.npz does not exist"), ("good.npz --logits --probs", "not allowed with"),
    ("--logits", "file"), ("'' --logits", "file: '', want the name of a file"),
    ("good.npz --logits --val ''", "--val: '', want the name of a file"),
    ("good.npz --logits --no-report --plugin broken.py", "broken.py cannot be imported (NameError"),
    ("absent.npz --logits", "absent.npz does not exist"), ("nothing --logits", "nothing: no .parquet file found"),
    ("file --logits", "file format: ''"), ("script.py --logits", "file format: '.py'"),
    *((f"damaged.{s} --logits", f"damaged.{s}") for s in ("npz", "npy", "csv", "pt", "safetensors")),
    *((f"empty.{s} --logits", f"empty.{s}") for s in ("npz", "npy", "csv", "pt", "safetensors")),
    *((f"folder.{s} --probs", f"folder.{s}: no .parquet file found") for s in ("npz", "csv", "pt")),
    ("cut.npz --logits", "cut.npz"), ("words.csv --logits", "column 'a' holds text"),
    ("unnamed.npz --logits", "unnamed.npz"), ("good.npz --probs", "good.npz"), ("probs.npz --logits", "probs.npz"),
    ("disguised.npz --logits", "these are probabilities"),
    ("two.npz --logits --val good.npz", "--val: 3 classes, want 2"), ("three.npz --logits", "3 samples, too few"),
    ("label.npz --logits", "label 3"), ("short.npz --logits", "shape (59,)"), ("nan.npz --logits", "row 4 holds nan"),
    ("oneclass.npz --logits", "label 2 at row 0, want 0..1 (logits has one column, of class 1)"),
    ("z.npy --logits", "z.npy holds one array without a name, so no labels"),
    ("z.npy --logits --target absent.npy", "absent.npy does not exist"), ("z.npy --logits --target z.npy", "z.npy"),
    ("good.npz --logits --val absent.npz", "absent.npz does not exist"),
    ("good.npz --logits --val good.npz", "the same samples as preds"),
    ("good.npz --logits --val-target y.npy", "--val-target"),
    ("good.npz --logits --val other.npz --val-target absent.npy", "absent.npy does not exist"),
    *((f"good.npz --logits --bins {m}", f"--bins: {m}") for m in ("0", "-1", str(2**21))),
    ("good.npz --logits --bins x", "--bins"), ("good.npz --logits --bins 1.5", "--bins"),
    ("good.npz --logits --calibrator svss", "--calibrator: 'svss' is not known; did you mean 'svs'?"),
    ("good.npz --logits --calibrator +", "--calibrator: '+' is not known"),
    ("good.npz --logits --calibrator temperature+iso", "then: 'iso' is not known"),
    ("good.npz --logits --seed -1", "--seed: -1"), ("good.npz --logits --seed x", "--seed"),
    ("good.npz --logits --seed 99999999999", "--seed: 99999999999"), ("good.npz --logits --to file", "--to: file"),
    ("good.npz --logits --to file/sub", "--to: file/sub"),
    ("good.npz --logits --to mine", "--to: mine holds report.html and 1 more, which no audit wrote"),
    ("good.npz --logits --to round/mine", "--to: round/mine holds report.html and 1 more"),
    ("good.npz --logits --to .", "--to: . is the current folder"),
    ("good.npz --logits --to ..", "--to: .. is the current folder"),
]
APPLY = [
    ("calibrator.safetensors good.npz --logits --probs --out o.npz", "not allowed with"),
    ("calibrator.safetensors good.npz --logits", "--out"),
    *((f"calibrator.safetensors good.npz --logits --out {name}", f"--out: {name} is an input file (file)")
      for name in ("good.npz", "nothing/../good.npz", "round/good.npz", "linked.npz", "hard.npz")),
    *((f"calibrator.safetensors good.npz --logits --out {name}", f"--out: {name} is an input file (calibrator)")
      for name in ("calibrator.safetensors", "./calibrator.safetensors", "network.safetensors")),
    ("network.safetensors good.npz --logits --out calibrator.safetensors", "is an input file (calibrator)"),
    ("absent.safetensors good.npz --logits --out o.npz", "absent.safetensors"),
    ("nothing good.npz --logits --out o.npz", "nothing"), ("good.npz good.npz --logits --out o.npz", "good.npz"),
    ("damaged.safetensors good.npz --logits --out o.npz", "damaged.safetensors"),
    ("empty.safetensors good.npz --logits --out o.npz", "empty.safetensors"),
    ("cut.safetensors good.npz --logits --out o.npz", "cut.safetensors"),
    ("tensors.safetensors good.npz --logits --out o.npz", "holds no calibrator"),
    ("folder.safetensors good.npz --logits --out o.npz", "folder.safetensors"),
    ("four.safetensors good.npz --logits --out o.npz", "3 classes, want 4"),
    ("calibrator.safetensors absent.npz --logits --out o.npz", "absent.npz does not exist"),
    ("calibrator.safetensors damaged.npz --logits --out o.npz", "damaged.npz"),
    ("calibrator.safetensors nan.npz --logits --out o.npz", "row 4 holds nan"),
    ("calibrator.safetensors probs.npz --logits --out o.npz", "probs.npz"),
    ("calibrator.safetensors good.npz --probs --out o.npz", "--probs: calibrator.safetensors was fitted on logits"),
    ("calibrator.safetensors good.npz --logits --out o", "--out: o, want a name"),
    ("calibrator.safetensors good.npz --logits --out o.xlsx", "'.xlsx'"),
    ("calibrator.safetensors good.npz --logits --out folder.npz", "--out: folder.npz"),
    ("calibrator.safetensors good.npz --logits --out file/o.npz", "--out: file/o.npz"),
]
DRY = [  # a dry run looks for the data before it shows a plan
    ("sweep npz.yaml", "data: absent.npz does not exist"),
    ("sweep images.yaml", "data: absent is not a folder"),
    ("sweep corrupted.yaml", "data: absent.npz does not exist"),
    ("sweep train --grid data=digits,npz:absent.npz", "data: absent.npz does not exist"),
    ("run train -p dry_run true -p data npz:absent.npz", "data: absent.npz does not exist"),
    ("run train -p dry_run true -p data imagefolder:absent", "data: absent is not a folder"),
]
PREDICT = [
    ("absent.pt digits --out p.npz", "network: absent.pt does not exist"),
    ("good.npz digits --out p.npz", "model file: '.npz'"),
    ("calibrator.safetensors digits --out p.csv", "file format: '.csv'"),
    ("calibrator.safetensors digits --out file/p.npz", "--out: file/p.npz"),
    ("calibrator.safetensors digits --model mlp --out p.npz", "holds no state dictionary"),
    ("calibrator.safetensors digitts --model mlp --out p.npz", "did you mean 'digits'"),
    ("calibrator.safetensors corrupted:corrupted:digits --out p.npz",
     "data: corrupted:corrupted:digits has two options called kind"),
    ("calibrator.safetensors digits --split tset --out p.npz", "'tset'"),
    ("calibrator.safetensors digits -p pol 2 --out p.npz", "'pol' is not known"),
    ("calibrator.safetensors folder.npz --out p.npz", "mean, std: not given"),
    ("calibrator.safetensors digits --mean .5 --out p.npz", "want both"),
    ("calibrator.safetensors digits --model mlp --out round/calibrator.safetensors", "is an input file (network)"),
    ("calibrator.safetensors npz:good.npz --model mlp --out hard.npz", "hard.npz is an input file (data)"),
    ("calibrator.safetensors corrupted:npz:good.npz --out good.npz", "--out: good.npz is an input file (data)"),
    ("calibrator.safetensors digits -p words good.npz --out good.npz", "--out: good.npz is an input file (-p)"),
    ("calibrator.safetensors images --mean 0 --std 1 --out image.npz", "image.npz is a link into the input folder"),
    ("calibrator.safetensors nothing --mean 127 --std 64 --out p.npz", "mean: 127, want a number from 0 to 1"),
    ("calibrator.safetensors nothing --mean .5 --std 0 --out p.npz", "std: 0, want a number above 0"),
    ("calibrator.safetensors nothing --mean .5 .5 --std .5 .5 --out p.npz", "2 and 2 numbers, want 3 of each, or 1"),
    ("calibrator.safetensors nothing --mean .5 --std .5 --size 0 --out p.npz", "--size: 0, want 1 to 10000 pixels"),
    ("calibrator.safetensors nothing --mean .5 --std .5 --size 1000000 --out p.npz", "--size: 1000000, want 1 to"),
]
COMMANDS = dict(run=RUN, sweep=SWEEP, collect=COLLECT, runs=RUNS, audit=AUDIT, apply=APPLY, predict=PREDICT)
WRONG = GENERAL + [(f"{command} {rest}", told) for command, cases in COMMANDS.items() for rest, told in cases]
WRONG += [(f"{line} --dry-run" if line.startswith("sweep") else line, told) for line, told in DRY]


def words(line):
    return ["" if word == "''" else word for word in line.split()]


def call(argv):
    "Exit code, as a shell sees it."
    try:
        return cli.main(argv)
    except SystemExit as e:
        return e.code


@pytest.mark.parametrize("line, told", WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_usage_ends_in_one_line_and_writes_nothing(here, monkeypatch, capfd, line, told):
    monkeypatch.chdir(here)
    monkeypatch.setenv("CALIBNB_RUNS", str(here / "runs"))
    monkeypatch.setenv("CALIBNB_DATA", str(here / "data"))
    monkeypatch.setenv("CALIBNB_PLUGINS", "")
    before = listing(here)
    code = call(words(line))
    out, err = capfd.readouterr()
    assert code not in (0, None) and isinstance(code, int), (code, out, err)
    assert err.count("\n") == 1 and err.startswith("calibnb: ") and told in err and len(err) < 1000, err
    assert not out and "Traceback" not in err
    assert listing(here) == before


@pytest.mark.parametrize("argv, told", [
    (["run", "train", "-p", "data", "npz:a\udcff.npz"], "data: 'npz:a\\udcff.npz' is not Unicode text"),
], ids=["parameter"])
def test_bytes_that_are_no_text_end_in_one_line(here, monkeypatch, capfd, argv, told):
    "As the shell hands them over: a file name in another encoding has halves of characters."
    monkeypatch.chdir(here)
    monkeypatch.setenv("CALIBNB_RUNS", str(here / "runs"))
    shutil.copy(here / "good.npz", here / "a\udcff.npz")
    try:
        code = call(argv)
    finally:
        os.remove(here / "a\udcff.npz")
    out, err = capfd.readouterr()
    assert code == 2 and not out and err.count("\n") == 1 and told in err, (code, out, err)


def test_an_audit_of_a_file_whose_name_is_no_text(here, monkeypatch, capfd):
    monkeypatch.chdir(here)
    shutil.copy(here / "good.npz", here / "a\udcff.npz")
    try:
        assert call(["audit", "a\udcff.npz", "--logits", "--calibrator", "temperature", "--to", "of_bytes"]) == 0
    finally:
        os.remove(here / "a\udcff.npz")
    assert "a\\udcff.npz" in (here / "of_bytes" / "report.html").read_text() and not capfd.readouterr().err
    shutil.rmtree(here / "of_bytes")


def test_a_dry_run_names_the_data_to_download(here, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path))
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    (tmp_path / "cifar.yaml").write_text("base: {data: cifar10, model: mlp}\ngrid: {seed: '0:2'}")
    assert call(["sweep", str(tmp_path / "cifar.yaml"), "--dry-run"]) == 0
    out, err = capfd.readouterr()
    said = [line for line in out.splitlines() if "run `calibnb download cifar10`" in line]
    assert len(said) == 1 and said[0].startswith(f"data: cifar10 is not in {tmp_path}") and not err
    pd.DataFrame(dict(data=["cifar10"]*2 + ["digits"])).to_csv(tmp_path / "plan.csv")
    assert "run `calibnb download cifar10`" in _describe_plan(tmp_path / "plan.csv")[-1]


def test_every_argument_that_names_a_file_is_compared_with_the_others():
    commands = cli.parser().commands.choices.values()
    named = {action.dest for command in commands for action in command._actions if action.metavar in ("FILE", "DIR")}
    assert named <= set(command_room._PATHS) and {"out", "csv", "page"} <= set(command_room._WRITTEN)


FULL = {  # command -> the file that it would have replaced
    "apply calibrator.safetensors good.npz --logits --out {}": "old.npz",
    "predict weights.pt digits --model mlp --option hidden [8] --out {}": "old.safetensors",
    "collect --root others --csv {}": "old.csv",
    "collect --root others --csv {} --experiment collected": "old.csv.gz",
    "runs --root others --csv {}": "old.csv",
}


@pytest.mark.parametrize("line", FULL)
def test_a_full_disk_leaves_the_old_file(here, tmp_path, monkeypatch, capfd, line):
    monkeypatch.chdir(here)
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path / "data"))
    torch.save(make_model("mlp", 10, (1, 4, 4), hidden=[8]).state_dict(), "weights.pt")
    get_run(RunConfig(experiment="collected", recipe=Recipe.quick(1)), here / "others", progress=False)
    old = tmp_path / FULL[line]
    old.write_text("old")

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert call(words(line.format(old))) == 2
    assert capfd.readouterr().err.count("\n") == 1 and old.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.name != "data"] == [old.name]
    assert call(words(line.format(old))) == 0 and old.read_bytes() != b"old"


def limited(folder, runs, lines):
    "The exit code of each line and what it says, where no file may be larger than 400 bytes."
    os.chdir(folder)
    os.environ["CALIBNB_RUNS"] = runs
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
    found = []
    for line in lines:
        with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
            found.append((cli.main(line.split()), said.getvalue()))
    return found


def test_a_file_that_is_too_large_is_named_and_not_left(here, tmp_path):
    "As under `ulimit -f`; each library reports it in its own way."
    torch.save(make_model("mlp", 10, (1, 4, 4), hidden=[8]).state_dict(), here / "small.pt")
    outs = [str(tmp_path / f"new.{suffix}") for suffix in ("npz", "npy", "csv", "pt", "safetensors")]
    lines = [f"apply calibrator.safetensors good.npz --logits --out {out}" for out in outs]
    lines.append(f"predict small.pt digits --model mlp --option hidden [8] --out {outs[-1]}")
    lines.append(f"audit good.npz --logits --to {tmp_path / 'new'}")
    (ended,) = on_processes(1, limited, here, str(tmp_path / "runs"), lines)
    codes, said = zip(*ended)
    assert codes == (2,)*len(lines), ended
    assert [*said[:-1]] == [f"calibnb: {out}: file too large\n" for out in [*outs, outs[-1]]]
    assert said[-1] == f"calibnb: {tmp_path / 'new'}: file too large\n" and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["run fine.ipynb", "sweep fine.yaml"])
@pytest.mark.parametrize("root", ["file", "file/runs"])
def test_a_root_that_cannot_be_written_is_named_before_anything_starts(here, monkeypatch, capfd, command, root):
    monkeypatch.chdir(here)
    monkeypatch.setenv("CALIBNB_RUNS", str(here / root))
    before = listing(here)
    assert call(words(command)) == 2
    out, err = capfd.readouterr()
    assert err.count("\n") == 1 and f"CALIBNB_RUNS: {here / root}" in err and not out and listing(here) == before


@pytest.mark.parametrize("error", [
    RuntimeError("File not found or corrupted.\nTry again"), OSError("<urlopen error [Errno 111] Connection refused>"),
    EOFError("cut")])
def test_a_download_that_fails_says_where_the_files_may_be_put(tmp_path, monkeypatch, capfd, error):
    def fetch(root):
        raise error

    monkeypatch.setitem(downloads, "cifar10", fetch)
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path / "data"))
    assert call(["download", "cifar10"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "cifar10 could not be downloaded" in err
    assert str(tmp_path / "data") in err and str(error).split("\n")[0] in err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path / "file"))
    assert call(["download", "cifar10"]) == 2 and capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("seed", range(0, 75, 15))
def test_a_slice_of_the_fuzz(tmp_path, seed):
    "`python tests/fuzz.py 3000` does many."
    for number in range(seed, seed + 15):
        case, code, faults, said = run_case(number, tmp_path)
        assert not faults, (number, case, code, said)


@pytest.mark.parametrize("home", ["/proc/nonexistent", "file", "sealed"])
def test_settings_of_jupyter_need_no_home(here, monkeypatch, home):
    "They lie in temporary folders where the home directory cannot be written; the user's own variables win."
    sealed = here / "nothing"
    home = {"file": here / "file", "sealed": sealed}.get(home, home)
    for name in SETTINGS_FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/mine")
    if home == sealed:  # modes are nothing to root
        monkeypatch.setattr(cli.command, "TemporaryFile", lambda dir: (_ for _ in ()).throw(PermissionError(dir)))
    with cli.command._writable_settings():
        made = [Path(os.environ[name]) for name in ("IPYTHONDIR", "MPLCONFIGDIR")]
        assert all(path.is_dir() and os.access(path, os.W_OK) for path in made)
        assert os.environ["JUPYTER_RUNTIME_DIR"] == "/mine"
    assert not any(path.exists() for path in made) and "IPYTHONDIR" not in os.environ


def test_a_reader_that_has_enough_is_no_error(here):
    "As in `calibnb list | head -1`, or of one that reads nothing."
    program = ["bash", "-c", f"{Path(sys.executable).parent / 'calibnb'} list | true"]
    env = os.environ | dict(CALIBNB_RUNS=str(here / "runs"))
    ended = subprocess.run(program, cwd=here, env=env, capture_output=True, text=True, timeout=120)
    assert not ended.stderr, ended.stderr


def test_an_audit_whose_output_has_no_reader_writes_its_report(here):
    "As in `calibnb audit FILE | head`."
    command = f"{Path(sys.executable).parent / 'calibnb'} audit good.npz --logits --calibrator temperature --to piped"
    ended = subprocess.run(["bash", "-c", f"{command} | true"], cwd=here, capture_output=True, text=True, timeout=120)
    assert not ended.stderr and (here/"piped"/"report.html").exists(), ended.stderr
    shutil.rmtree(here/"piped")


@pytest.mark.parametrize("line", ["--help", "run --help", "sweep --help", "--version"])
def test_help_is_not_an_error(capsys, line):
    with pytest.raises(SystemExit) as end:
        cli.main(words(line))
    assert end.value.code == 0 and not capsys.readouterr().err


def test_without_papermill_an_audit_answers_and_a_run_says_what_to_install(here, monkeypatch, capsys):
    "As after `pip install calibnb` without the extra `notebooks`."
    monkeypatch.chdir(here)
    monkeypatch.setitem(sys.modules, "papermill", None)  # cannot be imported
    assert call(words("audit good.npz --logits --calibrator temperature --to new")) == 0
    out, err = capsys.readouterr()
    assert "ECE" in out and not err
    assert {"audit.json", "report.html", "tables"} <= {path.name for path in (here / "new").iterdir()}
    assert call(words("run fine.ipynb")) == 2 and "papermill: not installed" in capsys.readouterr().err


def test_the_shape_of_a_good_result_is_not_changed(here, tmp_path, monkeypatch, capsys):
    "What is checked before lets through what is right."
    monkeypatch.chdir(here)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    out = tmp_path / "new" / "o.npz"
    assert call(words(f"apply calibrator.safetensors good.npz --logits --out {out}")) == 0 and out.exists()
    assert call(words("sweep fine.yaml --dry-run")) == 0 and "2 runs, 2 to be made" in capsys.readouterr().out
    assert json.loads((here / "fine.ipynb").read_text())["cells"]


def test_a_package_that_is_not_installed_is_one_line(tmp_path, monkeypatch, capsys):
    "calibnb apply --out o.parquet and calibnb sweep ended in a traceback."
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["apply", "c.safetensors", "x.npz", "--logits", "--out", str(tmp_path/"o.parquet")]) == 2
    assert capsys.readouterr().err == "calibnb: pyarrow: not installed; pip install 'calibnb[tables]'\n"
    monkeypatch.setitem(sys.modules, "calibnb.runs.tables", None)
    assert cli.main(["runs", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "calibnb: calibnb: not installed; pip install calibnb\n"
