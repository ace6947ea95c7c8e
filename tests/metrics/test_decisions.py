"Net benefit, the decision curve and expected costs: golden numbers, one-against-rest, bad input."
import re

import pytest
import torch
from conftest import vectors, within

from calibnb import metrics

CASES, DATA = vectors("decisions")
PROBS, WEIGHTS = (torch.tensor(DATA[name], dtype=torch.float64) for name in ("probs", "weights"))
LABELS = torch.tensor(DATA["labels"]).long()


@pytest.mark.parametrize("case, weight", [*zip(CASES, (None, WEIGHTS))], ids=[case["id"] for case in CASES])
def test_golden(case, weight):
    "Thresholds are not probabilities of the samples up to rounding: 64ths, twentieths and ratios of costs."
    want, options = case["expected"], dict(sample_weight=weight)
    both = torch.stack([1 - PROBS, PROBS], 1)
    for probs in PROBS, PROBS[:, None], both:
        curve = metrics.decision_curve(probs, LABELS, want["threshold"], **options)
        within(curve.model, want["model"], case)
        within(curve.treat_all, want["treat_all"], case)
        within(metrics.net_benefit(probs, LABELS, want["threshold"], **options), want["model"], case)
    for name in "1:5", "3:1", "2:2":
        costs, found = [float(c) for c in name.split(":")], want[name]
        within(metrics.cost_threshold(*costs), found["implied"], case)
        within(metrics.expected_cost(PROBS, LABELS, *costs, **options), found["cost"], case)
        within(metrics.expected_cost(PROBS, LABELS, *costs, threshold=.5, **options), found["at_half"], case)
        within(metrics.cheapest_threshold(PROBS, LABELS, *costs, **options), [found["best"], found["best_cost"]], case)


@pytest.mark.parametrize("call, message", [
    (lambda: metrics.net_benefit([[.2, .3, .5]], [0], .1), "probs: 3 classes, want P(y = 1) or two classes"),
    (lambda: metrics.net_benefit(PROBS, LABELS, [.1, 1.]), "thresholds: 1, want numbers in [0, 1)"),
    (lambda: metrics.decision_curve(PROBS, LABELS, []), "thresholds: none, want numbers in [0, 1)"),
    (lambda: metrics.expected_cost(PROBS, LABELS, 0, 1), "cost_fp: 0, want a number above 0"),
    (lambda: metrics.cheapest_threshold(PROBS, LABELS, 1, float("nan")), "cost_fn: nan, want a number above 0"),
    (lambda: metrics.expected_cost(PROBS, LABELS, 1, 1, ignore_index=0, sample_weight=LABELS == 0),
     "target: no sample is left"),
])
def test_refusals(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
