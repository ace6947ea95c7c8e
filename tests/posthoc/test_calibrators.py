"All calibrators: promises, degenerate sets, shapes and types, weights, probabilities in, files and what they may hold."
import io
import json
import math
import pickle
import subprocess
import sys
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from close import close, rounding
from conftest import patience
from overconfident import binary, confidence, overconfident, quiet, skewed
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from calibnb import cli
from calibnb.core import plugins
from calibnb.core.predictions import Predictions
from calibnb.core.probabilities import log_probs
from calibnb.evaluate import evaluate
from calibnb.evaluate.measures import Scored
from calibnb.metrics.registered import registered_measures
from calibnb.posthoc import (
    BBQ, CALIBRATORS, Calibrator, HistogramBinning, MatrixScaling, Platt, TemperatureScaling, VectorScaling,
    list_calibrators, make_calibrator
)
from calibnb.posthoc.problems import problem_of

ALL = list_calibrators()
BINARY = [*ALL, "temperature+isotonic", "vector+beta", "hts+platt"]
WEIGHTED = [name for name in ALL if make_calibrator(name).takes_weight]
assert {"temperature", "hts", "svs", "sms"} <= {*WEIGHTED}
SOLVED = 1/torch.finfo(torch.float64).eps  # a minimum is known to the square root of the rounding of its value


# promises

def degenerate():
    logits, target = overconfident(N=60, K=3)
    pred = logits.argmax(1)
    return {"all right": (logits, pred), "all wrong": (logits, (pred + 1) % 3),
            "adversarial": (logits, logits.argmin(1)), "one class": (logits, torch.zeros_like(target)),
            "one sample": (logits[:1], target[:1]), "two alike": (logits[:1].repeat(2, 1), target[:2])}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", list(degenerate()))
def test_degenerate_sets(name, kind):
    "A sensible result, never a silent T = 1."
    logits, target = degenerate()[kind]
    calibrator = quiet(name, logits, target)
    probs = calibrator.transform(logits)
    assert probs.isfinite().all() and (probs >= 0).all() and (probs.sum(1) - 1).abs().max() < 1e-5
    if kind == "all right":
        assert confidence(calibrator, logits).mean() > .9
    if kind == "all wrong" and getattr(calibrator, "mode", "") == "top":  # the predictions of the network
        assert confidence(calibrator, logits).mean() < .5
    if name == "temperature":
        assert calibrator.temperature_ != 1


@pytest.mark.parametrize("name", ALL)
def test_calibrators_are_idempotent(name):
    "Calibrated probabilities need no temperature, and on average the confidence is the accuracy."
    logits, target = overconfident(N=5000)
    options = dict(smooth=False) if name == "isotonic" else {}  # the textbook form is a projection
    calibrator = make_calibrator(name, **options).fit(logits, target)
    probs, hit = calibrator.transform(logits.double()), calibrator.predict(logits) == target
    assert abs(probs.amax(1).mean() - hit.double().mean()) < .01
    if "mode" not in calibrator.get_params():
        tol = 1e-3 if name in ("temperature", "vector") else .02  # a penalty pulls
        assert abs(TemperatureScaling().fit(probs.log(), target).temperature_ - 1) < tol
    if name == "isotonic":
        pred = logits.argmax(1)  # a confidence of 0 is not the largest probability
        top, hit = probs.gather(1, pred[:, None]), pred == target
        both = torch.cat([top, 1 - top], 1).clamp(1e-9, 1 - 1e-9).log()  # its result, fitted again
        sure = top[:, 0] > .5
        again = make_calibrator(name, **options).fit(both[sure], (~hit[sure]).long())
        assert (confidence(again, both[sure]) - top[sure, 0]).abs().max() < 1e-6


@pytest.mark.parametrize("mode", ["top", "each"])
@pytest.mark.parametrize("name", ALL)
def test_no_label_costs_infinity(name, mode):
    "Validation without an error, then a test set with many, logits far apart: every NLL is finite, also a binary one."
    logits, _ = overconfident(N=300, K=4)
    options = dict(mode=mode) if "mode" in make_calibrator(name).get_params() else {}
    calibrator = quiet(make_calibrator(name, **options), logits, logits.argmax(1))
    far = 50*overconfident(N=300, K=4, seed=1)[0].double()
    for k in range(4):
        assert calibrator.nll(far, torch.full((300,), k)).isfinite().all()
    odds = binary()[0]
    calibrator = quiet(make_calibrator(name, **options), odds, (odds > 0).long())
    for y in 0, 1:
        assert calibrator.nll(20*odds, torch.full((800,), y)).isfinite().all()


FAR = [[1., 1., 0., 0.], [1., 1. - 1e-9, 0., -1.], [1., .999, -1., -1.], [1., -2., 0., .5]]


@pytest.mark.parametrize("name", ["histogram", "isotonic", "platt", "beta", "spline", "bbq", "venn_abers"])
def test_confidences_below_those_of_others_sum_to_one_for_logits_of_any_size(name):
    "What a low confidence leaves goes to the other classes, however far apart their logits are."
    logits = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.arange(300) % 4  # right by chance, so that every confidence is low
    calibrator = make_calibrator(name).fit(3*logits, target)
    for scale in 1., 1e4, 1e8, 1e15, 1e100, 1e290:
        probs = calibrator.transform(scale*torch.tensor(FAR, dtype=torch.float64))
        assert ((probs.sum(1) - 1).abs() < 1e-9).all(), (scale, probs)


def test_the_nll_does_not_underflow():
    logits, target = overconfident(N=200, K=3, dtype=torch.float64)
    logits[0], target[0] = torch.tensor([5000., 0., 0.], dtype=torch.float64), 1
    for name in "temperature", "vector":
        calibrator = make_calibrator(name).fit(logits[1:], target[1:])
        assert calibrator.transform(logits)[0, 1] == 0 and 100 < calibrator.nll(logits, target)[0] < math.inf
        p_y = calibrator.transform(logits[1:]).gather(1, target[1:, None])[:, 0]
        assert torch.allclose(calibrator.nll(logits[1:], target[1:]), -p_y.log())


@pytest.mark.parametrize("name", [*ALL, "vector+platt", "ets+isotonic"])
def test_scores_in_one_pass(name):
    logits, target = overconfident(N=400, K=4, dtype=torch.float64)
    odds = binary(400)
    for z, y in (logits, target), (odds[0][:, None], odds[1]):
        calibrator = quiet(name, z, y)
        probs, pred, nll = problem_of(calibrator).scored(z, y)
        assert torch.allclose(probs[:, -z.shape[1]:], calibrator.transform(z), rtol=1e-12, atol=1e-14)
        assert torch.equal(pred, calibrator.predict(z).flatten())
        assert torch.allclose(nll, calibrator.nll(z, y), rtol=1e-12, atol=1e-14)


# shapes and types

@pytest.mark.parametrize("name", ALL)
def test_behaves_like_an_estimator_of_scikit_learn(name):
    calibrator = make_calibrator(name)
    logits, target = overconfident(N=400, K=3)
    for use in calibrator.transform, calibrator.predict:
        with pytest.raises(NotFittedError, match="call .fit"):
            use(logits)
    with pytest.raises(NotFittedError):
        calibrator.save("nowhere")
    assert calibrator.fit(logits, target) is calibrator
    assert clone(calibrator).get_params() == calibrator.get_params()
    assert not hasattr(clone(calibrator), "n_classes_")
    assert [k for k in vars(calibrator) if k.endswith("_")] and calibrator.n_classes_ == 3
    probs = calibrator.transform(logits)
    assert probs.dtype == torch.float32 and calibrator.transform(logits.double()).dtype == torch.float64
    of_arrays = make_calibrator(name).fit(logits.numpy(), target.numpy()).transform(logits.numpy())
    assert isinstance(of_arrays, np.ndarray) and close(of_arrays, probs, 3*len(logits), size=1.)
    image = logits.reshape(20, 20, 3).permute(0, 2, 1)
    assert close(calibrator.transform(image), probs.reshape(20, 20, 3).permute(0, 2, 1), 3, size=1.)
    for call, message in {
            lambda: calibrator.transform(torch.zeros(2, 4)): "logits: 4 classes, want 3",
            lambda: calibrator.transform(torch.full((2, 3), math.nan)): "logits: row 0 holds nan",
            lambda: calibrator.fit(logits[:0], target[:0]): "logits: empty"}.items():
        with pytest.raises(ValueError, match=message):
            call()
    overflow = torch.tensor([[1.7e308, -1.7e308], [0., 1.]], dtype=torch.float64).repeat(10, 1)
    with pytest.raises(ValueError, match=r"logits: 1.7e\+308 at row 0, want numbers between"):
        make_calibrator(name).fit(overflow, torch.tensor([0, 1]*10))


@pytest.mark.parametrize("name", ["temperature", "ets", "hts", "vector", "matrix", "svs", "sms"])
def test_binary_log_odds_are_two_classes(name):
    odds, y = binary()
    two = torch.stack([torch.zeros_like(odds), odds], 1)
    want, got = make_calibrator(name).fit(two, y), make_calibrator(name).fit(odds, y)
    assert torch.allclose(got.transform(odds), want.transform(two)[:, 1], atol=1e-12)
    assert torch.allclose(got.nll(odds, y), want.nll(two, y), atol=1e-12)


@pytest.mark.parametrize("name", BINARY)
def test_binary_shapes_types_and_files(name, tmp_path):
    odds, y = binary(200)
    calibrator = quiet(name, odds, y)
    assert calibrator.n_classes_ == 1
    p = calibrator.transform(odds)
    assert p.shape == (200,) and p.dtype == torch.float64 and ((p > 0) & (p < 1)).all()
    assert close(calibrator.transform(odds[:, None]), p[:, None], size=1.)
    assert close(calibrator.transform(odds.reshape(20, 1, 10)), p.reshape(20, 1, 10), size=1.)
    assert calibrator.transform(odds.float()).dtype == torch.float32
    of_arrays = quiet(name, odds.numpy()[:, None], y.numpy()[:, None]).transform(odds.numpy())
    assert isinstance(of_arrays, np.ndarray) and close(of_arrays, p, SOLVED)
    assert torch.equal(calibrator.predict(odds), (p > .5).long())
    assert torch.equal(calibrator.predict(odds[:, None]), calibrator.predict(odds))
    assert torch.allclose(calibrator.nll(odds, y), F.binary_cross_entropy(p, y.double(), reduction="none"))
    calibrator.save(tmp_path/"c.safetensors")
    assert torch.equal(Calibrator.load(tmp_path/"c.safetensors").transform(odds), p)  # bits: saved and loaded
    with pytest.raises(ValueError, match="logits: 2 columns, want 1"):
        calibrator.transform(torch.zeros(3, 2))


@pytest.mark.parametrize("name", ["temperature", "matrix", "histogram", "isotonic", "vector+beta"])
def test_multilabel_columns_are_separate_problems(name, tmp_path):
    each = [binary(300, seed) for seed in range(3)]
    z, y = (torch.stack(v, 1) for v in zip(*each))
    calibrator = quiet(name, z, y, kind="multilabel")
    alone = [quiet(name, *pair) for pair in each]
    want = torch.stack([c.transform(odds) for c, (odds, _) in zip(alone, each)], 1)
    assert close(calibrator.transform(z), want, SOLVED)
    assert torch.equal(calibrator.predict(z), (want > .5).long())
    nll = torch.stack([c.nll(odds, target) for c, (odds, target) in zip(alone, each)], 1)
    assert close(calibrator.nll(z, y), nll, SOLVED)
    calibrator.save(tmp_path/"c.safetensors")
    again = Calibrator.load(tmp_path/"c.safetensors")
    assert torch.equal(again.transform(z), calibrator.transform(z))  # bits: saved and loaded
    assert again.n_classes_ == 3
    classes = quiet(name, z, y.argmax(1))
    assert torch.allclose(classes.transform(z).sum(1), torch.ones(300, dtype=torch.float64))
    with pytest.raises(ValueError, match="logits: 2 columns, want 3"):
        calibrator.transform(z[:, :2])


def test_a_new_fit_forgets_the_old_one():
    odds, y = binary(100)
    calibrator = Platt().fit(torch.stack([odds, -odds], 1), torch.stack([y, 1 - y], 1), kind="multilabel")
    assert calibrator.fit(odds, y).transform(odds).shape == (100,) and not calibrator.columns_
    assert isinstance(TemperatureScaling().fit(odds, y).temperature_, float)
    assert VectorScaling().fit(odds, y).weight_.shape == (2,)


ODDS, HIT = binary(48)


@pytest.mark.parametrize("data, options, message", [
    ((ODDS, HIT + 1), {}, "target: label 2 at row .*, want 0..1"), ((ODDS, HIT), dict(kind="binary"), "kind: 'binary'"),
    ((ODDS.log(), HIT), {}, "logits: row .* holds nan or inf"), ((ODDS, HIT[:9]), {}, "target: shape"),
    ((ODDS[:, None], HIT), dict(kind="multilabel"), "target: .* want 0 or 1 for each of logits"),
    ((ODDS[:, None], HIT[:, None] + 1), dict(kind="multilabel"), "target: label 2 at row .*, want 0 or 1")])
def test_wrong_columns(data, options, message):
    with pytest.raises(ValueError, match=message):
        Platt().fit(*data, **options)


@pytest.mark.parametrize("name", ALL)
def test_probabilities_are_not_taken_for_logits(name):
    logits, target = skewed(100)
    p, flags = logits.softmax(1), (target == 1).long()
    with pytest.raises(ValueError, match="these are probabilities; the logits of p are p.log"):
        make_calibrator(name).fit(p, target)
    with pytest.raises(ValueError, match="these are probabilities; the log-odds of p are p.logit"):
        make_calibrator(name).fit(p[:, 1], flags)
    fitted = make_calibrator(name).fit(p.log(), target)
    for call in fitted.transform, fitted.predict, lambda z: fitted.nll(z, target):
        with pytest.raises(ValueError, match="these are probabilities"):
            call(p)
    assert fitted.transform(p[:19]).shape == (19, 6)  # few rows may look so by chance


def test_unknown_names_and_missing_methods():
    with pytest.raises(ValueError, match="did you mean 'isotonic'"):
        make_calibrator("isotonik")
    with pytest.raises(ValueError, match="calibrator histogram option: 'bins' is not known; did you mean 'n_bins'"):
        make_calibrator("histogram", bins=3)

    class Empty(Calibrator):
        pass
    with pytest.raises(NotImplementedError, match=r"Empty: define _fit\(logits, target\)"):
        Empty().fit(*overconfident(N=20))
    Empty._fit = lambda self, logits, target: None
    with pytest.raises(NotImplementedError, match=r"Empty: define _logits\(z\), or both _probs\(z\) and _log_probs"):
        Empty().fit(*overconfident(N=20))


# weights

@pytest.mark.parametrize("shape", ["binary", "classes", "multilabel"])
@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weight_is_a_number_of_copies(name, shape):
    odds, y = binary(300)
    kind = {}
    if shape == "classes":
        odds = torch.stack([odds, odds.flip(0), odds.roll(7)], 1)
        y = torch.multinomial((odds/2).softmax(1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    if shape == "multilabel":
        odds, y, kind = torch.stack([odds, -odds], 1), torch.stack([y, 1 - y], 1), dict(kind="multilabel")
    weight = torch.arange(300) % 4
    options = dict(smoothing=.1) if name == "spline" else {}  # else chosen with other folds
    calibrators = [make_calibrator(name, **options) for _ in range(2)]
    weighted = calibrators[0].fit(odds, y, weight, **kind).transform(odds)
    copied = calibrators[1].fit(odds.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0), **kind)
    assert torch.allclose(weighted, copied.transform(odds), atol=1e-5)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_less_than_two_samples_warn(name):
    "Weights are frequencies: priors and penalties outweigh shares that sum to 1."
    calibrator, shares = make_calibrator(name), torch.full((48,), 1/48, dtype=torch.float64)
    with pytest.warns(UserWarning, match="sample_weight: a sum of 1, so .* is fitted as on 1 samples") as caught:
        calibrator.fit(ODDS, HIT, shares)
    assert caught[0].filename == __file__
    by_mean = make_calibrator(name).fit(ODDS, HIT, shares/shares.mean()).transform(ODDS)
    torch.testing.assert_close(by_mean, make_calibrator(name).fit(ODDS, HIT).transform(ODDS), rtol=0, atol=1e-6)


@pytest.mark.parametrize("calibrator, weight, message", [
    (BBQ(), torch.ones(48), "sample_weight: given, but BBQ takes none"),
    (TemperatureScaling("ece"), torch.ones(48), "sample_weight: not supported by a search in a list"),
    (HistogramBinning(scheme="mass"), torch.ones(48), "sample_weight: not supported by scheme='mass'"),
    (Platt(), torch.ones(47), r"sample_weight: shape \(47,\), want \(48,\)"),
    (Platt(), -torch.ones(48), "sample_weight: -1 at row 0"),
    (Platt(), torch.zeros(48), "sample_weight: 0 for every"),
    (Platt(), torch.full((48,), math.nan), "sample_weight: nan at row 0"),
    *((make_calibrator(name), torch.full((48,), size, dtype=torch.float64), "sample_weight: a sum of .*, want")
      for name in WEIGHTED for size in (1e-320, 1.7e308))])
def test_wrong_weights(calibrator, weight, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(ODDS, HIT, weight)


# probabilities in, probabilities out

DRAW = torch.Generator().manual_seed(0)
LOGITS = 3*torch.randn(200, 3, dtype=torch.float64, generator=DRAW)
TARGET = torch.multinomial((LOGITS/2).softmax(1), 1, generator=DRAW)[:, 0]
ZEROS = LOGITS.softmax(1).mul(20).round().div(20)
ZEROS = ZEROS/ZEROS.sum(1, keepdim=True)
FLAGS, HOTS = (TARGET == 1).long(), F.one_hot(TARGET, 3)
DATA = {  # form -> probabilities, some of them exactly 0 or 1; labels; options of the fit
    "classes": (ZEROS, TARGET, {}),
    "binary": (ZEROS[:, 1], FLAGS, {}),
    "multilabel": (ZEROS, HOTS, dict(kind="multilabel")),
}


@pytest.fixture(scope="module", autouse=True)
def mine():
    "A calibrator as a plugin registers one."
    class Mine(Calibrator, name="mine_of_inputs"):
        fitted = "factor_",
        def _fit(self, logits, target): self.factor_ = logits.new_full((1,), .5)
        def _logits(self, z): return z*self.factor_.to(z)
    yield Mine
    del CALIBRATORS["mine_of_inputs"]
    for key in [key for key in plugins._origins if "mine_of_inputs" in key]:
        del plugins._origins[key]


def by_hand(calibrator, p):
    "Calibrate the logarithms of probabilities, with zeros replaced as `eps_` of the calibrator says."
    if calibrator.columns_:
        return torch.stack([by_hand(c, column) for c, column in zip(calibrator.columns_, p.unbind(1))], 1)
    z = log_probs(p, calibrator.eps_)
    probs = calibrator._binary_log_probs(torch.cat([0*z, z], 1)) if z.shape[1] == 1 else calibrator._log_probs(z)
    return probs[:, 1].exp() if z.shape[1] == 1 else probs.exp()


SOME = ["temperature", "isotonic", "vector+platt", "mine_of_inputs"]  # a scaling, a map, both, a plugin
EACH = [(name, "classes") for name in ALL] + [(name, form) for name in SOME for form in DATA]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, form", dict.fromkeys(EACH))
def test_probabilities_in_probabilities_out_for_any_number_of_rows(name, form, tmp_path):
    p, y, options = DATA[form]
    calibrator = make_calibrator(name).fit_probs(p, y, **options)
    calibrator.save(tmp_path/"c.safetensors")
    for each in calibrator, Calibrator.load(tmp_path/"c.safetensors"):
        want = by_hand(each, p)
        for rows in slice(1), slice(7), slice(None):
            for give in each.transform, each.predict_proba, each.transform_probs:
                assert torch.allclose(give(p[rows]), want[rows], rtol=1e-9, atol=1e-12)
        assert torch.equal(each.predict(p[:1]), each.predict(p)[:1])
        assert torch.allclose(each.nll(p[:1], y[:1]), each.nll(p, y)[:1], rtol=1e-9)
        if form != "binary":  # a single sample
            assert torch.allclose(each.transform(p[0]), want[0], rtol=1e-9, atol=1e-12)
            assert np.allclose(each.transform(p[0].numpy()), want[0])
            assert torch.equal(each.predict(p[0]), each.predict(p)[0])
        with pytest.raises(ValueError, match=r"logits: \w+ was fitted on probabilities; give transform_probs"):
            each.transform_logits(p)
        with pytest.raises(ValueError, match="probs: .* want numbers in .0, 1."):
            each.transform(100*(p - .5))


@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_the_kind_of_input_is_that_of_the_last_fit():
    "Logits stay the default, and a new fit forgets the old one."
    calibrator = make_calibrator("temperature").fit_probs(ZEROS, TARGET, eps=.01, classes="abc")
    assert (calibrator.input_, calibrator.eps_, calibrator.class_names_) == ("probs", .01, ("a", "b", "c"))
    calibrator.fit(LOGITS, HOTS, kind="multilabel")
    assert (calibrator.input_, calibrator.eps_, calibrator.class_names_) == ("logits", 0., ())
    calibrator.fit(LOGITS, TARGET)
    want, tol = (LOGITS/calibrator.temperature_).softmax(1), dict(rtol=100*rounding(3), atol=0)
    for give in calibrator.transform, calibrator.transform_logits:
        assert torch.allclose(give(LOGITS), want, **tol) and torch.allclose(give(LOGITS[0]), want[0], **tol)
    with pytest.raises(ValueError, match="probs: TemperatureScaling was fitted on logits; give transform the logits"):
        calibrator.transform_probs(ZEROS[:1])


def rewrite(path, change):
    "Change the head and the tensors of a file."
    with safe_open(path, "pt") as f:
        metadata = f.metadata()
    head, tensors = json.loads(metadata["head"]), load_file(path)
    change(head, tensors)
    save_file({k: t.contiguous() for k, t in tensors.items()}, path, metadata | dict(head=json.dumps(head)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form, cross", [("classes", False), ("binary", True)])
def test_calibrators_of_an_evaluation_of_probabilities_take_probabilities(form, cross):
    p, y, _ = DATA[form]
    names, classes = ["temperature", "vector", "isotonic", "temperature+platt", "mine_of_inputs"], "abc"[:y.max() + 1]
    preds, val = (Predictions.from_probs(p[rows], y[rows], .02, classes) for rows in (slice(100, 200), slice(100)))
    other = Predictions.from_probs(p[100:], y[100:], eps=.1)  # mixed as the fit was, not as these are
    name = "overconfidence_error"  # which rounding does not move, as it does errors of tied confidences
    found = evaluate(preds, None if cross else val, names, metrics=[name], n_boot=2, draws=1)
    for row in names:
        calibrator = found.fitted[row]
        assert (calibrator.input_, calibrator.eps_, calibrator.class_names_) == ("probs", .02, preds.classes), row
        assert torch.allclose(calibrator.transform(p[:1]), by_hand(calibrator, p[:1]), rtol=1e-9)
        assert torch.allclose(Scored.of(other, calibrator).conf, Scored.of(preds, calibrator).conf, rtol=1e-6)
        want = registered_measures([name], by_hand(calibrator, p[100:]), y[100:])[name].value
        assert cross or found.rows[row][name].value == pytest.approx(want, rel=1e-9)
    with pytest.raises(ValueError, match="preds: logits, want probabilities"):
        Scored.of(Predictions(preds.logits, preds.target), calibrator)
    with pytest.raises(ValueError, match="val: logits, want probabilities as in preds; give both in the same form"):
        evaluate(preds, Predictions(val.logits, val.target))


@pytest.mark.filterwarnings("ignore:.*have probability 0")
@pytest.mark.parametrize("p", [.025, 0.])
def test_apply_follows_the_kind_of_the_fit(p, tmp_path, monkeypatch, capsys):
    "A single row, of probabilities that could be logits."
    monkeypatch.chdir(tmp_path)
    preds = Predictions.from_probs(ZEROS[:, 1], FLAGS, eps=.05)
    of_probs = evaluate(preds, calibrators=["temperature"], n_boot=2, draws=1).fitted["temperature"]
    of_logits = make_calibrator("temperature").fit(LOGITS[:, 1] - LOGITS[:, [0, 2]].logsumexp(1), FLAGS)
    for name, calibrator in dict(probs=of_probs, logits=of_logits).items():
        calibrator.save(f"{name}.safetensors")
    p, T = torch.tensor([p], dtype=torch.float64), of_probs.temperature_
    np.savez("one.npz", probs=p.numpy(), logits=p.numpy())
    mixed = (log_probs(p, .05)/T).sigmoid()
    for name, flag, want in [
            ("probs", "--probs", mixed), ("logits", "--logits", (p/of_logits.temperature_).sigmoid()),
            ("probs", "--logits", "probs.safetensors was fitted on probabilities; give a file of probabilities, with"),
            ("logits", "--probs", "logits.safetensors was fitted on logits; give a file of logits, with --logits")]:
        rc = cli.main(["apply", f"{name}.safetensors", "one.npz", flag, "--out", "out.npz"])
        err = capsys.readouterr().err
        if isinstance(want, str):
            assert rc == 2 and f"{flag}: {want}" in err and err.count("\n") == 1 and not (tmp_path/"out.npz").exists()
        else:
            assert rc == 0 and np.load("out.npz")["probs"].item() == pytest.approx(want.item(), rel=1e-9), (name, flag)
            (tmp_path/"out.npz").unlink()


@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_apply_takes_multilabel_probabilities(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    calibrator = make_calibrator("temperature").fit_probs(ZEROS, HOTS, kind="multilabel")
    calibrator.save("c.safetensors")
    np.savez("p.npz", probs=ZEROS[:5].numpy()*.9)  # rows need not sum to 1
    assert cli.main("apply c.safetensors p.npz --probs --out o.npz".split()) == 0, capsys.readouterr().err
    assert np.allclose(np.load("o.npz")["probs"], calibrator.transform(ZEROS[:5]*.9), rtol=1e-9)
    calibrator.fit_probs(ZEROS, HOTS, kind="multilabel", classes=["ant", "bee", "cat"]).save("c.safetensors")
    pd.DataFrame(ZEROS[:5, [2, 0, 1]].numpy(), columns=["cat", "ant", "bee"]).to_csv("t.csv", index=False)
    assert cli.main("apply c.safetensors t.csv --probs --out o.npz".split()) == 0, capsys.readouterr().err
    for name, want in dict(probs=calibrator.transform(ZEROS[:5]), prediction=calibrator.predict(ZEROS[:5])).items():
        assert np.allclose(np.load("o.npz")[name], want[:, [2, 0, 1]], rtol=1e-9)  # in the order of the file
    np.savez("p.npz", probs=ZEROS[:5, :2].numpy())
    assert cli.main("apply c.safetensors p.npz --probs --out x.npz".split()) == 2
    assert "probs: 2 columns, want 3" in capsys.readouterr().err


# files

USES = """same_again(path/'bits')
from calibnb.posthoc import Composed; Composed('vector', 'isotonic').parts()
from calibnb.posthoc import held_out_scores as held; held(2*torch.eye(20), torch.arange(20), 'bbq')"""
EACH_ALONE = """
import os, pathlib, sys, numpy, torch, pandas, sklearn, scipy.stats
path = pathlib.Path(sys.argv[1])
def same_again(folder):
    from calibnb.posthoc import Calibrator
    logits = numpy.load(folder/'logits.npy')
    for p in folder.glob('*.safetensors'):
        assert Calibrator.load(p).transform(logits).tobytes() == numpy.load(p.with_suffix('.npy')).tobytes(), p
for use in sys.argv[2].splitlines():
    child = os.fork()  # of a process that has not imported calibnb
    if not child:
        exec(use)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, use
"""


def test_a_new_process_loads_what_was_saved_and_gives_the_same_bits(tmp_path):
    "Every calibrator, whichever name is imported first and alone."
    logits, target = overconfident(N=500, K=4)
    (tmp_path/"bits").mkdir()
    np.save(tmp_path/"bits"/"logits.npy", logits.numpy())
    for name in ALL:
        for mode in ("top", "each") if "mode" in make_calibrator(name).get_params() else (None,):
            calibrator = make_calibrator(name, **dict(mode=mode) if mode else {}).fit(logits, target)
            calibrator.save(tmp_path/"bits"/f"{name}_{mode}.safetensors")
            np.save(tmp_path/"bits"/f"{name}_{mode}.npy", calibrator.transform(logits.numpy()))
    assert len([*(tmp_path/"bits").glob("*_each.npy")]) == 7
    command = [sys.executable, "-W", "ignore", "-c", EACH_ALONE, str(tmp_path), USES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert ended.returncode == 0, ended.stderr


def test_options_of_numpy_are_saved_and_a_class_without_a_name_is_not(tmp_path):
    data = overconfident(N=50)
    for calibrator in HistogramBinning(np.int64(10)), MatrixScaling(np.float32(.5)), BBQ(range(1, 5)):
        calibrator.fit(*data).save(tmp_path/"c.safetensors")
        loaded = Calibrator.load(tmp_path/"c.safetensors")
        assert torch.equal(loaded.transform(data[0]), calibrator.transform(data[0]))  # bits: saved and loaded

    class Own(TemperatureScaling):
        pass
    with pytest.raises(ValueError, match="Own is not registered"):
        Own().fit(*data).save(tmp_path/"own.safetensors")


class Bomb:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


def test_other_files_are_refused_and_a_pickle_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Bomb(), "bomb.pt")
    (tmp_path/"bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    for name in "bomb.pt", "bomb.pkl":
        with pytest.raises(ValueError, match="is not a safetensors file"):
            Calibrator.load(name)
    assert not (tmp_path/"exploded").exists()
    pickle.load(io.BytesIO(pickle.dumps(Bomb())))  # the bomb is live
    assert (tmp_path/"exploded").exists()
    save_file({"x": torch.zeros(1)}, "other.safetensors")
    with pytest.raises(ValueError, match="holds no calibrator"):
        Calibrator.load("other.safetensors")
    with pytest.raises(FileNotFoundError):
        Calibrator.load("absent.safetensors")


@pytest.mark.parametrize("value, kind", [(np.ones(2), "ndarray"), (None, "NoneType"), ([dict(x=1.)], "float"),
                                         ((torch.ones(1),), "tuple"), ([{"a.b": torch.ones(1)}], "list"), ([], "list")])
def test_a_value_that_a_file_cannot_hold_is_refused(value, kind, mine, tmp_path):
    calibrator = mine().fit(LOGITS, TARGET)
    calibrator.factor_ = value
    with pytest.raises(ValueError, match=f"factor_: {kind}, want a tensor, a number or a list of dictionaries"):
        calibrator.save(tmp_path/"c.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attributes", [(), ("factor_",)])
def test_a_calibrator_that_forgets_what_it_fits_is_not_saved(attributes, mine, monkeypatch, tmp_path):
    "Its file would lack the attribute, or give the probabilities of the class's default."
    monkeypatch.setattr(mine, "fitted", ())
    for name in attributes:
        monkeypatch.setattr(mine, name, torch.ones(1), raising=False)
    with pytest.raises(ValueError, match="Mine: .*add the attributes that _fit sets to Mine.fitted"):
        mine().fit(LOGITS, TARGET).save(tmp_path/"c.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_file_says_what_the_calibrator_was_fitted_on(tmp_path):
    "Equal fits have equal records; a fit on other samples, labels or weights has another fingerprint."
    classes, scaling, odds = ["ant", "bee", "cat"], make_calibrator("temperature"), LOGITS[:, 1] - LOGITS[:, 0]
    scaling.fit(LOGITS, TARGET, classes=classes).save(tmp_path/"c.safetensors")
    loaded = Calibrator.load(tmp_path/"c.safetensors")
    record = loaded.fitted_on_
    assert loaded.class_names_ == tuple(classes) and loaded.input_ == "logits"
    assert [*record] == ["samples", "fingerprint", "date", "calibnb", "torch", "numpy"]
    assert record["samples"] == len(LOGITS) and date.fromisoformat(record["date"]).year >= 2026
    found = evaluate(Predictions(LOGITS, TARGET), calibrators=["temperature", "temperature+platt"], n_boot=2, draws=1)
    for same in scaling.fit(LOGITS.numpy(), TARGET), *found.fitted.values():
        assert same.fitted_on_["fingerprint"] == record["fingerprint"] and same.class_names_ == ()
    weight, one_other = torch.ones(len(LOGITS)), torch.cat([TARGET[:-1], 2 - TARGET[-1:]])
    others = [scaling.fit(LOGITS[:-1], TARGET[:-1]), clone(scaling).fit(LOGITS, one_other),
              clone(scaling).fit(LOGITS, TARGET, weight), clone(scaling).fit_probs(LOGITS.softmax(1), TARGET),
              clone(scaling).fit(LOGITS, HOTS, kind="multilabel", classes=classes)]
    assert len({other.fitted_on_["fingerprint"] for other in [loaded, *others]}) == 6
    assert others[-1].class_names_ == tuple(classes)
    assert scaling.fit(odds, TARGET == 1, classes=["no", "yes"]).class_names_ == ("no", "yes")
    with pytest.raises(ValueError, match="classes: 'no', 'yes', want 3 distinct names"):
        scaling.fit(LOGITS, TARGET, classes=["no", "yes"])
    rewrite(tmp_path/"c.safetensors", lambda head, _: head.update(fitted_on=dict(samples="many")))
    with pytest.raises(ValueError, match="damaged .ValueError: samples: 'many'"):
        Calibrator.load(tmp_path/"c.safetensors")


def test_apply_refuses_what_does_not_match_the_fit(tmp_path, monkeypatch, capsys):
    "One line, and nothing is written; columns in another order are matched by name."
    monkeypatch.chdir(tmp_path)
    make_calibrator("vector").fit(LOGITS, TARGET, classes=["ant", "bee", "cat"]).save("c.safetensors")
    make_calibrator("vector").fit(LOGITS, TARGET).save("nameless.safetensors")
    def write_table(z, names): pd.DataFrame(z.numpy(), columns=names.split()).to_csv("t.csv", index=False)
    for z, names, kind, message in [
            (LOGITS, "ant bee dog", "logits", "the columns are 'ant', 'bee', 'dog', want 'ant', 'bee', 'cat'"),
            (LOGITS[:, :2], "a0 a1", "logits", "file: t.csv: logits: 2 classes, want 3 ('ant', 'bee', 'cat')"),
            (LOGITS.softmax(1), "ant bee cat", "logits", "these are probabilities; read the file as probs"),
            (LOGITS.softmax(1), "ant bee cat", "probs", "--probs: c.safetensors was fitted on logits; give a file")]:
        write_table(z, names)
        assert cli.main(["apply", "c.safetensors", "t.csv", f"--{kind}", "--out", "o.csv"]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1 and not (tmp_path/"o.csv").exists(), err
    write_table(LOGITS[:, [2, 0, 1]], "cat ant bee")
    assert cli.main("apply c.safetensors t.csv --logits --out o.csv".split()) == 0
    out, err = capsys.readouterr()
    assert f"fitted on {len(LOGITS)} samples (logits) on 20" in out and not err
    want = Calibrator.load("c.safetensors").transform(LOGITS)
    assert np.allclose(pd.read_csv("o.csv")[["ant", "bee", "cat"]], want, rtol=1e-6)
    assert cli.main("apply nameless.safetensors t.csv --logits --out o.csv".split()) == 0
    assert "nameless.safetensors does not name its classes" in capsys.readouterr().out


def head(**change):
    return lambda head, tensors: head.update(change)


def numbers(**change):
    return lambda head, tensors: head["numbers"].update(change)


def entry(name, function):
    return lambda head, tensors: tensors.update({name: function(tensors[name])})


def table(name, function):
    return entry(f"maps_.0.{name}", function)


def put(value, at=0):
    "One number replaced."
    return lambda t: t.flatten().index_fill(0, torch.tensor(at), value).view(t.shape)


DAMAGE = [  # calibrator, change of its file, reason
    ("temperature", head(options=dict(n=1)), "option: 'n' is not known"),
    ("temperature", head(options=[]), ""), ("temperature", head(numbers={}), ""),
    ("temperature", lambda head, tensors: head.clear(), ""), ("isotonic", table("x", lambda t: t[:1]), ""),
    ("isotonic", lambda head, tensors: tensors.update({"maps_.0": tensors.pop("maps_.0.x")}), ""),
    ("temperature", numbers(n_classes_=10**9), "prior: 3 shares for 1000000000 classes"),
    ("temperature", numbers(n_classes_=10**400), "prior: 3 shares for 1000"),
    ("temperature", numbers(n_classes_=3.), "n_classes_: 3.0"),
    ("temperature", numbers(temperature_=math.nan), "temperature_: nan"),
    ("temperature", numbers(temperature_=1e308), "temperature_: 1e.308"),
    ("temperature", numbers(temperature_="2"), ""),
    ("temperature", numbers(eps_=1.), "eps_: 1.0"),
    ("temperature", numbers(input_="percent"), "input_: 'percent'"),
    ("temperature", numbers(transform=3), "transform: not an attribute that TemperatureScaling sets in a fit"),
    ("temperature", lambda head, tensors: head["numbers"].pop("input_"), "input_: missing"),
    ("temperature", lambda head, tensors: head["numbers"].pop("temperature_"), "temperature_: missing"),
    ("vector", lambda head, tensors: tensors.pop("bias_"), "bias_: missing"),
    ("temperature+platt", lambda head, tensors: head["numbers"].pop("then_/eps_"), "eps_: missing"),
    ("temperature", lambda head, tensors: head.pop("fitted_on"), "KeyError: 'fitted_on'"),
    ("temperature", lambda head, tensors: head.pop("classes"), "KeyError: 'classes'"),
    ("temperature", head(prior=[]), "prior: 0 shares for 3 classes"),
    ("temperature", head(classes=["a"]), "classes: 1 names for 3 classes"),
    ("temperature", numbers(**{"column_0/"*2000 + "n_classes_": 1}), ""),
    ("vector", numbers(n_classes_=100_000), r"weight_: shape \(3,\), want \(100000,\)"),
    ("matrix", entry("weight_", put(1e308, 4)), "weight_: 1e.308"),
    ("vector", entry("bias_", lambda t: t[:1]), r"bias_: shape \(1,\), want \(3,\)"),
    ("ets", entry("weights_", lambda t: t[:1]), r"weights_: shape \(1,\), want \(3,\)"),
    ("svs", entry("weight_", put(math.inf)), "weight_: inf"),
    ("histogram", table("values", put(math.nan, 1)), "values: nan"),
    ("histogram", table("values", put(1.5, 1)), "values: numbers outside"),
    ("histogram", table("edges", put(.9, 1)), "edges: numbers that do not rise"),
    ("bbq", table("values", lambda t: t[:-1]), "values: shape"),
    ("isotonic", table("y", put(1e308, 1)), "y: 1e.308"),
    ("platt", table("slope", lambda t: t[None]), "slope: shape"),
    ("spline", table("scale", put(math.nan)), "scale: nan"),
    ("venn_abers", table("odds", put(-math.inf, 1)), "odds: -inf"),
    ("temperature+platt", numbers(**{"first_/n_classes_": 7}), "n_classes_: 7 in the pipeline"),
    ("temperature+platt", numbers(**{"first_/temperature_": 1e308}), "temperature_: 1e.308"),
]


@pytest.mark.parametrize("name, change, message", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(name, change, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_calibrator(name).fit(LOGITS, TARGET).save("c.safetensors")
    rewrite("c.safetensors", change)
    with pytest.raises(ValueError, match=f"path: c.safetensors is damaged .*{message}"):
        Calibrator.load("c.safetensors")
    np.savez("z.npz", logits=LOGITS.numpy())
    assert cli.main("apply c.safetensors z.npz --logits --out o.npz".split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "c.safetensors is damaged" in err and not (tmp_path/"o.npz").exists()


def test_a_forged_head_is_refused(tmp_path):
    path = tmp_path/"c.safetensors"
    TemperatureScaling().fit(LOGITS, TARGET).save(path)
    rewrite(path, head(calibrator="os.system"))
    with pytest.raises(ValueError, match="holds a calibrator that is not known here"):
        Calibrator.load(path)
    for text in "[]", "{":
        save_file({}, path, metadata=dict(format="calibnb-calibrator/1", head=text))
        with pytest.raises(ValueError, match="c.safetensors is damaged"):
            Calibrator.load(path)


# masked classes, absent classes, constant scores

def with_masks(N=300, K=5, scale=2.):
    "Logits with class 3 masked in the even rows; no label is masked."
    draw = torch.Generator().manual_seed(0)
    logits = scale*torch.randn(N, K, generator=draw, dtype=torch.float64)
    logits[::2, 3] = -math.inf
    return logits, torch.multinomial((logits/1.5).softmax(1), 1, generator=draw)[:, 0]


EACH = [cls(mode="each") for cls in (CALIBRATORS[name] for name in ("histogram", "isotonic", "platt", "bbq", "beta",
                                                                    "spline", "venn_abers"))]


@pytest.mark.parametrize("calibrator", [*ALL, "temperature+isotonic", "vector+platt", "ets+beta", *EACH], ids=str)
def test_masked_class_keeps_probability_zero(calibrator):
    "The logit -inf has probability 0 in the fit, in `transform`, and in a module of either precision."
    logits, target = with_masks()
    masked = logits == -math.inf
    fitted = quiet(calibrator if isinstance(calibrator, str) else clone(calibrator), logits, target)
    for probs, tolerance in [(fitted.transform(logits), 1e-9), (fitted.as_module()(logits), 1e-9),
                             (fitted.as_module(torch.float32)(logits.float()), 1e-5)]:
        assert (probs[masked] == 0).all() and (probs >= 0).all()
        assert ((probs.sum(1) - 1).abs() < tolerance).all()
    nll = fitted.nll(logits, target)
    assert nll.isfinite().all()
    assert nll.mean() < F.cross_entropy(logits, target) + .05
    with pytest.raises(ValueError, match=r"^target: label 3 has the logit -inf, a masked class \(1 such"):
        quiet(calibrator if isinstance(calibrator, str) else clone(calibrator), logits, target.index_fill(
            0, torch.tensor([0]), 3))
    for value in (-math.inf, math.inf, math.nan):
        bad = logits.clone()
        bad[1] = value
        with pytest.raises(ValueError, match="did training diverge"): fitted.transform(bad)


@pytest.mark.parametrize("name", ALL)
def test_class_masked_everywhere_counts_as_absent(name):
    "The fit is the fit without the column; a full matrix sees one input more, and mixtures with 1/K depend on K."
    logits, target = with_masks()
    logits[:, 3], rest = -math.inf, [0, 1, 2, 4]
    target = target.where(target != 3, logits.argmax(1))
    narrow = quiet(name, logits[:, rest], target - (target > 3).long()).transform(logits[:, rest])
    found = quiet(name, logits, target).transform(logits)[:, rest]
    rough = dict(ets=.01, hts=.01, svs=.02, sms=.1, matrix=.1, dirichlet=.1)
    torch.testing.assert_close(found, narrow, rtol=0, atol=rough.get(name, 1e-6))


@pytest.mark.parametrize("name", ["temperature", "vector", "matrix", "dirichlet", "svs", "platt", "isotonic",
                                  "temperature+isotonic"])
def test_onnx_of_masked_classes(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    logits, target = with_masks()
    fitted = quiet(name, logits, target)
    fitted.export_onnx(tmp_path/"calibrator.onnx")
    session = onnxruntime.InferenceSession(tmp_path/"calibrator.onnx")
    probs = torch.from_numpy(session.run(None, {"logits": logits.float().numpy()})[0])
    assert (probs[logits == -math.inf] == 0).all()
    same = (probs - fitted.transform(logits.float())).abs().amax(1) < 1e-5
    assert same.double().mean() > .98  # a step map may take another step for a score at its edge


@pytest.mark.parametrize("noise", [0., 1e-4])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("temperature", "ets", "hts", "isotonic", "venn_abers")])
def test_nearly_constant_scores_give_the_share_of_the_labels(name, columns, noise):
    "50 samples at log-odds -.85, 27 of them ones: P(y = 1) is about 27/50."
    draw = torch.Generator().manual_seed(0)
    def scores():
        p = torch.sigmoid(torch.tensor(-.85, dtype=torch.float64)) + noise*torch.randn(50, 1, generator=draw).double()
        return p.logit() if columns == 1 else torch.cat([1 - p, p], 1).log()
    target = (torch.randperm(50, generator=draw) < 27).long()
    if name in ("histogram", "bbq"): fitted = quiet(name, scores(), target)  # no slope to warn of
    else:
        with pytest.warns(UserWarning, match="hardly vary|nearly constant"):
            fitted = make_calibrator(name).fit(scores(), target)
    probs = fitted.transform(scores())[:, -1]
    assert ((probs - .54).abs() < .03).all()


@pytest.mark.parametrize("name", [n for n in ALL if n in ("vector", "matrix", "dirichlet", "svs", "sms")])
def test_class_without_samples_in_the_fit_stays_possible(name):
    logits, target = overconfident(N=2000, K=5)
    kept = target != 2
    with pytest.warns(UserWarning, match="no sample of class 2 in the fit"):
        fitted = make_calibrator(name).fit(logits[kept], target[kept])
    share = fitted.transform(logits).mean(0)[2]
    assert abs(share - (target == 2).double().mean()) < .08
    assert fitted.nll(logits, target).mean() < F.cross_entropy(logits, target)


def test_a_fitted_calibrator_shows_its_few_numbers_and_its_help_no_methods_of_scikit_learn_for_routing():
    logits, target = overconfident(N=500, K=3)
    fitted = TemperatureScaling().fit(logits, target)
    assert repr(fitted) == f"TemperatureScaling(T={fitted.temperature_:.4g})"
    pipeline = make_calibrator("temperature+platt").fit(logits, target)
    assert repr(pipeline).startswith("Composed(then='platt', T=") and "slope=" in repr(pipeline)
    assert repr(make_calibrator("isotonic", mode="each").fit(logits, target)) == "Isotonic(mode='each')"
    assert repr(TemperatureScaling("ece").fit(logits, target)).startswith("TemperatureScaling(criterion='ece', T=")
    for name in ALL:
        assert not [method for method in dir(type(make_calibrator(name))) if method.startswith("set_fit")], name
