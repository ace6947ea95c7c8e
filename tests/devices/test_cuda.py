"""What a GPU computes, beside what the CPU does. `make gpu` runs these; they are skipped where there is none.

CALIBNB_TEST_DEVICE=cpu compares the CPU with itself, which tries the tests.
"""
import os

import pytest
import torch
from conftest import tensors, vectors

from calibnb import metrics
from calibnb.core.probabilities import first_argmax
from calibnb.data import Split, Splits, load_data
from calibnb.losses import list_losses, make_loss, surrogates
from calibnb.meta import MetaRecipe, MetaTrainer
from calibnb.metrics import streaming
from calibnb.models import make_model
from calibnb.train import Recipe, Trainer
from calibnb.train.batches import EpochPlan, batches

DEVICE = torch.device(os.environ.get("CALIBNB_TEST_DEVICE", "cuda"))
IS_THERE = DEVICE.type != "cuda" or torch.cuda.is_available()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not IS_THERE, reason="needs a CUDA device")]

# Relative to the largest number. float64 has 16 digits, float32 has 7; four are left to sums in another order and to
# exponentials as sharp as those of soft bins, which multiply a rounding error by 1/.01 and by 100.
CLOSE = {torch.float64: 1e-11, torch.float32: 1e-3}


def assert_close(there, here, dtype=torch.float64):
    there, here = (torch.as_tensor(t).detach().double().cpu() for t in (there, here))
    allowed = CLOSE[dtype]*here.abs().max().clamp(min=1e-3)
    assert there.shape == here.shape
    assert (there - here).abs().max() <= allowed


FORMULAS = [name for name in list_losses() if name != "consistency"]  # which adds noise that each device draws


def batch(dtype=torch.float64, n=500, classes=10):
    draw = torch.Generator().manual_seed(0)
    return 3*torch.randn(n, classes, generator=draw, dtype=dtype), torch.randint(classes, (n,), generator=draw)


def value_and_gradient(loss, logits, target, device):
    "Of a loss, or of a loss function, on a device."
    loss = loss.to(device) if isinstance(loss, torch.nn.Module) else loss
    logits = logits.to(device).clone().requires_grad_()
    value = loss(logits, target.to(device))
    return value, *torch.autograd.grad(value.sum(), logits)


def assert_same(loss, logits, target):
    "A value and its gradient are on the device what they are on the CPU."
    here = value_and_gradient(loss, logits, target, "cpu")
    for a, b in zip(value_and_gradient(loss, logits, target, DEVICE), here):
        assert a.device.type == DEVICE.type
        assert_close(a, b, logits.dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_losses(name, dtype):
    assert_same(make_loss(name), *batch(dtype))


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_of_half_precision(name):
    "The logits of autocast: computed in float32, so the value is that of the CPU."
    logits, target = batch(torch.float32)
    here, _ = value_and_gradient(make_loss(name), logits.bfloat16(), target, "cpu")
    there, gradient = value_and_gradient(make_loss(name), logits.bfloat16(), target, DEVICE)
    assert_close(there, here, torch.float32)
    assert gradient.dtype == torch.bfloat16 and gradient.isfinite().all()


def test_a_loss_that_draws_noise():
    logits, target = batch()
    here, there = (make_loss("consistency").to(d)(logits.to(d), target.to(d)) for d in ("cpu", DEVICE))
    assert abs(there.item() - here.item()) < .05*here.item()


EDGE = tensors(vectors("losses")[1]["edge"])


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_at_the_edge(name):
    "Probabilities of 0 and 1, and ties; what the CPU makes of them is held by golden numbers."
    assert_same(make_loss(name), EDGE["logits"], EDGE["labels"])


@pytest.mark.parametrize("name", ["mmce", "mmce_weighted", "dece", "mdca", "dca", "sece"])
def test_surrogates(name):
    assert_same(getattr(surrogates, name), *batch())


METRICS = ("ece", "mce", "average_ce", "debiased_ece", "ada_ece", "classwise_ece", "ace", "sece", "kde_ece",
           "smooth_ece", "top_k_ece", "marginal_ce", "overconfidence_error", "underconfidence_error", "error_rate",
           "nll", "brier_score", "entropy")


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", METRICS)
def test_metrics(name, dtype):
    logits, target = batch(dtype)
    probs, metric = logits.softmax(1), getattr(metrics, name)
    for validate in (True, False):
        there = metric(probs.to(DEVICE), target.to(DEVICE), validate=validate)
        assert_close(there, metric(probs, target, validate=validate), dtype)


STREAMS = dict(ECE=(), MCE=(), ClasswiseECE=(10,), ErrorRate=(), NLL=(), BrierScore=())


@pytest.mark.parametrize("name", STREAMS)
def test_streaming(name):
    logits, target = batch()
    probs, kind = logits.softmax(1), getattr(streaming, name)
    here, there = kind(*STREAMS[name]), kind(*STREAMS[name]).to(DEVICE)
    for p, y in zip(probs.split(128), target.split(128)):
        here.update(p, y)
        there.update(p.to(DEVICE), y.to(DEVICE))
    assert there.sums.device.type == DEVICE.type
    assert_close(there.compute(), here.compute())


def test_labels_are_checked_there_too():
    probs = torch.tensor([[.9, .1], [.2, .8]], device=DEVICE)
    with pytest.raises(ValueError, match="label 2 at row 1"):
        metrics.ece(probs, torch.tensor([0, 2], device=DEVICE))


def test_the_first_of_equal_maxima():
    scores = torch.zeros(1000, 37)
    scores[:, 5:] = 1
    assert first_argmax(scores.to(DEVICE)).cpu().eq(5).all()


def images(device, n=32):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 16, 16), dtype=torch.uint8, generator=draw)
    return Split(x.to(device), (torch.arange(n) % 10).to(device), scale=((.5,)*3, (.25,)*3))


@pytest.mark.parametrize("where", ["resident", "streamed"])
def test_batches(where):
    "Order, crops, mirrors and mixup are drawn on the CPU: the same batches, pixel for pixel."
    def made(split, device):
        order = torch.Generator().manual_seed(0)
        return batches(split, EpochPlan(32, 8, order, augment=("crop", "flip"), mixup=.4, padding=2), device)
    split = images(DEVICE if where == "resident" else "cpu")
    there = made(split, torch.empty(0, device=DEVICE).device)  # with its index, as tensors name it
    for a, b in zip(there, made(images("cpu"), "cpu"), strict=True):
        assert a.x.device.type == DEVICE.type
        assert_close(a.x, b.x, torch.float32)
        assert a.y.cpu().equal(b.y) and a.y_partner.cpu().equal(b.y_partner) and a.lam == b.lam


RECIPES = {"plain": {}, "clipped": dict(clip=1.), "mixup": dict(mixup=.4), "in pieces": dict(accumulate=2),
           "adam": dict(optimizer="adam", lr=1e-3), "best epoch": dict(keep="val_nll"), "compiled": dict(compile=True)}


def trained(device, **changes):
    splits, recipe = load_data("digits"), Recipe(epochs=2, lr=.02).model_copy(update=changes)
    model = make_model("mlp", 10, splits.in_shape, hidden=[32])
    trainer = Trainer(model, make_loss("focal"), recipe, device)
    trainer.fit(splits)
    return trainer, trainer.predict(splits.test)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # torch.compile recommends another precision
@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_training(changes):
    "Two dozen steps: rounding has not grown to more than the third digit. On the CPU nothing is compiled."
    there, their_preds = trained(str(DEVICE), **changes)
    here, preds = trained("cpu", **changes | dict(compile=False))
    assert next(there.model.parameters()).device.type == DEVICE.type
    assert_close(there.history["train_loss"], here.history["train_loss"], torch.float32)
    assert_close(their_preds.logits, preds.logits, torch.float32)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_of_images_in_half_precision(precision):
    "On images whose channels come last; the CPU rounds elsewhere, so only the course is the same."
    split, losses = images("cpu", 64), {}
    recipe = Recipe(epochs=4, batch_size=16, lr=.01, precision=precision, channels_last=True, augment=("crop", "flip"))
    for device in (str(DEVICE), "cpu"):
        trainer = Trainer(make_model("small_cnn", 10, (3, 16, 16)), make_loss("ce"), recipe, device)
        losses[device] = trainer.fit(Splits("noise", 10, split, split, split))["train_loss"]
        assert losses[device][-1] < losses[device][0]
    assert abs(losses[str(DEVICE)] - losses["cpu"]).max() < .1


def test_out_of_memory_says_what_to_do_and_leaves_room():
    "Of a loss that wants 2**50 bytes, then of one that does not."
    def huge(logits, target):
        return torch.empty(2**48, dtype=torch.float32, device=logits.device)[:64].sum() + logits.sum()
    splits = load_data("digits")
    model = make_model("mlp", 10, splits.in_shape)
    with pytest.raises(torch.OutOfMemoryError, match="batch_size=64, accumulate=1, precision=fp32: raise accumulate"):
        Trainer(model, huge, Recipe.quick(1), str(DEVICE)).fit(splits)
    Trainer(model, make_loss("ce"), Recipe.quick(1), str(DEVICE)).fit(splits)


METAS = {"gamma": {}, "dece": dict(outer="dece"), "smoothing": dict(learn="smoothing"),
         "l2": dict(learn="l2", outer="ce", ce_weight=1.), "full": dict(scope="full"),
         "difference": dict(scope="full", jvp_by="difference"), "leak": dict(with_leak=True)}


def meta_trained(device, meta):
    splits = load_data("digits", n_meta=100)
    model = make_model("mlp", 10, splits.in_shape, hidden=[32])
    trainer = MetaTrainer(model, meta, Recipe(epochs=1, lr=.02), device)
    trainer.fit(splits)
    return trainer


@pytest.mark.parametrize("kind", METAS)
def test_meta_training(kind):
    "The sums of |hypergradient| and of the outer loss, what was learned, and the network."
    meta = MetaRecipe(**METAS[kind])
    there, here = (meta_trained(str(d), meta) for d in (DEVICE, "cpu"))
    assert there.stepper.totals.device.type == DEVICE.type
    assert_close(there.stepper.totals, here.stepper.totals, torch.float32)
    for a, b in zip(there.model.parameters(), here.model.parameters()):
        assert_close(a, b, torch.float32)
    for a, b in zip(there.stepper.inner.parameters(), here.stepper.inner.parameters()):
        assert (a.cpu() - b).norm() <= .05*b.norm()  # Adam takes a whole step where a gradient is 0 but for rounding
