"Intervals where misses are rare: a set without a miss does not show that there are none."
import pytest
import torch
from rare_misses import coverage

from calibnb.core.predictions import Predictions
from calibnb.evaluate import compare_models, evaluate
from calibnb.evaluate.conditions import gate
from calibnb.evaluate.confidences import table_interval
from calibnb.metrics.bins import class_sums, mass_table
from calibnb.metrics.intervals import class_interval


@pytest.mark.parametrize("p, n", [(.97, 50), (.997, 300), (.999, 20)])
def test_every_printed_interval_contains_the_truth(p, n):
    found = coverage(p, n, 40)
    assert not {name: hits for name, hits in found.items() if hits < 34}  # 93 of 100 give 34 or more in 97 % of cases


def test_bins_of_equal_confidences_are_one_in_an_interval():
    "Two misses of 20 at .97 are no rare thing; drawn bin by bin, 12 % of these intervals began above 0."
    conf = torch.full((20,), .97, dtype=torch.float64)
    assert table_interval(mass_table(conf, torch.arange(20) > 1, 15))[0] == 0


def test_a_miss_moves_two_bins_of_the_classwise_ece():
    "With bins that are drawn one by one, 91 % of these intervals begin at 0."
    draw, sets = torch.Generator().manual_seed(1), 500
    def lower():
        top = torch.randint(3, (50, 1), generator=draw)
        probs = torch.full((50, 3), .005, dtype=torch.float64).scatter(1, top, .99)
        return class_interval(class_sums(probs, torch.multinomial(probs, 1, generator=draw)[:, 0], 15))[0]
    assert sum(lower() <= 1e-12 for _ in range(sets)) >= .93*sets


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
