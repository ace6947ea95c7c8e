"Training gives the same in one process and in two, streamed or resident, whole or in pieces, and when interrupted."
import json
import math
import os
import pickle
import signal
import sys
from dataclasses import replace
from functools import partial
from runpy import run_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import Command, forked_torchrun, group_of, on_processes, patience, wait_for
from killing import SMALL, assert_same_bits, assert_same_run, child, plain, saved_at, saved_state
from safetensors.torch import save_file
from torch import nn

from calibnb.core import Predictions
from calibnb.core.atomic import atomic_write
from calibnb.data import Rows, Split, Splits, load_data
from calibnb.data.trees import parse_tree, tree_tables
from calibnb.losses import make_loss
from calibnb.models import TreeLSTM, make_model
from calibnb.processes.distributed import joined, world_size
from calibnb.runs import Run, RunConfig, get_run
from calibnb.runs.folder import RunError, RunFolder
from calibnb.runs.run import main, train_file
from calibnb.train import ConfidenceHistogram, Evaluator, History, NLLBreakdown, Recipe, Trainer
from calibnb.train.batches import EpochPlan, batches, crop_and_flip
from calibnb.train.checkpoint import Saver, Stopped, describe, load_checkpoint
from calibnb.train.device import compile_function
from calibnb.train.evaluator import check_micro_batches, loss_reduction
from calibnb.train.reporter import Reporter


def images(n=70, side=8, K=3, seed=0):
    "Noise whose brightness tells the class."
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    noise = torch.randint(0, 90, (n, 1, side, side), generator=draw, dtype=torch.uint8)
    x = noise + (50*y).to(torch.uint8)[:, None, None, None]
    return Split(x, y, scale=((.3,), (.2,)))


def problem():
    return Splits("squares", 3, images(), images(30, seed=1), images(31, seed=2))


def trained(splits, loss="ce", model="small_cnn", **recipe):
    "A trainer and its history, after a short training."
    width = dict(width=4) if model == "small_cnn" else {}
    net = make_model(model, splits.num_classes, splits.in_shape, seed=0, **width)
    loss_fn = make_loss(loss) if isinstance(loss, str) else loss
    trainer = Trainer(net, loss_fn, Recipe(**dict(epochs=2, batch_size=16) | recipe), "cpu")
    return trainer, trainer.fit(splits)


def mlp_trainer(splits, loss, recipe, **model):
    "A trainer of an MLP for ten classes."
    return Trainer(make_model("mlp", 10, splits.in_shape, **model), loss, recipe, "cpu")


# the same training, done in another way

def test_inputs_streamed_from_disk_give_the_same_bits(tmp_path):
    "Batches that a thread gathers from a memory-mapped file equal those of a split in memory."
    splits = problem()
    np.save(tmp_path/"x.npy", splits.train.x.numpy())
    on_disk = torch.from_numpy(np.load(tmp_path/"x.npy", mmap_mode="c"))
    lazy = replace(splits, train=replace(splits.train, x=Rows(on_disk, torch.arange(70))))
    elsewhere = SimpleNamespace(x=Elsewhere(lazy.train.x), y=lazy.train.y, ready=lazy.train.ready)

    def drawn(split):
        plan = EpochPlan(70, 16, torch.Generator().manual_seed(3), ("crop", "flip"), mixup=.5, padding=1)
        return batches(split, plan, "cpu")
    for a, b in zip(drawn(splits.train), drawn(elsewhere), strict=True):
        assert all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("x", "y", "y_partner")) and a.lam == b.lam
    (a, history_a), (b, history_b) = trained(splits, augment=("crop",)), trained(lazy, augment=("crop",))
    assert history_a.rows == history_b.rows
    found, want = (trainer.predict(splits.test).logits for trainer in (a, b))
    assert torch.equal(found, want)  # bits: the same batches from another place


class Elsewhere:
    "Inputs that claim to lie on another device, so that their batches are streamed."
    device = torch.device("meta")

    def __init__(self, x):
        self.x = x

    def __getitem__(self, rows):
        return self.x[rows]


def test_micro_batches_add_up():
    "Without batch norm they give the same as the whole batch; so do those of the last, smaller batch."
    splits = load_data("digits", n_train=150)
    whole, history = trained(splits, model="mlp", accumulate=1, clip=1.)
    pieces, history_of_pieces = trained(splits, model="mlp", accumulate=3, clip=1.)
    assert np.allclose(history["train_loss"], history_of_pieces["train_loss"], rtol=1e-4)
    assert torch.allclose(whole.predict(splits.test).logits, pieces.predict(splits.test).logits, atol=1e-4)
    by_sum, _ = trained(splits, make_loss("ce", reduction="sum"), model="mlp", lr=1e-3)
    by_scale, _ = trained(splits, model="mlp", lr=1e-3, scale_by_batch=True, accumulate=2)
    assert torch.allclose(by_sum.predict(splits.test).logits, by_scale.predict(splits.test).logits, atol=1e-4)


def summed(logits, target, reduction="sum"):
    return F.cross_entropy(logits, target, reduction=reduction)


def summed_by_attribute(logits, target):
    return F.cross_entropy(logits, target, reduction="sum")


summed_by_attribute.reduction = "sum"


class Summed(nn.Module):
    def forward(self, logits, target, reduction="sum"):
        return F.cross_entropy(logits, target, reduction=reduction)


torch_sum = partial(F.cross_entropy, reduction="sum")
REDUCTIONS = {
    "sum": [torch_sum, summed, Summed(), partial(torch_sum, label_smoothing=0.), make_loss("ce", reduction="sum"),
            partial(make_loss("ce", reduction="sum")), summed_by_attribute, partial(summed), partial(Summed()),
            nn.CrossEntropyLoss(reduction="sum")],
    "mean": [F.cross_entropy, partial(summed, reduction="mean"), lambda z, y: F.cross_entropy(z, y),
             nn.CrossEntropyLoss(), partial(nn.CrossEntropyLoss())],
}


def test_a_recorder_gets_copies_and_a_loss_keeps_its_batch():
    def zeroed(view):
        view.predictions("train").logits.zero_(), view.predictions("test").target.fill_(0)

    splits, histories = problem(), []
    for recorders in ([], [zeroed]):
        net = make_model("small_cnn", splits.num_classes, splits.in_shape, seed=0, width=4)
        trainer = Trainer(net, make_loss("ce"), Recipe(epochs=1, batch_size=16), "cpu")
        histories.append(trainer.fit(splits, [*recorders, NLLBreakdown()]).rows)
    assert histories[0] == histories[1]  # bits: the same training

    def shifted(logits, target):
        return F.cross_entropy(logits.sub_(1), target)

    with pytest.raises(ValueError, match="^loss: shifted changes its logits in place"): trained(splits, shifted)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_loss_that_sums_or_averages_is_recognised(reduction):
    assert [loss_reduction(loss) for loss in REDUCTIONS[reduction]] == [reduction]*len(REDUCTIONS[reduction])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_sum_is_trained_and_reported_as_torch_s_own(accumulate):
    options, test = dict(model="mlp", epochs=1, lr=1e-4, accumulate=accumulate), problem().test
    a, found = trained(problem(), summed, **options)
    b, want = trained(problem(), nn.CrossEntropyLoss(reduction="sum"), **options)
    assert a.reduction == "sum" and found.rows == want.rows
    assert torch.equal(a.predict(test).logits, b.predict(test).logits)  # bits: the same operations
    (_, summed_loss), (_, mean) = (trained(problem(), loss, **options | dict(lr=1e-9)) for loss in (summed, "ce"))
    assert summed_loss["train_loss"] == pytest.approx(mean["train_loss"], abs=1e-4)  # both by sample


NEITHER = {
    "none": (partial(F.cross_entropy, reduction="none"), 'reduction "none", want "mean" or "sum" to train'),
    "another": (partial(F.cross_entropy, reduction="batchmean"), 'reduction "batchmean", want "mean"'),
    "not reduced": (lambda z, y: F.cross_entropy(z, y, reduction="none"), r"a tensor of shape \(16,\), want one"),
    "no tensor": (lambda z, y: F.cross_entropy(z, y).item(), "a float, want a tensor of one number"),
}


@pytest.mark.parametrize("loss, message", NEITHER.values(), ids=NEITHER)
def test_a_loss_that_is_neither_a_mean_nor_a_sum_is_refused(loss, message):
    with pytest.raises(ValueError, match=f"loss: {message}"):
        trained(problem(), loss, model="mlp", epochs=1)


UNEVEN = torch.tensor([1., 2., 3.])
NOT_OVER_SAMPLES = {  # of a reduction, "mean" or "sum"
    "weights": lambda r: make_loss("focal", weight=[1., 2., 3.], reduction=r),
    "ignored": lambda r: make_loss("focal", ignore_index=1, reduction=r),
    "torch's weights": lambda r: nn.CrossEntropyLoss(weight=UNEVEN, reduction=r),
    "torch's ignored": lambda r: nn.CrossEntropyLoss(ignore_index=1, reduction=r),
    "partial": lambda r: partial(F.cross_entropy, weight=UNEVEN, reduction=r),
}


@pytest.mark.parametrize("make", NOT_OVER_SAMPLES.values(), ids=NOT_OVER_SAMPLES)
def test_a_mean_that_is_not_over_samples_is_not_put_together_from_micro_batches(make):
    def check(accumulate, reduction):
        check_micro_batches(make(reduction), Recipe(accumulate=accumulate))
    message = "the means of 2 micro-batches on 1 processes do not add up; take accumulate=1"
    with pytest.raises(ValueError, match=message):
        check(2, "mean")
    with pytest.raises(ValueError, match=message):
        trained(problem(), make("mean"), model="mlp", accumulate=2)
    check(1, "mean")
    check(2, "sum")


class Relabelled(nn.Module):
    "A network that trains on labels in another order."
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(x.flatten(1))

    def supervised(self, x, y):
        return self(x), 2 - y


def relabelled_by_attribute():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    net.supervised = lambda x, y: (net(x), 2 - y)
    return net


@pytest.mark.parametrize("make", [Relabelled, relabelled_by_attribute])
def test_labels_that_a_network_makes_are_not_mixed(make):
    def train(mixup):
        Trainer(make(), make_loss("ce"), Recipe(epochs=1, mixup=mixup), "cpu").fit(problem())
    with pytest.raises(ValueError, match=r"mixup: 0.4, but \w+.supervised makes the training labels"):
        train(.4)
    train(0)


ODD_ROWS = {
    "one for all": (lambda z: z[:1], 31, r"returns shape \(1, 3\) for a batch of 31 samples, want \(31, K\)"),
    "no columns": (lambda z: z[:, 0], 31, r"returns shape \(31,\) for a batch"),
    "a tuple": (lambda z: (z, z), 31, "returns a tuple, want a tensor"),
    "other columns later": (lambda z: z[:, :len(z) - 13], 16, r"returns shape \(15, 2\) .* 15 samples, want \(15, 3\)"),
}


@pytest.mark.parametrize("end, size, message", ODD_ROWS.values(), ids=ODD_ROWS)
def test_what_is_not_a_row_a_sample_is_refused(end, size, message):
    "A row that stands for a whole batch would be copied to all of its samples."
    class Odd(Relabelled):
        def forward(self, x):
            return end(super().forward(x))
    with pytest.raises(ValueError, match=f"model: {message}"):
        Evaluator(Odd(), device="cpu").predict(problem().test, batch_size=size)


TREES = [
    "(1 w0)",
    "(0 (1 w1) (0 (1 w2) (2 w3)))",
    "(1 (0 w1) (0 w2))",
    "(0 (0 (1 (1 w1) (0 w1)) (0 w4)) (0 w3))",
    "(1 (1 w1) (1 w2))",
]


def test_pieces_of_trees_count_their_labels(monkeypatch):
    "Sentences differ in their number of labelled phrases: pieces are weighted by it, and none is a single sentence."
    x = torch.from_numpy(tree_tables([parse_tree(t) for t in TREES], lambda w: int(w[1:]) + 2, [0, 1, -1], 8))
    part = Split(x, torch.tensor([1, 0, 1, 0, 1]))
    sizes, supervised = [], TreeLSTM.supervised

    def counting(self, x, y):
        sizes.append(len(y))
        return supervised(self, x, y)
    monkeypatch.setattr(TreeLSTM, "supervised", counting)

    def weights(pieces, scale_by_batch):
        "All weights of a Tree-LSTM after two epochs."
        net = make_model("tree_lstm", 2, (8, 5), vocabulary=10, dim=4, dropout=0., seed=1)
        recipe = Recipe(epochs=2, batch_size=5, accumulate=pieces, scale_by_batch=scale_by_batch)
        Trainer(net, make_loss("ce"), recipe, "cpu").fit(Splits("trees", 2, part, part, part))
        return torch.cat([p.detach().flatten() for p in net.parameters()])
    whole, pieces = weights(1, False), weights(4, False)
    whole_scaled, pieces_scaled = weights(1, True), weights(4, True)
    assert torch.allclose(whole, pieces, atol=1e-6) and torch.allclose(whole_scaled, pieces_scaled, atol=1e-5)
    assert sorted(set(sizes)) == [2, 3, 5]
    assert not torch.allclose(whole, whole_scaled, atol=1e-3)


def trees_trained(pieces):
    "Weights of a Tree-LSTM, and its history, after three epochs on this process and those beside it."
    x = torch.from_numpy(tree_tables([parse_tree(t) for t in TREES], lambda w: int(w[1:]) + 2, [0, 1, -1], 8))
    part = Split(x, torch.tensor([1, 0, 1, 0, 1]))
    net = make_model("tree_lstm", 2, (8, 5), vocabulary=10, dim=4, dropout=0., seed=1)
    with joined("cpu"):
        recipe = Recipe(epochs=3, batch_size=5, accumulate=pieces)
        history = Trainer(net, make_loss("ce"), recipe, "cpu").fit(Splits("trees", 2, part, part, part))
    return torch.cat([p.detach().flatten() for p in net.parameters()]), history["train_loss"]


def test_two_processes_count_the_labels_of_all_trees():
    "Each divides its gradients by the labels of both; of three processes, each computes the whole batch of five."
    weights, losses = trees_trained(1)
    for processes, pieces in (2, 1), (3, 2):
        for weights_there, losses_there in on_processes(processes, trees_trained, pieces):
            assert torch.allclose(weights_there, weights, atol=1e-6) and np.allclose(losses_there, losses, rtol=1e-5)


def test_loss_scaling_that_skips_the_first_steps_still_learns():
    "Gradients of summed losses overflow at first in fp16; what the optimiser remembers must not be rubbish then."
    splits = load_data("digits")
    options = dict(model="mlp", epochs=3, precision="fp16", scale_by_batch=True, clip=2., batch_size=128)
    (_, history), (_, again) = (trained(splits, **options) for _ in range(2))
    assert history.rows == again.rows and history["train_loss"][-1] < 1.


def test_mixup_and_augmentation_by_hand():
    "One epoch, step by step, with plain tensors."
    options = dict(augment=("crop", "flip"), mixup=.7, weight_decay=1e-3, clip=.5)
    splits, recipe = problem(), Recipe(epochs=1, batch_size=16, seed=4, **options)
    net, twin = (make_model("small_cnn", 3, (1, 8, 8), seed=0, width=4) for _ in range(2))
    Trainer(net, make_loss("focal"), recipe, "cpu").fit(splits)
    plan = EpochPlan(70, 16, torch.Generator().manual_seed(4), ("crop", "flip"), .7, padding=1)
    optimizer, loss_fn = torch.optim.SGD(twin.parameters(), .1, .9, weight_decay=1e-3), make_loss("focal")
    for (a, b), lam in zip(plan.spans, plan.mix):
        drawn = zip(plan.rows, plan.shift.tolist(), plan.flip)
        x = torch.stack([_slow_crop(splits.train.x[row], shift, flip, 1) for row, shift, flip in drawn])
        x, y = (x.float()/255 - .3)/.2, splits.train.y[plan.rows]
        other = plan.partner[a:b]
        z = twin(lam*x[a:b] + (1 - lam)*x[other])
        optimizer.zero_grad()
        (lam*loss_fn(z, y[a:b]) + (1 - lam)*loss_fn(z, y[other])).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), .5)
        optimizer.step()
    assert all(torch.allclose(p, q, atol=1e-5) for p, q in zip(net.parameters(), twin.parameters()))


def _slow_crop(x, shift, flip, padding):
    padded = F.pad(x, (padding,)*4)
    out = padded[:, shift[0]:shift[0] + x.shape[1], shift[1]:shift[1] + x.shape[2]]
    return out.flip(2) if flip else out


@pytest.mark.parametrize("shift, flip", [(True, True), (True, False), (False, True), (False, False)])
def test_a_batch_is_cropped_as_its_images_are(shift, flip):
    x = torch.randint(0, 255, (20, 3, 6, 9), dtype=torch.uint8)
    at, mirrored = torch.randint(0, 5, (20, 2)), torch.rand(20) < .5
    got = crop_and_flip(x, at if shift else None, mirrored if flip else None, padding=2)
    want = [_slow_crop(i, s.tolist() if shift else [2, 2], m and flip, 2) for i, s, m in zip(x, at, mirrored)]
    assert torch.equal(got, torch.stack(want))


OPTIONS = [
    dict(precision="bf16"),
    dict(precision="fp16"),
    dict(channels_last=True),
    dict(optimizer="adam", lr=1e-3),
    dict(optimizer="adamw", lr=1e-3),
    dict(optimizer="adagrad", lr=.01),
    dict(schedule="cosine", warmup=1),
    dict(label_noise=.2),
    dict(mixup=1.),
    dict(augment=("flip",)),
]


@pytest.mark.parametrize("recipe", OPTIONS, ids=str)
def test_every_option_learns_and_repeats(recipe):
    splits = problem()
    (a, first), (b, again) = (trained(splits, epochs=6, **recipe) for _ in range(2))
    assert first.rows == again.rows
    assert torch.equal(a.predict(splits.test).logits, b.predict(splits.test).logits)  # bits: one seed
    assert first["train_loss"][-1] < first["train_loss"][0]
    assert (~a.predict(splits.test).hit).double().mean() < .5


def test_a_compiled_training_compiles_once(monkeypatch):
    "What torch makes of it, traced whole, in tests/slow/test_grids.py."
    asked = []
    monkeypatch.setattr("torch.compile", lambda fn, **options: asked.append(options) or fn)
    splits = load_data("digits", n_train=128)
    plain, compiled = (trained(splits, model="mlp", epochs=1, compile=c)[0] for c in (False, True))
    assert torch.equal(plain.predict(splits.test).logits, compiled.predict(splits.test).logits)  # bits: one function
    compile_function(summed, "max-autotune")
    assert asked == [dict(dynamic=False, mode=None), dict(dynamic=False, mode="max-autotune")]


def test_a_deterministic_training_asks_torch_for_it_and_gives_it_back():
    splits, enabled = load_data("digits", n_train=64), torch.are_deterministic_algorithms_enabled
    seen, recipe = [], Recipe(epochs=1, deterministic=True)
    mlp_trainer(splits, make_loss("ce"), recipe, hidden=[8]).fit(splits, [lambda view: seen.append(enabled())])
    assert seen == [True] and not enabled()
    asked, left = (RunConfig(recipe=r).settings["recipe"] for r in (recipe, Recipe(epochs=1)))
    assert asked == left | dict(deterministic=True) and "deterministic" not in left


def test_the_learning_rates_of_a_warmed_up_cosine_reach_the_optimiser(monkeypatch):
    used, splits = [], problem()

    def step(self, batch, lr):
        used.append(lr)
        return torch.zeros(()), 1
    monkeypatch.setattr("calibnb.train.Stepper.__call__", step)
    trained(splits, epochs=4, schedule="cosine", warmup=1, lr=1.)
    assert len(used) == 20 and np.allclose(used[:6], [0, .2, .4, .6, .8, 1.]) and 0 < used[-1] < used[10] < 1


def test_progress_is_reported_after_each_batch_and_epoch_and_changes_no_bits(monkeypatch):
    monkeypatch.setattr(Reporter, "pause_s", 0)
    monkeypatch.setattr(Reporter, "val_share", 1e9)  # evaluate after every epoch
    splits, states = load_data("digits"), []

    def fit(progress):
        trainer = mlp_trainer(splits, make_loss("ce"), Recipe.quick(3), hidden=[8], seed=0)
        return trainer.fit(splits, progress=progress).rows
    silent = fit(False)
    assert fit(states.append) == silent  # bits: a reporter only looks
    assert [states[-1][name] for name in ("epoch", "train_loss", "left_s")] == [3, silent[2]["train_loss"], 0]
    assert len(states) == 3*(-(-len(splits.train)//Recipe.quick().batch_size) + 1)
    assert 0 < states[-1]["val_error"] < 1 and states[0]["val_nll"] is None


def test_label_noise_is_drawn_once_and_only_for_training():
    splits, seen = load_data("digits"), []

    def labels(view):
        seen.append({name: split.y for name, split in view.splits.parts.items()})
    mlp_trainer(splits, make_loss("ce"), Recipe(epochs=2, label_noise=.4), hidden=[8]).fit(splits, [labels])
    assert torch.equal(seen[0]["train"], seen[1]["train"]) and torch.equal(seen[0]["val"], splits.val.y)
    assert .35 < (seen[0]["train"] != splits.train.y).double().mean() < .45


# errors

def fewer_labels():
    splits = problem()
    val = Split(splits.val.x[2:], splits.val.y[2:], scale=splits.val.scale)
    return Splits("two", 2, images(20, K=2), val, splits.test)


def empty_trees():
    part = Split(torch.zeros(4, 3, 5, dtype=torch.int16), torch.zeros(4, dtype=torch.long))
    return Splits("trees", 2, part, part, part)


def large_words():
    parts = [Split(torch.tensor([[1]*15 + [n]]*4), torch.tensor([0, 1, 0, 1])) for n in (2, 3, 70)]
    return Splits("text", 2, *parts)


UNFIT = {
    "label without an output": (fewer_labels, "mlp", {}, r"val: label 2 \(sample 0\), but the head has 2 outputs"),
    "crop of vectors": (lambda: load_data("gaussians", train_per_class=5), "mlp", dict(augment=("crop",)),
                        "crop and flip are for images"),
    "crop of floats": (lambda: load_data("digits"), "mlp", dict(augment=("crop",)), "the value of black is not known"),
    "mixup of trees": (empty_trees, "mlp", dict(mixup=1.), "which cannot be mixed"),
    "word without an embedding": (large_words, "text_cnn", {}, "word id 70, but the embedding of the model has 50"),
}


@pytest.mark.parametrize("data, model, recipe, message", UNFIT.values(), ids=UNFIT)
def test_data_that_do_not_fit_are_refused(data, model, recipe, message):
    splits, options = data(), dict(vocabulary=50) if model == "text_cnn" else {}
    net = make_model(model, splits.num_classes, splits.in_shape, **options)
    with pytest.raises(ValueError, match=message):
        Trainer(net, make_loss("ce"), Recipe(**recipe)).fit(splits)


NOT_FINITE = {
    "loss": "train loss is nan in epoch 2, batch 4 of 11; lower lr .now 0.01., set clip .now 2.0. or warmup",
    "weights": "weights are not finite after 4 batches of epoch 2; lower lr .now 0.01.",
}


@pytest.mark.parametrize("what", NOT_FINITE)
def test_what_is_not_finite_is_named_and_leaves_the_last_good_checkpoint(tmp_path, what):
    "A training that met it once continues from there, and ends in the bits of one that did not meet it."
    splits, path, calls = load_data("digits"), tmp_path/"c.pt", []

    def loss(logits, target):
        calls.append(1)
        once = len(calls) == 15
        if once and what == "weights":
            logits.register_hook(lambda gradient: gradient*math.nan)
        return F.cross_entropy(logits, target)*(math.nan if once and what == "loss" else 1)

    def fit(**options):
        return mlp_trainer(splits, loss, Recipe.quick(3), hidden=[8], seed=0).fit(splits, **options)
    with pytest.raises(FloatingPointError, match=NOT_FINITE[what]):
        fit(checkpoint=path, every_s=0)
    assert torch.load(path, weights_only=True)["step"] == 3
    assert fit(checkpoint=path).rows == fit().rows


def test_a_checkpoint_that_is_not_finite_is_refused_at_once(tmp_path):
    "Versions that wrote one left it to each later start to find that out, an epoch later."
    splits, path = load_data("digits"), tmp_path/"c.pt"

    def fit():
        return mlp_trainer(splits, F.cross_entropy, Recipe(epochs=1), hidden=[8]).fit(splits, checkpoint=path)
    fit()
    state = torch.load(path, weights_only=True)
    state["model"]["head.weight"].fill_(math.nan)
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"c.pt holds a state that is not finite \(weights are not .*; remove the"):
        fit()


def test_out_of_memory_says_what_to_do():
    def greedy(logits, target):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(torch.OutOfMemoryError, match="batch_size=16, accumulate=1, precision=fp32: raise accumulate"):
        trained(problem(), greedy)


# interrupted and resumed

def test_a_killed_run_ends_in_the_same_bits(tmp_path):
    "Killed once, in the middle of an epoch; at any moment, and with losses that change, in tests/slow/test_kills.py."
    setting = plain(epochs=8)
    path = setting.path(tmp_path/"killed")
    process, pipe = child(setting, tmp_path/"killed", every_s=0, steps=40)
    pipe.send("go")
    while pipe.poll(patience(60)) and pipe.recv() != "held": pass
    process.kill()
    process.join()
    assert RunFolder(path).state == "died"
    assert (len(saved_state(path)["history"]), saved_state(path)["step"]) == (3, 4)  # of 12 batches each
    whole, resumed = (get_run(setting, tmp_path/name, progress=False) for name in ("whole", "killed"))
    assert_same_run(resumed, whole)


def event_files(folder):
    "What TensorBoard shows: tag -> [(step, value)]."
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {tag: [(e.step, e.value) for e in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}


def test_tensorboard_shows_each_epoch_once_even_after_an_interruption(tmp_path):
    splits, recipe, stops = load_data("digits"), Recipe.quick(4, keep="last"), [3]

    def stop(view):
        if view.epoch in stops:
            raise KeyboardInterrupt

    def fit():
        trainer = mlp_trainer(splits, make_loss("ce"), recipe, **SMALL["model_args"])
        files = dict(checkpoint=tmp_path/"c.pt", every_s=0, tensorboard=tmp_path/"events")
        return trainer.fit(splits, ["calibration_errors", stop], **files)
    with pytest.raises(KeyboardInterrupt):
        fit()
    assert [step for step, _ in event_files(tmp_path/"events")["test/ece"]] == [1, 2]
    stops.clear()
    history = fit()
    shown = event_files(tmp_path/"events")
    assert {"lr", "train/loss", "test/ece"} <= shown.keys() and "epoch" not in shown
    assert [step for step, _ in shown["test/ece"]] == [1, 2, 3, 4]
    assert np.allclose([v for _, v in shown["test/ece"]], history["test_ece"], rtol=1e-6)


def test_a_run_writes_event_files_only_when_the_environment_asks(tmp_path, monkeypatch):
    config = RunConfig(recipe=Recipe.quick(1), **SMALL)
    assert not (get_run(config, tmp_path/"without", progress=False).path/"tensorboard").exists()
    monkeypatch.setenv("CALIBNB_TENSORBOARD", "1")
    assert event_files(get_run(config, tmp_path/"with", progress=False).path/"tensorboard")["train/loss"]


def test_tensorboard_that_is_not_installed_is_named(tmp_path, monkeypatch):
    splits = load_data("digits")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="tensorboard: not installed"):
        mlp_trainer(splits, make_loss("ce"), Recipe.quick(1)).fit(splits, tensorboard=tmp_path/"none")


class Interrupted(Exception):
    pass


def interrupting(stop_after):
    "Cross-entropy that can be called so many times."
    calls = []

    def loss(logits, target):
        calls.append(1)
        if len(calls) > stop_after:
            raise Interrupted
        return F.cross_entropy(logits, target)
    return loss


def test_dropout_and_the_best_epoch_survive_an_interruption(tmp_path, monkeypatch):
    "Dropout continues with the numbers it would have drawn; the best epoch, long past, is still the one that is kept."
    splits, scores = problem(), iter(())
    monkeypatch.setattr("calibnb.train.BestEpoch._score", lambda self, preds: next(scores))

    def fit(stop_after=10**9, **kwargs):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(.5), nn.Linear(16, 3))
        recipe = Recipe(epochs=5, batch_size=16, lr=.05, keep="val_nll")
        trainer = Trainer(net, interrupting(stop_after), recipe, "cpu")
        return trainer, trainer.fit(splits, **kwargs)
    scores = iter([1., .5, .7, .8, .9])
    whole, history = fit()
    assert whole.best.epoch == 2
    for stop, left in (18, [1., .5, .7]), (3, [.8]):
        scores = iter(left)
        with pytest.raises(Interrupted):
            fit(stop, checkpoint=tmp_path/"c.pt", every_s=0)
    scores = iter([.9])
    resumed, again = fit(checkpoint=tmp_path/"c.pt", every_s=0)
    assert again.rows == history.rows and resumed.best.epoch == 2
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters()))


def test_a_loss_that_changes_is_moved_by_validation_samples_after_each_epoch(tmp_path):
    splits = load_data("digits")

    def new_trainer(**options):
        return mlp_trainer(splits, make_loss("adafocal", **dict(n_bins=5) | options), Recipe.quick(3))

    def fit(trainer, splits=splits):
        trainer.fit(splits, ["gamma_stats"], checkpoint=tmp_path/"c.pt")
    trainer = new_trainer()
    began = trainer.loss.gammas.clone()
    fit(trainer)
    by_hand = make_loss("adafocal", n_bins=5)
    assert (began == 1).all() and not torch.equal(trainer.loss.gammas, began)
    preds = trainer.predict(splits.val)
    by_hand.update(preds.conf, preds.hit)
    torch.testing.assert_close(trainer.loss.edges, by_hand.edges, rtol=0, atol=0)  # of the last epoch
    rows = trainer.history.rows
    assert rows[0]["gamma_std"] == 0 and rows[-1]["gamma_std"] > 0
    saved = torch.load(tmp_path/"c.pt", weights_only=True)["loss"]
    assert_same_bits(saved, dict(gammas=trainer.loss.gammas, edges=trainer.loss.edges))
    again = new_trainer()
    fit(again)  # over at once, with the state that was saved
    assert torch.equal(again.loss.gammas, trainer.loss.gammas)
    fit(trainer)  # and in the same process, where it has changed
    with pytest.raises(ValueError, match="made with another val"):
        fit(new_trainer(), replace(splits, val=replace(splits.val, y=splits.val.y.flip(0))))
    with pytest.raises(ValueError, match="made with another loss"):
        fit(new_trainer(rate=2.))


class Half:
    def __init__(self, share):
        self.share = share

    def __call__(self, logits, target):
        return self.share*F.cross_entropy(logits, target)


SAME = {  # made twice, they are the same loss; none of them is another's, or one of `OTHERS`
    "module": lambda: nn.CrossEntropyLoss(),
    "partial": lambda: partial(F.cross_entropy, label_smoothing=.1),
    "object": lambda: Half(.5),
    "lambda": lambda: lambda z, y: .5*F.cross_entropy(z, y),
}
OTHERS = [nn.CrossEntropyLoss(label_smoothing=.5), nn.CrossEntropyLoss(weight=torch.ones(10)), F.cross_entropy,
          partial(F.cross_entropy, label_smoothing=.2), Half(.7), lambda z, y: .7*F.cross_entropy(z, y)]


def test_a_loss_is_identified_by_what_it_does():
    "Its address in memory does not identify it."
    losses = [make() for make in SAME.values()]
    assert [describe(loss) for loss in losses] == [describe(make()) for make in SAME.values()]
    assert len({describe(loss) for loss in (*losses, *OTHERS)}) == len(losses) + len(OTHERS)


CHANGES = {
    "loss": dict(loss=OTHERS[0]),
    "recorders": dict(recorders=[NLLBreakdown(["val"])]),
    "model": dict(dropout=.1),
    "val": dict(val="test"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, part):
    digits = load_data("digits")

    def fit(loss=nn.CrossEntropyLoss(), recorders=(), dropout=0., val="val"):
        net = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(16, 10))
        splits = Splits("digits", 10, digits.train, digits.parts[val], digits.test)
        return Trainer(net, loss, Recipe(epochs=1, keep="val_error"), "cpu").fit(splits, recorders, tmp_path/"c.pt")
    fit()
    assert len(fit()) == 1
    with pytest.raises(ValueError, match=f"was made with another {part}"):
        fit(**CHANGES[part])


@pytest.mark.parametrize("content", [b"text", b"", b"PK\x03\x04 cut off"])
def test_a_damaged_checkpoint_is_named(tmp_path, content):
    path, splits = tmp_path/"c.pt", load_data("digits")
    path.write_bytes(content)
    with pytest.raises((ValueError, pickle.UnpicklingError)) as e:
        mlp_trainer(splits, F.cross_entropy, Recipe(epochs=1)).fit(splits, checkpoint=path)
    assert "c.pt cannot be read" in str(e.value) or isinstance(e.value, pickle.UnpicklingError)
    torch.save(dict(a=1), path)
    with pytest.raises(ValueError, match="was not written by a Trainer"):
        mlp_trainer(splits, F.cross_entropy, Recipe(epochs=1)).fit(splits, checkpoint=path)


def test_a_training_of_two_processes_continues_with_one(tmp_path):
    splits, path = load_data("digits"), tmp_path/"c.pt"
    left = iter(range(14))

    def stopping(logits, target, original=F.cross_entropy):
        if next(left, None) is None:
            raise Interrupted
        return original(logits, target)

    def fit(loss, **kwargs):
        return mlp_trainer(splits, loss, Recipe(epochs=2), hidden=[8], seed=0).fit(splits, **kwargs)
    with pytest.raises(Interrupted):
        fit(stopping, checkpoint=path, every_s=0)
    state = torch.load(path, weights_only=True)
    own, = state["own"]
    halves = [dict(own, loss_sums=own["loss_sums"]*share, labels=own["labels"]*share) for share in (.25, .75)]
    torch.save(state | dict(own=halves), path)
    left = iter(range(1000))
    whole, resumed = fit(F.cross_entropy), fit(stopping, checkpoint=path)
    assert np.allclose(whole["train_loss"], resumed["train_loss"], rtol=1e-6)


BIG = torch.zeros(2_000_000)
WRITERS = {
    "bytes": lambda path: path.write_bytes(bytes(BIG.nbytes)),
    "torch": lambda path: torch.save(dict(big=BIG), path),
    "safetensors": lambda path: save_file(dict(big=BIG), path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_named_with_the_file(small_disk, write):
    "Whatever the writer says: of torch it is 'unexpected pos 128 vs 22'."
    path = small_disk/"checkpoint.pt"
    with pytest.raises(OSError, match="No space left on device: '.*/checkpoint.pt'"), atomic_write(path) as tmp:
        write(tmp)
    assert not [*small_disk.iterdir()]


def test_two_recorders_of_a_kind_keep_their_own(tmp_path):
    splits = load_data("digits")

    def fit():
        recorders = [ConfidenceHistogram("train"), ConfidenceHistogram("test")]
        trainer = mlp_trainer(splits, F.cross_entropy, Recipe(epochs=2), hidden=[8])
        trainer.fit(splits, recorders, tmp_path/"c.pt")
        return [r.arrays["right"] for r in recorders]
    first, again = fit(), fit()  # the second time everything is loaded
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and first[0].sum() != first[1].sum()


def test_sigterm_saves_and_stops(tmp_path):
    setting = RunConfig(recipe=Recipe.quick(3000, lr=.01), **SMALL)
    path = setting.path(tmp_path)
    process, pipe = child(setting, tmp_path, every_s=3600)
    pipe.send("go")
    assert pipe.poll(patience(60)) and pipe.recv()["epoch"] == 1 and saved_at(path) is None
    process.terminate()
    process.join(patience(30))
    assert process.exitcode == 143
    folder = RunFolder(path)
    assert folder.state == "interrupted"
    assert "SIGTERM; the state is saved, start the run again to continue" in folder.status["reason"]
    state = saved_state(path)
    assert 1 <= len(state["history"]) < 3000
    splits = load_data("digits")
    trainer = mlp_trainer(splits, make_loss("ce"), setting.recipe, hidden=[32])
    trainer._begin(splits, checkpoint=path/"checkpoint.pt")
    load_checkpoint(trainer, path/"checkpoint.pt")
    assert (len(trainer.history), trainer.position.step) == (len(state["history"]), state["step"])


# several processes

def test_small_networks_have_the_same_bits_with_more_threads():
    "And afterwards the number of threads is what it was."
    found, splits, before = [], load_data("digits"), torch.get_num_threads()
    try:
        for threads in 1, 2:
            torch.set_num_threads(threads)
            trainer = mlp_trainer(splits, make_loss("ce"), Recipe.quick(3), seed=0)
            trainer.fit(splits)
            found.append(trainer.predict(splits.test).logits)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def predicted_by_kept_weights(run, splits, model, **model_args):
    "Test logits of the epoch that a run kept, computed in this process alone."
    net = make_model(model, splits.num_classes, splits.in_shape, **model_args)
    net.load_state_dict(saved_state(run.path)["best"]["state"])
    return Trainer(net, make_loss("ce"), device="cpu").predict(splits.test).logits


def test_two_processes_train_as_one_and_evaluate_exactly(tmp_path, monkeypatch):
    "Nothing is counted twice: the test set and the last batch are odd, and evaluation has more batches than processes."
    data_args = dict(n_train=701, n_val=397)
    recorders = ["nll_breakdown", "learned_epoch"]
    setting = RunConfig(data_args=data_args, recipe=Recipe.quick(4, keep="val_error"), recorders=recorders, **SMALL)
    monkeypatch.setattr("calibnb.runs.run.torchrun", partial(forked_torchrun, main))
    one, two = get_run(setting, tmp_path/"one"), get_run(setting, tmp_path/"two", processes=2)
    assert two.folder.info["processes"] == 2 and len(two.predictions("test")) == 699
    assert np.allclose(one.history["train_loss"], two.history["train_loss"], rtol=1e-5)
    assert torch.equal(one.predictions("test").target, two.predictions("test").target)
    assert torch.allclose(one.predictions("test").logits, two.predictions("test").logits, atol=1e-4)
    weights = [saved_state(run.path)["model"] for run in (one, two)]
    assert all(torch.allclose(weights[0][k], weights[1][k], atol=1e-5) for k in weights[0])
    # evaluation alone: the same weights give the same bits
    again = predicted_by_kept_weights(two, load_data("digits", **data_args), "mlp", hidden=[32])
    assert torch.equal(again, two.predictions("test").logits)  # bits: the same weights


def evaluated():
    "Logits of the first n test samples, and features, by a network that is the same everywhere."
    splits = load_data("digits")
    with joined("cpu"):
        trainer = Trainer(make_model("mlp", 10, splits.in_shape), make_loss("ce"), device="cpu")
        found = {n: trainer.predict(splits.test[:n], batch_size=100).logits for n in (1, 99, 100, 201, 697)}
        return world_size(), found, trainer.features(splits.test[:201], 100)


def test_evaluation_on_three_processes_has_the_bits_of_one():
    alone, found, features = evaluated()
    assert alone == 1
    for size, found_there, features_there in on_processes(3, evaluated):
        assert size == 3 and all(torch.equal(found_there[n], z) for n, z in found.items())
        assert torch.equal(features_there, features)


def trained_there(file, root):
    "What torchrun starts."
    train_file(file, root, "cpu")


def test_batch_norm_on_two_processes_is_one_network(tmp_path):
    "Each process sees other samples; what is evaluated and what is saved has the statistics of all."
    train, test = images(203), images(4101, seed=1)  # three batches of evaluation, two of them by the first process
    arrays = {f"x_{k}": ((s.x.float()/255 - .3)/.2).numpy() for k, s in dict(train=train, test=test).items()}
    np.savez(tmp_path/"squares.npz", y_train=train.y.numpy(), y_test=test.y.numpy(), **arrays)
    recipe = Recipe(epochs=3, batch_size=32, keep="val_nll")
    setting = RunConfig(data=f"npz:{tmp_path}/squares.npz", model="small_cnn", model_args=dict(width=4), recipe=recipe)
    (tmp_path/"config.json").write_text(setting.model_dump_json())
    on_processes(2, trained_there, tmp_path/"config.json", tmp_path/"runs")
    run = Run(setting.path(tmp_path/"runs"))
    assert run.folder.info["processes"] == 2
    again = predicted_by_kept_weights(run, load_data(setting.data), "small_cnn", width=4)
    assert torch.equal(again, run.predictions("test").logits)  # bits: the same weights
    assert "best epoch" in (run.path/"log.txt").read_text()
    assert run.predictions("test").hit.double().mean() > .6


def test_interrupting_two_processes_saves_the_epoch_they_are_in(tmp_path, monkeypatch):
    "A signal that one of them hears ends both; under torchrun itself in tests/slow/test_kills.py."
    setting = RunConfig(data_args=dict(n_train=40), recipe=Recipe(epochs=100000, batch_size=4, lr=1e-4), **SMALL)
    folder = RunFolder(setting.path(tmp_path))

    def interrupted(module, arguments, processes, output, *, env, stop):
        "Run the processes as copies, and signal this one when both are at work."
        store, ranks = group_of(processes)
        both = [Command(main, arguments, env=os.environ | env | rank, folder=tmp_path) for rank in ranks]
        try:
            wait_for((folder/"progress.json").exists, alive=lambda: both[0].poll() is None)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(stop)
            both[1].send_signal(signal.SIGTERM)
            for process in both: process.communicate(patience(60))
        finally:
            for process in both: process.kill()
        return max(process.returncode for process in both)
    monkeypatch.setattr("calibnb.runs.run.torchrun", interrupted)
    with pytest.raises(Stopped):
        get_run(setting, tmp_path, processes=2, device="cpu")
    assert folder.state == "interrupted" and "SIGTERM; the state is saved" in folder.status["reason"]
    state = saved_state(folder)
    assert len(state["own"]) == 2 and (state["step"] or state["history"])


def test_a_signal_during_the_exchange_of_several_processes_is_kept(monkeypatch):
    "Most of a small batch is the exchange, so this is where a signal usually arrives."
    signals, states = [], []

    def gathered(value):
        if not states: signals.append("SIGTERM")
        states.append(value)
        return [value, (False, False)]
    monkeypatch.setattr("calibnb.train.checkpoint.gathered", gathered)
    monkeypatch.setattr("calibnb.train.checkpoint.world_size", lambda: 2)
    saver = Saver(SimpleNamespace(position=SimpleNamespace(step=0)), "checkpoint.pt", 1e9, signals)
    monkeypatch.setattr(saver, "_save", lambda: states.append("saved"))
    saver.after_batch()
    with pytest.raises(Stopped): saver.after_batch()
    assert states == [(False, False), (True, True), "saved"]


def test_a_failure_on_two_processes_has_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("calibnb.runs.run.torchrun", partial(forked_torchrun, main))
    setting = RunConfig(recipe=Recipe(epochs=2, lr=1e20), **SMALL)
    with pytest.raises(RunError, match="2 processes ended with code 1: FloatingPointError: train loss is"):
        get_run(setting, tmp_path, processes=2)
    folder = RunFolder(setting.path(tmp_path))
    assert folder.state == "failed" and (folder/"processes.txt").read_text().count("in mean_loss") == 2  # of each


def test_a_file_can_be_trained_from_the_command_line(tmp_path, capsys, monkeypatch):
    setting = RunConfig(recipe=Recipe.quick(1), **SMALL)
    (tmp_path/"config.json").write_text(setting.model_dump_json())
    command = ["calibnb.runs", str(tmp_path/"config.json"), "--root", str(tmp_path/"runs")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        run_module("calibnb.runs", run_name="__main__")
    assert ended.value.code == 0
    run = Run(setting.path(tmp_path/"runs"))
    (run.path/"result.json").unlink()
    assert main([str(run.path/"run.json")]) == 0 and Run(run.path).metrics == run.metrics
    (tmp_path/"config.json").write_text(json.dumps(dict(loss="focall")))
    assert main(command[1:]) == 1 and "did you mean 'focal'" in capsys.readouterr().err


# what a run keeps

def test_the_network_of_a_run_is_the_one_that_was_kept(tmp_path):
    run = get_run(RunConfig(recipe=Recipe(epochs=12, lr=.4, keep="val_nll"), **SMALL), tmp_path)
    again = Trainer(run.model(), make_loss("ce"), device="cpu").predict(load_data("digits").test)
    assert torch.equal(again.logits, run.predictions("test").logits)  # bits: the same weights
    last = saved_state(run.path)["model"]
    assert not torch.equal(last["head.weight"], run.model().head.weight) and not run.model().training


def headless():
    "A network without a named head."
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10))


UNRECORDABLE = {
    "no head": ("weight_norm", headless, "ce", "Sequential has no `head`"),
    "no features": ("gradient_norms", headless, "ce", "has no `features` and `head`"),
    "coupled samples": ("gradient_norms", lambda: make_model("mlp", 10, (16,)), "mmce", "couples the samples"),
    "no gamma": ("gamma_stats", headless, "ce", "CrossEntropyLoss has no gamma"),
}


@pytest.mark.parametrize("recorder, model, loss, message", UNRECORDABLE.values(), ids=UNRECORDABLE)
def test_a_recorder_says_at_once_what_it_cannot_do(recorder, model, loss, message):
    with pytest.raises(ValueError, match=message):
        Trainer(model(), make_loss(loss), Recipe(epochs=1), "cpu").fit(load_data("digits"), [recorder])


def test_a_column_that_begins_late_is_nan_before(tmp_path):
    def from_the_second_epoch(view):
        if view.epoch > 1:
            return dict(late=1.)
    trainer = Trainer(headless(), make_loss("ce"), Recipe(epochs=3), "cpu")
    history = trainer.fit(load_data("digits"), [from_the_second_epoch])
    history.save(tmp_path/"h.csv")
    assert np.isnan(history["late"][0])
    assert np.array_equal(History.load(tmp_path/"h.csv")["late"], history["late"], equal_nan=True)


def test_the_split_and_the_gradient_norms_are_kept(tmp_path):
    options = dict(recorders=["gradient_norms", "gamma_stats"], loss="focal", loss_args=dict(gamma=2))
    run, splits = get_run(RunConfig(recipe=Recipe.quick(7), **options, **SMALL), tmp_path), load_data("digits")
    assert all(torch.equal(run.rows[k], s.rows) for k, s in splits.parts.items())
    assert sorted(torch.cat(list(run.rows.values())).tolist()) == list(range(1797))
    kept = run.recorded("gradient_norms")
    assert kept["epoch"].tolist() == [1, 3, 5, 7] and kept["norm"].shape == (4, 700)
    net, loss = make_model("mlp", 10, splits.in_shape, hidden=[32]), make_loss("focal", gamma=2)
    net.load_state_dict(saved_state(run.path)["model"])
    x, y = splits.train.x, splits.train.y
    for i in 0, 5:  # by autograd, one sample at a time
        grad, = torch.autograd.grad(loss(net(x[i:i + 1]), y[i:i + 1]), net.head.weight)
        assert kept["norm"][3, i] == pytest.approx(grad.norm().item(), rel=1e-4)
    preds = Predictions(net(x).detach(), y)
    want = (preds.probs - F.one_hot(y, 10)).square().sum(1)
    assert torch.allclose(kept["brier"][3].double(), want, atol=1e-5)
    assert set(run.history["gamma_mean"]) == {2.}


COUNTS = dict(weight=[1., 5., 0., *[2.]*7]), dict(ignore_index=3)


@pytest.mark.parametrize("options", [*COUNTS, COUNTS[0] | COUNTS[1]], ids=["weight", "ignored", "both"])
def test_gradient_norms_are_of_what_each_sample_counts(options, tmp_path):
    config = RunConfig(recipe=Recipe.quick(1), recorders=["gradient_norms"], loss="focal", loss_args=options, **SMALL)
    run, splits = get_run(config, tmp_path), load_data("digits")
    net, each = make_model("mlp", 10, splits.in_shape, hidden=[32]), make_loss("focal", **options, reduction="sum")
    net.load_state_dict(saved_state(run.path)["model"])
    x, y = splits.train.x[:40], splits.train.y[:40]
    want = [torch.autograd.grad(each(net(x[[i]]), y[[i]]), net.head.weight)[0].norm().item() for i in range(40)]
    assert min(want) == 0 < max(want)
    assert run.recorded("gradient_norms")["norm"][-1, :40].tolist() == pytest.approx(want, rel=1e-4)
