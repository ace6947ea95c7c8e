"""`make bench`: every measured promise and the peers beside it, as ratios of CPU time on one thread to that of a unit.

    python benchmarks/run.py               every group, written to benchmarks/RESULTS.md
    python benchmarks/run.py losses smooth only these, printed

The groups `images` and `trees` need CIFAR-10 as JPEG files and SST under CALIBNB_DATA.
"""
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import torch
import torch.nn.functional as F
import usual_forms
from harness import HEADER, compare, compare_memory, compare_wall, cpu_name
from nbformat.v4 import new_code_cell, new_notebook
from people import people_rows
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchmetrics.functional.classification import multiclass_calibration_error
from torchvision import transforms
from torchvision.datasets import ImageFolder

from calibnb import losses, metrics
from calibnb.losses import surrogates
from calibnb.train.batches import Batch
from calibnb.data.cache import data_root
from calibnb.data import Split, Splits, load_data
from calibnb.meta import InnerLoss, MetaRecipe, MetaStepper
from calibnb.models import make_model
from calibnb.posthoc import TemperatureScaling
from calibnb.posthoc.listed_temperature import temperature_lists
from calibnb.train import Recipe, Stepper, Trainer
from calibnb.data.trees import HEIGHT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import netcal.metrics
    import netcal.scaling
    import probmetrics.calibrators
    import probmetrics.distributions
    import probmetrics.metrics
    import relplot


def against_cross_entropy(budgets, ours, usual):
    logits, target = torch.randn(1024, 100, requires_grad=True), torch.randint(100, (1024,))
    def step(fn):
        return lambda: torch.autograd.grad(fn(logits, target), logits)
    row = partial(compare, unit_name="F.cross_entropy", unit=step(F.cross_entropy))
    for name, (budget, goal) in budgets.items():
        yield row(f"{name}, forward and backward, 1024x100", step(ours(name)), budget=budget, goal=goal)
        if name in usual:
            yield row(f"{name} as usually written", step(usual[name]))


def loss_rows():
    budgets = dict(focal=(1.95, 1.3), flsd=(2.1, 1.5), bsce=(2.6, 1.5), bsce_gra=(2.1, 1.5), dual_focal=(3, 2))
    functions = dict(
        focal=losses.focal_loss,
        flsd=losses.flsd_loss,
        bsce=losses.bsce_loss,
        dual_focal=losses.dual_focal_loss,
        bsce_gra=partial(losses.bsce_loss, detach_weight=True))
    return against_cross_entropy(budgets, functions.get, usual_forms.LOSSES)


def surrogate_rows():
    budgets = dict(mmce=(3.7, 3), mmce_weighted=(4, None), dece=(8, None))
    return against_cross_entropy(budgets, partial(getattr, surrogates), dict(mmce=usual_forms.mmce_penalty))


def binned_rows(N, K, budget, goal=None):
    probs, target = torch.randn(N, K).softmax(1), torch.randint(K, (N,))
    p, y = probs.numpy(), target.numpy()
    what = f"ECE, {N:,}x{K}"
    row = partial(compare, unit_name="probs.max(1)", unit=lambda: probs.max(1))

    def torchmetrics_ece():
        return multiclass_calibration_error(probs, target, K, n_bins=15, validate_args=False)
    yield row(f"{what}, validate=False", lambda: metrics.ece(probs, target, validate=False), budget=budget,
              goal=goal)
    yield row(f"{what}, with the checks", lambda: metrics.ece(probs, target))
    yield row(f"{what}, torchmetrics", torchmetrics_ece)
    yield row(f"{what}, netcal", lambda: netcal.metrics.ECE(15).measure(p, y))


def metric_rows():
    yield from binned_rows(1_000_000, 10, 1.35, goal=1)
    yield from binned_rows(100_000, 1000, .6)
    logits, target = torch.randn(50_000, 100), torch.randint(100, (50_000,))
    probs = logits.softmax(1)
    row = partial(compare, unit_name="softmax(1).max(1)", unit=lambda: logits.softmax(1).max(1))
    what = "ECE from logits, 50,000x100"
    yield row(what, lambda: metrics.ece_from_logits(logits, target), budget=.76, goal=.45)
    theirs = probmetrics.metrics.Metrics.from_names(["ece-15"])
    yield row(f"{what}, probmetrics", lambda: theirs.compute_all_from_labels_logits(target, logits))
    what = "classwise ECE, 50,000x100, validate=False"
    yield row(what, lambda: metrics.classwise_ece(probs, target, validate=False), budget=7)


def smooth_rows():
    for N, budget, goal in (1_000_000, .076, 1/20), (100_000, .13, 1/12), (10_000, 1/6, None):
        draw = np.random.default_rng(0)
        conf = .5 + .4*draw.beta(2, 2, size=N)
        hit = draw.random(N) < conf**1.2
        probs, target = torch.tensor(np.c_[conf, 1 - conf]), torch.tensor(1 - hit)
        yield compare(
            f"smooth ECE, {N:,}, validate=False",
            lambda: metrics.smooth_ece(probs, target, validate=False),
            "relplot.smECE",
            lambda: relplot.smECE(conf, hit),
            budget,
            goal=goal)


def posthoc_rows():
    logits = 3*torch.randn(50_000, 100)
    target = torch.multinomial((logits/1.7).softmax(1), 1)[:, 0]
    row = partial(compare, unit_name="softmax(1)", unit=lambda: logits.softmax(1))
    what = "temperature by NLL, 50,000x100"
    yield row(what, lambda: TemperatureScaling().fit(logits, target), budget=12)
    probs, y = logits.double().softmax(1).numpy(), target.numpy()
    yield row(f"{what}, netcal (float64)", lambda: netcal.scaling.TemperatureScaling().fit(probs, y))
    theirs, peer = probmetrics.distributions.CategoricalLogits(logits), probmetrics.calibrators
    yield row(f"{what}, probmetrics", lambda: peer.TemperatureScalingCalibrator().fit_torch(theirs, target))
    what = "temperature by ECE, 1000 tried, 50,000x100"
    yield row(what, lambda: TemperatureScaling("ece", "pool").fit(logits, target), budget=700)

    def ece_at(T):
        return metrics.ece((logits/T).softmax(1), target, validate=False).item()

    def one_by_one():
        return min((ece_at(T), T) for T in temperature_lists["pool"].tolist())
    yield row(f"{what}, one by one with our ECE", one_by_one)


def train_rows():
    splits, epochs = load_data("digits"), 5
    recipe = Recipe.quick(epochs)

    def ours():
        Trainer(make_model("mlp", 10, splits.in_shape), losses.make_loss("ce"), recipe, "cpu").fit(splits)

    def loop():
        model, train = make_model("mlp", 10, splits.in_shape), splits.train
        optimizer = torch.optim.SGD(model.parameters(), .1, .9, weight_decay=5e-4)
        loader = DataLoader(TensorDataset(train.x, train.y), batch_size=64, shuffle=True)
        for _ in range(epochs):
            list(usual_forms.training_steps(model, loader, optimizer, clip=2.))
    row = partial(compare, unit_name="TensorDataset + DataLoader loop", unit=loop, seconds=.3)
    batches = 11  # of an epoch
    yield row("digits MLP epochs, Trainer", ours, budget=.82, goal=.25)
    yield row("the eight matrix products of its batches, alone", lambda: matrix_products(epochs*batches))
    yield resnet_row()


def matrix_products(steps):
    "Those of forward and backward of the MLP 16-256-256-10 with batches of 64: no way of training it takes less."
    pairs = [(torch.randn(64, a), torch.randn(a, b), torch.randn(64, b)) for a, b in ((16, 256), (256, 256), (256, 10))]
    for _ in range(steps):
        for i, (x, w, grad) in enumerate(pairs):
            _ = x @ w
            _ = x.T @ grad
            if i > 0:  # nothing needs the gradient of the images
                _ = grad @ w.T


def resnet_row(n=128, batch=32):
    x, y = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.arange(n) % 10
    split = Split(x, y, scale=((.5,)*3, (.25,)*3))
    splits, model = Splits("noise", 10, split, split, split), make_model("resnet18", 10, (3, 32, 32))
    recipe, ready = Recipe(epochs=1, batch_size=batch, lr=1e-3), split.ready(x)

    def ours():
        Trainer(model, losses.make_loss("ce"), recipe, "cpu").fit(splits)

    def bare():
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, .9, weight_decay=5e-4, fused=True)
        model.train()
        for i in range(0, n, batch):
            optimizer.zero_grad()
            F.cross_entropy(model(ready[i:i + batch]), y[i:i + batch]).backward()
            optimizer.step()
    what, unit_name = "ResNet-18 epoch, Trainer", "bare forward + backward + step"
    return compare(what, ours, unit_name, bare, 1.2, pairs=7, seconds=.1, goal=1.03)


def image_rows(n=4096):
    "An epoch of a small network on CIFAR-10 as JPEG files, wherever CALIBNB_DATA has it."
    folder = next((p for p in (data_root()/"cifar10", data_root()) if (p/"train"/"airplane").is_dir()), None)
    if folder is None:
        return print("images: no CIFAR-10 as JPEG under CALIBNB_DATA (train/airplane/*.jpg); not measured")
    splits = load_data("cifar10", n_train=n)
    recipe = Recipe(epochs=1, batch_size=128, augment=("crop", "flip"), lr=.01)
    usual = transforms.Compose([
        transforms.RandomCrop(32, 4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*splits.train.scale),
    ])
    some = Subset(ImageFolder(folder/"train", usual), torch.randperm(50_000)[:n].tolist())

    def ours(**changes):
        model = make_model("small_cnn", 10, (3, 32, 32))
        Trainer(model, losses.make_loss("ce"), recipe.model_copy(update=changes), "cpu").fit(splits)

    def loop():
        model = make_model("small_cnn", 10, (3, 32, 32))
        optimizer = torch.optim.SGD(model.parameters(), .01, .9, weight_decay=5e-4)
        list(usual_forms.training_steps(model, DataLoader(some, batch_size=128, shuffle=True), optimizer))
    row = partial(compare, unit_name="ImageFolder + DataLoader loop", unit=loop)
    yield row(f"small CNN, {n} CIFAR-10 images, Trainer", ours)
    yield row("the same with channels_last", partial(ours, channels_last=True))


def tree_rows(n=250):
    "Tree-LSTM on SST, all nodes of a height at once, beside one node at a time, wherever CALIBNB_DATA has it."
    try:
        splits = load_data("sst", n_train=n)
    except FileNotFoundError as e:
        return print(f"trees: {e}; not measured")
    model, recipe = make_model("tree_lstm", 2, splits.in_shape), Recipe.sst(epochs=1, keep="last")
    trees = [[node for node in table.tolist() if node[HEIGHT] >= 0] for table in splits.train.x]

    def ours():
        Trainer(model, losses.make_loss("ce"), recipe, "cpu").fit(splits)

    def one_by_one():
        optimizer = torch.optim.Adagrad(model.parameters(), .05, weight_decay=1e-4)
        model.train()
        for batch in torch.randperm(n).split(25):
            states, labels = [], []
            for tree in (trees[i] for i in batch):
                h = []
                for word, left, right, height, label in tree:
                    h.append(model._leaves(torch.tensor([word])) if height == 0 else model._up([h[left], h[right]]))
                    if label >= 0:
                        states.append(h[-1][:, :150])
                        labels.append(label)
            loss = F.cross_entropy(model.head(model.dropout(torch.cat(states))), torch.tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    yield compare(f"Tree-LSTM, {n} sentences of SST, Trainer", ours, "one node at a time", one_by_one)


def meta_rows(n=32):
    x, y = torch.randn(n, 3, 32, 32), torch.arange(n) % 10
    batch, recipe, device = Batch(x, y, None, 1., n, 1), Recipe(batch_size=n, lr=1e-3), torch.device("cpu")
    model = make_model("resnet18", 10, (3, 32, 32)).train()
    plain = Stepper(model, losses.make_loss("ce"), recipe, device)
    row = partial(compare, unit_name="plain cross-entropy step", unit=lambda: plain(batch, 1e-3), pairs=5, seconds=.1)
    for scope, jvp_by, budget, goal in (
            ("head", "forward", 1.5, 1.25), ("full", "forward", 3.4, 2.5), ("full", "difference", 2.5, None)):
        meta = MetaRecipe(scope=scope, jvp_by=jvp_by)
        step = MetaStepper(model, InnerLoss(meta), recipe, device, meta, Split(x.flip(0), y))
        what = f"gamma-Net step, {scope}{', by a difference' if jvp_by == 'difference' else ''}"
        double = partial(usual_forms.double_backward_step, step, batch, scope)
        yield row(f"{what}, ResNet-18, batch {n}", lambda: step(batch, 1e-3), budget=budget, goal=goal)
        if jvp_by == "forward":
            yield row(f"gamma-Net step, {scope}, by double backward", double)
        yield compare_memory(f"memory of a {what}", lambda: step(batch, 1e-3), "of double backward", double, budget=1)


SHORT_NOTEBOOK = """import torch
from calibnb.notebooks import Experiment
experiment = Experiment('short', dict(seed=seed))
experiment.findings([])"""


def write_short_notebook(path):
    parameters = new_code_cell("seed: int = 0", metadata=dict(tags=["parameters"]))
    kernel = dict(name="python3", display_name="Python 3", language="python")
    cells = [parameters, new_code_cell(SHORT_NOTEBOOK)]
    nbformat.write(new_notebook(cells=cells, metadata=dict(kernelspec=kernel)), path)


def sweep_rows(n_notebooks=64):
    with tempfile.TemporaryDirectory() as d:
        notebook, out = Path(d)/"short.ipynb", Path(d)/"out.ipynb"
        roots = (Path(d)/f"sweep{i}" for i in itertools.count())  # a new one each time, so that everything is run
        write_short_notebook(notebook)

        def command(name, *args):
            program = Path(sys.executable).with_name(name)
            env = dict(os.environ, CALIBNB_RUNS=str(next(roots)))
            subprocess.run([program, *map(str, args)], env=env, check=True, capture_output=True)

        def sweep():
            command("calibnb", "sweep", notebook, "--grid", f"seed=0:{n_notebooks}", "--workers", 1)

        def one_by_papermill():
            command("papermill", notebook, out, "-p", "seed", 0)
        what = f"a short notebook, calibnb sweep of {n_notebooks} on one worker"
        unit_name = "papermill command line"
        yield compare_wall(what, sweep, unit_name, one_by_papermill, budget=1/6, times=n_notebooks)


GROUPS = dict(
    people=people_rows,
    losses=loss_rows,
    surrogates=surrogate_rows,
    metrics=metric_rows,
    smooth=smooth_rows,
    posthoc=posthoc_rows,
    train=train_rows,
    meta=meta_rows,
    images=image_rows,
    trees=tree_rows,
    sweeps=sweep_rows)


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - set(GROUPS):
        sys.exit(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    torch.manual_seed(0)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    lines = [f"{date.today()}, {cpu_name()}, one thread, {versions}", "", HEADER]
    print(*lines, sep="\n", flush=True)
    for name in sys.argv[1:] or GROUPS:
        for row in GROUPS[name]():
            lines.append(str(row))
            print(row, flush=True)
    if not sys.argv[1:]:
        page = Path(__file__).with_name("RESULTS.md")
        before, after = page.read_text().split("<!-- table -->")[::2]
        page.write_text("<!-- table -->\n".join([before, "\n".join(lines) + "\n", after.lstrip("\n")]))
