"Other implementations: agreement, and the cases in which they differ."
import math
import warnings

import numpy as np
import pytest
import torch
from conftest import rounding
from torchmetrics.functional.classification import multiclass_calibration_error

from calibnb import metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import netcal.metrics
    import relplot


def random_data(seed, N=2000, K=4, scale=1.5):
    "Overconfident predictions in float32, none so near an edge of 10, 15 or 100 bins that rounding decides its bin."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(N, K, generator=draw)
    target = torch.multinomial((logits/scale).softmax(1), 1, generator=draw)[:, 0]
    probs = logits.softmax(1)
    on_edges = probs.double().amax(1)[:, None]*torch.tensor([10, 15, 100])
    far = ((on_edges - on_edges.round()).abs() > 100*rounding(K, torch.float32)).all(1)
    return probs[far], target[far]


PEERS = [("ece", "ECE"), ("mce", "MCE"), ("average_ce", "ACE")]


def torchmetrics_error(probs, target, norm, n_bins=15):
    return multiclass_calibration_error(probs, target, probs.shape[1], n_bins=n_bins, norm=norm).item()


@pytest.mark.parametrize("n_bins", [1, 15])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_binned_errors_agree_with_torchmetrics(n_bins, norm, seed=0):
    probs, target = random_data(seed)
    ours, peer = metrics.ece(probs, target, n_bins, norm=norm), torchmetrics_error(probs, target, norm, n_bins)
    assert math.isclose(ours, peer, abs_tol=rounding(len(probs), torch.float32))  # the peer sums in float32


@pytest.mark.parametrize("name, peer", PEERS)
def test_binned_errors_agree_with_netcal(name, peer, n_bins=15, seed=0):
    probs, target = random_data(seed)
    ours = getattr(metrics, name)(probs, target, n_bins)
    want = getattr(netcal.metrics, peer)(n_bins).measure(probs.double().numpy(), target.numpy())
    assert math.isclose(ours, want, abs_tol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_smooth_ece_agrees_with_relplot(binary, seed=1):
    "They agree away from 0 and 1, for the fixed point within the steps of its search, and for given widths."
    draw = np.random.default_rng(seed)
    conf = .05 + .9*draw.beta(2, 2, size=3000) if binary else .5 + .4*draw.beta(2, 2, size=3000)
    hit = draw.random(3000) < conf**(1 + seed/4)
    args = (conf, hit) if binary else (np.c_[conf, 1 - conf], 1 - hit.astype(int))
    assert math.isclose(metrics.smooth_ece(*args), relplot.smECE(conf, hit), abs_tol=5e-4)
    for sigma in .02, .05, .2:
        peer = relplot.smECE_sigma(conf, hit, sigma)
        assert math.isclose(metrics.smooth_ece(*args, sigma=sigma), peer, abs_tol=5e-4)


def test_torchmetrics_puts_confidence_one_in_a_separate_bin():
    "Three samples at confidence 1 with two right, one at .95: all belong to the last bin of ten."
    probs = torch.tensor([[1., 0.], [1., 0.], [1., 0.], [.95, .05]], dtype=torch.float64)
    target = torch.tensor([0, 0, 1, 0])
    assert math.isclose(metrics.ece(probs, target, 10), abs(3/4 - 3.95/4), abs_tol=1e-12)
    assert math.isclose(torchmetrics_error(probs, target, "l1", 10), 3/4*(1/3) + 1/4*.05, abs_tol=1e-6)
    assert math.isclose(torchmetrics_error(probs, target, "max", 10), 1/3, abs_tol=1e-6)


def test_relplot_halves_the_mass_at_the_ends():
    "Thirty samples at confidence 1 with a gap of 1/3, thirty calibrated ones at 1/2: the error is 1/6."
    conf = np.r_[np.ones(30), np.full(30, .5)]
    hit = np.r_[np.arange(30) % 3 > 0, np.arange(30) % 2 == 0]
    probs, target = torch.tensor(np.c_[conf, 1 - conf]), torch.tensor(1 - hit.astype(int))
    assert math.isclose(metrics.smooth_ece(probs, target), 1/6, abs_tol=1e-3)
    assert .10 < relplot.smECE(conf, hit) < .12
