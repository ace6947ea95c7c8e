"Golden numbers, computed apart from this code: mpmath at 80 digits, float64 NumPy, the papers' reference code."
import math

import pytest
import torch
from conftest import tensors, vectors, within

from calibnb import losses, metrics
from calibnb.core import first_argmax
from calibnb.synth import GaussianMixture

# the files' names for losses and options, where ours differ
NAMES = {"cross_entropy": "ce"}
OPTIONS = {"detach": "detach_weight"}
WAITING = {"consistency", "entropy_reg", "lp_norm", "mixup_ce"}  # cases whose functions do not exist yet

LOSS_CASES, LOSS_DATA = vectors("losses")
METRIC_CASES, METRIC_DATA = vectors("metrics")
THEORY = {case["id"]: case for case in vectors("theory")[0]}


def build(case):
    name, options = NAMES.get(case["loss"], case["loss"]), {OPTIONS.get(k, k): v for k, v in case["params"].items()}
    if "detach_weight" in options:  # a detached form with a detail: the plain loss with that option
        name = name.removesuffix("_gra")
    return losses.make_loss(name, **options, reduction="none")


def test_every_loss_case_is_used():
    assert WAITING == {c["loss"] for c in LOSS_CASES if NAMES.get(c["loss"], c["loss"]) not in losses.list_losses()}


@pytest.mark.parametrize("case", [c for c in LOSS_CASES if c["loss"] not in WAITING], ids=lambda c: c["id"])
def test_loss(case):
    data = tensors(LOSS_DATA[case["data"]])
    logits = data["logits"].requires_grad_()
    values = build(case)(logits, data["labels"])
    within(values.detach(), case["values"], case)
    grad, = torch.autograd.grad(values.sum(), logits)
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
    "average_calibration_error_15": metrics.average_ce,
    "rms_calibration_error_15": lambda p, y: metrics.ece(p, y, norm="l2"),
    "classwise_ece_15_per_class": lambda p, y: metrics.classwise_ece(p, y, reduction="none"),
}
BY_BINS = {
    "ece_right_closed": metrics.ece, "ece_left_closed": lambda p, y, m: metrics.ece(p, y, m, closed="left"),
    "mce": metrics.mce, "adaece_split": metrics.ada_ece,
    "adaece_interp_reference": lambda p, y, m: metrics.ada_ece(p, y, m, method="interp"),
}
USED_ELSEWHERE = {"nll", "reliability_10"}  # in tests of their own, below
METRICS_WAITING = {"ace_nixon_15", "kde_ece_beta", "smooth_ece_sigma", "smooth_ece_fixed_point", "sece_metric_hard_h0.05"}
DATA_CASES = [c for c in METRIC_CASES if c["id"] in METRIC_DATA]


def test_every_metric_key_is_used():
    keys = {key for case in DATA_CASES for key in case["expected"]}
    assert keys == SCALARS.keys() | BY_BINS.keys() | USED_ELSEWHERE | METRICS_WAITING


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
@pytest.mark.parametrize("key", SCALARS)
def test_metric(case, key):
    within(SCALARS[key](*probs_of(case)), case["expected"][key], case)


@pytest.mark.parametrize("case", DATA_CASES, ids=lambda c: c["id"])
@pytest.mark.parametrize("key", BY_BINS)
def test_metric_by_bins(case, key):
    for bins, want in case["expected"][key].items():
        within(BY_BINS[key](*probs_of(case), int(bins)), want, case)


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


def test_uncertainty_weights_on_the_simplex():
    case = THEORY["u_simplex"]
    lp = losses.LogProbs(torch.tensor(case["probs"], dtype=torch.float64).log(), torch.tensor(case["labels"]))
    got = dict(u_fl_gamma1=losses.focal_weight(lp, 1.), u_dfl_gamma1=losses.dual_focal_weight(lp, 1.),
               u_brier=losses.bsce_weight(lp, 2., 2.), u_gbs_norm_b1_g2=losses.bsce_weight(lp, 2., 1.),
               u_gbs_sum_g3=losses.bsce_weight(lp, 3., form="sum"))
    assert got.keys() == case["expected"].keys()
    for key, u in got.items():
        within(u, case["expected"][key], case)


def test_gaussian_posterior():
    case = THEORY["gaussian_posterior"]
    want, probs = case["expected"], torch.tensor(case["probs"], dtype=torch.float64)
    eta = GaussianMixture(case["means"]).posterior(torch.tensor(case["x"], dtype=torch.float64))
    within(eta, want["eta"], case)
    for kind in ("sq", "norm", "top"):
        within(metrics.true_calibration_error(probs, eta, kind), want[f"c_{kind}"], case)
    brier = sum(eta[:, k]*(torch.eye(5)[k] - probs).square().sum(1) for k in range(5))
    within(brier - metrics.true_calibration_error(probs, eta), want["expected_brier_minus_c_sq"], case)
    assert first_argmax(eta).shape == (len(probs),)
