"The study of weighted gradients: tables and margins are those of its trainings; what is broken on purpose is seen."
import re

import numpy as np
import pytest
from conftest import assert_complete
from reading import (
    accuracy_percent, assert_open, ece_percent, eces, finding, margin, percent, plan, rows, run_here, scaled,
    shown_rival, table, true_ce, with_loss)
from scipy.stats import spearmanr

from calibnb.data import load_data
from calibnb.losses.weights import LogProbs, bsce_weight, dual_focal_weight, focal_weight
from calibnb.metrics import ada_ece, classwise_ece, ece
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import choose_coefficient
from calibnb.studies import OPEN, WRONG

STUDY, SETTINGS = "weighted_gradients", dict(smoke=True, n_seeds=2, epochs=5)
VARIANTS = [dict(gamma=gamma, beta=2.) for gamma in (1., 2., 4.)]  # of BSCE and of BSCE-GRA
RIVALS = ["CE", "Brier", "MMCE", "FLSD", "DFL", "BSCE, cross-validated"]


def of_loss(root, loss, **options):
    return with_loss(root, STUDY, loss, **options)


def chosen_ece(root, folder, method, loss):
    "Of a method with the coefficients that its table of choices names, one a seed."
    row, = [r for r in table(folder, "choices") if r[:2] == [method, "before TS"]]
    names = dict(γ="gamma", β="beta")
    picked = [{names[part[0]]: float(part[2:]) for part in cell.split(", ")} for cell in row[3:]]
    return [ece_percent(of_loss(root, loss, **options)[i]) for i, options in enumerate(picked)]


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")


def test_the_table_is_of_the_trainings(root, study):
    found = rows(study, "before_and_after")
    for method, loss in {"CE": "ce", "FLSD-GRA": "flsd_gra", "MMCE": "mmce"}.items():
        runs = of_loss(root, loss)
        assert len(runs) == 2 and found[method]["ECE %"].startswith(percent(eces(runs)))
        assert found[method]["true calibration error %"].startswith(percent([true_ce(r) for r in runs]))
        assert found[method]["ECE % + TS"].startswith(percent([scaled(r) for r in runs]))
    assert found["BSCE-GRA, chosen"]["ECE %"].startswith(percent(chosen_ece(root, study, "BSCE-GRA", "bsce_gra")))
    assert all(float(row["error %"].split()[0]) < 80 for row in found.values()), "each loss has learned something"


def test_the_measures_of_the_paper_are_of_the_trainings(root, study):
    "With the temperature of the paper's grid, which is that of the lowest ECE."
    runs, by_ece = of_loss(root, "ce"), TemperatureScaling.reference()
    val, test = ([run.predictions(split) for run in runs] for split in ("val", "test"))
    want = {"accuracy %": [accuracy_percent(run) for run in runs],
            "T (ECE)": [by_ece.fit(p.logits, p.target).temperature_ for p in val]}
    for name, measure in {"ECE": ece, "adaptive ECE": ada_ece, "classwise ECE": classwise_ece}.items():
        want[f"{name} %"] = [100*measure(p.probs, p.target).item() for p in test]
        want[f"{name} % + TS"] = [scaled(run, measure, by_ece) for run in runs]
    assert rows(study, "as_the_paper_measures")["CE"] == {name: percent(values) for name, values in want.items()}


def test_each_temperature_has_a_name_of_its_own(root, study):
    "The least NLL and the least ECE choose different temperatures."
    pred = [run.predictions("val") for run in of_loss(root, "ce")]
    by_nll = percent([TemperatureScaling().fit(p.logits, p.target).temperature_ for p in pred])
    assert rows(study, "before_and_after")["CE"]["T (NLL)"].startswith(by_nll)
    assert "T (ECE)" in rows(study, "as_the_paper_measures")["CE"]
    for name in "before_and_after", "as_the_paper_measures":
        assert "T" not in table(study, name)[0]


def test_consistency_is_that_of_the_features(root, study):
    runs = of_loss(root, "consistency", gamma=1., perturbed="features")
    assert rows(study, "before_and_after")["Consistency"]["ECE %"].startswith(percent(eces(runs)))


def test_one_pair_is_cross_validated_for_all_repetitions(root, study):
    "The one with the lowest mean ECE over what the repetitions have held out."
    def held_out(variant):
        preds = [r.predictions("val") for r in of_loss(root, "bsce", **variant)]
        return np.mean([ece(p.probs, p.target).item() for p in preds])
    best = min(VARIANTS, key=held_out)
    row, = [r for r in table(study, "choices") if r[:2] == ["BSCE", "cross-validation"]]
    assert set(row[3:]) == {"γ {gamma:g}, β {beta:g}".format(**best)}
    want = percent(eces(of_loss(root, "bsce", **best)))
    for name in "before_and_after", "as_the_paper_measures":
        assert rows(study, name)["BSCE, cross-validated"]["ECE %"].startswith(want)


def test_each_repetition_chooses_on_its_validation_samples(root, study):
    "By the calibration error for what is compared before temperature scaling, by refinement for what is after it."
    criteria, found = {"before TS": "calibration", "after TS": "refinement"}, {}
    for method, loss in {"BSCE": "bsce", "BSCE-GRA": "bsce_gra"}.items():
        grid = {(v["gamma"], v["beta"]): of_loss(root, loss, **v) for v in VARIANTS}
        for when, criterion in criteria.items():
            row, = [r for r in table(study, "choices") if r[:2] == [method, when]]
            preds = [{pair: runs[i].predictions("val") for pair, runs in grid.items()} for i in range(2)]
            clusters = [grid[1., 2.][i].rows["val"] for i in range(2)]
            best = [choose_coefficient(p, criterion, clusters=c) for p, c in zip(preds, clusters)]
            assert row[3:] == ["γ {:g}, β {:g}".format(*pair) for pair in best]
            found.setdefault(when, []).extend(best)
    assert found["before TS"] != found["after TS"], "or the test could not see them swapped"


def test_losses_beside_gradients(root, study):
    "Each of the paper's two columns beside its own of ours."
    row = rows(study, "losses_or_gradients")["FLSD"]
    for way, loss, theirs in ("losses", "flsd", 1.26), ("gradients", "flsd_gra", .88):
        assert float(row[f"the paper, weighted {way}"]) == theirs
        assert float(row[f"ours, weighted {way}"]) == pytest.approx(eces(of_loss(root, loss)).mean())


def test_exponents_beside_those_of_the_paper(root, study):
    found = rows(study, "paper_exponents")
    assert list(found) == [str(g) for g in range(1, 9)]
    assert found["8"] == {"ours": "", "paper, CIFAR-100, ResNet-50": "9.28"}
    assert found["2"]["ours"] == percent(eces(of_loss(root, "bsce_gra", gamma=2., beta=2.)))


def test_weights_against_the_true_error(root, study):
    "Pearson's r over the test samples of the network of CE."
    def correlation(run, weight):
        posterior = load_data("ambiguous_digits", seed=run.config.seed, **run.config.data_args).test.posterior
        preds = run.predictions("test")
        u = weight(LogProbs(preds.logits.double(), preds.target)).numpy()
        return np.corrcoef(u, (posterior - preds.probs).norm(dim=1))[0, 1]
    found = rows(study, "weights_and_truth")
    weights = {
        "focal": lambda p: focal_weight(p, 1.),
        "dual focal": lambda p: dual_focal_weight(p, 1.),
        "Brier": lambda p: bsce_weight(p, 2., 2.),
    }
    for name, weight in weights.items():
        r = [correlation(run, weight) for run in of_loss(root, "ce")]
        assert found[name]["c, distance"] == percent(r, digits=3)
    assert found["dual focal"]["paper, best exponent, five Gaussians"] == "0.638"


def test_what_is_drawn_of_the_first_repetition(root, study):
    "Every test sample is in a histogram of its label's probability; the other repetitions do without."
    first, second = of_loss(root, "bsce_gra", gamma=2., beta=2.)
    kept = first.recorded("confidence_histogram")
    assert (kept["right"] + kept["wrong"]).sum(1).tolist() == [500]*4
    assert kept["wrong"][-1].sum() == (~first.predictions("test").hit).sum()
    assert first.config.recorders == ("gradient_norms", "confidence_histogram", "calibration_errors", "nll_breakdown")
    assert second.config.recorders == ("gradient_norms", "nll_breakdown")


def test_margins_are_of_the_trainings(root, study):
    "In the paper's protocol: exponent 5 of dual focal loss, one cross-validated pair of BSCE, T by ECE on a grid."
    both = finding(study, "weighting gradients instead of losses lowers the ECE of FLSD and of DFL")
    losses = {"FLSD": [of_loss(root, "flsd"), of_loss(root, "flsd_gra")],
              "DFL": [of_loss(root, f"dual_focal{way}", gamma=5.) for way in ("", "_gra")]}
    lower = {m: eces(plain).mean() - eces(gradients).mean() for m, (plain, gradients) in losses.items()}
    assert both.id == "lin-20" and both.effect.value == pytest.approx(lower[shown_rival(both)])
    found = rows(study, "as_the_paper_measures")
    for when, column in ("before", "ECE %"), ("after", "ECE % + TS"):
        lowest = finding(study, f"BSCE-GRA has the lowest ECE of the losses {when}")
        assert lowest.kind == "paper" and lowest.effect.n_test == 500
        theirs, ours = (float(found[m][column].split()[0])
                        for m in (shown_rival(lowest), "BSCE-GRA, cross-validated"))
        assert lowest.effect.value == pytest.approx(theirs - ours, abs=.011)  # of two numbers with two digits


def test_claims_over_the_epochs_are_of_the_histories(root, study):
    def course(loss, column, start, end=5, **options):
        return np.array([np.mean(r.history[column][start:end]) for r in of_loss(root, loss, **options)])
    gra, focal = ("bsce_gra", dict(gamma=2., beta=2.)), ("flsd", {})
    drop, second = of_loss(root, "ce")[0].config.recipe.milestones
    middle = drop, (drop + second)//2
    lower = course(gra[0], "test_ece", *middle, **gra[1]) - course(focal[0], "test_ece", *middle, **focal[1])
    assert margin(study, "in the middle phase focal loss has a lower ECE") == pytest.approx(100*lower.mean())


def confidence_percent(runs):
    return 100*np.mean([r.predictions("test").conf.mean().item() for r in runs])


def test_the_margin_of_overconfidence_is_of_the_trainings(root, study):
    runs = of_loss(root, "ce")
    lean = confidence_percent(runs) - np.mean([accuracy_percent(r) for r in runs])
    assert margin(study, "CE leaves the network overconfident") == pytest.approx(lean, abs=1e-4)
    surer = finding(study, "each weight makes the network less confident than CE")
    losses = {"FLSD": ("flsd", {}), "FLSD-GRA": ("flsd_gra", {}), "FL-3": ("focal", dict(gamma=3.)),
              "DFL": ("dual_focal", dict(gamma=5.)), "DFL-GRA": ("dual_focal_gra", dict(gamma=5.)),
              "BSCE": ("bsce", VARIANTS[1]), "BSCE-GRA": ("bsce_gra", VARIANTS[1]),
              "Consistency": ("consistency", dict(gamma=1., perturbed="features"))}
    loss, options = losses[shown_rival(surer)]
    less = confidence_percent(runs) - confidence_percent(of_loss(root, loss, **options))
    assert surer.effect.value == pytest.approx(less, abs=1e-4)
    lower = finding(study, "BSCE-GRA is less confident than BSCE")
    variant = dict(gamma=float(re.search(r"γ (\d)", shown_rival(lower))[1]), beta=2.)
    both = [confidence_percent(of_loss(root, loss, **variant)) for loss in ("bsce", "bsce_gra")]
    assert lower.effect.value == pytest.approx(both[0] - both[1], abs=1e-4)


def test_margins_over_the_exponents_are_of_the_trainings(root, study):
    "Of the step, and of the end of the map, that the finding names."
    found = finding(study, "the mean confidence falls as the exponent grows")
    step = re.fullmatch(r"([\w-]+), γ (\d), β (\d) to (\d)", shown_rival(found))
    loss, low, beta, high = step.groups()
    name = {"BSCE": "bsce", "BSCE-GRA": "bsce_gra"}[loss]
    less, more = (confidence_percent(of_loss(root, name, gamma=float(g), beta=float(beta))) for g in (low, high))
    assert found.effect.value == pytest.approx(less - more, abs=1e-4)
    found = finding(study, "the ECE of BSCE-GRA is least at an exponent between")
    end = float(shown_rival(found).removeprefix("γ "))
    at_end, inside = (eces(of_loss(root, "bsce_gra", gamma=g, beta=2.)).mean() for g in (end, 2.))
    assert found.effect.value == pytest.approx(at_end - inside)


def test_the_margin_of_the_gradient_norms_is_of_the_last_epoch(root, study):
    def correlation(loss, **options):
        kept = [r.recorded("gradient_norms") for r in of_loss(root, loss, **options)]
        assert len(kept) == 2
        return np.mean([spearmanr(k["norm"][-1].double(), k["brier"][-1].double())[0] for k in kept])
    found = finding(study, "with BSCE-GRA the gradient norm follows")
    assert found.id == "lin-17"
    rival = ("flsd", {}) if shown_rival(found) == "FLSD" else ("dual_focal", dict(gamma=5.))
    lead = correlation("bsce_gra", gamma=2., beta=2.) - correlation(rival[0], **rival[1])
    assert found.kind == "paper" and found.effect.value == pytest.approx(lead)


def test_what_the_paper_claims_and_what_it_does_not(study):
    assert finding(study, "the rank correlation of norm and Brier score is least with").id == "lin-18"
    assert finding(study, "BSCE-GRA has the lowest ECE of the losses after").id == "lin-02"
    chosen = finding(study, "with coefficients that each repetition has chosen BSCE-GRA has the lowest ECE after")
    assert chosen.kind == "ours"
    claims = [f for f in study.result.findings if f.kind == "paper"]
    assert len(claims) > 20 and all(f.paper.startswith("Lin 2025, ") and f.data == "ambiguous_digits" for f in claims)


def test_beside_the_paper(study):
    head, *lines = table(study, "paper")
    printed = {tuple(line[:2]): dict(zip(head[2:], line[2:])) for line in lines}
    assert len(printed) == 3*7, "three data sets; accuracy and three errors before and after temperature scaling"
    measures = ["ECE %", "ECE % + TS", "accuracy %", "AdaECE %", "CW % + TS"]
    assert [printed["CIFAR-10", m]["BSCE-GRA"] for m in measures] == ["0.74", "0.74", "94.69", "0.71", "0.38"]
    assert printed["CIFAR-10", "ECE %"]["1-consistency"] == "0.98"
    assert not printed["CIFAR-100", "ECE %"]["1-consistency"]


def test_the_full_setting_can_be_planned():
    configs = plan(STUDY, data="cifar100", model="resnet110", n_seeds=3)
    assert len(configs) == 3*46 and {(c.model, c.recipe.epochs) for c in configs} == {("resnet110", 350)}
    assert {c.seed for c in configs} == {1, 42, 71}, "those of the paper"


FAULTY = """def focal_gradient_factor(p, gamma, of=focal_gradient_factor): return of(p, gamma - 1)
def true_posterior(*args, **options): raise MissingData("no file of votes")"""


def test_one_repetition_without_a_known_truth_with_wrong_identities(root, study):
    "The trainings are those of the study. Nothing but the algebra is decided."
    folder = run_here(STUDY, FAULTY, SETTINGS | dict(n_seeds=1), root)["experiment"].folder
    assert not any("true calibration error" in cell for cell in table(folder, "before_and_after")[0])
    assert not (folder/"tables"/"weights_and_truth.csv").exists()
    assert {f.verdict for f in folder.result.findings if f.kind != "identity"} == {OPEN}
    assert finding(folder, "the gradient norm is BS^½").verdict == WRONG, "an identity of a paper"
