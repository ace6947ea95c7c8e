"Selective risk, failures and two sets of scores: golden numbers, other libraries, identities, edges, bad input."
import math

import numpy as np
import pytest
import torch
from close import close
from conftest import rounding, vectors, within
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from calibnb import metrics
from calibnb.metrics.ood import auroc_of_scores, _fpr

CASES, DATA = vectors("selective")
CASES = {case["id"]: case for case in CASES}
SCORE, WRONG, WEIGHT, INSIDE, OUTSIDE = (torch.tensor(DATA[k], dtype=torch.float64)
                                         for k in ("scores", "wrong", "weights", "inside", "outside"))
PROBS = torch.stack([SCORE, 1 - SCORE], 1)
METRICS = {"aurc": metrics.aurc, "augrc": metrics.augrc, "failure_auroc": metrics.failure_auroc}


@pytest.mark.parametrize("case, weight", [("plain", None), ("weighted", WEIGHT)])
def test_golden_curve(case, weight):
    "A weight of k counts like k copies."
    want = CASES[case]["expected"]
    counted = slice(None) if weight is None else weight > 0
    found = metrics.RiskCoverage.of(SCORE[counted], WRONG[counted].bool(), None if weight is None else weight[counted])
    within(torch.stack([found.coverage, found.risk, found.threshold], 1), want["curve"], CASES[case])
    within(found.aurc, want["aurc"], CASES[case])
    within(found.augrc, want["augrc"], CASES[case])


def as_column(score, wrong):
    "Return probabilities of class 1 above one half with these scores as confidences, and labels."
    return .5 + score/2, 1 - wrong.long()


def test_golden_metrics():
    probs, target = as_column(SCORE, WRONG)
    for name, metric in METRICS.items():
        within(metric(probs, target), CASES["plain"]["expected"][name], CASES["plain"])
        within(metric(probs, target, sample_weight=WEIGHT), CASES["weighted"]["expected"][name], CASES["weighted"])
    within(metrics.e_aurc(probs, target), CASES["plain"]["expected"]["e_aurc"], CASES["plain"])


def test_golden_ood():
    case, want = CASES["ood"], CASES["ood"]["expected"]
    within(metrics.ood_auroc(INSIDE, OUTSIDE, score="given"), want["auroc"], case)
    for tpr in .95, .5, 1.:
        within(metrics.fpr_at_tpr(INSIDE, OUTSIDE, score="given", tpr=tpr), want[str(tpr)], case)


def drawn(n, K, seed):
    draw = torch.Generator().manual_seed(seed)
    probs = (2*torch.randn(n, K, generator=draw, dtype=torch.float64)).softmax(1)
    probs[: n//3] = probs[0]  # ties
    return probs, torch.randint(K, (n,), generator=draw)


@given(st.integers(2, 50), st.integers(2, 5), st.integers(0, 2**20), st.sampled_from(["max", "margin", "entropy"]))
@settings(max_examples=25)
def test_properties(n, K, seed, score):
    probs, target = drawn(n, K, seed)
    wrong, small = metrics.error_rate(probs, target).item(), rounding(n)
    values = {name: metric(probs, target, score=score).item() for name, metric in METRICS.items()}
    excess = metrics.e_aurc(probs, target, score=score).item()
    assert -small <= excess <= values["aurc"] + small
    assert wrong**2/2 - small <= values["augrc"] <= wrong - wrong**2/2 + small
    if 0 < wrong < 1:
        a = 1 - wrong
        assert values["augrc"] == pytest.approx((1 - values["failure_auroc"])*a*wrong + wrong**2/2, abs=1e-9)
        confidence = metrics.selective.SCORES[score](probs)
        right = probs.argmax(1) == target
        assert values["failure_auroc"] == pytest.approx(roc_auc_score(right, confidence), abs=1e-9)
    else:
        assert math.isnan(values["failure_auroc"])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for name, metric in METRICS.items():
        shuffled = metric(probs[order], target[order], score=score).item()
        assert shuffled == pytest.approx(values[name], abs=1e-9, nan_ok=True)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.lists(st.integers(0, 20), min_size=1, max_size=40),
       st.sampled_from([.5, .8, .95, 1.]))
@settings(max_examples=30)
def test_two_sets_agree_with_sklearn(inside, outside, tpr):
    a, b = torch.tensor(inside).double(), torch.tensor(outside).double()
    labels = np.r_[np.ones(len(a)), np.zeros(len(b))]
    scores = torch.cat([a, b]).numpy()
    assert auroc_of_scores(a, b).item() == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert auroc_of_scores(b, a).item() == pytest.approx(1 - auroc_of_scores(a, b).item(), abs=1e-12)
    fprs, tprs, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert _fpr(a, b, tpr).item() == pytest.approx(fprs[tprs >= tpr - 1e-9][0], abs=1e-12)


def test_edges():
    for metric in metrics.aurc, metrics.augrc, metrics.e_aurc:
        assert metric([[.9, .1]], [0]) == 0
    for metric, want in (metrics.aurc, 1), (metrics.augrc, .5), (metrics.e_aurc, 0):
        assert metric([[.9, .1]], [1]) == want
    tied = torch.full((4, 2), .5)
    assert metrics.aurc(tied, [0, 0, 1, 0]) == .25  # all come in together
    assert metrics.failure_auroc(tied, [0, 0, 1, 0]) == .5
    single = metrics.aurc(torch.tensor([[.75, .25]]*3, dtype=torch.float16), np.array([0, 1, 1]))
    assert single.dtype == torch.float64
    both = torch.stack([as_column(SCORE, WRONG)[0]]*2, 1)
    tags = torch.stack([1 - WRONG.long(), 1 - WRONG.long().flip(0)], 1)
    each = [metrics.augrc(both[:, k], tags[:, k]) for k in (0, 1)]
    torch.testing.assert_close(metrics.augrc(both, tags, task="multilabel"), sum(each)/2)
    probs, target = as_column(SCORE, WRONG)
    want = metrics.aurc(probs[target == 0], target[target == 0])
    assert close(metrics.aurc(probs, target, ignore_index=1), want, len(probs))
    assert metrics.risk_coverage(probs, target).frame().shape[1] == 4


def test_the_bootstrap_covers(repetitions=40, least=32):
    "At least 32 of 40 times, of a model whose AUGRC is known from many samples."
    def some(n, seed):
        draw = torch.Generator().manual_seed(seed)
        p = .5 + torch.rand(n, generator=draw, dtype=torch.float64)/2
        return p, (torch.rand(n, generator=draw) < p).long()
    truth = metrics.augrc(*some(200_000, 10**6)).item()
    ends = [metrics.bootstrap_ci(metrics.augrc, *some(300, seed), n_boot=60) for seed in range(repetitions)]
    assert sum(lo <= truth <= hi for lo, hi in ends) >= least


REFUSED = [
    (lambda: metrics.aurc(PROBS, [0]*40, score="maxx"), "score: 'maxx' is not known; did you mean 'max'"),
    (lambda: metrics.aurc(PROBS, [0]*40, score=PROBS), "score: a .* is not known; .*; custom scores take"),
    (lambda: metrics.aurc([[.7, .7]], [0]), "probs: row 0 sums to 1.400"),
    (lambda: metrics.RiskCoverage.of(torch.tensor([math.inf]), torch.tensor([True])), "score: nan or inf"),
    (lambda: metrics.ood_auroc([[2., 0.]], [[.5, .5]]), "inside: probs: 2 at row 0"),
    (lambda: metrics.ood_auroc([[2., 0.]], [[math.nan, 0.]], score="energy"), "outside: logits: row 0 holds nan"),
    (lambda: metrics.ood_auroc([.5], [], score="given"), r"outside: shape \(0,\), want \(N,\)"),
    (lambda: metrics.ood_auroc([.5], [math.nan], score="given"), "outside: nan or inf, want finite numbers"),
    (lambda: metrics.fpr_at_tpr([.5], [.5], tpr=0), r"tpr: 0, want a share in \(0, 1\]"),
    (lambda: metrics.ood_measures([.5], [.5], level=95), "level: 95, want a number between 0 and 1"),
    (lambda: metrics.energy_score([[1., 2.]], 0), "temperature: 0, want a positive number"),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("given, message", [
    (([.5, .6], [True]), r"wrong: shape .1,., want .2,., one for each score"),
    (([.5, .6], [0., math.nan]), "wrong: nan or inf, want finite numbers"),
    (([], []), r"score: shape .0,., want .N,. of at least one sample"),
    (([[.5]], [[True]]), r"score: shape .1, 1., want .N,."),
    (([.5, .6], [True, False], [1., -1.]), "^weight: -1 at row 1, want a finite number of at least 0"),
    (([.5, .6], [True, False], [1.]), r"^weight: shape .1,., want .2,., one for each sample"),
    (([.5, .6], [True, False], [0., 0.]), "^weight: 0 for every sample, want one above 0")])
def test_wrong_scores_of_a_curve(given, message):
    with pytest.raises(ValueError, match=message):
        metrics.RiskCoverage.of(*given)


def test_a_curve_of_arrays():
    "Arrays are as good as tensors, and a sample of weight 0 is none."
    found = metrics.RiskCoverage.of(SCORE.numpy(), WRONG.numpy() > 0, WEIGHT.numpy())
    counted = WEIGHT > 0
    want = metrics.RiskCoverage.of(SCORE[counted], WRONG[counted].bool(), WEIGHT[counted])
    assert torch.equal(found.risk, want.risk) and torch.equal(found.coverage, want.coverage)


@pytest.mark.parametrize("scores, target, zero", [
    ([.9, .8, .3, .2], [1, 1, 0, 0], True), ([.9, .8, .2, .2], [1, 1, 0, 0], False),   # two mistakes with one score
    ([.9, .3, .3, .2], [1, 1, 0, 0], False), ([.9, .9, .3, .2], [1, 1, 0, 0], True)])  # a mistake with a hit; two hits
def test_e_aurc_of_ties(scores, target, zero):
    value = metrics.e_aurc(torch.tensor(scores), torch.tensor(target), score="given")
    assert (abs(value) < 1e-12) == zero and value > -1e-12
