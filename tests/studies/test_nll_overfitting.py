"nll_overfitting, run small: complete, computed from its trainings, and broken on purpose it turns."
import numpy as np
import pytest
from conftest import assert_complete, run_forked
from reading import (
    assert_undecided_by_two, ece_percent, finding, kinds, margin, percent, plan, table, trainings, with_cell)

from calibnb.data import load_data
from calibnb.metrics import ada_ece, classwise_ece, ece
from calibnb.notebooks import CONTRADICTED
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import choose_coefficient

SMALL = dict(n_seeds=2, epochs=20)
MINIMISER = "the minimiser of focal loss"
FALLING = "after the first drop of the learning rate the training NLL of CE still falls"


@pytest.fixture(scope="module")
def study(root):
    return run_forked("nll_overfitting", SMALL, root=root)


def of(root, loss, data="digits", **options):
    "Its trainings of the small setting, by seed."
    def wanted(config):
        return config.data == data and config.loss == loss and options.items() <= config.loss_args.items()
    runs = [r for r in trainings(root, "nll_overfitting") if wanted(r.config)]
    return sorted(runs, key=lambda r: r.config.seed)


def fifths(run, column):
    "The first four of twenty epochs, the four after the drop of the learning rate, the last four."
    values, drop = np.array(run.history[column]), run.config.recipe.milestones[0]
    return values[:4].mean(), values[drop:drop + 4].mean(), values[-4:].mean()


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert kinds(study) == {"paper", "ours", "identity"}
    assert_undecided_by_two(study)


def test_the_table_is_of_the_trainings(root, study):
    head, *lines = table(study, "last_epoch")
    rows = {line[0]: dict(zip(head[1:], line[1:])) for line in lines}
    of_gamma = {g: of(root, "focal", gamma=g) for g in (1., 2., 3.)}
    preds = [{g: runs[i].predictions("val") for g, runs in of_gamma.items()} for i in range(2)]
    chosen = [of_gamma[choose_coefficient(p)][i] for i, p in enumerate(preds)]
    for label, runs in {"CE": of(root, "ce"), "FL-3": of_gamma[3.], "FL, chosen": chosen}.items():
        assert [r.config.seed for r in runs] == [0, 1]
        assert rows[label]["ECE %"] == percent([ece_percent(r) for r in runs])
        assert rows[label]["weight norm"] == percent([r.history["weight_norm"][-1] for r in runs])
        best = [1 + int(np.argmin(r.history["test_nll"])) for r in runs]
        assert rows[label]["epoch of best test NLL"] == "{}, {}".format(*best)


LOSSES = {"CE": "ce", "Brier": "brier", "MMCE": "mmce", "LS-0.05": "label_smoothing", "FL-3": "focal"}


def after_scaling(run, measure, scaling):
    "In percent, on the test set, with the temperature that fits the validation set."
    val, test = run.predictions("val"), run.predictions("test")
    return 100*measure(scaling.fit(val.logits, val.target).transform(test.logits), test.target).item()


def test_five_losses_before_and_after_scaling(root, study):
    head, *lines = table(study, "five_losses")
    rows = {line[0]: dict(zip(head[1:], line[1:])) for line in lines}
    assert list(rows)[:5] == list(LOSSES) and len(rows) == 10
    by_ece, by_nll = TemperatureScaling.reference(), TemperatureScaling()
    for label, loss in LOSSES.items():
        runs = of(root, loss, gamma=3.) if loss == "focal" else of(root, loss)
        assert [r.config.seed for r in runs] == [0, 1]
        columns = {
            "ECE %": [ece_percent(r) for r in runs],
            "ECE % + TS": [after_scaling(r, ece, by_ece) for r in runs],
            "ECE % + TS, T by NLL": [after_scaling(r, ece, by_nll) for r in runs],
            "adaptive ECE % + TS": [after_scaling(r, ada_ece, by_ece) for r in runs],
            "classwise ECE % + TS": [after_scaling(r, classwise_ece, by_ece) for r in runs]}
        assert {title: rows[label][title] for title in columns} == {k: percent(v) for k, v in columns.items()}, label
    assert {r.config.loss_args["mode"] for r in of(root, "label_smoothing")} == {"off_target"}
    assert {r.config.loss_args["lam"] for r in of(root, "mmce")} == {2.}
    printed = rows["FL-3 (paper: CIFAR-10, ResNet-50)"]
    assert [printed[c] for c in ("ECE %", "ECE % + TS", "T", "error %")] == ["1.48", "1.42", "1.1", "5.25"]


def test_claims_of_the_table(root, study):
    ce, focal = of(root, "ce"), of(root, "focal", gamma=3.)
    def from_one(run):
        val = run.predictions("val")
        return abs(TemperatureScaling.reference().fit(val.logits, val.target).temperature_ - 1)
    nearer = [from_one(a) - from_one(b) for a, b in zip(ce, focal)]
    assert margin(study, "the temperature of FL-3") == pytest.approx(np.mean(nearer))
    best = finding(study, "FL-3 has the lowest ECE of the five")
    assert "CE 4.35, Brier 1.82, MMCE 4.56, LS-0.05 2.96, FL-3 1.48" in best.paper
    others = [loss for loss in LOSSES.values() if loss != "focal"]
    eces = [np.mean([ece_percent(r) for r in of(root, loss)]) for loss in others]
    leads = [value - np.mean([ece_percent(r) for r in focal]) for value in eces]
    assert any(best.effect.value == pytest.approx(lead) for lead in leads)


def test_margins_are_of_the_histories(root, study):
    ce, focal = of(root, "ce"), of(root, "focal", gamma=3.)
    def moves(runs, column, start): return np.array([fifths(r, column)[2] - fifths(r, column)[start] for r in runs])
    approx = pytest.approx
    wrong, unsure = "test_nll_incorrect", "test_entropy_incorrect"
    assert margin(study, FALLING) == approx(-moves(ce, "train_nll", 1).mean())
    assert margin(study, "after the first drop the test NLL") == approx(moves(ce, "test_nll", 1).mean())
    assert margin(study, "after the first drop the test ECE") == approx(100*moves(ce, "test_ece", 1).mean())
    assert margin(study, "the NLL of wrong test samples rises with CE") == approx(moves(ce, wrong, 0).mean())
    rises = moves(ce, wrong, 0) - moves(focal, wrong, 0)
    assert margin(study, "the NLL of wrong test samples rises more") == approx(rises.mean())
    assert margin(study, "the entropy of wrong test samples falls with CE") == approx(-moves(ce, unsure, 0).mean())
    further = moves(focal, unsure, 0) - moves(ce, unsure, 0)
    assert margin(study, "the entropy of wrong test samples falls further") == approx(further.mean())
    eces = [np.mean([ece_percent(r) for r in runs]) for runs in (ce, focal)]
    assert margin(study, "FL-3 ends with a lower ECE") == approx(eces[0] - eces[1])
    norms = [np.mean([r.history["weight_norm"][-1] for r in runs]) for runs in (ce, focal)]
    assert margin(study, "CE ends with larger weights") == approx(norms[0] - norms[1])


def test_what_the_paper_says_and_what_it_does_not(study):
    assert finding(study, "FL-3 ends with a lower ECE").paper.startswith("Mukhoti 2020, Table 1: 1.48 % against 4.35 %")
    minimiser = finding(study, MINIMISER)
    assert minimiser.kind == "identity" and ".774" in minimiser.ours and ".774" not in minimiser.paper


def test_one_repetition_with_known_probabilities_and_another_minimiser(root, tmp_path):
    wrong = "def binary_focal_argmin(v, g, of=binary_focal_argmin): return of(v, 3. - g)"
    one = SMALL | dict(n_seeds=1, quick_data="noisy_digits")
    folder = run_forked(with_cell("nll_overfitting", tmp_path, wrong), one, root=root)
    assert finding(folder, MINIMISER).verdict == CONTRADICTED
    head, ce, *_ = table(folder, "last_epoch")
    run, = of(root, "ce", data="noisy_digits")
    preds, posterior = run.predictions("test"), load_data("noisy_digits", seed=0).test.posterior
    error = (posterior.gather(1, preds.pred[:, None])[:, 0] - preds.conf).abs().mean().item()
    assert ce[head.index("true error %")] == f"{100*error:.2f}"
    assert finding(folder, "FL-3 ends with a lower ECE").effect.n_test == 697*15


def test_the_full_setting_can_be_planned():
    configs = plan("nll_overfitting")
    assert len(configs) == (4 + 3)*5 and {(c.model, c.recipe.epochs) for c in configs} == {("resnet50", 350)}
