"Intervals where misses are rare: a set without a miss does not show that there are none."
import pytest
import torch
from rare_misses import coverage

from calibnb.core.predictions import Predictions
from calibnb.evaluate import compare_models, evaluate
from calibnb.evaluate.conditions import gate


@pytest.mark.parametrize("p, n", [(.97, 50), (.997, 300), (.999, 20)])
def test_every_printed_interval_contains_the_truth(p, n):
    found = coverage(p, n, 40)
    assert not {name: hits for name, hits in found.items() if hits < 34}  # 93 of 100 give 34 or more in 97 % of cases


def sure(n=300):
    "A three-class model that is right each time, with confidence .99."
    label = torch.arange(n) % 3
    return Predictions(torch.full((n, 3), .005).scatter(1, label[:, None], .99).log(), label)


def test_an_nll_without_a_miss_passes_no_limit_and_equals_no_other():
    nll = compare_models(sure(), sure()).differences["nll"]
    assert nll.low < 0 < nll.high and nll.verdict(1.) == "undecided"
    found = evaluate(sure(), calibrators=())
    condition, = gate(found, max_nll=1.)
    assert condition.outcome == "undecided" and "what a miss costs is unknown" in condition.text
    assert gate(found, max_nll=1., by_estimate=True)[0].outcome == "passed"
