"Functions of the confidence: edges, minima, limits, smoothing, refusals; pipelines of two calibrators."
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from close import close
from hypothesis import given, settings
from hypothesis import strategies as st
from overconfident import binary, confidence, overconfident, skewed
from sklearn.calibration import _SigmoidCalibration
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import IsotonicRegression

from calibnb import metrics
from calibnb.core.folds import random_order
from calibnb.posthoc import (
    BBQ, BetaCalibration, Calibrator, Composed, HistogramBinning, Isotonic, Platt, SplineCalibration,
    TemperatureScaling, VectorScaling, VennAbers, calibrated_logits, held_out_logits, list_calibrators,
    make_calibrator
)
from calibnb.posthoc import score_maps, smooth_maps, venn_abers


def test_binary_functions_are_those_of_scikit_learn():
    odds, y = binary()
    new, p = binary(seed=1)[0], odds.sigmoid()
    iso = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y).predict(new.sigmoid())
    assert np.allclose(Isotonic(smooth=False).fit(odds, y).transform(new), iso, atol=1e-12)
    platt = _SigmoidCalibration().fit(odds.numpy(), y.numpy()).predict(new.numpy())
    assert np.allclose(Platt().fit(odds, y).transform(new), platt, atol=1e-5)
    hist = HistogramBinning(10, smooth=False).fit(odds, y).transform(odds)
    for lo in range(10):
        inside = (p > lo/10) & (p <= (lo + 1)/10)
        assert torch.allclose(hist[inside], y[inside].double().mean())
    assert metrics.ece(hist, y) < .05 < metrics.ece(p, y)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 40), steps=st.integers(1, 20), weighted=st.booleans())
def test_isotonic_regression_is_that_of_scikit_learn(seed, N, steps, weighted):
    "Few scores, so that many tie, with weights or without."
    draw = np.random.default_rng(seed)
    score, hit = draw.integers(0, steps, N)/7., draw.random(N) < .6
    weight = draw.integers(1, 5, N).astype(float) if weighted else None
    want = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(score, hit, weight)
    tensors = [None if v is None else torch.from_numpy(v) for v in (score, hit, weight)]
    m = score_maps.isotonic_map(*tensors[:2], weight=tensors[2])
    at = np.linspace(-1, 4, 50)
    np.testing.assert_allclose(score_maps.affine_map(m, torch.from_numpy(at)), want.predict(at), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", ["width", "mass"])
@pytest.mark.parametrize("mode", ["top", "each"])
def test_histogram_binning_has_no_error_on_the_samples_of_its_fit(scheme, mode):
    logits, target = overconfident()
    calibrator = HistogramBinning(10, scheme, mode=mode, smooth=False).fit(logits, target)
    for k, fitted in enumerate(calibrator.maps_):
        scores = logits.double().softmax(1)
        if mode == "top":
            s, hit = scores.amax(1), logits.argmax(1) == target
        else:
            s, hit = scores[:, k].contiguous(), target == k
        value, ids = calibrator._apply(fitted, s), torch.bucketize(s, fitted["edges"][1:-1])
        assert torch.bincount(ids, weights=hit.double() - value).abs().max() < 1e-9


def test_empty_bins():
    logits = torch.tensor([[3., 0.], [3., 0.], [0., 3.]])
    target, new = torch.tensor([0, 1, 1]), torch.tensor([[.5, 0.]])
    conf = new.softmax(1).amax(1).double()
    for empty, want in ("midpoint", .65), ("identity", conf.item()), ("zero", 0.):
        value = HistogramBinning(10, empty=empty).fit(logits, target).transform(new)[0, 0].item()
        assert math.isclose(value, want, abs_tol=1e-6)


def test_a_score_on_an_edge_belongs_below_it():
    score, hit = torch.tensor([.2, .2, .3, 1., 0.], dtype=torch.float64), torch.tensor([True, True, False, True, True])
    found = score_maps.histogram_map(score, hit, 5)
    assert found["count"].tolist() == [3, 1, 0, 0, 1]
    assert score_maps.step_map(found, score).tolist() == [1., 1., 0., 1., 1.]
    tied = score_maps.histogram_map(torch.full((10,), .5, dtype=torch.float64), torch.arange(10) < 4, 3, "mass")
    assert tied["edges"].tolist() == [0., 1.] and tied["count"].tolist() == [10] and tied["values"][0] == .4


@pytest.mark.parametrize("correct, pred", [(4, 0), (2, 1)])
def test_a_low_confidence_stays_the_largest_probability_if_it_can(correct, pred):
    "Of .4 in three classes it can: the other classes stay below. Of .2 it cannot, and the rest keeps its ratios."
    logits = torch.tensor([[2., 1., 0.]]).repeat(10, 1)
    calibrator = HistogramBinning(smooth=False).fit(logits, torch.tensor([0]*correct + [1]*(10 - correct)))
    probs, log_probs = calibrator.transform(logits)[0], calibrator._log_probs(logits[:1].double())[0]
    want = [.4, .4, .2] if correct == 4 else [.2, *(.8*torch.tensor([1., 0.]).softmax(0)).tolist()]
    torch.testing.assert_close(probs, torch.tensor(want), rtol=0, atol=2e-6)  # the cap is 2**-18 of .4 below
    torch.testing.assert_close(log_probs.exp().float(), probs)
    assert (calibrator.predict(logits)[0], probs.argmax()) == (pred, pred)


def test_when_all_classes_are_ruled_out_they_are_equally_likely():
    "Class 2 was always the label, and its probability small; a row where all are as small is left with nothing."
    logits = torch.tensor([[4., 4., 0.]]*5 + [[0., 0., 4.]]*5)
    calibrator = HistogramBinning(2, mode="each", empty="zero").fit(logits, torch.tensor([2]*5 + [0, 1, 0, 1, 0]))
    for fitted in calibrator.maps_:
        fitted["values"][:] = 0
    assert close(calibrator.transform(logits), torch.full((10, 3), 1/3))


def test_smoothing_is_laplaces_rule():
    "Five of five correct: 6/7, and 5/5 in the textbook form, in a bin and at the top of the isotonic function."
    logits = torch.tensor([[3., 0.]]*5 + [[1., 0.]]*4, dtype=torch.float64)
    target = torch.tensor([0]*5 + [0, 0, 1, 1])
    for kind in HistogramBinning, Isotonic:
        for smooth, want in (True, 6/7), (False, 1.):
            conf = confidence(kind(smooth=smooth).fit(logits, target), logits)
            assert conf[0].item() == pytest.approx(want, abs=1e-9)


def test_platt_distinguishes_confidences_that_round_to_one():
    logits = torch.stack([torch.linspace(40, 400, 200, dtype=torch.float64), torch.zeros(200, dtype=torch.float64)], 1)
    assert (logits.softmax(1)[:, 0] == 1).all()
    target = (torch.arange(200) % 4 == 0).long()*(torch.arange(200) < 100)
    conf = confidence(Platt().fit(logits, target), logits)
    assert (conf.diff() > 0).all() and conf[0] < .8 < .97 < conf[-1]
    each = Platt(mode="each").fit(logits, target).transform(logits)
    assert (each[:, 0].diff() > 0).all() and each.isfinite().all()


def test_bbq_of_a_saturated_network():
    "Confidences that round to 1 for most samples, and tie there."
    for seed in range(2):
        draw = torch.Generator().manual_seed(seed)
        logits = torch.zeros(300, 3, dtype=torch.float64)
        logits[:, 0] = (30 + 6*torch.randn(300, generator=draw)).bfloat16().double()
        target = (torch.rand(300, generator=draw) > .83).long()
        calibrator = BBQ().fit(logits, target)
        assert not calibrator.maps_[0]["values"].isnan().any()
        assert abs(confidence(calibrator, logits).mean() - .83) < .06


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 30), steps=st.integers(1, 20), share=st.floats(0, 1))
def test_venn_abers_is_two_isotonic_fits_for_each_new_sample(seed, N, steps, share):
    "Few scores, so that many tie, with labels that follow them or not."
    draw = np.random.default_rng(seed)
    score = draw.integers(0, steps, N).astype(float)
    hit = draw.random(N) < np.where(draw.random(N) < share, score/steps, .5)
    fitted = venn_abers.venn_abers_map(torch.from_numpy(score), torch.from_numpy(hit))
    for s in np.arange(-1, steps + 1, .5):
        i = venn_abers.gap_index(fitted["scores"], torch.tensor(s, dtype=torch.float64))
        for name, label in ("low", 0), ("high", 1):
            want = IsotonicRegression().fit(np.append(score, s), np.append(hit, label)).predict([s])[0]
            assert abs(fitted[name][i] - want) < 1e-9


# functions of the log-odds

FITS = {"platt": (smooth_maps.platt_map, smooth_maps.platt), "beta": (smooth_maps.beta_map, smooth_maps.beta),
        "spline": (smooth_maps.spline_map, smooth_maps.spline)}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_curves_are_at_their_minimum_whatever_the_size(name, size):
    "In each direction that a curve may take, the derivative of the penalised NLL is 0."
    draw = torch.Generator().manual_seed(0)
    odds = 3*torch.randn(2000, generator=draw, dtype=torch.float64)
    hit = torch.rand(2000, generator=draw) < (2*torch.tanh(odds) + .3).sigmoid()
    fit, apply = FITS[name]
    fitted, t = fit(size*odds, hit), smooth_maps.soft_labels(hit)[0]
    def value(m):
        x = apply(m, size*odds)
        loss = (F.softplus(x) - t*x).mean()
        if name == "spline":
            y, (Q, R) = m["y"].numpy(), smooth_maps.banded_matrix(m["x"].numpy())
            loss += fitted["smoothing"]*(y @ Q @ np.linalg.solve(R, Q.T @ y))
        if name == "beta":
            loss += (m["a"] - m["b"])**2/(2*len(odds))
        return loss.item()
    best, slopes = value(fitted), ("a", "b", "slope")
    for key in dict(platt=("slope", "intercept"), beta=("a", "b", "intercept"), spline=("y",))[name]:
        for i in range(fitted[key].numel()):
            if key in slopes and fitted[key] == 0:
                continue
            for step in 1e-3, -1e-3:
                moved = fitted[key].clone()
                moved.view(-1)[i] += step*float(fitted[key]) if key in slopes else step
                assert value(fitted | {key: moved}) >= best


def test_a_beta_curve_rises():
    "Whichever of its two parts the data would have fall."
    draw = torch.Generator().manual_seed(0)
    at_zero = set()
    for a, b in (2., -.5), (-.5, 2.), (-1., -1.), (1., 2.):
        odds = 2*torch.randn(4000, generator=draw, dtype=torch.float64)
        hit = torch.rand(4000, generator=draw) < (a*F.logsigmoid(odds) - b*F.logsigmoid(-odds)).sigmoid()
        fitted, line = smooth_maps.beta_map(odds, hit), smooth_maps.platt_map(odds, hit)
        assert fitted["a"] >= 0 and fitted["b"] >= 0
        at_zero.add((bool(fitted["a"] == 0), bool(fitted["b"] == 0)))
        def nll(x):
            return (F.softplus(x) - smooth_maps.soft_labels(hit)[0]*x).mean()
        if line["slope"] >= 0:  # Platt's line is a beta curve
            assert nll(smooth_maps.beta(fitted, odds)) <= nll(smooth_maps.platt(line, odds)) + 1e-9
    assert at_zero == {(False, True), (True, False), (True, True), (False, False)}


def test_beta_is_platt_where_the_data_do_not_determine_a_and_b():
    "All confidences near 1, or all near 0: the curve stays near the line, also where no sample is."
    odds, hit = torch.linspace(5, 15, 500, dtype=torch.float64), torch.arange(500) % 10 > 0
    at = torch.linspace(-15, 15, 31, dtype=torch.float64)
    for sign, hits in (1, hit), (-1, ~hit):
        curve, line = smooth_maps.beta_map(sign*odds, hits), smooth_maps.platt_map(sign*odds, hits)
        torch.testing.assert_close(smooth_maps.beta(curve, at), smooth_maps.platt(line, at), rtol=0, atol=.1)


@pytest.mark.parametrize("targets", ["platt", "hard"])
@pytest.mark.parametrize("shape", ["constant", "apart", "one side"])
@pytest.mark.filterwarnings("ignore:log-odds")
def test_a_beta_curve_is_finite(targets, shape):
    hit = torch.arange(60) % 10 > 0
    unit = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    odds = {"constant": unit.new_ones(60), "apart": torch.where(hit, unit, -unit), "one side": unit}[shape]
    for size in 1e-300, 1e-9, 50., 1e4, 1e150, 1e300:
        for sign in 1, -1:
            fitted = smooth_maps.beta_map(size*sign*odds, hit, targets)
            assert all(v.isfinite() for v in fitted.values()) and fitted["a"] >= 0 and fitted["b"] >= 0
            assert smooth_maps.beta(fitted, size*sign*odds).isfinite().all()
        logits = size*F.one_hot(torch.arange(60) % 3, 3).double()
        target = (torch.arange(60) + (~hit)) % 3
        assert BetaCalibration(targets).fit(logits, target).nll(logits, target).isfinite().all()


def test_the_smoothing_follows_the_data():
    "A straight curve gets a straight line, a sine with many samples a curved one."
    draw = torch.Generator().manual_seed(0)
    odds = 2*torch.randn(20_000, generator=draw, dtype=torch.float64)
    straight = torch.rand(20_000, generator=draw) < (odds/2).sigmoid()
    curved = torch.rand(20_000, generator=draw) < (3*torch.sin(odds)).sigmoid()
    assert smooth_maps.spline_map(odds, straight)["smoothing"] > 10*smooth_maps.spline_map(odds, curved)["smoothing"]
    assert smooth_maps.spline_map(odds[:8], curved[:8])["smoothing"] == smooth_maps._SMOOTHINGS[0]


@pytest.mark.parametrize("kind", [BetaCalibration, SplineCalibration, VennAbers, Isotonic])
def test_new_samples_are_better_calibrated_than_before(kind):
    logits, target = skewed(6000)
    (val, y), (new, label) = (logits[:3000], target[:3000]), (logits[3000:], target[3000:])
    assert kind().fit(val, y).nll(new, label).mean() < F.cross_entropy(new, label) - .1


ANY_NUMBER = [smooth_maps.platt_map, score_maps.isotonic_map, smooth_maps.beta_map, smooth_maps.spline_map,
              venn_abers.venn_abers_map]


@pytest.mark.parametrize("fit", [score_maps.histogram_map, score_maps.bbq_map, *ANY_NUMBER])
def test_a_map_refuses_scores_that_are_not_numbers(fit):
    score, hit = torch.tensor([.2, .4, math.nan, .9], dtype=torch.float64), torch.tensor([True, False, True, True])
    for value in math.nan, math.inf, *(() if fit in ANY_NUMBER else (1.2, -.1)):
        message = rf"(score|odds): {value} at row 2, want (numbers in \[0, 1\]|finite numbers)"
        with pytest.raises(ValueError, match=message):
            fit(torch.where(score.isnan(), value, score), hit)


def test_nan_has_no_calibrated_value():
    score, hit = torch.tensor([.2, .4, .9], dtype=torch.float64), torch.tensor([True, False, True])
    at = torch.tensor([.3, math.nan], dtype=torch.float64)
    maps = {score_maps.step_map: score_maps.histogram_map, score_maps.affine_map: score_maps.isotonic_map,
            smooth_maps.platt: smooth_maps.platt_map}
    for apply, fit in maps.items():
        assert apply(fit(score, hit), at).isnan().tolist() == [False, True]


@pytest.mark.parametrize("calibrator, message", [
    (HistogramBinning(0), "n_bins: 0"), (HistogramBinning(scheme="x"), "scheme: 'x'"),
    (HistogramBinning(empty="x"), "empty: 'x'"), (HistogramBinning(mode="x"), "mode: 'x'"),
    (Isotonic("x"), "mode: 'x'"), (Platt("x"), "targets: 'x'"), (BBQ([0]), "n_bins: 0"),
    (BBQ([]), "bin_numbers: an empty list"),
    (BetaCalibration("x"), "targets: 'x'"), (BetaCalibration(mode="x"), "mode: 'x'"),
    (SplineCalibration(1), "n_knots: 1, want 2 or more"), (VennAbers(1), "folds: 1, want 2 or more"),
    (SplineCalibration(smoothing=-1.), "smoothing: -1.0"),
    (SplineCalibration(smoothing=math.nan), "smoothing: nan"), (VennAbers(2.5), "folds: 2.5"),
    (TemperatureScaling("mse"), "criterion: 'mse' is not known"),
    (TemperatureScaling(search="line"), "search: 'line' is not known"),
    (TemperatureScaling("ece", "continuous"), 'search: "continuous"'),
    (TemperatureScaling("ece", n_bins=0), "n_bins: 0")])
def test_wrong_options(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(*overconfident(N=20))


# pipelines of two calibrators

def test_a_pipeline_is_its_two_calibrators():
    logits, target = overconfident(N=800, K=4)
    both = make_calibrator("vector+platt").fit(logits, target)
    first = VectorScaling().fit(logits, target)
    then = Platt().fit(held_out_logits(VectorScaling(), logits, target), target)
    assert torch.equal(both.predict(logits), both.transform(logits).argmax(1))
    assert torch.allclose(both.transform(logits.double()), then.transform(first._logits(logits.double())))


def test_held_out_logits_are_of_fits_that_saw_no_label():
    "One label changed changes the logits of the other folds only."
    logits, target = overconfident(N=200, K=4)
    got = held_out_logits(VectorScaling(), logits, target)
    order = random_order(logits, target)
    folds = order.tensor_split(5)
    for fold in folds:
        rest = torch.isin(order, fold, invert=True)
        alone = VectorScaling().fit(logits[order[rest]], target[order[rest]])
        assert torch.allclose(got[fold].softmax(1), alone.transform(logits[fold].double()), atol=1e-12)
    changed = target.clone()
    changed[0] = (target[0] + 1) % 4
    same = (held_out_logits(VectorScaling(), logits, changed) == got).all(1)
    assert same.nonzero()[:, 0].tolist() == sorted(next(fold for fold in folds if 0 in fold).tolist())


def test_the_second_calibrator_does_not_trust_what_the_first_learned_by_heart():
    "Labels that no logit tells: on the samples of its fit matrix scaling looks right, and new samples pay for it."
    draw = torch.Generator().manual_seed(1)
    logits, target = torch.randn(800, 20, generator=draw), torch.randint(20, (800,), generator=draw)
    new = torch.randn(20_000, 20, generator=draw)
    both = Composed("matrix", "platt").fit(logits, target)
    by_heart = Platt().fit(calibrated_logits(both.first_, logits), target)
    scaled = calibrated_logits(both.first_, new)
    careless, careful = (confidence(second, scaled).mean() for second in (by_heart, both.then_))
    assert abs(careful - .05) < 3*(.05*.95/800)**.5  # one in twenty is correct
    assert careless > careful + .005


@pytest.mark.parametrize("first", ["temperature", "ets", "vector", "matrix", "dirichlet"])
def test_a_pipeline_takes_a_fitted_first_calibrator(first, tmp_path):
    logits, target = overconfident(N=600, K=4)
    fitted = make_calibrator(first).fit(logits, target)
    want = make_calibrator(f"{first}+platt").fit(logits, target)
    got = Composed.on(fitted, "platt", held_out_logits(fitted, logits, target), target)
    assert got.first_ is fitted and got.get_params() == want.get_params()
    assert torch.equal(got.transform(logits), want.transform(logits))  # bits: the same fit twice
    got.save(tmp_path/"c.safetensors")
    loaded = Calibrator.load(tmp_path/"c.safetensors")
    assert torch.equal(loaded.transform(logits), got.transform(logits))  # bits: saved and loaded


def test_wrong_pipelines():
    data = overconfident(N=60)
    for name, message in {"platt+isotonic": "first: 'platt' is not known", "temperature+": "then: '' is not known",
                          "temperature+vector": "then: 'vector' is not known"}.items():
        for make in make_calibrator, lambda name: Composed(*name.split("+")).fit(*data):
            with pytest.raises(ValueError, match=message):
                make(name)
    with pytest.raises(ValueError, match="first: 'platt' is not known"):
        Composed.on(Platt().fit(*data), "isotonic", *data)
    with pytest.raises(ValueError, match="then: 'vector' is not known"):
        Composed.on(TemperatureScaling().fit(*data), "vector", *data)
    with pytest.raises(NotFittedError, match="call .fit"):
        Composed.on(TemperatureScaling(), "platt", *data)


WITHOUT_OFFSET = {"temperature", "ets", "hts"}


@pytest.mark.parametrize("name", sorted({*list_calibrators()} - WITHOUT_OFFSET))
def test_a_constant_score_becomes_the_share_of_hits(name):
    "27 of 50 samples with the log-odds -.85 are ones."
    odds, y = torch.full((50,), -.85, dtype=torch.float64), (torch.arange(50) < 27).long()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = make_calibrator(name).fit(odds, y).transform(odds)
    assert abs(float(p[0]) - .54) < .02, name
