"Nothing that runs on a device waits for it or mixes in another, tried on devices that are not there."
from contextlib import contextmanager
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch
from conftest import rounding
from standins import LOOKS, WrittenKernels, batch, moved, stand_in

from calibnb import metrics
from calibnb.core.probabilities import first_argmax
from calibnb.data import Split
from calibnb.data.splits import _pixel_scale
from calibnb.losses import list_losses, make_loss, surrogates
from calibnb.meta import InnerLoss, MetaRecipe, MetaStepper
from calibnb.metrics import streaming
from calibnb.metrics.bins import (
    _dense_class_sums, bin_ids, bin_sums, class_sums, equal_mass_starts, scatter_sums)
from calibnb.metrics.samples import hits
from calibnb.metrics.smoothing import cosine_means
from calibnb.models import make_model
from calibnb.train import Evaluator, GradientNorms, Recipe, Stepper
from calibnb.train.batches import EpochPlan, batches, crop_and_flip
from calibnb.train.recipe import FusedSGD
from calibnb.train.recorders import BestEpoch, _copy_state
from calibnb.train.finite import mean_loss
from calibnb.train.trainer import Position

DEVICES = "cuda", "meta"
OPTIONS = {"as they are": {}, "weight": dict(weight=[1.]*10), "ignore_index": dict(ignore_index=-100)}
SURROGATES = "mmce", "mmce_weighted", "dece", "mdca", "dca", "sece"
ERRORS_OF_A_BATCH = {"mmce", "mmce_weighted", "dece", "sece", "mdca", "dca"}  # with ignore_index: of how many samples?


@pytest.fixture(autouse=True)
def no_numbers_kept():
    "What is computed once for a device would be of this test's stand-in."
    _pixel_scale.cache_clear()
    yield
    _pixel_scale.cache_clear()


@pytest.mark.parametrize("device, options", [("cuda", "as they are"), *(("meta", options) for options in OPTIONS)])
@pytest.mark.parametrize("name", list_losses())
def test_losses(name, device, options):
    loss = make_loss(name, **OPTIONS[options])
    looks = options == "ignore_index" and name in ERRORS_OF_A_BATCH
    with stand_in() as mode:
        moved(loss, device, mode)
        logits, target = batch(device, grad=True)
        if looks:
            with pytest.raises(LOOKS):
                loss(logits, target)
            return
        value = loss(logits, target)
        assert (value.shape, value.device.type, value.dtype) == ((), device, torch.float32)
        if device == "meta":
            value.backward()
            assert logits.grad.device.type == device


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list_losses())
def test_losses_of_half_precision(name, half):
    loss = make_loss(name)
    with stand_in() as mode:
        moved(loss, "meta", mode)
        logits, target = batch("meta", grad=True, dtype=half)
        value = loss(logits, target)
        value.backward()
        assert (value.dtype, logits.grad.dtype) == (torch.float32, half)


@pytest.mark.parametrize("n", [64, 2000])  # MMCE has a matrix for the first
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates(name, device, n):
    with stand_in():
        logits, target = batch(device, n, grad=True)
        value = getattr(surrogates, name)(logits, target)
        if device == "meta":
            torch.autograd.grad(value.sum(), logits)


STAY = "error_rate", "nll", "brier_score", "entropy"  # their numbers lie where the probabilities lie
FETCH_ONE = ("ece", "mce", "average_ce", "debiased_ece", "ada_ece", "classwise_ece", "ace", "sece", "kde_ece",
             "overconfidence_error", "underconfidence_error", "top_k_ece", "marginal_ce")
FETCHES = dict.fromkeys(STAY, 0) | dict.fromkeys(FETCH_ONE, 1) | dict(ada_ece=3)  # the edges of its table, too


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FETCHES)
def test_metrics(name, dtype):
    "Each fetches its number once, at its end, or leaves it on the device."
    with stand_in(FETCHES[name]):
        logits, target = batch("cuda")
        value = getattr(metrics, name)(logits.to(dtype).softmax(1), target, validate=False)
        assert (value.dtype, value.device.type) == (torch.float64, "cpu" if FETCHES[name] else "cuda")


@pytest.mark.parametrize("name", ["ece", "error_rate", "nll", "brier_score", "classwise_ece"])
def test_metrics_of_one_column(name):
    with stand_in(FETCHES[name]):
        getattr(metrics, name)(torch.rand(64, device="cuda"), torch.ones(64, device="cuda").long(), validate=False)


def test_smooth_ece_fetches_a_grid():
    "What it searches for its width is on the CPU: 4097 numbers, fetched once."
    with stand_in():
        conf = torch.rand(64, device="cuda")
        assert cosine_means([(conf, conf - .5)]).device.type == "cuda"


STREAMS = dict(ECE=(), MCE=(), ClasswiseECE=(10,), ErrorRate=(), NLL=(), BrierScore=())


@pytest.mark.parametrize("name", STREAMS)
def test_streaming(name):
    "`update` never waits: no number is fetched until `compute`."
    metric = getattr(streaming, name)(*STREAMS[name], validate=False)
    with stand_in() as mode:
        for state in ("sums", "n"):
            setattr(metric, state, mode.from_tensor(getattr(metric, state)).to("cuda"))
        for _ in range(2):
            logits, target = batch("cuda")
            metric.update(logits.softmax(1), target)
        assert {t.device.type for t in (metric.sums, metric.n, metric.result())} == {"cuda"}


def images(device, n=64):
    x = torch.zeros(n, 3, 16, 16, dtype=torch.uint8, device=device)
    return Split(x, torch.zeros(n, dtype=torch.int64, device=device), scale=((.5,)*3, (.25,)*3))


@contextmanager
def stand_in_with_plan(n=32, **drawn):
    "A stand-in and the plan of an epoch, drawn on the CPU, as its tensors."
    plan = EpochPlan(n, 16, torch.Generator().manual_seed(0), **drawn)
    with stand_in() as mode:
        plan.parts = {k: v if v is None else mode.from_tensor(v) for k, v in plan.parts.items()}
        yield mode, plan


@pytest.mark.parametrize("device", DEVICES)
def test_batches(device):
    "Order, crop, flip, mixup and normalisation; what was drawn for an epoch is sent at its beginning."
    with stand_in_with_plan(64, augment=("crop", "flip"), mixup=.4, padding=2) as (mode, plan):
        where = dict(cuda="cuda:0", meta="meta")[device]  # as tensors name it
        for made in batches(images(where), plan, where):
            assert {t.device.type for t in (made.x, made.y, made.y_partner)} == {device}
            assert made.x.shape == (16, 3, 16, 16) and made.x.dtype == torch.float32


@pytest.mark.parametrize("parts", ["both", "shift", "flip"])
def test_crop_and_flip(parts):
    with stand_in():
        x = torch.rand(8, 3, 16, 16, device="cuda")
        shift = torch.zeros(8, 2, dtype=torch.int64, device="cuda") if parts != "flip" else None
        flip = torch.zeros(8, dtype=torch.bool, device="cuda") if parts != "shift" else None
        assert crop_and_flip(x, shift, flip, 4 if shift is not None else 0).device.type == "cuda"


def small_network(mode):
    return moved(make_model("small_cnn", 10, (3, 16, 16)), "meta", mode)


STEPS = {"sgd": {}, "clipped": dict(clip=1.), "mixup": dict(mixup=.4), "in pieces": dict(accumulate=2),
         "channels last": dict(channels_last=True)}


@pytest.mark.parametrize("kind", STEPS)
def test_step(kind):
    "Batch, forward, backward, clipping, update and the loss kept; the loss of an epoch is looked at once, at its end."
    recipe, loss, device = Recipe(**STEPS[kind]), make_loss("focal"), torch.device("meta")
    position = Position(torch.Generator(), BestEpoch("last"), None)
    with stand_in_with_plan(mixup=recipe.mixup) as (mode, plan):
        stepper = Stepper(small_network(mode), loss, recipe, device)
        for made in batches(images("meta", 32), plan, "meta"):
            position.add(*stepper(made, .1), len(plan), device)
        with pytest.raises(LOOKS):
            mean_loss(position.loss_sums, position.labels, recipe, 0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
def test_optimisers_are_fused(optimizer):
    "One kernel moves all weights, on a CUDA device too."
    with stand_in():
        weight = torch.nn.Parameter(torch.zeros(3, device="cuda"))
        made = Recipe(optimizer=optimizer).make_optimizer([weight])
        assert isinstance(made, FusedSGD) or made.param_groups[0]["fused"]


METAS = {"gamma": {}, "dece": dict(outer="dece"), "smoothing": dict(learn="smoothing"),
         "l2": dict(learn="l2", outer="ce", ce_weight=1.), "full": dict(scope="full"), "leak": dict(with_leak=True)}


@pytest.mark.parametrize("kind", METAS)
def test_meta_step(kind, monkeypatch):
    device, meta, recipe = torch.device("meta"), MetaRecipe(**METAS[kind]), Recipe(batch_size=16)
    with stand_in_with_plan() as (mode, plan):
        monkeypatch.setattr(torch.nn.Module, "to", partialmethod(moved, mode=mode))
        stepper = MetaStepper(small_network(mode), InnerLoss(meta), recipe, device, meta, images("meta", 32))
        for made in batches(images("meta", 32), plan, "meta"):
            loss, _ = stepper(made, .1)
        assert {t.device.type for t in (loss, stepper.totals)} == {"meta"}


def test_recorders_on_the_device(monkeypatch):
    "The gradients of the samples are computed there and fetched once; the weights of the best epoch stay there."
    on_the_cpu = "calibnb.train.recorders.brier_of_samples"  # looks at its labels, as it may
    monkeypatch.setattr(on_the_cpu, lambda probs, target: probs[:, 0])
    loss = make_loss("focal")
    with stand_in(fetches=1) as mode:
        logits, target = batch("cpu")
        preds = SimpleNamespace(logits=logits, target=target, probs=logits.softmax(1))
        trainer = SimpleNamespace(loss=loss, device=torch.device("meta"), reduction="mean")
        asked = SimpleNamespace(trainer=trainer, predictions=lambda s: preds, features=lambda s: torch.rand(64, 8))
        found = GradientNorms().arrays_of(asked)
        assert {k: (v.device.type, v.shape) for k, v in found.items()} == dict.fromkeys(found, ("cpu", (64,)))
        model = small_network(mode)
        kept = _copy_state(model)
        assert kept.keys() == model.state_dict().keys() and {t.device.type for t in kept.values()} == {"meta"}


def test_evaluation_fetches_once():
    "All batches of a split, whose logits and features stay on the device until the last is done."
    evaluator = object.__new__(Evaluator)  # no `Module.to` to a stand-in
    with stand_in(fetches=2) as mode:
        evaluator.model, evaluator.device, evaluator.recipe = small_network(mode), torch.device("meta"), Recipe()
        split = images("meta", 50)
        logits = evaluator._evaluate(split, evaluator.model, 16)
        features = evaluator.features(split, 16)
        assert [t.device.type for t in (logits, features)] == ["cpu"]*2 and logits.shape == (50, 10)


def test_another_torch_is_not_tried(monkeypatch):
    monkeypatch.setattr("standins.TRIED", "2.13")
    for made in stand_in, WrittenKernels:
        with pytest.raises(pytest.skip.Exception, match="tried on torch 2.13; this is"), made():
            pass


@pytest.mark.parametrize("closed", ["right", "left"])
def test_other_devices_get_the_same_numbers(closed):
    "What is computed without looking, beside what the CPU computes by looking."
    draw = torch.Generator().manual_seed(0)
    probs = (3*torch.randn(500, 7, generator=draw, dtype=torch.float64)).softmax(1)
    probs[:40], probs[40:50] = torch.eye(7)[0], 1/7  # at an edge; all equal
    target = torch.randint(7, (500,), generator=draw)
    conf, hit = probs.amax(1), first_argmax(probs) == target
    weight = torch.rand(500, generator=draw, dtype=torch.float64)
    assert hits(probs, target, conf, conf).equal(hit)
    for n_bins in (1, 15, 70):
        ids = bin_ids(conf, n_bins, closed)
        for w in (None, weight):
            values = [hit, conf] if w is None else [w*hit, w*conf, w]
            sums = scatter_sums(ids, n_bins, [torch.ones_like(ids), *values])
            assert torch.allclose(sums, bin_sums(ids, conf, hit, n_bins, w), rtol=0, atol=rounding(500, size=500))
        dense = _dense_class_sums(probs, target, n_bins)
        assert torch.allclose(dense, class_sums(probs, target, n_bins), rtol=0, atol=rounding(500, size=500))


@pytest.mark.parametrize("n", [1, 2, 14, 15, 16, 100])
def test_starts_of_bins_of_equal_mass(n):
    pieces = [p for p in torch.arange(n).tensor_split(15) if len(p)]
    assert equal_mass_starts(n, 15).tolist() == [p[0].item() for p in pieces]
