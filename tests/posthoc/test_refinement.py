"Calibration and refinement of NLL and Brier score: golden numbers, held-out fits, intervals, edges, refusals."
import numpy as np
import pytest
import torch
from conftest import vectors, within

from calibnb import posthoc
from calibnb.core import folds
from calibnb.core.folds import random_order
from calibnb.posthoc import held_out_scores, score_decomposition

CASES, DATA = vectors("refinement")
LOGITS, LABELS = torch.tensor(DATA["logits"], dtype=torch.float64), torch.tensor(DATA["labels"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_decomposition(case, monkeypatch):
    monkeypatch.setattr(folds, "random_order", lambda *args, **options: torch.tensor(DATA["order"]))
    within(held_out_scores(LOGITS, LABELS, score=case["id"], folds=4), case["expected"]["scores"], case)
    found = score_decomposition(LOGITS, LABELS, score=case["id"], folds=4, n_boot=5)
    for name, want in case["expected"]["means"].items():
        within(found[name].value, want, case)


def drawn(n, factor, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(n, 3, generator=draw, dtype=torch.float64)
    return factor*logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


def test_no_label_is_seen_by_the_fit_that_scores_it():
    "Another label changes the scores of the other parts, and in its own part only its own score."
    logits, target = drawn(20, 1., 0)
    order = random_order(logits, target)
    part = order.tensor_split(5)[0]
    changed = target.clone()
    changed[part[0]] = (changed[part[0]] + 1) % 3
    before, after = held_out_scores(logits, target), held_out_scores(logits, changed)
    same = before == after
    assert same[part[1:]].all() and not same[part[0]]
    rest = torch.ones(20, dtype=torch.bool)
    rest[part] = False
    assert not same[rest].any()


@pytest.mark.parametrize("score", ["nll", "brier"])
def test_intervals_hold_the_truth(score, repetitions=40, least=33):
    "At least 33 of 40 times (fewer once in 1,400 times), where the temperature is all that is wrong."
    logits, target = drawn(300_000, 1.5, 10**6)
    def mean(z): return {"nll": torch.nn.functional.cross_entropy(z, target),
                         "brier": (z.softmax(1) - torch.nn.functional.one_hot(target, 3)).square().sum(1).mean()}[score]
    refinement = mean(logits/1.5).item()
    truth = {score: mean(logits).item(), "refinement": refinement, "calibration": mean(logits).item() - refinement}
    held = dict.fromkeys(truth, 0)
    for seed in range(repetitions):
        found = score_decomposition(*drawn(1000, 1.5, seed), score=score, n_boot=200)
        for name, m in found.items():
            held[name] += m.interval[0] <= truth[name] <= m.interval[1]
    assert min(held.values()) >= least, held


@pytest.mark.parametrize("name", posthoc.list_calibrators())
def test_every_calibrator(name):
    logits, target = drawn(300, 2., 1)
    for score in ("nll", "brier") if name in ("temperature", "isotonic") else ("nll",):
        found = score_decomposition(logits, target, name, score=score, n_boot=10)
        assert found[score].value == pytest.approx(found["calibration"].value + found["refinement"].value, abs=1e-12)
        assert found["calibration"].value > 0 and found[score].n == 300


@pytest.mark.parametrize("name", ["temperature", "vector", "isotonic", "platt"])
def test_calibrators_of_one_column(name):
    "A temperature of log-odds is that of both columns; the Brier score of one column is half of theirs."
    logits, target = drawn(300, 2., 1)
    odds, ones = logits[:, 1] - logits[:, 0], (target == 1).long()
    found = score_decomposition(odds, ones, name, n_boot=10)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(odds, ones.double())
    assert found["nll"].value == pytest.approx(plain)
    order = random_order(odds[:, None], ones)
    for part in order.tensor_split(5):
        rest = order[~torch.isin(order, part)]
        fitted = posthoc.make_calibrator(name).fit(odds[rest], ones[rest])
        for score, want in dict(nll=fitted.nll(odds[part], ones[part]),
                                brier=(fitted.transform(odds[part]) - ones[part]).square()).items():
            found = held_out_scores(odds[:, None], ones, name, score=score)[part]
            torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    if name == "temperature":
        both = held_out_scores(torch.stack([0*odds, odds], 1), ones, score="brier")
        torch.testing.assert_close(held_out_scores(odds, ones, score="brier"), both/2)


def test_forms_of_input():
    logits, target = drawn(40, 1.5, 2)
    want = held_out_scores(logits, target, score="brier")
    assert torch.equal(held_out_scores(logits.numpy(), target.numpy(), score="brier"), want)
    assert held_out_scores(logits.float(), target).dtype == torch.float64
    pixels = held_out_scores(logits.T.reshape(1, 3, 8, 5), target.reshape(1, 8, 5), score="brier")
    torch.testing.assert_close(pixels, want)
    one = posthoc.TemperatureScaling()
    held_out_scores(logits, target, one)
    assert not hasattr(one, "temperature_")
    found = score_decomposition(np.float32(logits), target, n_boot=5, folds=20)
    assert found["nll"].n == 40


REFUSED = [
    (dict(folds=1), "folds: 1, want 2 or more folds of at least 2 of the 30 samples"),
    (dict(folds=16), "folds: 16, want 2 or more"), (dict(score="ece"), "score: 'ece' is not known"),
    (dict(level=95), "level: 95, want a number between 0 and 1"), (dict(n_boot=0), "n_boot: 0, want at least 1"),
    (dict(calibrator="temprature"), "did you mean 'temperature'"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        score_decomposition(LOGITS, LABELS, **options)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="folds: 5, want 2 or more folds of at least 2 of the 3 samples"):
        score_decomposition(LOGITS[:3], LABELS[:3])
    with pytest.raises(ValueError, match="in .0, 1.: these are probabilities; the log-odds of p are p.logit"):
        score_decomposition(torch.rand(30), torch.randint(2, (30,)))
    with pytest.raises(ValueError, match="every row sums to 1 .* these are probabilities; the logits of p are p.log"):
        score_decomposition(LOGITS[:12].softmax(1), LABELS[:12])
    with pytest.raises(ValueError, match="logits: row 0 holds nan or inf"):
        score_decomposition(torch.full((30, 3), float("nan")), LABELS)
    with pytest.raises(ValueError, match="target: label 3 at row 0"):
        score_decomposition(LOGITS, torch.full_like(LABELS, 3))
