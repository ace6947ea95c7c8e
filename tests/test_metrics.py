"Metrics against slow twins in plain Python, and at the edges."
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibnb import metrics

FUNCTIONS = {"error_rate": metrics.error_rate, "nll": metrics.nll, "brier_score": metrics.brier_score, "entropy": metrics.entropy,
             "ece": metrics.ece, "mce": metrics.mce, "average_ce": metrics.average_ce, "ada_ece": metrics.ada_ece,
             "classwise_ece": metrics.classwise_ece, "debiased_ece": metrics.debiased_ece, "ace": metrics.ace, "reliability_bins": metrics.reliability_bins}


def slow_ece(conf, hit, M, closed="right"):
    "One sample at a time, as the definition says."
    bins = [[] for _ in range(M)]
    for c, a in zip(conf, hit):
        for m in range(M):
            lo, hi = m/M, (m + 1)/M
            inside = (lo < c <= hi or m == 0 and c == 0) if closed == "right" else (lo <= c < hi or m == M - 1 and c == 1)
            if inside:
                bins[m].append((c, a))
    gaps = [abs(sum(a for _, a in b)/len(b) - sum(c for c, _ in b)/len(b)) if b else 0. for b in bins]
    return sum(len(b)/len(conf)*g for b, g in zip(bins, gaps)), max(gaps), sum(map(len, bins))


def slow_ada_ece(conf, hit, M):
    order = sorted(range(len(conf)), key=lambda i: conf[i])
    parts = [part for part in np.array_split(order, M) if len(part)]
    return sum(abs(sum(hit[i] - conf[i] for i in part)) for part in parts)/len(conf)


@st.composite
def problems(draw):
    "Probabilities that love the edges: exact 0 and 1, ties, values on bin edges, few samples, absent classes."
    N, K = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    weight = st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 1000))
    rows = draw(st.lists(st.lists(weight, min_size=K, max_size=K).filter(any), min_size=N, max_size=N))
    probs = torch.tensor(rows, dtype=torch.float64)
    return probs/probs.sum(1, keepdim=True), torch.tensor(draw(st.lists(st.integers(0, K - 1), min_size=N, max_size=N)))


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(1, 20), st.sampled_from(["right", "left"]))
def test_against_slow_twins(problem, M, closed):
    probs, target = problem
    conf, hit = probs.numpy().max(1), (probs.numpy().argmax(1) == target.numpy()).astype(float)
    want, worst, placed = slow_ece(conf, hit, M, closed)
    assert placed == len(conf)
    assert math.isclose(metrics.ece(probs, target, M, closed=closed), want, abs_tol=1e-12)
    assert math.isclose(metrics.mce(probs, target, M, closed=closed), worst, abs_tol=1e-12)
    assert math.isclose(metrics.ada_ece(probs, target, M), slow_ada_ece(conf, hit, M), abs_tol=1e-12)
    each = [slow_ece(probs[:, k].numpy(), (target == k).double().numpy(), M, closed)[0] for k in range(probs.shape[1])]
    torch.testing.assert_close(metrics.classwise_ece(probs, target, M, reduction="none", closed=closed), torch.tensor(each, dtype=torch.float64),
                               rtol=0, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_ties_go_to_the_first_class(problem):
    probs, target = problem
    want = (probs.numpy().argmax(1) != target.numpy()).mean()
    assert math.isclose(metrics.error_rate(probs, target), want, abs_tol=1e-12)
    logits = torch.where(probs > 0, probs, 1e-300).log()
    assert math.isclose(metrics.ece_from_logits(logits, target, 7), metrics.ece(logits.softmax(1), target, 7), abs_tol=1e-12)


def test_debiased_is_less_biased_and_the_floor_is_the_floor():
    "Perfectly calibrated predictions: the plug-in error is noise, of the size the floor says; the debiased one is smaller."
    draw, plain, less, floor = torch.Generator().manual_seed(0), [], [], []
    for i in range(150):
        p = torch.rand(500, generator=draw, dtype=torch.float64)*.5 + .5
        probs, target = torch.stack([p, 1 - p], 1), (torch.rand(500, generator=draw, dtype=torch.float64) > p).long()
        plain.append(metrics.ece(probs, target))
        less.append(metrics.debiased_ece(probs, target) - metrics.ece(probs, target, norm="l2"))
        floor.append(metrics.noise_floor(probs, draws=20, seed=i))
    assert max(less) <= 1e-12 and abs(np.mean(plain)/np.mean(floor) - 1) < .1


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(1, 12), st.integers(1, 4))
def test_bounds_and_refinement(problem, M, factor):
    probs, target = problem
    coarse, fine = metrics.ece(probs, target, M), metrics.ece(probs, target, M*factor)
    assert 0 <= coarse <= metrics.mce(probs, target, M) + 1e-12 <= 1 + 2e-12
    assert coarse <= fine + 1e-12
    gap = abs(1 - metrics.error_rate(probs, target) - metrics.mean_confidence(probs))
    assert math.isclose(metrics.ece(probs, target, 1), gap, abs_tol=1e-12)
    rows = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    assert math.isclose(metrics.ece(probs[rows], target[rows], M), coarse, abs_tol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("how", ["numpy", "float32", "half", "list", "segmentation"])
def test_input_kinds(name, how):
    draw = torch.Generator().manual_seed(0)
    probs, target = torch.randn(12, 4, generator=draw, dtype=torch.float64).softmax(1), torch.randint(4, (12,), generator=draw)
    args = dict(numpy=lambda: (probs.numpy(), target.numpy()), float32=lambda: (probs.float(), target.int()),
                half=lambda: (probs.half(), target), list=lambda: (probs.tolist(), target.tolist()),
                segmentation=lambda: (probs.reshape(3, 4, 4).movedim(2, 1), target.reshape(3, 4)))[how]()
    got, want = FUNCTIONS[name](*args), FUNCTIONS[name](probs, target)
    if name == "reliability_bins":
        got, want = got.count, want.count
    else:
        assert got.dtype == torch.float64 and got.ndim == 0
    torch.testing.assert_close(got, want, rtol=0, atol=2e-2 if how == "half" else 1e-6)


GOOD = torch.tensor([[.5, .5], [.2, .8]]), torch.tensor([0, 1])
BAD = {
    "not summing to 1": ((torch.tensor([[.7, .7], [.5, .5]]), GOOD[1]), "probs: row 0 sums to 1.400.*softmax"),
    "logits": ((torch.tensor([[3., -1.], [.5, .5]]), GOOD[1]), r"probs: 3 at row 0, column 0, want numbers in \[0, 1\]; logits need .softmax"),
    "nan": ((torch.tensor([[float("nan"), 1.], [.5, .5]]), GOOD[1]), "probs: nan at row 0"),
    "inf": ((torch.tensor([[.5, .5], [0., float("inf")]]), GOOD[1]), "probs: inf at row 1"),
    "label too large": ((GOOD[0], torch.tensor([0, 2])), r"target: label 2 at row 1, want 0..1 \(probs has 2 columns\)"),
    "label negative": ((GOOD[0], torch.tensor([-1, 0])), "target: label -1 at row 0"),
    "float labels": ((GOOD[0], torch.tensor([0., 1.])), "target: dtype float32, want integer class ids"),
    "one-hot labels": ((GOOD[0], torch.tensor([[0, 1], [1, 0]])), r"target: shape \(2, 2\), want \(2,\)"),
    "too few labels": ((GOOD[0], torch.tensor([0])), r"target: shape \(1,\), want \(2,\)"),
    "empty": ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), "probs: empty"),
    "one column": ((torch.ones(2, 1), GOOD[1]), "K >= 2; a binary probability p goes in as"),
    "a vector": ((torch.tensor([.5, .5]), GOOD[1]), "K >= 2"),
    "integers": ((torch.tensor([[0, 1], [1, 0]]), GOOD[1]), "probs: dtype int64, want floating point"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_input_is_refused(name, case):
    args, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[name](*args)


@pytest.mark.parametrize("n_bins", [0, -3, 2.5, True, None])
def test_bad_bins(n_bins):
    assert metrics.ece(*GOOD, np.int64(3)) == metrics.ece(*GOOD, 3)
    for name in "ece", "mce", "ada_ece", "classwise_ece", "average_ce", "debiased_ece", "ace":
        with pytest.raises(ValueError, match="n_bins: .* want a whole number"):
            FUNCTIONS[name](*GOOD, n_bins)


def test_mce_of_bins_with_enough_samples():
    probs, target = torch.tensor([[.9, .1], [.9, .1], [.6, .4]], dtype=torch.float64), torch.tensor([0, 0, 1])
    assert math.isclose(metrics.mce(probs, target, 10), .6) and math.isclose(metrics.mce(probs, target, 10, min_count=2), .1)
    assert metrics.mce(probs, target, 10, min_count=3).isnan()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_labels_are_checked_on_the_device_too():
    with pytest.raises(ValueError, match="label 2 at row 1"):
        metrics.ece(GOOD[0].cuda(), torch.tensor([0, 2]).cuda())


def test_bootstrap_covers():
    "The 95 % interval of the error rate covers the truth in about 95 of 100 repetitions."
    draw, inside = torch.Generator().manual_seed(0), 0
    for i in range(100):
        p = torch.rand(400, generator=draw, dtype=torch.float64)*.4 + .6
        target = (torch.rand(400, generator=draw, dtype=torch.float64) > p).long()
        lo, hi = metrics.bootstrap_ci(metrics.error_rate, torch.stack([p, 1 - p], 1), target, seed=i)
        inside += lo <= .2 <= hi
    assert 88 <= inside <= 99
