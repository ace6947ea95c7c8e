"Metrics by name, as columns of an evaluation: each has a value and an interval, multiclass and binary."
import pytest
import torch
from close import close

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.evaluate import evaluate
from calibnb.metrics.registered import _NAMED
from calibnb.core.names import NAMES
from calibnb.posthoc import Calibrator


def drawn(n, K):
    draw = torch.Generator().manual_seed(0)
    logits = 2*torch.randn(n, K, generator=draw, dtype=torch.float64)
    return 2*logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


@pytest.mark.parametrize("name", NAMES["metric"])
def test_every_name_has_a_value_and_an_interval(name):
    logits, target = drawn(400, 6)
    probs = logits.softmax(1)
    forms = [(probs, target)] + ([] if name.startswith("top_") else [(probs[:, 0], (target == 0).long())])
    for probs, target in forms:
        found = metrics.registered_measures([name], probs, target, n_boot=40)[name]
        assert close(found.value, _NAMED[name][0](probs, target), 400, size=1.) and found.n == 400
        assert found.interval[0] <= found.value <= found.interval[1]


def test_a_column_of_an_evaluation():
    found = evaluate(Predictions(*drawn(300, 5)), calibrators=["temperature"], metrics=NAMES["metric"], draws=5)
    for row, measures in found.rows.items():
        assert all(measures[name].value is not None for name in NAMES["metric"]), row
        assert measures["overconfidence_error"].value <= measures["ece"].value
    given, scaled = (found.rows[row] for row in ("uncalibrated", "temperature"))
    assert scaled["ks_error"].value < given["ks_error"].value
    assert "failure_auroc" in found.text()


class CountsFits(Calibrator):
    fits = 0

    def _fit(self, logits, target):
        type(self).fits += 1

    def _logits(self, z):
        return z


def test_a_metric_refuses_predictions_before_any_fit():
    preds, options = Predictions(*drawn(300, 3)), dict(calibrators={"mine": CountsFits()}, draws=5)
    with pytest.raises(ValueError, match="metric: top_5_ece: k: 5, want a whole number from 1 to 3"):
        evaluate(preds, metrics=["ks_error", "top_5_ece"], **options)
    assert CountsFits.fits == 0
    evaluate(preds, metrics=["ks_error"], **options)
    assert CountsFits.fits > 0


def in_place(probs, target):
    return probs.zero_()[0, 0] + target.fill_(0)[0]


class InPlace(Calibrator):
    def _fit(self, logits, target): logits.zero_(), target.zero_()

    def _logits(self, z): return z.mul_(2)


def test_code_of_a_user_gets_copies(monkeypatch):
    "The numbers of an evaluation do not change beside a metric and a calibrator that work in place."
    monkeypatch.setitem(metrics.registered.metrics, "zeroed", in_place)
    logits, target = drawn(300, 3)
    before, probs, labels = logits.clone(), logits.softmax(1), target.clone()
    alone = evaluate(Predictions.from_probs(probs, target), calibrators=["temperature"], draws=5)
    beside = evaluate(Predictions.from_probs(probs, target), calibrators={"mine": InPlace()},
                      metrics=["zeroed"], draws=5)
    assert alone.rows["uncalibrated"]["ece"] == beside.rows["uncalibrated"]["ece"]  # bits: the same computation
    found = InPlace().fit(logits, target)
    found.transform(logits), found.nll(logits, target)
    assert torch.equal(logits, before) and torch.equal(target, labels)


def test_a_metric_that_fails_is_named(monkeypatch):
    monkeypatch.setitem(metrics.registered.metrics, "mine", lambda probs, target: probs.nothing)
    with pytest.raises(ValueError, match="^metric: mine fails with AttributeError: 'Tensor' object"):
        metrics.registered_measures(["mine"], *drawn(30, 3))
