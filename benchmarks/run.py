"`make bench`: every measured promise, one line each. Ratios of single-threaded CPU time, ours over the unit."
import platform
import sys
from datetime import date

import torch
import torch.nn.functional as F
from harness import compare
from torch.utils.data import DataLoader, TensorDataset

from calibnb import losses, metrics, surrogates
from calibnb.data import load_data
from calibnb.models import make_model
from calibnb.train import Recipe, Trainer


def loss_rows():
    logits, target = torch.randn(1024, 100, requires_grad=True), torch.randint(100, (1024,))
    def step(fn):
        return lambda: torch.autograd.grad(fn(logits, target), logits)
    budgets = dict(focal=1.3, flsd=1.5, bsce=1.5, bsce_gra=1.5, dual_focal=2.0)
    for name, budget in budgets.items():
        yield compare(f"{name}, forward and backward, 1024x100", step(losses.make_loss(name)), "F.cross_entropy", step(F.cross_entropy), budget)


def metric_rows():
    probs, target = torch.randn(1_000_000, 10).softmax(1), torch.randint(10, (1_000_000,))
    yield compare("ECE, 1,000,000x10, validate=False", lambda: metrics.ece(probs, target, validate=False), "probs.max(1)", lambda: probs.max(1), 1.0)
    logits, target = torch.randn(50_000, 100), torch.randint(100, (50_000,))
    few = logits.softmax(1)
    yield compare("ECE from logits, 50,000x100", lambda: metrics.ece_from_logits(logits, target), "softmax(1).max(1)", lambda: logits.softmax(1).max(1), .45)
    yield compare("classwise ECE, 50,000x100, validate=False", lambda: metrics.classwise_ece(few, target, validate=False),
                  "softmax(1).max(1)", lambda: logits.softmax(1).max(1), 7)


def surrogate_rows():
    logits, target = torch.randn(1024, 100, requires_grad=True), torch.randint(100, (1024,))
    def step(fn):
        return lambda: torch.autograd.grad(fn(logits, target), logits)
    for name, budget in dict(mmce=3, mmce_weighted=4, dece=8).items():
        yield compare(f"{name}, forward and backward, 1024x100", step(getattr(surrogates, name)), "F.cross_entropy", step(F.cross_entropy), budget)


def train_rows():
    splits, epochs = load_data("digits"), 5
    recipe = Recipe.quick(epochs)

    def ours():
        Trainer(make_model("mlp", 10, splits.in_shape), losses.make_loss("ce"), recipe, "cpu").fit(splits)

    def loop():
        model, train = make_model("mlp", 10, splits.in_shape), splits.train
        optimizer = torch.optim.SGD(model.parameters(), .1, .9, weight_decay=5e-4)
        for _ in range(epochs):
            for x, y in DataLoader(TensorDataset(train.x, train.y), batch_size=64, shuffle=True):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 2.)
                optimizer.step()
                loss.item()
    yield compare("digits MLP epochs, Trainer", ours, "TensorDataset + DataLoader loop", loop, .25, seconds=.3)


if __name__ == "__main__":
    print(f"{date.today()}  Python {platform.python_version()}  torch {torch.__version__}  {platform.machine()}, one thread\n")
    wanted = sys.argv[1:] or ["losses", "surrogates", "metrics", "train"]
    for name, rows in dict(losses=loss_rows, surrogates=surrogate_rows, metrics=metric_rows, train=train_rows).items():
        if name in wanted:
            for row in rows():
                print(row, flush=True)
