"Golden numbers of other code: mpmath at 80 digits, float64 NumPy, the papers' reference code."
import math

import pytest
import torch
from conftest import tensors, vectors, within

from calibnb import losses, metrics, models
from calibnb.losses import surrogates, fast_weights as weights
from calibnb.data import synth
from calibnb.core import first_argmax
from calibnb.data import GaussianMixture

# names of losses and options in the files that differ from the names here
NAMES = {"cross_entropy": "ce", "entropy_reg": "entropy"}
OPTIONS = {"detach": "detach_weight"}

LOSSES = [(case, data[case["data"]]) for cases, data in map(vectors, ("losses", "penalties")) for case in cases]
BATCH_CASES, BATCH_DATA = vectors("batch_losses")
METRIC_CASES, METRIC_DATA = vectors("metrics")
THEORY = {case["id"]: case for case in vectors("theory")[0]}


def build(case):
    params = case["params"]
    if case["loss"] == "mixup_ce":
        target_b = torch.tensor(params["labels_b"])
        return lambda z, y: losses.mixup_loss(z, y, target_b, params["lam"], reduction="none")
    if case["loss"] == "adafocal":
        return lambda z, y: losses.adafocal_loss(z, y, **params, reduction="none")
    if case["loss"] == "consistency":  # the file gives the shares that noise would have measured
        u = (1 - torch.tensor(params["consistency_of_label"], dtype=torch.float64))**params["gamma"]
        return lambda z, y: losses.weighted_cross_entropy(z, y, lambda lp: u, detach_weight=True, reduction="none")
    name, options = NAMES.get(case["loss"], case["loss"]), {OPTIONS.get(k, k): v for k, v in params.items()}
    if "detach_weight" in options:  # the loss that is not detached has this option
        name = name.removesuffix("_gra")
    return losses.make_loss(name, **options, reduction="none")


@pytest.mark.parametrize("case, data", LOSSES, ids=[case["id"] for case, _ in LOSSES])
def test_loss(case, data):
    data = tensors(data)
    logits = data["logits"].requires_grad_()
    values = build(case)(logits, data["labels"])
    within(values.detach(), case["values"], case)
    grad, = torch.autograd.grad(values.sum(), logits)
    within(grad, case["grad"], case)


SURROGATES = {
    "mmce": surrogates.mmce, "mmce_weighted": surrogates.mmce_weighted,
    "dece": surrogates.dece, "sece": surrogates.sece,
}
SURROGATE_OPTIONS = {"num_bins": "n_bins", "h": "bandwidth"}


@pytest.mark.parametrize("case", BATCH_CASES, ids=lambda c: f"{c['id']}:{c['params']}")
def test_surrogate(case):
    data = tensors(BATCH_DATA[case["data"]])
    logits = data["logits"].requires_grad_()
    options = {SURROGATE_OPTIONS.get(k, k): v for k, v in case["params"].items()}
    value = SURROGATES[case["loss"]](logits, data["labels"], **options)
    within(value.detach(), case["value"], case)
    grad, = torch.autograd.grad(value, logits)
    within(grad, case["grad"], case)


def probs_of(case):
    data = tensors(METRIC_DATA[case["data"]])
    return data["probs"] if "probs" in data else data["logits"].softmax(1), data["labels"]


SCALARS = {
    "error": metrics.error_rate, "brier_sum_over_classes": metrics.brier_score,
    "entropy_mean": metrics.entropy, "classwise_ece_15": metrics.classwise_ece,
    "entropy_correct": lambda p, y: metrics.entropy(p, y, on="correct"),
    "entropy_incorrect": lambda p, y: metrics.entropy(p, y, on="incorrect"),
    "mean_confidence": lambda p, y: metrics.mean_confidence(p),
    "average_calibration_error_15": metrics.average_ce, "ace_nixon_15": lambda p, y: metrics.ace(p, y, ties="split"),
    "rms_calibration_error_15": lambda p, y: metrics.ece(p, y, norm="l2"),
    "classwise_ece_15_per_class": lambda p, y: metrics.classwise_ece(p, y, reduction="none"),
}
BY_BINS = {
    "ece_right_closed": metrics.ece, "ece_left_closed": lambda p, y, m: metrics.ece(p, y, m, closed="left"),
    "mce": metrics.mce, "adaece_split": lambda p, y, m: metrics.ada_ece(p, y, m, ties="split"),
    "adaece_interp_reference": lambda p, y, m: metrics.ada_ece(p, y, m, method="interp"),
}
DATA_CASES = [c for c in METRIC_CASES if c["id"] in METRIC_DATA]


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
@pytest.mark.parametrize("key", SCALARS)
def test_metric(case, key):
    within(SCALARS[key](*probs_of(case)), case["expected"][key], case)


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
@pytest.mark.parametrize("key", BY_BINS)
def test_metric_by_bins(case, key):
    for bins, want in case["expected"][key].items():
        within(BY_BINS[key](*probs_of(case), int(bins)), want, case)


@pytest.mark.parametrize("case", [c for c in DATA_CASES if "kde_ece_beta" in c["expected"]], ids=lambda c: c["id"])
def test_metrics_without_bins(case):
    args, want, smooth = probs_of(case), case["expected"], {**case, "rtol": 0, "atol": case["tol_smooth"]}
    for width, value in want["kde_ece_beta"].items():
        within(metrics.kde_ece(*args, float(width)), value, case)
    within(metrics.sece(*args, .05), want["sece_metric_hard_h0.05"], case)
    for width, value in want["smooth_ece_sigma"].items():
        within(metrics.smooth_ece(*args, sigma=float(width)), value, smooth)
    within(metrics.smooth_ece(*args), want["smooth_ece_fixed_point"], smooth)


def test_gradient_norm_of_the_last_layer():
    case = THEORY["grad_norm_last_layer"]
    logits, features = (torch.tensor(case[k], dtype=torch.float64) for k in ("logits", "features"))
    target = torch.tensor(case["labels"])
    for name, want in case["expected"].items():
        options = {OPTIONS.get(k, k): v for k, v in want["params"].items()}
        loss = losses.make_loss(NAMES.get(name, name), **options, reduction="sum")
        for key, bias in ("weight_only", False), ("with_bias", True):
            within(models.head_gradient_norm(loss, logits, target, features, bias=bias), want[key], case)


def test_learned_epoch():
    case, = [c for c in METRIC_CASES if c["id"] == "learned_epoch"]
    got = metrics.learned_epoch(case["correct"])
    assert [None if math.isnan(v) else v for v in got.tolist()] == case["expected"]


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
@pytest.mark.filterwarnings("ignore:nll")
def test_nll(case):
    want = case["expected"]["nll"]
    got = metrics.nll(*probs_of(case))
    assert got == math.inf if want is None else not within(got, want, case)


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
def test_reliability_table(case):
    want, table = case["expected"]["reliability_10"], metrics.reliability_bins(*probs_of(case), 10)
    assert table.count.tolist() == want["count"]
    full = table.count > 0
    for got, key in (table.acc, "accuracy"), (table.conf, "confidence"):
        assert [v is None for v in want[key]] == got.isnan().tolist()
        within(got[full], [v for v in want[key] if v is not None], case)


def test_binary_focal_argmin():
    case = THEORY["binary_focal_argmin"]
    got = [[losses.binary_focal_argmin(q, g) for q in case["q"]] for g in case["gamma"]]
    within(got, case["expected"], case)


def test_gamma_from_p0():
    case = THEORY["gamma_from_p0"]
    within([losses.gamma_from_p0(p) for p in case["p0"]], case["expected"], case)
    for p in (0., .5, .7):
        with pytest.raises(ValueError, match="p0: "):
            losses.gamma_from_p0(p)


def test_focal_gradient_factor():
    case = THEORY["g_weight"]
    within(torch.stack([losses.focal_gradient_factor(case["p"], g) for g in case["gamma"]]), case["expected"], case)
    for g, (p, top) in zip(case["gamma"], case["peak"]):
        within(losses.focal_gradient_factor(p, g), top, case)
        assert all(losses.focal_gradient_factor(p + step, g) < top for step in (-1e-3, 1e-3))


def test_uncertainty_weights_on_the_simplex():
    case = THEORY["u_simplex"]
    lp = weights.LogProbs(torch.tensor(case["probs"], dtype=torch.float64).log(), torch.tensor(case["labels"]))
    got = dict(u_fl_gamma1=weights.focal_weight(lp, 1.), u_dfl_gamma1=weights.dual_focal_weight(lp, 1.),
               u_brier=weights.bsce_weight(lp, 2., 2.), u_gbs_norm_b1_g2=weights.bsce_weight(lp, 2., 1.),
               u_gbs_sum_g3=weights.bsce_weight(lp, 3., form="sum"))
    assert got.keys() == case["expected"].keys()
    for key, u in got.items():
        within(u, case["expected"][key], case)


def test_gaussian_posterior():
    case = THEORY["gaussian_posterior"]
    want, probs = case["expected"], torch.tensor(case["probs"], dtype=torch.float64)
    eta = GaussianMixture(case["means"]).posterior(torch.tensor(case["x"], dtype=torch.float64))
    within(eta, want["eta"], case)
    for kind in ("sq", "norm", "top"):
        within(synth.true_calibration_error(probs, eta, kind), want[f"c_{kind}"], case)
    brier = sum(eta[:, k]*(torch.eye(5)[k] - probs).square().sum(1) for k in range(5))
    within(brier - synth.true_calibration_error(probs, eta), want["expected_brier_minus_c_sq"], case)
    assert first_argmax(eta).shape == (len(probs),)
