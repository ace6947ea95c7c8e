"Golden numbers of calibrators, from other implementations in high precision (tests/vectors)."
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tensors, vectors, within
from overconfident import confidence

from calibnb import metrics
from calibnb.posthoc import (
    BBQ, BetaCalibration, Dirichlet, HistogramBinning, Isotonic, MatrixScaling, Platt, SplineCalibration,
    StructuredMatrixScaling, StructuredVectorScaling, TemperatureScaling, VectorScaling, VennAbers, make_calibrator,
    oracle_ece
)
from calibnb.posthoc import smooth_maps, venn_abers

ALL, DATA = vectors("posthoc")
CASES = {case["id"]: case for case in ALL}
SET = tensors(DATA["posthoc"])
Z, Y, TEST = SET["logits"], SET["labels"], SET["test_logits"]
SEARCH = {"0.01..10 step 0.01": "pool", "0.1..10 step 0.1": "grid"}
MORE, DATA = vectors("calibrators")
CASES |= {case["id"]: case for case in MORE}
SET = tensors(DATA)
ODDS, HIT, AT = SET["odds"], SET["hits"] == 1, SET["at"]
MORE_SET = SET["logits"], SET["labels"]


def sigmoid(values):
    return torch.tensor(values, dtype=torch.float64).sigmoid()


def test_every_case_is_used():
    used = {"vector_scaling", "isotonic:top_label", "bbq:given_bin_numbers", "dirichlet:odir", "matrix_scaling:odir",
            "optimal_ece", "temperature:nll:continuous", *(f"platt:{t}_targets" for t in ("platt", "hard")),
            *(f"temperature:{c}:{s}" for c in ("nll", "ece") for s in SEARCH),
            *(f"histogram_binning:equal_{s}:{n}" for s in ("width", "mass") for n in (5, 15)),
            "svs", "sms", "hts", "beta", "beta_hard", "spline", "venn_abers", "cross_venn_abers"}
    assert CASES.keys() == used


@pytest.mark.parametrize("criterion, steps", [(c, s) for c in ("nll", "ece") for s in [*SEARCH, "continuous"]][:-1])
def test_temperature(criterion, steps):
    case = CASES[f"temperature:{criterion}:{steps}"]
    T = TemperatureScaling(criterion, SEARCH.get(steps, steps)).fit(Z, Y).temperature_
    within(T, case["expected"]["T"], case)
    value = F.cross_entropy(Z/T, Y) if criterion == "nll" else metrics.ece((Z/T).softmax(1), Y)
    within(value, case["expected"]["value"], case)


def test_oracle():
    case, best = CASES["optimal_ece"], oracle_ece(Z, Y)
    within(best.ece, case["expected"]["ece"], case)
    within(best.temperature, case["expected"]["T"], case)


@pytest.mark.parametrize("name, calibrator", [
    ("vector_scaling", VectorScaling()), ("matrix_scaling:odir", MatrixScaling(.05, .02)),
    ("dirichlet:odir", Dirichlet(.05, .02))])
def test_linear_map(name, calibrator):
    case = CASES[name]
    probs, want = calibrator.fit(Z, Y).transform(TEST), case["expected"]
    within(probs, want["test_probs"], case)
    nll = F.nll_loss(calibrator.transform(Z).log(), Y)
    if "nll" in want:
        within(nll, want["nll"], case)
    if "objective" in want:
        W, b, lam, mu = calibrator.weight_, calibrator.bias_, calibrator.lam, calibrator.mu
        off = W[~torch.eye(len(b), dtype=torch.bool)]
        within(nll + lam*off.square().mean() + mu*b.square().mean(), want["objective"], case)


@pytest.mark.parametrize("name, kind", [("svs", StructuredVectorScaling), ("sms", StructuredMatrixScaling)])
def test_structured_scaling(name, kind):
    case, calibrator = CASES[name], kind().fit(*MORE_SET)
    want, w, b = case["expected"], calibrator.weight_, calibrator.bias_
    assert math.isclose(calibrator.temperature_, want["temperature"], rel_tol=1e-7)
    changes = torch.stack([w - 1, b], 1) if w.ndim == 1 else torch.cat([w - torch.eye(len(b)), b[:, None]], 1)
    within(changes, want["changes"], case)
    within(calibrator.transform(SET["test"]), want["test"], case)


def test_entropy_temperature():
    case, calibrator = CASES["hts"], make_calibrator("hts").fit(*MORE_SET)
    found, want = [calibrator.weight_, calibrator.bias_], [case["expected"][k] for k in ("weight", "bias")]
    within(found, want, dict(case, atol=1e-5))
    within(calibrator.transform(SET["test"]), case["expected"]["test"], case)


@pytest.mark.parametrize("targets", ["platt", "hard"])
def test_platt(targets):
    case = CASES[f"platt:{targets}_targets"]
    calibrator = Platt(targets).fit(Z, Y)
    within(calibrator._scores(Z, Z.argmax(1)), case["scores"], case)
    within(calibrator.maps_[0]["slope"], case["expected"]["a"], case)
    within(calibrator.maps_[0]["intercept"], case["expected"]["b"], case)
    within(confidence(calibrator, TEST), case["expected"]["test"], case)


def test_isotonic():
    case = CASES["isotonic:top_label"]
    within(confidence(Isotonic(smooth=False).fit(Z, Y), TEST), case["expected"]["test"], case)


@pytest.mark.parametrize("scheme", ["width", "mass"])
@pytest.mark.parametrize("n_bins", [5, 15])
def test_histogram_binning(scheme, n_bins):
    case = CASES[f"histogram_binning:equal_{scheme}:{n_bins}"]
    calibrator = HistogramBinning(n_bins, scheme, smooth=False).fit(Z, Y)
    fitted, want = calibrator.maps_[0], case["expected"]
    within(fitted["edges"], want["edges"], case)
    assert fitted["count"].tolist() == want["count"]
    within(fitted["values"], want["value_midpoint_if_empty"], case)
    within(confidence(calibrator, TEST), want["test"], case)


def test_bbq():
    case = CASES["bbq:given_bin_numbers"]
    calibrator = BBQ(case["bin_numbers"]).fit(Z, Y)
    scores = calibrator.maps_[0]["log_scores"]
    within(scores, case["expected"]["log_scores"], case)
    within(scores.softmax(0), case["expected"]["weights"], case)
    within(confidence(calibrator, TEST), case["expected"]["test"], case)


@pytest.mark.parametrize("targets, name", [("platt", "beta"), ("hard", "beta_hard")])
def test_beta(targets, name):
    case, fitted = CASES[name], smooth_maps.beta_map(ODDS, HIT, targets)
    within(torch.stack([fitted[k] for k in ("a", "b", "intercept")]), case["expected"]["weights"], case)
    within(smooth_maps.beta(fitted, AT), case["expected"]["test"], case)
    within(BetaCalibration(targets).fit(ODDS, HIT.long()).transform(AT), sigmoid(case["expected"]["test"]), case)


def test_spline():
    case, fitted = CASES["spline"], smooth_maps.spline_map(ODDS, HIT, 6, .01)
    within(fitted["x"], case["expected"]["knots"], case)
    within(fitted["y"], case["expected"]["values"], case)
    within(smooth_maps.spline(fitted, AT), case["expected"]["test"], case)
    within(SplineCalibration(6, .01).fit(ODDS, HIT.long()).transform(AT), sigmoid(case["expected"]["test"]), case)


def test_venn_abers(monkeypatch):
    case, fitted = CASES["venn_abers"], venn_abers.venn_abers_map(ODDS, HIT)
    i = venn_abers.gap_index(fitted["scores"], AT)
    within(fitted["low"][i], case["expected"]["p0"], case)
    within(fitted["high"][i], case["expected"]["p1"], case)
    within(VennAbers().fit(ODDS, HIT.long()).transform(AT), case["expected"]["p"], case)
    case = CASES["cross_venn_abers"]
    monkeypatch.setattr(venn_abers, "_folds", lambda s, hit, n: [np.arange(k, len(hit), n) for k in range(n)])
    within(venn_abers.venn_abers(venn_abers.venn_abers_map(ODDS, HIT, 3), AT).sigmoid(), case["expected"]["p"], case)
