"nll_overfitting, run small: complete, computed from its trainings, and broken on purpose it turns."
import numpy as np
import pytest
from conftest import assert_complete
from reading import (
    assert_open, eces, finding, margin, percent, plan, rows, run_here, scaled, true_ce, with_loss)

from calibnb.metrics import ada_ece, classwise_ece, ece
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import choose_coefficient
from calibnb.studies import WRONG

STUDY, SETTINGS = "nll_overfitting", dict(smoke=True, n_seeds=2, epochs=5, gammas=[1., 3.])
MINIMISER = "unless the true probability is 0, 1/2 or 1, the minimiser"


def of(root, loss, data="ambiguous_digits", decay=5e-4, **options):
    return [r for r in with_loss(root, STUDY, loss, data, **options) if r.config.recipe.weight_decay == decay]


def fifths(run, column):
    "The mean over the first fifth of the epochs, the fifth after the drop of the learning rate, and the last fifth."
    values, drop = np.array(run.history[column]), run.config.recipe.milestones[0]
    fifth = len(values)//5
    return values[:fifth].mean(), values[drop:drop + fifth].mean(), values[-fifth:].mean()


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")


def test_the_table_is_of_the_trainings(root, study):
    found = rows(study, "last_epoch")
    of_gamma = {g: of(root, "focal", gamma=g) for g in (1., 3.)}
    preds = [{g: runs[i].predictions("val") for g, runs in of_gamma.items()} for i in range(2)]
    chosen = [of_gamma[choose_coefficient(p)][i] for i, p in enumerate(preds)]
    for label, runs in {"CE": of(root, "ce"), "FL-3": of_gamma[3.], "FL, chosen": chosen}.items():
        assert [r.config.seed for r in runs] == [0, 1]
        assert found[label]["ECE %"] == percent(eces(runs))
        assert found[label]["weight norm"] == percent([r.history["weight_norm"][-1] for r in runs])
        best = [1 + int(np.argmin(r.history["test_nll"])) for r in runs]
        assert found[label]["epoch of best test NLL"] == "{}, {}".format(*best)


LOSSES = {"CE": "ce", "Brier": "brier", "MMCE": "mmce", "LS-0.05": "label_smoothing", "FL-3": "focal"}


def test_five_losses_before_and_after_scaling(root, study):
    found, by_ece = rows(study, "five_losses"), TemperatureScaling.reference()
    assert list(found)[:5] == list(LOSSES) and len(found) == 10
    for label, loss in LOSSES.items():
        runs = of(root, loss, gamma=3.) if loss == "focal" else of(root, loss)
        assert [r.config.seed for r in runs] == [0, 1]
        columns = {
            "ECE %": eces(runs),
            "ECE % + TS": [scaled(r, ece, by_ece) for r in runs],
            "ECE % + TS, T by NLL": [scaled(r) for r in runs],
            "adaptive ECE % + TS": [scaled(r, ada_ece, by_ece) for r in runs],
            "classwise ECE % + TS": [scaled(r, classwise_ece, by_ece) for r in runs]}
        assert {title: found[label][title] for title in columns} == {k: percent(v) for k, v in columns.items()}, label
    assert {r.config.loss_args["mode"] for r in of(root, "label_smoothing")} == {"off_target"}
    assert {r.config.loss_args["lam"] for r in of(root, "mmce")} == {2.}
    printed = found["FL-3 (paper: CIFAR-10, ResNet-50)"]
    assert [printed[c] for c in ("ECE %", "ECE % + TS", "T", "error %")] == ["1.48", "1.42", "1.1", "5.25"]


def test_claims_of_the_table(root, study):
    ce, focal = of(root, "ce"), of(root, "focal", gamma=3.)
    def from_one(run):
        val = run.predictions("val")
        return abs(TemperatureScaling.reference().fit(val.logits, val.target).temperature_ - 1)
    nearer = [from_one(a) - from_one(b) for a, b in zip(ce, focal)]
    assert margin(study, "the temperature of FL-3 is closer") == pytest.approx(np.mean(nearer))
    best = finding(study, "FL-3 has the lowest ECE of five")
    assert (best.id, best.data) == ("mukhoti-19", "ambiguous_digits")
    assert best.paper.startswith("Mukhoti 2020, Section 4, Table 1")
    others = [loss for loss in LOSSES.values() if loss != "focal"]
    differences = [eces(of(root, loss)).mean() - eces(focal).mean() for loss in others]
    assert any(best.effect.value == pytest.approx(difference) for difference in differences)
    by_ece = TemperatureScaling.reference()
    adaptive = [[scaled(r, ada_ece, by_ece) for r in of(root, loss)] for loss in others]
    adaptive = np.mean(adaptive, 1) - np.mean([scaled(r, ada_ece, by_ece) for r in focal])
    after = margin(study, "after temperature scaling FL-3 has the lowest adaptive ECE")
    assert any(after == pytest.approx(difference) for difference in adaptive)


def test_margins_are_of_the_histories(root, study):
    ce, focal = of(root, "ce"), of(root, "focal", gamma=3.)
    def moves(runs, column, start): return np.array([fifths(r, column)[2] - fifths(r, column)[start] for r in runs])
    approx = pytest.approx
    wrong, unsure = "test_nll_incorrect", "test_entropy_incorrect"
    both = moves(ce, "test_nll", 1).mean()/.01, -moves(ce, "train_nll", 1).mean()/.001
    assert margin(study, "after the first drop the test NLL of CE rises and") in map(approx, both)
    assert margin(study, "after the first drop the test ECE") == approx(100*moves(ce, "test_ece", 1).mean())
    parts = moves(ce, wrong, 1).mean(), .01 - moves(ce, "test_nll_correct", 1).mean()
    assert margin(study, "after the first drop the NLL of misclassified test samples rises") in map(approx, parts)
    falls = -moves(ce, unsure, 0).mean(), -moves(ce, "test_entropy_correct", 0).mean()
    assert margin(study, "the entropy of correct and of misclassified test samples") in map(approx, falls)
    confident = 100*moves(ce, "test_confidence_incorrect", 0).mean()
    assert margin(study, "the confidence in misclassified test samples rises") == approx(confident)
    every = {g: of(root, "focal", gamma=g) for g in (1., 3.)}
    def mean(runs, column): return np.mean([r.history[column] for r in runs])
    higher = [mean(runs, unsure) - mean(ce, unsure) for runs in every.values()]
    assert margin(study, "the entropy of misclassified test samples is higher") in map(approx, higher)
    assert margin(study, "FL-3 has a lower ECE than CE") == approx(eces(ce).mean() - eces(focal).mean())
    drop = ce[0].config.recipe.milestones[0]
    def norm(runs, span): return np.mean([r.history["weight_norm"][span] for r in runs])
    order, since = [ce, *every.values()], slice(drop, None)
    parts = [norm(runs, slice(1)) - norm(ce, slice(1)) for runs in every.values()]
    parts += [norm(more, since) - norm(less, since) for more, less in zip(order, order[1:])]
    assert margin(study, "after one epoch the last weights are larger") in map(approx, parts)


def test_the_weight_decay_is_the_only_change_of_its_runs(root, study):
    by_decay = [of(root, "ce", decay=decay) for decay in (0., 5e-4, 5e-3)]
    norms = [np.mean([r.history["weight_norm"][-1] for r in runs]) for runs in by_decay]
    parts = [(less - more)/.1 for less, more in zip(norms, norms[1:])]
    parts += [(eces(less).mean() - eces(more).mean())/.5 for less, more in zip(by_decay, by_decay[1:])]
    found = finding(study, "with CE, more weight decay")
    assert found.id == "mukhoti-09" and found.effect.value in map(pytest.approx, parts)
    usual, none = (runs[0].config.model_dump(exclude={"recipe", "recorders"}) for runs in (by_decay[1], by_decay[0]))
    assert usual == none


def test_what_the_paper_says_and_what_it_does_not(study):
    lower = finding(study, "FL-3 has a lower ECE than CE")
    assert lower.id == "mukhoti-25" and "Numbers: 1.48 vs 4.35" in lower.paper
    nearer = finding(study, "the temperature of FL-3 is closer")
    assert (nearer.kind, nearer.id) == ("ours", "")
    minimiser = finding(study, MINIMISER)
    assert minimiser.kind == "identity" and ".774" in minimiser.ours and ".774" not in minimiser.paper


def test_one_repetition_with_known_probabilities_and_another_minimiser(root):
    wrong = "def binary_focal_argmin(v, g, of=binary_focal_argmin): return of(v, 3. - g)"
    folder = run_here(STUDY, wrong, SETTINGS | dict(n_seeds=1), root)["experiment"].folder
    assert finding(folder, MINIMISER).verdict == WRONG
    run = of(root, "ce")[0]
    assert rows(folder, "last_epoch")["CE"]["true calibration error %"] == f"{true_ce(run):.2f}"
    assert finding(folder, "FL-3 has a lower ECE than CE").effect.n_test == 500


def test_the_full_setting_can_be_planned():
    configs = plan(STUDY)
    assert len(configs) == (4 + 3 + 2)*5 and {(c.model, c.recipe.epochs) for c in configs} == {("resnet50", 350)}
    with pytest.raises(ValueError, match="smoke: True belongs to the quick setting"):
        plan(STUDY, smoke=True)
