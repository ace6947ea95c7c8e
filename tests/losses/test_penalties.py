"Losses with penalties and AdaFocal: gradients, ties, updates and bad input."
import json

import pytest
import torch
import torch.nn.functional as F
from conftest import VECTORS, within

from calibnb import losses
from calibnb.losses import adaptive, fast_weights, make_loss, surrogates

ACTIVE = [("mbls", dict(margin=1.)), ("acls", dict(margin=1., others=1.)), ("max_sup", {}), ("logit_norm", {}),
          ("mdca", dict(gamma=2.)), ("dca", {})]


def batch(N=7, K=5, seed=0, scale=3.):
    draw = torch.Generator().manual_seed(seed)
    return scale*torch.randn(N, K, generator=draw, dtype=torch.float64), torch.randint(K, (N,), generator=draw)


@pytest.mark.parametrize("name, options", [a for a in ACTIVE if a[0] != "acls"], ids=str)
def test_gradcheck_with_an_active_penalty(name, options):
    logits, target = batch()
    loss = make_loss(name, **options, reduction="none")
    penalty = loss(logits, target) - F.cross_entropy(logits, target, reduction="none")
    assert penalty.abs().max() > 0
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (logits.requires_grad_(),))


@pytest.mark.parametrize("name", ["mbls", "acls"])
def test_a_wide_margin_leaves_the_cross_entropy(name):
    logits, target = batch()
    torch.testing.assert_close(make_loss(name, margin=1e3)(logits, target), F.cross_entropy(logits, target))


def test_ties_and_zero_logits():
    "The first of equal largest logits is the largest; a row of zeros has a finite gradient."
    tie = torch.tensor([[12., 12., 0.]], dtype=torch.float64, requires_grad=True)
    grad, = torch.autograd.grad(losses.max_sup_loss(tie, torch.tensor([2]), alpha=3.), tie)
    plain, = torch.autograd.grad(F.cross_entropy(tie, torch.tensor([2])), tie)
    torch.testing.assert_close(grad - plain, torch.tensor([[2., -1., -1.]]).double())
    origin = torch.zeros(1, 3, requires_grad=True)
    for name, options in ACTIVE:
        value = make_loss(name, **options)(origin, torch.tensor([0]))
        assert value.isfinite() and torch.autograd.grad(value, origin)[0].isfinite().all()


def test_acls_has_no_gradient_of_its_targets():
    logits = torch.tensor([[5., 0., 0.]], dtype=torch.float64, requires_grad=True)
    loss = losses.acls_loss(logits, torch.tensor([0]), margin=1., alpha=1., top=0., others=1.)
    grad, = torch.autograd.grad(loss - F.cross_entropy(logits, torch.tensor([0])), logits)
    torch.testing.assert_close(grad, torch.tensor([[0., -4., -4.]]).double())


@pytest.mark.parametrize("seed", range(5))
def test_mean_errors_of_a_batch(seed):
    logits, target = batch(60, 3, seed)
    probs = logits.softmax(1)
    assert 0 <= surrogates.dca(logits, target) <= 1 and 0 <= surrogates.mdca(logits, target) <= 2/3
    even = torch.zeros(6, 3, dtype=torch.float64)
    assert surrogates.mdca(even, torch.tensor([0, 1, 2]*2)) < 1e-15
    assert surrogates.dca(even, torch.tensor([0, 1, 2]*2)) < 1e-15
    worst = (probs.mean(0) - torch.bincount(target, minlength=3)/60).abs().sum()/3
    torch.testing.assert_close(surrogates.mdca(logits, target), worst)


# AdaFocal

UPDATES = json.loads((VECTORS/"penalties.json").read_text())["updates"]


@pytest.mark.parametrize("case", UPDATES, ids=lambda c: c["id"])
def test_golden_update(case):
    conf, hit = torch.tensor(case["conf"], dtype=torch.float64), torch.tensor(case["hit"]).bool()
    edges = adaptive.equal_mass_edges(conf, case["n_bins"])
    if case["edges"]:
        within(edges, case["edges"], case)
    gap = adaptive.confidence_gaps(conf, hit, edges)
    within(gap, case["gap"], case)
    loss = make_loss("adafocal", n_bins=case["n_bins"], rate=case["rate"])
    loss.gammas.copy_(torch.tensor(case["gammas"], dtype=torch.float64))
    loss.update(conf, hit)
    within(loss.gammas, case["next"], case)


def trained(**options):
    "Return an AdaFocal loss after some epochs, with exponents of both signs."
    loss = make_loss("adafocal", n_bins=4, rate=4., **options)
    loss.gammas.copy_(torch.tensor([3., -1.5, .5, -.2], dtype=torch.float64))
    loss.edges.copy_(torch.tensor([.1, .3, .7], dtype=torch.float64))
    return loss


@pytest.mark.parametrize("seed", range(3))
def test_adafocal_after_updates(seed):
    "Analytic derivatives equal autograd; float32, images, gradcheck, weights and ignored labels."
    logits, target = batch(12, 3, seed)
    loss = trained(reduction="none")
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (logits.requires_grad_(),))
    values = loss(logits, target)
    u = fast_weights.partial(adaptive.adafocal_weight, gammas=loss.gammas, edges=loss.edges)
    plain = fast_weights._plain(logits, target, u, False)
    torch.testing.assert_close(values, plain)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), logits)[0] for v in (values, plain)))
    single = loss(logits.detach().float(), target)
    torch.testing.assert_close(single.double(), values.detach(), rtol=1e-4, atol=1e-5)
    image = logits.detach().reshape(2, 6, 3).movedim(-1, 1), target.reshape(2, 6)
    torch.testing.assert_close(loss(*image), values.detach().reshape(2, 6))
    weighted = trained(weight=[1., 2., 0.], ignore_index=0)
    shares = torch.tensor([0., 2., 0.], dtype=torch.float64)[target]
    torch.testing.assert_close(weighted(logits, target), (values*shares).sum()/shares.sum())


def test_adafocal_loads_its_state():
    loss, other = trained(), make_loss("adafocal", n_bins=4, rate=4.)
    assert loss.state_dict().keys() == {"gammas", "edges"}
    other.load_state_dict(loss.state_dict())
    logits, target = batch()
    assert torch.equal(other.gammas, loss.gammas) and torch.equal(other.edges, loss.edges)
    assert torch.equal(other(logits, target), loss(logits, target))  # bits: one state, the same operations
    assert loss.float().gammas.dtype == torch.float32 and loss(logits, target).isfinite()


@pytest.mark.parametrize("conf, hit, message", [
    (torch.zeros(4, 3), torch.zeros(4).long(), r"conf: float32, shape .4, 3., want .N,. confidences; for logits, conf"),
    (torch.zeros(0), torch.zeros(0), r"conf: float32, shape .0,."),
    (torch.ones(4).long(), torch.ones(4), "conf: int64"),
    (torch.full((4,), .5), torch.ones(3), r"hit: shape .3,., want .4,., one for each confidence"),
    (torch.tensor([.5, 2.]), torch.ones(2), "conf: 2, want probabilities"),
    (torch.tensor([.5, float("nan")]), torch.ones(2), "conf: nan, want probabilities"),
    (torch.full((4,), .5), torch.arange(4), "hit: 2, want bool, or 0 and 1")])
def test_bad_update(conf, hit, message):
    loss = make_loss("adafocal")
    with pytest.raises(ValueError, match=message):
        loss.update(conf, hit)
    assert (loss.gammas == 1).all()


def test_update_takes_tensors_and_arrays():
    logits, target = batch(40, 3)
    conf, pred = logits.softmax(1).max(1)
    loss, other = make_loss("adafocal"), make_loss("adafocal")
    loss.update(conf, pred == target)
    other.update(conf.numpy(), (pred == target).long().numpy())
    assert torch.equal(loss.gammas, other.gammas) and (loss.gammas != 1).any()


@pytest.mark.parametrize("options, message", [
    (dict(gammas=[1., 2.]), "edges: 0 given, want 1"), (dict(gammas=[float("nan")]), "gammas: .nan., want finite"),
    (dict(gammas=[1., 1.], edges=[[.5]]), "edges: ..0.5.., want finite numbers in a 1-d sequence")], ids=str)
def test_bad_exponents(options, message):
    with pytest.raises(ValueError, match=message):
        losses.adafocal_loss(*batch(), **options)
