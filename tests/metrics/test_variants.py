"Over- and underconfidence, the top k, KS, marginal and canonical errors: golden numbers, properties, edges, bad input."
import math
from functools import partial

import numpy as np
import pytest
import torch
from conftest import rounding, vectors, within
from hypothesis import given, settings
from hypothesis import strategies as st

from calibnb import metrics
from calibnb.metrics.variants import brownian_cdf

CASES, DATA = vectors("variants")
CASES = {case["id"]: case for case in CASES}
PROBS, LABELS = torch.tensor(DATA["probs"], dtype=torch.float64), torch.tensor(DATA["labels"])
COLUMN, TAGS = torch.tensor(DATA["column"], dtype=torch.float64), torch.tensor(DATA["tags"])
WEIGHTS = torch.tensor(DATA["weights"], dtype=torch.float64)
DIRECTED = {"over": metrics.overconfidence_error, "under": metrics.underconfidence_error,
            "over_by_confidence": partial(metrics.overconfidence_error, by_confidence=True)}
BINNED = DIRECTED | {f"top_{k}_{ranks}": lambda p, y, M, k=k, ranks=ranks: metrics.top_k_ece(p, y, k, M, ranks=ranks)
                     for k in (1, 2, 3) for ranks in ("within", "at")}
BINNED |= {f"marginal_{p}": partial(metrics.marginal_ce, p=p) for p in (1, 2, 3)}
BINNED["marginal_debiased"] = partial(metrics.marginal_ce, debiased=True)
WHOLE = {f"canonical_{p}_{b}": partial(metrics.canonical_ce, bandwidth=b, p=p) for p in (1, 2) for b in (.05, .3)}
WHOLE |= {"ks": metrics.ks_error, "ks_within_2": partial(metrics.ks_error, k=2),
          "ks_at_2": partial(metrics.ks_error, k=2, ranks="at")}


def test_golden_errors_of_classes():
    want = CASES["classes"]["expected"]
    assert want.keys() == {"1", "4", "10"} | WHOLE.keys()
    for name, metric in WHOLE.items():
        within(metric(PROBS, LABELS), want[name], CASES["classes"])
    for M in (1, 4, 10):
        assert want[str(M)].keys() == BINNED.keys()
        for name, metric in BINNED.items():
            within(metric(PROBS, LABELS, M), want[str(M)][name], CASES["classes"])


@pytest.mark.parametrize("case, options", [("column", {}), ("weighted", dict(sample_weight=WEIGHTS))])
def test_golden_errors_of_a_column(case, options):
    "A weight of k counts like k copies."
    want = CASES[case]["expected"]
    within(metrics.ks_error(COLUMN, TAGS, **options), want["ks"], CASES[case])
    for M in (1, 4, 10):
        for name, metric in DIRECTED.items():
            within(metric(COLUMN, TAGS, M, **options), want[str(M)][name], CASES[case])


def test_the_distribution_of_the_largest_excursion():
    for x, want in CASES["brownian"]["expected"].items():
        within(brownian_cdf(float(x)), want, CASES["brownian"])
    assert brownian_cdf(0.) == 0 and brownian_cdf(19.) == 1
    assert brownian_cdf(math.inf) == 1 and abs(brownian_cdf(9.) - 1) < 1e-12  # no sum whose length grows with x


EDGES = {"sure and right": ([[1., 0.]], [0]), "sure and wrong": ([[1., 0.]], [1]), "a tie": ([[.5, .5]], [1]),
         "one class only": ([[.7, .3]]*5, [0]*5), "float32": (torch.tensor([[.7, .3]]*3), [0, 1, 1]),
         "half": (torch.tensor([[.75, .25]]*3, dtype=torch.float16), [0, 1, 1]),
         "numpy": (np.array([[.7, .3]]*3), np.array([0, 1, 1], dtype=np.int32))}
ALL = {"over": metrics.overconfidence_error, "under": metrics.underconfidence_error, "top_k": metrics.top_k_ece,
       "ks": metrics.ks_error, "marginal": metrics.marginal_ce, "canonical": metrics.canonical_ce}


@pytest.mark.parametrize("name", ALL)
def test_edges(name):
    for probs, target in EDGES.values():
        value = ALL[name](probs, target)
        assert value.dtype == torch.float64 and value.ndim == 0 and value.device.type == "cpu"
        if name == "canonical" and len(target) == 1:
            assert value.isnan()
        else:
            assert 0 <= value <= (2 if name == "canonical" else 1)


def test_values_at_the_edges():
    sure = [[1., 0.]]
    for metric in (metrics.overconfidence_error, metrics.ks_error):
        assert (metric(sure, [0]), metric(sure, [1])) == (0, 1)
    assert metrics.underconfidence_error(sure, [1]) == 0
    assert metrics.top_k_ece([[.5, .5]], [1], 1) == .5
    assert metrics.top_k_ece([[.5, .5]], [1], 2, ranks="at") == .5
    assert metrics.ks_error([[.5, .5]]*2, [0, 1]) == 0  # equal confidences are added together


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 2**20), st.sampled_from([1, 3, 15]))
@settings(max_examples=12)
def test_properties(n, K, seed, M):
    draw = torch.Generator().manual_seed(seed)
    probs = (2*torch.randn(n, K, generator=draw, dtype=torch.float64)).softmax(1)
    target = torch.randint(K, (n,), generator=draw)
    over, under = metrics.overconfidence_error(probs, target, M), metrics.underconfidence_error(probs, target, M)
    ece, small = metrics.ece(probs, target, M), rounding(n)
    torch.testing.assert_close(over + under, ece, rtol=0, atol=small)
    assert metrics.overconfidence_error(probs, target, M, by_confidence=True) <= over + small
    mean_gap = metrics.ece(probs, target, 1)
    assert mean_gap - small <= metrics.ks_error(probs, target) <= metrics.ece(probs, target, 10**6) + small
    torch.testing.assert_close(metrics.top_k_ece(probs, target, 1, M), ece, rtol=0, atol=small)
    assert metrics.top_k_ece(probs, target, K, M) <= small
    classwise = metrics.classwise_ece(probs, target, M)
    torch.testing.assert_close(metrics.marginal_ce(probs, target, M, p=1), classwise, rtol=0, atol=small)
    powers = [metrics.marginal_ce(probs, target, M, p=p) for p in (1, 2, 4)]
    assert powers[0] <= powers[1] + small and powers[1] <= powers[2] + small  # means of powers
    shuffled = torch.randperm(n, generator=draw)
    for metric in (metrics.ks_error, metrics.top_k_ece, metrics.marginal_ce, metrics.canonical_ce):
        pair = metric(probs, target), metric(probs[shuffled], target[shuffled])
        torch.testing.assert_close(*pair, rtol=0, atol=1e-9, equal_nan=True)


def test_columns_of_a_multilabel_problem():
    probs, tags = torch.stack([COLUMN, COLUMN.flip(0)], 1), torch.stack([TAGS, TAGS], 1)
    for metric in (metrics.ks_error, metrics.overconfidence_error, metrics.underconfidence_error):
        each = [metric(probs[:, k], tags[:, k]) for k in (0, 1)]
        torch.testing.assert_close(metric(probs, tags, task="multilabel"), torch.stack(each).mean())
    for metric in ALL.values():
        if metric is not metrics.top_k_ece:
            want = metric(COLUMN[TAGS == 1], TAGS[TAGS == 1])
            torch.testing.assert_close(metric(COLUMN, TAGS, ignore_index=0), want)
    torch.testing.assert_close(metrics.canonical_ce(COLUMN, TAGS), metrics.kde_ece(COLUMN, TAGS))
    torch.testing.assert_close(metrics.canonical_ce(COLUMN, TAGS, "loo"), metrics.kde_ece(COLUMN, TAGS, "loo"))


REFUSED = [
    (metrics.top_k_ece, dict(k=0), "k: 0, want a whole number from 1 to 4, the number of classes"),
    (metrics.top_k_ece, dict(k=True), "k: True, want a whole number from 1 to 4"),
    (metrics.top_k_ece, dict(ranks="with"), "ranks: 'with' is not known; did you mean 'within'"),
    (metrics.ks_error, dict(k=5), "k: 5, want a whole number from 1 to 4"),
    (metrics.overconfidence_error, dict(by_confidence=1), "by_confidence: 1, want True or False"),
    (metrics.marginal_ce, dict(p=.5), r"p: 0.5, want at least 1"),
    (metrics.marginal_ce, dict(p=3, debiased=True), "p: 3, want 2 if debiased is True"),
    (metrics.marginal_ce, dict(n_bins=0), "n_bins: 0, want a whole number"),
    (metrics.canonical_ce, dict(bandwidth="lo"), "bandwidth: 'lo', want a positive number"),
    (metrics.canonical_ce, dict(p=math.inf), "p: inf, want a positive number"),
    (metrics.one_sided_ci, dict(direction="up"), "direction: 'up' is not known"),
    (metrics.ks_error_ci, dict(level=95), "level: 95, want a number between 0 and 1"),
]


@pytest.mark.parametrize("metric, options, message", REFUSED)
def test_bad_options_are_refused(metric, options, message):
    with pytest.raises(ValueError, match=message):
        metric(PROBS, LABELS, **options)


@pytest.mark.parametrize("name", ALL)
def test_bad_input_is_refused(name):
    with pytest.raises(ValueError, match="probs: row 0 sums to 1.400"):
        ALL[name]([[.7, .7]], [0])


def drawn(n, K, sharper, seed):
    "Draw labels from the softmax of logits that the model multiplies by `sharper`."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(n, K, generator=draw, dtype=torch.float64)
    return (sharper*logits).softmax(1), torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


@pytest.mark.parametrize("sharper", [1., 1.5])
def test_intervals_cover(sharper, repetitions=40, least=33):
    "They contain the error of many samples in at least 33 of 40 repetitions: fewer once in 1,400 times."
    many = drawn(100_000, 3, sharper, 10**6)
    of = {"over": (metrics.overconfidence_error, metrics.one_sided_ci), "ks": (metrics.ks_error, metrics.ks_error_ci),
          "top 2": (metrics.top_k_ece, metrics.top_k_ece_ci),
          "marginal": (partial(metrics.marginal_ce, debiased=True), metrics.marginal_ce_ci)}
    truth = {name: metric(*many).item() for name, (metric, _) in of.items()}
    if sharper == 1:
        truth = dict.fromkeys(truth, 0.)
    covered = dict.fromkeys(of, 0)
    for seed in range(repetitions):
        some = drawn(500, 3, sharper, seed)
        for name, (_, interval) in of.items():
            lo, hi = interval(*some)
            covered[name] += lo <= truth[name] <= hi
    assert min(covered.values()) >= least, covered


@pytest.mark.parametrize("K, n, sharper, repetitions, least", [(100, 1000, 1., 15, 11), (2, 500, 1.5, 40, 33)])
def test_the_marginal_interval_covers_with_many_classes(K, n, sharper, repetitions, least):
    "Single samples show no noise; the true error has probabilities in place of labels. Fewer once in 1,400 times."
    truth = math.sqrt(squared_gap(400_000//K, K, sharper))
    assert (truth == 0) == (sharper == 1)
    ends = [metrics.marginal_ce_ci(*drawn(n, K, sharper, seed)) for seed in range(repetitions)]
    assert sum(lo <= truth <= hi for lo, hi in ends) >= least, ends


def squared_gap(n, K, sharper, M=15):
    "Return the mean squared gap of probabilities instead of labels; all classes share their bins."
    logits = 2*torch.randn(n, K, generator=torch.Generator().manual_seed(10**6), dtype=torch.float64)
    probs, gap = (sharper*logits).softmax(1), logits.softmax(1) - (sharper*logits).softmax(1)
    ids = (M*probs).ceil().long().clamp(1, M).flatten()
    number, sums = torch.bincount(ids), torch.bincount(ids, weights=gap.flatten())
    return ((sums.square()/number.clamp_min(1)).sum()/number.sum()).item()


def test_the_marginal_interval_excludes_0_for_many_classes():
    assert metrics.marginal_ce_ci(*drawn(10_000, 100, 2., 0))[0] > .01


def test_one_column_has_the_marginal_interval_of_two():
    probs, labels = drawn(3000, 2, 2., 0)
    two, one = metrics.marginal_ce_ci(probs, labels), metrics.marginal_ce_ci(probs[:, 1], labels)
    assert two[0] > 0 and two == pytest.approx(one, rel=.25)  # the bins of the other class mirror these
