"Grids of the numerical wings: other seeds, bins, losses and calibrators, and simulations of more repetitions."
import sys
from functools import partial

import pytest
import torch
from conftest import ROOT
from sklearn.naive_bayes import GaussianNB

from calibnb import losses
from calibnb.posthoc import CalibratedModel

sys.path += [str(ROOT/"tests"/wing) for wing in ("losses", "metrics", "posthoc", "evaluate")]

import test_binary  # noqa: E402
import test_calibrators  # noqa: E402
import test_deployed  # noqa: E402
import test_evaluate  # noqa: E402
import test_linear  # noqa: E402
import test_losses  # noqa: E402
import test_memory  # noqa: E402
import test_metrics  # noqa: E402
import test_oracles  # noqa: E402
import test_plan  # noqa: E402
import test_refinement  # noqa: E402
import test_selective  # noqa: E402
import test_sklearn  # noqa: E402
import test_temperature  # noqa: E402
import test_testing  # noqa: E402
import test_variants  # noqa: E402


# compiled losses

@pytest.mark.parametrize("name", test_losses.DETERMINED)
def test_every_loss_compiles_in_one_piece(name):
    test_losses.check_compiled(name, *test_losses.batch(128, 10), counted=True)


@pytest.mark.parametrize("name", ["ce", "dual_focal", "bsce_gra", "brier", "label_smoothing"])
def test_weights_of_classes_and_ignored_labels_compile(name):
    options = dict(weight=test_losses.BY_CLASS, ignore_index=-100, reduction="sum")
    test_losses.check_compiled(name, *test_losses.partly_ignored(-100), **options)


def test_every_loss_and_function_of_one_process_compiles():
    "There are more losses than versions of one function that torch.compile makes."
    logits, target = test_losses.batch()
    args_of = dict(soft_target_loss=(logits.softmax(1),), mixup_loss=(target, target.flip(0), .3))
    names = [name for name in losses.__all__ if name.endswith("_loss") and name not in ("make_loss", "register_loss")]
    calls = [(name, losses.make_loss(name), (target,)) for name in test_losses.NAMES]
    calls += [(name, getattr(losses, name), args_of.get(name, (target,))) for name in names]
    assert len(names) > 12
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for name, loss, args in calls:
            value = torch.compile(loss, backend="eager")(logits, *args)
            if not name.startswith("consistency"):
                torch.testing.assert_close(value, loss(logits, *args))
    torch.compiler.reset()


def test_sece_of_a_large_batch_in_little_memory():
    "1900 MB with all pairs at once."
    test_memory.check_peaks({"SECE of a batch of 10,000": ("gradient(surrogates.sece, 10_000, 10)", 1000)})


# other libraries

@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_bins", [1, 10, 15, 100])
def test_binned_errors_agree_with_torchmetrics_and_netcal(n_bins, seed):
    for norm in "l1", "l2", "max":
        test_oracles.test_binned_errors_agree_with_torchmetrics(n_bins, norm, seed)
    for name, peer in test_oracles.PEERS if n_bins > 1 else ():
        test_oracles.test_binned_errors_agree_with_netcal(name, peer, n_bins, seed)
    if n_bins in (10, 15):
        test_binary.test_binned_errors_agree_with_torchmetrics_and_netcal(n_bins, seed)


@pytest.mark.parametrize("seed", range(5))
def test_smooth_ece_and_scores_agree_with_relplot_and_scikit_learn(seed):
    for binary in False, True:
        test_oracles.test_smooth_ece_agrees_with_relplot(binary, seed)
    test_binary.test_scores_agree_with_scikit_learn(seed)


# simulations

SIMULATIONS = {
    **{f"intervals of binned errors, {strength}": partial(
        test_metrics.test_intervals_of_binned_errors_cover, strength, 100, 90) for strength in (0., .15, .5)},
    **{f"intervals of variants, {sharper}": partial(test_variants.test_intervals_cover, sharper, 100, 90)
       for sharper in (1., 1.5)},
    **{f"marginal intervals, {case}": partial(
        test_variants.test_the_marginal_interval_covers_with_many_classes, *case, 40, 33)
        for case in ((100, 1000, 1.), (30, 1000, 1.), (100, 1000, 1.5), (2, 500, 1.))},
    "bootstrap of the AUGRC": partial(test_selective.test_the_bootstrap_covers, 100, 88),
    "intervals of the kernel error": partial(test_testing.test_intervals_of_the_kernel_error_cover, 100),
    **{f"size and power of {name}": partial(test_testing.test_size_and_power, name, 100, 12)
       for name in test_testing.TESTS},
    **{f"intervals of the {score}": partial(test_refinement.test_intervals_hold_the_truth, score, 100, 88)
       for score in ("nll", "brier")},
    **{f"plan, {case}": partial(test_plan.test_power_and_coverage, *case, 1000) for case in test_plan.CASES},
    "calibrated models": partial(test_evaluate.test_calibrated_models_are_rarely_accused,
                                 test_evaluate.overconfident, 100, 8),
}


@pytest.mark.parametrize("name", SIMULATIONS)
def test_simulation(name):
    SIMULATIONS[name]()


def test_of_equal_rows_none_is_called_beaten(monkeypatch):
    "Tests against the least alone call 11 of 100 beaten."
    test_evaluate.test_of_equal_rows_none_is_called_beaten(monkeypatch, 100, 10)


# calibrators

@pytest.mark.parametrize("name", test_deployed.ALL)
def test_every_calibrator_is_exported(name):
    for K in 10, 2:
        test_deployed.test_export(name, K)


@pytest.mark.parametrize("name, K", [("hts", 1), ("vector", 2), ("histogram", 2), ("spline", 10), ("venn_abers", 1)])
def test_onnx(name, K):
    "isotonic: see the command of the fast tests."
    errors = test_deployed.deployment_errors(test_deployed.fitted(name, K), test_deployed.unseen(K), ["onnx"])
    assert errors["onnx"] <= test_deployed.LIMIT, errors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name, kind", test_linear.MINIMA)
def test_a_fit_is_at_its_minimum(name, kind, dtype, monkeypatch):
    test_linear.test_a_fit_is_at_its_minimum(name, kind, dtype, monkeypatch)


@pytest.mark.parametrize("kind", test_temperature.KINDS)
def test_a_list_is_searched_as_if_one_by_one(kind):
    test_temperature.test_a_list_is_searched_as_if_one_by_one(kind, "pool")


@pytest.mark.parametrize("name", test_refinement.posthoc.list_calibrators())
def test_held_out_scores_of_every_calibrator(name):
    test_refinement.test_calibrators_of_one_column(name)


@pytest.mark.filterwarnings("ignore")  # the checks give tiny and degenerate data
def test_the_checks_of_scikit_learn_pass_with_probabilities():
    test_sklearn.check_as_estimator(CalibratedModel(GaussianNB(), "platt", cv=3))


def test_a_calibrator_compiles_with_inductor():
    test_deployed.test_compile("vector", "inductor")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", test_calibrators.BINARY)
def test_columns_of_every_calibrator(name, tmp_path):
    test_calibrators.test_multilabel_columns_are_separate_problems(name, tmp_path)
    for form in "binary", "multilabel":
        test_calibrators.test_probabilities_in_probabilities_out_for_any_number_of_rows(name, form, tmp_path)
