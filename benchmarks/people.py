"""What people wait for, in seconds on this machine: commands, audits, notebooks, the first minutes of a clone.

The rows of a clone install into it, run `make demo` and `make test`, and take a quarter of an hour.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from harness import best_of, wall_time

from calibnb import losses
from calibnb.core import Predictions
from calibnb.data import load_data
from calibnb.evaluate import evaluate
from calibnb.models import make_model
from calibnb.train import Recipe, Trainer

ROOT = Path(__file__).parents[1]


def command(line, **env):
    "Run a command of this environment; its wall time in seconds, and its peak memory in GB."
    name, *args = line.split()
    program, start = Path(sys.executable).with_name(name), time.perf_counter()
    process = subprocess.Popen([program, *args], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    return time.perf_counter() - start, used.ru_maxrss/2**20


def write_logits(path, N, K):
    "Overconfident predictions of N samples, as .npz."
    draw = np.random.default_rng(0)
    logits = 3*draw.standard_normal((N, K), dtype=np.float32)
    pieces = np.array_split(logits, 1 + N*K//10**7)
    target = np.concatenate([(z/1.5 + draw.gumbel(size=z.shape)).argmax(1) for z in pieces])
    np.savez(path, logits=logits, target=target)
    return path


def audit_rows(d):
    "Seconds to the answer and to the report, and the memory of the command."
    sizes = [(10_000, 10, 6, 10, None, None), (50_000, 100, 12, 18, None, None), (1_000_000, 10, 40, None, 2, None),
             (50_000, 1_000, 90, None, 5.3, 3)]
    for N, K, answer, report, most_memory, nice_memory in sizes:
        path, what, times = write_logits(Path(d)/"logits.npz", N, K), f"calibnb audit, {N:,}x{K:,}", 3 if report else 1
        line, runs = f"calibnb audit {path} --logits", dict(CALIBNB_RUNS=str(Path(d)/"runs"))
        found = [command(f"{line} --no-report", **runs) for _ in range(times)]
        seconds, memory = zip(*found)
        yield best_of(f"{what}, answer", iter(seconds).__next__, answer, times=times)
        if most_memory:
            yield best_of(f"{what}, memory of the answer", iter(memory).__next__, most_memory, "1 GB", times,
                          nice_memory)
        if report:
            yield best_of(f"{what}, report written", lambda: command(f"{line} --to {d}/audit", **runs)[0], report)


def evaluate_rows():
    for N, K, at_most, goal in (10_000, 10, 1.35, 1.), (1_000, 1_000, 3., None):
        draw = torch.Generator().manual_seed(0)
        logits = 3*torch.randn(N, K, generator=draw)
        preds = Predictions(logits, torch.multinomial((logits/1.5).softmax(1), 1, generator=draw)[:, 0])
        evaluate(preds, n_boot=2, draws=1)  # imports
        yield best_of(f"evaluate, {N:,}x{K:,}", lambda: wall_time(lambda: evaluate(preds)), at_most, goal=goal)


def five_trainings():
    "CPU seconds of five seeds of the digits MLP, 150 epochs."
    start = time.process_time()
    for seed in range(5):
        torch.manual_seed(seed)
        splits = load_data("digits", seed=seed)
        model, recipe = make_model("mlp", 10, splits.in_shape), Recipe.quick(150, seed=seed)
        Trainer(model, losses.make_loss("ce"), recipe, "cpu").fit(splits)
    return time.process_time() - start


STUDIES = ("toy_gaussian", "nll_overfitting", "calibratability", "loss_comparison", "loss_geometry",
           "meta_regularization", "shift", "weighted_gradients")


def notebook_rows():
    "Each study in its quick mode by papermill, five seeds, nothing made before."
    for name in STUDIES:
        with tempfile.TemporaryDirectory() as d:
            line, runs = f"papermill {ROOT}/nbs/experiments/{name}.ipynb {d}/out.ipynb", f"{d}/runs"
            yield best_of(f"papermill {name}, quick", lambda: command(line, CALIBNB_RUNS=runs)[0], 90, times=1)


def make_there(target, clone):
    "Run a target of a clone's Makefile: seconds until it has counted the findings of a study (or None), and in all."
    inherited = "CALIBNB_RUNS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH"
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    start, findings = time.perf_counter(), None
    process = subprocess.Popen(["make", target], cwd=clone, env=env, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    for line in process.stdout:
        if findings is None and line.split()[:1] == ["findings"]:
            findings = time.perf_counter() - start
    if process.wait():
        raise RuntimeError(f"make {target} failed in {clone}")
    return findings, time.perf_counter() - start


def clone_rows():
    "From `git clone` to findings, and the tests; packages come from wherever they come from for you."
    with tempfile.TemporaryDirectory() as d:
        cloning = wall_time(lambda: subprocess.run(["git", "clone", "-q", ROOT, f"{d}/clone"], check=True))
        findings, demo = make_there("demo", f"{d}/clone")
        yield best_of("clone to the first findings of make demo", lambda: cloning + findings, 90, times=1)
        yield best_of("make demo in a fresh clone", lambda: demo, 180, times=1)
        make_there("test", f"{d}/clone")  # installs what tests need
        yield best_of("make test", lambda: make_there("test", f"{d}/clone")[1], 480, times=1)


def people_rows():
    "What people wait for, in seconds."
    for line in "calibnb --help", "calibnb list", "calibnb runn":
        yield best_of(line, lambda: command(line)[0], .4)
    torch.set_num_threads(2)
    yield from evaluate_rows()
    with tempfile.TemporaryDirectory() as d:
        yield from audit_rows(d)
    torch.set_num_threads(1)
    yield best_of("digits MLP, 150 epochs, five seeds, CPU", five_trainings, 8, goal=3)
    yield from notebook_rows()
    yield from clone_rows()
