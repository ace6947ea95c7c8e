"How many kernels a loss starts, forward and backward: the numbers of the table in benchmarks/RESULTS.md."
import pytest
import torch
from standins import Launches, batch, launch_table, moved, stand_in
from usual_forms import LOSSES

from calibnb.losses import fast_weights, list_losses, make_loss


def launches(loss):
    with stand_in() as mode:
        if isinstance(loss, torch.nn.Module):
            moved(loss, "meta", mode)
        logits, target = batch("meta", grad=True)
        with Launches() as launched:
            loss(logits, target).backward()
    return launched.number


def test_the_table_has_rows():
    assert {"ce", "focal", "mmce"} <= {*launch_table()} <= {*list_losses()}


@pytest.mark.parametrize("name", launch_table())
def test_launches(name):
    usual, _, now, _ = launch_table()[name]
    assert launches(make_loss(name)) == now
    assert usual is None or launches(LOSSES[name]) == usual
    assert name not in ("ce", "focal", "bsce", "dual_focal", "mmce") or now <= usual


def test_views_start_nothing():
    with stand_in(), Launches() as launched:
        x = torch.empty(4, 4, device="meta")
        x.T[:, None].expand(4, 2, 4).detach()
        assert launched.number == 0
        x.add_(1).sum()
        assert launched.number == 2


WEIGHTED = [name for name in list_losses() if name.startswith(("focal", "flsd", "inverse", "dual", "bsce", "adafocal"))]


@pytest.mark.parametrize("name", WEIGHTED)
def test_by_kernels_the_same_numbers(name, monkeypatch):
    "The road of other devices, taken on the CPU."
    logits = torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss, target = make_loss(name), torch.arange(50) % 7
    def both():
        value = loss(logits, target)
        return value, *torch.autograd.grad(value, logits)
    here = both()
    monkeypatch.setattr(fast_weights, "_parts", fast_weights._parts_by_kernels)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(here, both(), strict=True))


def test_square_in_three_kernels():
    gap, along, square = torch.randn(5, 3), torch.randn(5, 1), torch.randn(5, 1)
    label, extra = torch.tensor([[0], [1], [2], [0], [1]]), torch.randn(5, 1)
    slope = fast_weights._LossSlope(along, square, label, extra)
    plain = (gap*(along + square*gap)).scatter_add(1, label, extra)
    on_the_cpu = fast_weights._logit_gradient(gap.clone(), slope, torch.tensor(1.))
    for found in (fast_weights._with_square(gap.clone(), slope), on_the_cpu):
        assert torch.allclose(found, plain, rtol=1e-5, atol=1e-6)
