"Calibrators of one class, of independent columns, and of weighted samples."
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from close import close
from conftest import tensors, vectors, within
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from calibnb import metrics
from calibnb.posthoc import (
    BBQ, BetaCalibration, Calibrator, HistogramBinning, Isotonic, Platt, SplineCalibration, TemperatureScaling,
    VectorScaling, VennAbers, list_calibrators, make_calibrator
)

ALL, DATA = vectors("calibrators")
CASES = {case["id"]: case for case in ALL}
SET = tensors(DATA)
ODDS, HIT, AT = SET["odds"], SET["hits"].long(), SET["at"]
NAMES = [*list_calibrators(), "temperature+isotonic", "vector+beta", "hts+platt"]
assert {"temperature", "hts", "svs", "sms"} <= {n for n in list_calibrators() if make_calibrator(n).takes_weight}
WEIGHED = [name for name in list_calibrators() if make_calibrator(name).takes_weight]


def skewed(N=800, seed=0, dtype=torch.float64):
    "Log-odds that are too large, and too large for class 1, and their labels."
    draw = torch.Generator().manual_seed(seed)
    odds = 4*torch.randn(N, generator=draw, dtype=dtype)
    return odds + 1, (torch.rand(N, generator=draw) < (odds/2).sigmoid()).long()


def quiet(name, *data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make_calibrator(name).fit(*data, **options)


@pytest.mark.parametrize("calibrator, name, key", [
    (BetaCalibration(), "beta", "test"), (BetaCalibration("hard"), "beta_hard", "test"),
    (SplineCalibration(6, .01), "spline", "test"), (VennAbers(), "venn_abers", "p")])
def test_golden_numbers(calibrator, name, key):
    case = CASES[name]
    want = torch.tensor(case["expected"][key], dtype=torch.float64)
    want = want.sigmoid() if key == "test" else want
    within(calibrator.fit(ODDS, HIT).transform(AT), want, case)


def test_the_usual_sense_is_that_of_scikit_learn():
    "Of two classes and of one column the functions differ; the latter are those that are usually meant."
    odds, y = skewed()
    new, p = skewed(seed=1)[0], odds.sigmoid()
    iso = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y).predict(new.sigmoid())
    assert np.allclose(Isotonic(smooth=False).fit(odds, y).transform(new), iso, atol=1e-12)
    platt = _SigmoidCalibration().fit(odds.numpy(), y.numpy()).predict(new.numpy())
    assert np.allclose(Platt().fit(odds, y).transform(new), platt, atol=1e-5)
    hist = HistogramBinning(10, smooth=False).fit(odds, y).transform(odds)
    for lo in range(10):
        inside = (p > lo/10) & (p <= (lo + 1)/10)
        assert torch.allclose(hist[inside], y[inside].double().mean())
    assert metrics.ece(hist, y) < .05 < metrics.ece(p, y)


@pytest.mark.parametrize("name", ["temperature", "ets", "hts", "vector", "matrix", "svs", "sms"])
def test_calibrators_of_classes_take_log_odds_for_two_of_them(name):
    odds, y = skewed()
    two = torch.stack([torch.zeros_like(odds), odds], 1)
    want = make_calibrator(name).fit(two, y)
    got = make_calibrator(name).fit(odds, y)
    assert torch.allclose(got.transform(odds), want.transform(two)[:, 1], atol=1e-12)
    assert torch.allclose(got.nll(odds, y), want.nll(two, y), atol=1e-12)


SOLVED = 1/torch.finfo(torch.float64).eps  # a minimum is known to the square root of the rounding of its value


@pytest.mark.parametrize("name", NAMES)
def test_shapes_types_and_files(name, tmp_path):
    odds, y = skewed(200)
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


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_follow_the_log_odds_cost_no_infinity(name):
    odds = skewed()[0]
    calibrator = quiet(name, odds, (odds > 0).long())
    for y in 0, 1:
        assert calibrator.nll(20*odds, torch.full((800,), y)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_problems_of_their_own(name, tmp_path):
    each = [skewed(300, seed) for seed in range(3)]
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


@pytest.mark.parametrize("shape", ["one column", "classes", "multilabel"])
@pytest.mark.parametrize("name", WEIGHED)
def test_a_weight_is_a_number_of_copies(name, shape):
    odds, y = skewed(300)
    kind = {}
    if shape == "classes":
        odds = torch.stack([odds, odds.flip(0), odds.roll(7)], 1)
        y = torch.multinomial((odds/2).softmax(1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    if shape == "multilabel":
        odds, y, kind = torch.stack([odds, -odds], 1), torch.stack([y, 1 - y], 1), dict(kind="multilabel")
    weight = torch.arange(300) % 4
    options = dict(smoothing=.1) if name == "spline" else {}  # else chosen with other parts
    calibrators = [make_calibrator(name, **options) for _ in range(2)]
    weighed = calibrators[0].fit(odds, y, weight, **kind).transform(odds)
    copied = calibrators[1].fit(odds.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0), **kind)
    assert torch.allclose(weighed, copied.transform(odds), atol=1e-5)


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_that_stand_for_less_than_two_samples_are_told(name):
    "Weights are frequencies: priors and penalties outweigh shares that sum to 1."
    calibrator, shares = make_calibrator(name), torch.full((48,), 1/48, dtype=torch.float64)
    with pytest.warns(UserWarning, match="sample_weight: got a sum of 1, so .* is fitted as on 1 samples") as caught:
        calibrator.fit(ODDS, HIT, shares)
    assert caught[0].filename == __file__
    by_mean = make_calibrator(name).fit(ODDS, HIT, shares/shares.mean()).transform(AT)
    torch.testing.assert_close(by_mean, make_calibrator(name).fit(ODDS, HIT).transform(AT), rtol=0, atol=1e-6)


@pytest.mark.parametrize("calibrator, weight, message", [
    (BBQ(), torch.ones(48), "sample_weight: given, but BBQ takes none"),
    (TemperatureScaling("ece"), torch.ones(48), "sample_weight: given for a search in a list"),
    (HistogramBinning(scheme="mass"), torch.ones(48), "sample_weight: given for bins of equally many samples"),
    (Platt(), torch.ones(47), r"sample_weight: shape \(47,\), want \(48,\)"),
    (Platt(), -torch.ones(48), "sample_weight: -1 at row 0"), (Platt(), torch.zeros(48), "sample_weight: all are 0"),
    (Platt(), torch.full((48,), math.nan), "sample_weight: nan at row 0"),
    *((make_calibrator(name), torch.full((48,), size, dtype=torch.float64), "sample_weight: got a sum of .*, expected")
      for name in WEIGHED for size in (1e-320, 1.7e308))])
def test_wrong_weights(calibrator, weight, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(ODDS, HIT, weight)


@pytest.mark.parametrize("data, options, message", [
    ((ODDS, HIT + 1), {}, "target: label 2 at row .*, want 0..1"), ((ODDS, HIT), dict(kind="binary"), "kind: 'binary'"),
    ((ODDS.log(), HIT), {}, "logits: row .* holds nan or inf"), ((ODDS, HIT[:9]), {}, "target: shape"),
    ((ODDS[:, None], HIT), dict(kind="multilabel"), "target: .* want 0 or 1 for each of logits"),
    ((ODDS[:, None], HIT[:, None] + 1), dict(kind="multilabel"), "target: label 2 at row .*, want 0 or 1")])
def test_wrong_columns(data, options, message):
    with pytest.raises(ValueError, match=message):
        Platt().fit(*data, **options)


def test_a_new_fit_forgets_the_old_one():
    odds, y = skewed(100)
    calibrator = Platt().fit(torch.stack([odds, -odds], 1), torch.stack([y, 1 - y], 1), kind="multilabel")
    assert calibrator.fit(odds, y).transform(odds).shape == (100,) and not calibrator.columns_
    assert isinstance(TemperatureScaling().fit(odds, y).temperature_, float)
    assert VectorScaling().fit(odds, y).weight_.shape == (2,)
