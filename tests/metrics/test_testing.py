"Tests of calibration: golden numbers of the kernel error and its bootstrap, sizes, power, memory, edges, bad input."
import resource

import numpy as np
import pytest
import torch
from close import close
from conftest import vectors, within
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from calibnb import metrics
from calibnb.metrics import testing

CASES, DATA = vectors("testing")
CASES = {case["id"]: case for case in CASES}
PROBS, LABELS = torch.tensor(DATA["probs"], dtype=torch.float64), torch.tensor(DATA["labels"])
TRUTH = torch.nn.functional.one_hot(LABELS, 3)
COLUMN, TAGS = PROBS[:, 1], (LABELS == 1).long()


def drawn(n, K, sharper, seed):
    "Draw labels from the softmax of logits that the model multiplies by `sharper`."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(n, K, generator=draw, dtype=torch.float64)
    return (sharper*logits).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


@pytest.mark.parametrize("name", CASES["classes"]["expected"])
def test_golden_kernel_error(name, monkeypatch):
    case, want = CASES["classes"], CASES["classes"]["expected"][name]
    width = None if name == "median" else want["width"]
    within(testing.kernel_width(PROBS) if width is None else width, want["width"], case)
    within(metrics.skce(PROBS, LABELS, width), want["skce"], case)
    monkeypatch.setattr(testing, "random_order", lambda *args, **options: torch.tensor(DATA["order"]))
    for size in (2, 5):
        values = testing._block_values(PROBS, TRUTH - PROBS, want["width"], size, 0)
        within(values, want[f"blocks_{size}"], case)
        within(metrics.skce(PROBS, LABELS, width, block=size), values.mean(), case)


@pytest.mark.parametrize("name", CASES["classes"]["expected"])
def test_golden_bootstrap(name, monkeypatch):
    case, want = CASES["classes"], CASES["classes"]["expected"][name]
    rows = iter(DATA["drawn"])
    monkeypatch.setattr(testing, "random_order", lambda values, **options: torch.arange(len(values)))
    monkeypatch.setattr(torch, "randint", lambda *args, **options: torch.tensor(next(rows)))
    for piece in (2**22, 60):  # all rows at once, and two at a time
        rows = iter(DATA["drawn"])
        monkeypatch.setattr(testing, "_CHUNK", piece)
        statistic, null = testing._bootstrap_null(PROBS, TRUTH - PROBS, want["width"], 5, 0)
        within(statistic, want["statistic"], case)
        within(null, want["bootstrapped"], case)


def test_golden_numbers_of_a_column():
    case, want = CASES["column"], CASES["column"]["expected"]
    within(metrics.skce(COLUMN, TAGS, .5), want["skce"], case)
    within(metrics.ks_test(COLUMN, TAGS).p, want["ks_p"], case)


def test_the_p_value_counts_the_bootstrapped_values():
    statistic, null = testing._bootstrap_null(PROBS, TRUTH - PROBS, .5, 200, 3)
    found = metrics.skce_test(PROBS, LABELS, .5, draws=200, seed=3)
    assert close(found.p, (1 + (null >= statistic).sum().item())/201)
    assert found.value == pytest.approx(metrics.skce(PROBS, LABELS, .5).item(), abs=1e-15)
    assert found.interval == pytest.approx(metrics.skce_ci(PROBS, LABELS, .5), abs=1e-15)


TESTS = {"consistency": lambda *d: metrics.consistency_test(metrics.ece, *d, draws=60),
         "ks": metrics.ks_test, "pairs": lambda *d: metrics.skce_test(*d, draws=100),
         "blocks": lambda *d: metrics.skce_test(*d, block=20), "linear": lambda *d: metrics.skce_test(*d, block=2)}


@pytest.mark.parametrize("name", TESTS)
def test_size_and_power(name, models=40, most=7):
    "At 5 % at most 7 of 40 calibrated models are rejected (a valid test fails this in .07 %), and nearly all others."
    assert sum(TESTS[name](*drawn(200, 3, 1., seed)).p < .05 for seed in range(models)) <= most
    n = dict(blocks=4000, linear=20_000).get(name, 600)
    assert sum(TESTS[name](*drawn(n, 3, 2.5, seed)).p < .05 for seed in range(10)) >= 9


def test_intervals_of_the_kernel_error_cover(repetitions=40):
    "As often as `skce_ci` says, 95 % or, with few blocks, some 91 %: fewer than required once in 1,400 times."
    truth = metrics.skce(*drawn(20_000, 3, 1.5, 10**6), .3, block=1000).item()
    for block, coverage in (None, .95), (20, .91):
        ends = [metrics.skce_ci(*drawn(400, 3, 1.5, seed), .3, block=block) for seed in range(repetitions)]
        assert sum(lo <= truth <= hi for lo, hi in ends) >= binom.ppf(1/1400, repetitions, coverage)


@given(st.integers(3, 30), st.integers(2, 4), st.integers(0, 2**20))
@settings(max_examples=20)
def test_properties(n, K, seed):
    probs, target = drawn(n, K, 1.3, seed)
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    one, other = metrics.skce(probs, target, .4), metrics.skce(probs[shuffled], target[shuffled], .4)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    relabelled = metrics.skce(probs.flip(1), K - 1 - target, .4)
    torch.testing.assert_close(one, relabelled, rtol=0, atol=1e-12)
    if K == 2:
        torch.testing.assert_close(metrics.skce(probs[:, 1], target, .4), metrics.skce(probs, target, .4*2**.5)/2)
    found = metrics.skce_test(probs, target, draws=20)
    assert 0 < found.p <= 1 and found.n == n and found.interval[0] <= max(found.value, 0) <= found.interval[1]


def test_many_samples_in_little_memory():
    "All pairs would be 3.2 GB."
    probs, target = drawn(20_000, 10, 1.5, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = metrics.skce_test(probs, target)
    assert found.p < .001
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300*1024  # kB
    assert metrics.skce(probs, target, block=2) != metrics.skce(probs, target)


def test_edges():
    certain = torch.tensor([[1., 0.]]*4)
    for y, p in ([0]*4, 1.), ([0, 0, 0, 1], 0.):
        assert close(metrics.ks_test(certain, y).p, p)
        assert close(metrics.consistency_test(metrics.ece, certain, y, draws=9).p, 1 if p else .1)
    assert metrics.skce(certain, [0]*4) == 0 and metrics.skce_test(certain, [0]*4, draws=9).p == 1
    assert metrics.skce(certain, [1]*4) == 2  # of residuals (-1, 1)
    assert metrics.skce_test(certain, [0]*4, block=2).p == .5
    assert metrics.skce_test(certain, [1]*4, block=2).p < .05
    assert metrics.skce([[.5, .5]], [0]).isnan()
    single = metrics.skce(torch.tensor([[.75, .25]]*3, dtype=torch.float16), np.array([0, 1, 1]))
    assert single.dtype == torch.float64
    counted = metrics.skce(COLUMN[TAGS == 1], TAGS[TAGS == 1], .5)
    assert close(metrics.skce(COLUMN, TAGS, .5, ignore_index=0), counted, len(TAGS)**2, size=1.)
    both = metrics.skce(PROBS[:, :2], TRUTH[:, :2], .5, task="multilabel")
    torch.testing.assert_close(both, sum(metrics.skce(PROBS[:, k], TRUTH[:, k], .5) for k in (0, 1))/2)


def test_binary_labels_are_drawn_as_flags():
    seen = []
    def metric(p, y):
        seen.append((p.ndim, p.shape, sorted(set(y.tolist()))))
        return 0.
    metrics.consistency_test(metric, COLUMN, TAGS, draws=3)
    assert seen == [(1, COLUMN.shape, [0, 1])]*4
    found = metrics.consistency_test(metrics.ece, COLUMN, TAGS, draws=50, resample=False)
    again = metrics.consistency_test(metrics.ece, COLUMN[:, None], TAGS, draws=50, resample=False)
    assert found.n == again.n
    for name in "value", "p", "floor", "floor_high":
        assert close(getattr(found, name), getattr(again, name), len(TAGS))


REFUSED = [
    (lambda: metrics.consistency_test("ece", PROBS, LABELS), "metric: 'ece', want a function, e.g. calibnb"),
    (lambda: metrics.bootstrap_ci("ece", PROBS, LABELS), "metric: 'ece', want a function, e.g. calibnb"),
    (lambda: metrics.consistency_test(metrics.ece, PROBS, LABELS, draws=0), "draws: 0, want at least 1"),
    (lambda: metrics.consistency_test(metrics.ece, PROBS, LABELS, resample=1), "resample: 1, want True or False"),
    (lambda: metrics.skce(PROBS, LABELS, 0.), "bandwidth: 0.0, want a positive number"),
    (lambda: metrics.skce(PROBS, LABELS, block=True), "block: True, want a whole number from 2 to the 26 samples"),
    (lambda: metrics.skce(PROBS, LABELS, block=27), "block: 27, want a whole number from 2 to the 26 samples"),
    (lambda: metrics.skce_test(PROBS, LABELS, block=20), "block: 20, want at most 13, so that there are two blocks"),
    (lambda: metrics.skce_test(PROBS[:2], LABELS[:2]), "probs: 2 samples, want at least 3"),
    (lambda: metrics.skce_ci(PROBS, LABELS, level=1.), "level: 1.0, want a number between 0 and 1"),
    (lambda: metrics.ks_test([[.7, .7]], [0]), "probs: row 0 sums to 1.400"),
    (lambda: metrics.skce_test([[.7, .7]], [0]), "probs: row 0 sums to 1.400"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("metric", [metrics.ece, metrics.classwise_ece], ids=["of the top", "of all columns"])
def test_weights_are_drawn_with_their_predictions(metric, resample):
    "Weights grow with the confidence: the floor is the error of calibrated labels for the same pairs."
    draw = torch.Generator().manual_seed(0)
    p = (3*torch.randn(1000, 3, generator=draw)).softmax(1).double()
    w = p.amax(1)**8
    def calibrated(p): return torch.multinomial(p, 1, generator=draw)[:, 0]
    wanted = np.mean([metric(p, calibrated(p), sample_weight=w) for _ in range(150)])
    apart = np.mean([metric(p, calibrated(p), sample_weight=w.flip(0)) for _ in range(150)])
    found = metrics.consistency_test(metric, p, calibrated(p), sample_weight=w, draws=150, resample=resample)
    assert found.floor == pytest.approx(wanted, rel=.1) and abs(found.floor - apart) > abs(found.floor - wanted)
