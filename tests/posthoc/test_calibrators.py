"Structured scaling, beta, spline, Venn-Abers: golden numbers, minima, limits."
import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tensors, vectors, within

from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from calibnb.posthoc import (
    BetaCalibration, Isotonic, SplineCalibration, StructuredMatrixScaling, StructuredVectorScaling, TemperatureScaling,
    VennAbers, list_calibrators, make_calibrator
)
from calibnb.posthoc import score_maps, smooth_maps, structured, venn_abers

ALL, DATA = vectors("calibrators")
CASES = {case["id"]: case for case in ALL}
SET = tensors(DATA)
Z, Y, TEST = SET["logits"], SET["labels"], SET["test"]
ODDS, HIT, AT = SET["odds"], SET["hits"] == 1, SET["at"]
KINDS = {"svs": StructuredVectorScaling, "sms": StructuredMatrixScaling}


def skewed(N=3000, K=6, seed=0):
    "Logits 2.5 times too large, and too large by some more for some of the classes."
    draw = torch.Generator().manual_seed(seed)
    logits = 5*torch.randn(N, K, generator=draw)
    target = torch.multinomial((logits/2.5).softmax(1), 1, generator=draw)[:, 0]
    return logits + torch.linspace(0, 3, K), target


def changes(calibrator):
    w, b = calibrator.weight_, calibrator.bias_
    if w.ndim == 1:
        return torch.stack([w - 1, b], 1)
    return torch.cat([w - torch.eye(len(b)), b[:, None]], 1)


def objective_of(calibrator, logits, target):
    "NLL plus the penalty as the paper writes it, in float64 by autograd, and the largest derivative."
    (N, K), x = logits.shape, calibrator._inputs(logits.double())
    w, b = (v.clone().requires_grad_() for v in (calibrator.weight_, calibrator.bias_))
    W = w.diag() if w.ndim == 1 else w
    own = (W.diagonal() - 1).square().sum()
    others = (W - W.diagonal().diag()).square().sum()
    options = dict(off_diagonal=0.) | calibrator.get_params()
    value = F.cross_entropy(x @ W.T + b, target) + options["intercept"]*K/N*b.square().sum()
    value = value + options["diagonal"]*K/N*own + options["off_diagonal"]*K*(K - 1)/N*others
    return value.item(), max(g.abs().max().item() for g in torch.autograd.grad(value, (w, b)))


@pytest.mark.parametrize("name", KINDS)
def test_structured_scaling(name):
    case, calibrator = CASES[name], KINDS[name]().fit(Z, Y)
    want = case["expected"]
    assert math.isclose(calibrator.temperature_, want["temperature"], rel_tol=1e-7)
    within(changes(calibrator), want["changes"], case)
    within(calibrator.transform(TEST), want["test"], case)


def test_entropy_temperature():
    case, calibrator = CASES["hts"], make_calibrator("hts").fit(Z, Y)
    found, want = [calibrator.weight_, calibrator.bias_], [case["expected"][k] for k in ("weight", "bias")]
    within(found, want, dict(case, atol=1e-5))
    within(calibrator.transform(TEST), case["expected"]["test"], case)


@pytest.mark.parametrize("kind", ["plain", "sure", "large", "separable", "even", "few", "apart"])
def test_entropy_temperature_is_never_worse_than_one_temperature(kind):
    logits, target = skewed(20_000 if kind == "apart" else 3000)
    if kind in ("sure", "large"):
        logits = {"sure": 10, "large": 1e5}[kind]*logits
    if kind == "separable":
        target = logits.argmax(1)
    if kind == "even":
        logits = 3*torch.eye(6)[logits.argmax(1)]
    if kind == "few":
        logits, target = logits[:3], target[:3]
    if kind == "apart":  # errors that the part which is searched first does not have
        target = logits.argmax(1)
        target[1:81:2] = (target[1:81:2] + 1) % 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a temperature at its bound
        both = [make_calibrator(name).fit(logits, target) for name in ("hts", "temperature")]
    nll = [c.nll(logits, target).mean() for c in both]
    assert nll[0] <= nll[1] + 1e-9 and (kind != "apart" or nll[0] < nll[1] - 1e-4)
    assert torch.equal(both[0].predict(logits), logits.argmax(1))
    assert kind != "even" or both[0].weight_ == 0


@pytest.mark.parametrize("name", list_calibrators())
def test_probabilities_are_not_taken_for_logits(name):
    logits, target = skewed(100)
    p, flags = logits.softmax(1), (target == 1).long()
    with pytest.raises(ValueError, match="these are probabilities; of p, p.log.. are logits"):
        make_calibrator(name).fit(p, target)
    with pytest.raises(ValueError, match="these are probabilities; of p, p.logit.. are log-odds"):
        make_calibrator(name).fit(p[:, 1], flags)
    fitted = make_calibrator(name).fit(p.log(), target)
    for call in fitted.transform, fitted.predict, lambda z: fitted.nll(z, target):
        with pytest.raises(ValueError, match="these are probabilities"):
            call(p)
    assert fitted.transform(p[:19]).shape == (19, 6)  # few rows may look so by chance


@pytest.mark.parametrize("name", ["temperature", "ets", "hts"])
def test_a_temperature_at_its_bound_is_told(name):
    logits = skewed()[0]
    with pytest.warns(UserWarning, match="temperature: 100, the largest there is"):
        make_calibrator(name).fit(logits, torch.randint(6, (3000,), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("dtype, most", [(torch.float64, 1e-7), (torch.float32, 2e-3)])
@pytest.mark.parametrize("kind", ["plain", "sure", "shifted", "rare", "large", "separable"])
@pytest.mark.parametrize("name", KINDS)
def test_structured_scaling_is_at_its_minimum(name, kind, dtype, most, monkeypatch):
    "By either way to the steps, in pieces, and with a curvature that is told by too few samples."
    logits, target = skewed()
    if kind == "sure":
        logits = 10*logits
    if kind == "large":
        logits = 3000*logits
    if kind == "shifted":
        logits = logits + torch.tensor([0., 10., -20., 0., 5., 40.])
    if kind == "separable":
        target = logits.argmax(1)
    if kind == "rare":
        target = torch.where((target == 0) & (torch.arange(3000) > 60), 1, target)
    found = {}
    for where in "whole", "many classes", "pieces", "too few":
        with monkeypatch.context() as patch:
            if where == "many classes":
                patch.setattr(structured, "_MOST", 0)
            if where == "pieces":
                patch.setattr(structured, "_PIECE", 1000)
            if where == "too few":
                patch.setattr(structured, "_FEW", 20)
            calibrator = KINDS[name]().fit(logits.to(dtype), target)
        found[where], slope = objective_of(calibrator, logits, target)
        assert slope < most
    assert max(found.values()) - min(found.values()) < (1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_without_a_penalty_float32_finds_the_same_map(name):
    "Near-collinear inputs, of which nothing but a penalty would tell one map from the next."
    logits, _ = skewed()
    target = torch.randint(6, (3000,), generator=torch.Generator().manual_seed(1))
    free = [0.]*len(structured._Vector.counts(6) if name == "svs" else structured._Matrix.counts(6))
    found = [objective_of(KINDS[name](*free).fit(z, target), logits, target)[0] for z in (logits, logits.double())]
    assert abs(found[0] - found[1]) < 1e-6


def test_fewer_samples_than_numbers_and_no_penalty_is_said_and_no_worse_than_a_temperature():
    "Random labels that a matrix can learn by heart: no step may leap past them."
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(60, 50, generator=draw), torch.randint(50, (60,), generator=draw)
    with pytest.warns(UserWarning, match="no minimum found"):
        found = StructuredMatrixScaling(0., 0., 0.).fit(logits, target)
    assert found.nll(logits, target).mean() < TemperatureScaling().fit(logits, target).nll(logits, target).mean()


@pytest.mark.parametrize("name", KINDS)
def test_from_temperature_scaling_to_a_free_map(name):
    logits, target = skewed(400)
    def nll(*strengths):
        return KINDS[name](*strengths).fit(logits.double(), target).nll(logits, target).mean().item()
    n = 2 if name == "svs" else 3
    by_strength = [nll(*[s]*n) for s in (0., .1, 1., 10., 1e7)]
    assert by_strength == sorted(by_strength)  # bits: the same numbers in order
    of_temperature = TemperatureScaling().fit(logits, target).nll(logits, target).mean().item()
    assert math.isclose(by_strength[-1], of_temperature, abs_tol=.01)  # a share of 1/401 is the uniform's
    free = make_calibrator("vector" if name == "svs" else "matrix").fit(logits, target).nll(logits, target).mean()
    assert by_strength[0] < free + .01


def test_few_samples_of_many_classes_stay_near_the_temperature():
    draw = torch.Generator().manual_seed(0)
    logits = 3*torch.randn(20_300, 50, generator=draw)
    target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    few, new = (logits[:300], target[:300]), (logits[300:], target[300:])
    nll = {name: make_calibrator(name).fit(*few).nll(*new).mean().item()
           for name in ("temperature", "vector", "svs", "sms")}
    assert max(nll["svs"], nll["sms"]) < nll["temperature"] + .05 < nll["vector"]


@pytest.mark.parametrize("calibrator, message", [
    (StructuredVectorScaling(intercept=-1.), "intercept: -1.0, want a number of at least 0"),
    (StructuredMatrixScaling(diagonal=math.inf), "diagonal: inf"),
    (StructuredMatrixScaling(off_diagonal=math.nan), "off_diagonal: nan")])
def test_wrong_strengths(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(Z, Y)


# functions of the log-odds

@pytest.mark.parametrize("targets, name", [("platt", "beta"), ("hard", "beta_hard")])
def test_beta(targets, name):
    case, fitted = CASES[name], smooth_maps.beta_map(ODDS, HIT, targets)
    within(torch.stack([fitted[k] for k in ("a", "b", "intercept")]), case["expected"]["weights"], case)
    within(smooth_maps.beta(fitted, AT), case["expected"]["test"], case)


def test_spline():
    case, fitted = CASES["spline"], smooth_maps.spline_map(ODDS, HIT, 6, .01)
    within(fitted["x"], case["expected"]["knots"], case)
    within(fitted["y"], case["expected"]["values"], case)
    within(smooth_maps.spline(fitted, AT), case["expected"]["test"], case)


def test_venn_abers():
    case, fitted = CASES["venn_abers"], venn_abers.venn_abers_map(ODDS, HIT)
    place = torch.bucketize(AT, fitted["scores"]) + torch.bucketize(AT, fitted["scores"], right=True)
    within(fitted["low"][place], case["expected"]["p0"], case)
    within(fitted["high"][place], case["expected"]["p1"], case)
    within(venn_abers.venn_abers(fitted, AT).sigmoid(), case["expected"]["p"], case)


def test_cross_venn_abers(monkeypatch):
    case = CASES["cross_venn_abers"]
    monkeypatch.setattr(venn_abers, "_parts", lambda N, folds: [np.arange(k, N, folds) for k in range(folds)])
    within(venn_abers.venn_abers(venn_abers.venn_abers_map(ODDS, HIT, 3), AT).sigmoid(), case["expected"]["p"], case)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 30), steps=st.integers(1, 20), share=st.floats(0, 1))
def test_venn_abers_is_two_isotonic_fits_for_each_new_sample(seed, N, steps, share):
    "Few scores, so that many tie, with labels that follow them or not."
    draw = np.random.default_rng(seed)
    score = draw.integers(0, steps, N).astype(float)
    hit = draw.random(N) < np.where(draw.random(N) < share, score/steps, .5)
    fitted = venn_abers.venn_abers_map(torch.from_numpy(score), torch.from_numpy(hit))
    for s in np.arange(-1, steps + 1, .5):
        place = np.searchsorted(np.unique(score), s) + np.searchsorted(np.unique(score), s, "right")
        for name, label in ("low", 0), ("high", 1):
            want = IsotonicRegression().fit(np.append(score, s), np.append(hit, label)).predict([s])[0]
            assert abs(fitted[name][place] - want) < 1e-9


def uneven(N=2000, seed=0):
    "Log-odds of hits that are a bent function of the log-odds given."
    draw = torch.Generator().manual_seed(seed)
    odds = 3*torch.randn(N, generator=draw, dtype=torch.float64)
    return odds, torch.rand(N, generator=draw) < (2*torch.tanh(odds) + .3).sigmoid()


FITS = {"beta": (smooth_maps.beta_map, smooth_maps.beta), "spline": (smooth_maps.spline_map, smooth_maps.spline)}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("size", [1e-6, 1, 1e6])
def test_curves_are_at_their_minimum_whatever_the_size(name, size):
    "In each direction that a curve may take, the derivative of the penalised NLL is 0."
    odds, hit = uneven()
    fit, apply = FITS[name]
    fitted = fit(size*odds, hit)
    share = torch.from_numpy(score_maps._targets(hit, "platt", None)[0])
    def value(m):
        x = apply(m, size*odds)
        loss = (F.softplus(x) - share*x).mean()
        if name == "spline":
            knots, y = m["x"].numpy(), m["y"].numpy()
            Q, R = smooth_maps._bands(knots)
            loss += fitted["smoothing"]*(y @ Q @ np.linalg.solve(R, Q.T @ y))
        else:
            loss += (m["a"] - m["b"])**2/(2*len(odds))
        return loss.item()
    best, free = value(fitted), ("a", "b", "intercept") if name == "beta" else ("y",)
    for key in free:
        for i in range(fitted[key].numel()):
            if key in ("a", "b") and fitted[key] == 0:
                continue
            for step in 1e-3, -1e-3:
                step = step if key in ("y", "intercept") else step*float(fitted[key])
                moved = fitted[key].clone()
                moved.view(-1)[i] += step
                assert value(fitted | {key: moved}) >= best


def test_a_beta_curve_rises():
    "Whichever of its two parts the data would have fall."
    draw = torch.Generator().manual_seed(0)
    held = set()
    for a, b in (2., -.5), (-.5, 2.), (-1., -1.), (1., 2.):
        odds = 2*torch.randn(4000, generator=draw, dtype=torch.float64)
        hit = torch.rand(4000, generator=draw) < (a*F.logsigmoid(odds) - b*F.logsigmoid(-odds)).sigmoid()
        fitted = smooth_maps.beta_map(odds, hit)
        assert fitted["a"] >= 0 and fitted["b"] >= 0
        held.add((bool(fitted["a"] == 0), bool(fitted["b"] == 0)))
        line = score_maps.platt_map(odds, hit)
        def nll(x):
            share = torch.from_numpy(score_maps._targets(hit, "platt", None)[0])
            return (F.softplus(x) - share*x).mean()
        if line["slope"] >= 0:  # Platt's line is a beta curve
            assert nll(smooth_maps.beta(fitted, odds)) <= nll(line["slope"]*odds + line["intercept"]) + 1e-9
    assert held == {(False, True), (True, False), (True, True), (False, False)}


def test_beta_is_platt_where_the_data_cannot_tell_a_from_b():
    "All confidences near 1, or all near 0: the curve stays near the line, also where no sample is."
    odds, hit = torch.linspace(5, 15, 500, dtype=torch.float64), torch.arange(500) % 10 > 0
    at = torch.linspace(-15, 15, 31, dtype=torch.float64)
    for sign, right in (1, hit), (-1, ~hit):
        curve, line = smooth_maps.beta_map(sign*odds, right), score_maps.platt_map(sign*odds, right)
        torch.testing.assert_close(smooth_maps.beta(curve, at), score_maps.logistic(line, at).logit(), rtol=0, atol=.1)


@pytest.mark.parametrize("size", [1e-300, 1e-9, 50., 1e4, 1e150, 1e300])
@pytest.mark.parametrize("targets", ["platt", "hard"])
@pytest.mark.parametrize("shape", ["constant", "apart", "one side"])
def test_a_beta_curve_is_finite(size, targets, shape):
    draw = torch.Generator().manual_seed(0)
    odds = torch.rand(60, generator=draw, dtype=torch.float64)
    hit = torch.arange(60) % 10 > 0
    odds = {"constant": odds.new_ones(60), "apart": torch.where(hit, odds, -odds), "one side": odds}[shape]
    for sign in 1, -1:
        fitted = smooth_maps.beta_map(size*sign*odds, hit, targets)
        assert all(v.isfinite() for v in fitted.values()) and fitted["a"] >= 0 and fitted["b"] >= 0
        assert smooth_maps.beta(fitted, size*sign*odds).isfinite().all()
    logits = size*F.one_hot(torch.arange(60) % 3, 3).double()
    target = (torch.arange(60) + (~hit)) % 3
    assert BetaCalibration(targets).fit(logits, target).nll(logits, target).isfinite().all()


def test_the_smoothing_follows_the_data():
    "A straight truth gets a straight line, a bent one with many samples a bent line."
    draw = torch.Generator().manual_seed(0)
    odds = 2*torch.randn(20_000, generator=draw, dtype=torch.float64)
    straight = torch.rand(20_000, generator=draw) < (odds/2).sigmoid()
    bent = torch.rand(20_000, generator=draw) < (3*torch.sin(odds)).sigmoid()
    assert smooth_maps.spline_map(odds, straight)["smoothing"] > 10*smooth_maps.spline_map(odds, bent)["smoothing"]
    few = smooth_maps.spline_map(odds[:8], bent[:8])
    assert few["smoothing"] == smooth_maps._SMOOTHINGS[0]


@pytest.mark.parametrize("kind", [BetaCalibration, SplineCalibration, VennAbers, Isotonic])
def test_new_samples_are_better_calibrated_than_before(kind):
    logits, target = skewed(6000)
    (val, y), (new, label) = (logits[:3000], target[:3000]), (logits[3000:], target[3000:])
    assert kind().fit(val, y).nll(new, label).mean() < F.cross_entropy(new, label) - .1


@pytest.mark.parametrize("calibrator, message", [
    (BetaCalibration("x"), "targets: 'x'"), (BetaCalibration(mode="x"), "mode: 'x'"),
    (SplineCalibration(1), "n_knots: 1, want 2 or more"), (SplineCalibration(smoothing=-1.), "smoothing: -1.0"),
    (SplineCalibration(smoothing=math.nan), "smoothing: nan"), (VennAbers(1), "folds: 1, want 2 or more parts"),
    (VennAbers(2.5), "folds: 2.5")])
def test_wrong_options_of_curves(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(Z, Y)
