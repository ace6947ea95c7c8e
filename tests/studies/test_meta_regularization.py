"Learned exponents in a small setting: the tables are those of the runs, and a margin follows what is trained."
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, assert_complete
from reading import (
    accuracy_percent, assert_open, ece_percent, eces, finding, margin, percent, plan, rows, run_here, scaled, table,
    trainings, true_ce)

from calibnb.data import load_data
from calibnb.evaluate import Scored
from calibnb.meta import MetaRecipe
from calibnb.metrics import mce
from calibnb.runs import choose_coefficient
from calibnb.studies import CANNOT, HOLDS, OPEN, WRONG
from calibnb.studies.claims import find_claim
from calibnb.studies.study_table import read_study_table

STUDY, SETTINGS = "meta_regularization", dict(smoke=True, n_seeds=2, epochs=3, moving_lr=.002)  # in few steps γ moves
BELOW_CE = "as trained, FLγ-SECE has a lower ECE than CE"
BELOW_FL_1 = "a learned γ gives a lower ECE than γ = 1"
DIFFERS, TRIED = "metareg-14", ("gamma-sece", "gamma-sece bandwidth=0.05")


@pytest.fixture(scope="module")
def runs(root, study):
    "Method -> its runs, by seed."
    def name(config):
        if config.meta:
            usual = MetaRecipe(learn=config.meta.learn, outer=config.meta.outer)
            given, known = (meta.learn_args | meta.outer_args for meta in (config.meta, usual))
            return " ".join([config.loss_name, *(f"{k}={v}" for k, v in given.items() if v != known[k])])
        if config.recipe.mixup:
            return "mixup"
        strength = {k: config.loss_args[k] for k in ("gamma", "eps") if k in config.loss_args}
        short = dict(focal="FL", label_smoothing="LS").get(config.loss, config.loss)
        return "-".join([short, *(f"{v:g}" for v in strength.values())])
    found = {}
    for run in trainings(root, STUDY):
        found.setdefault(name(run.config), []).append(run)
    return found


def of_id(folder, id):
    found, = [f for f in folder.result.findings if f.id == id]
    return found


def choice(runs, names, i):
    preds = {name: runs[name][i].predictions("val") for name in names}
    return choose_coefficient(preds, clusters=runs["ce"][i].rows["val"])


def chosen_eces(runs, names):
    return np.array([eces(runs[choice(runs, names, i)])[i] for i in range(2)])


def test_it_is_complete(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")
    identities = {f.id or f.claim for f in study.result.findings if f.kind == "identity"}
    assert identities == {"γ is 1 for every sample at the start", "metareg-23", DIFFERS, "metareg-39"}


def test_what_works_is_of_the_stored_table(study):
    "Of every method on CIFAR-10, before and after a temperature; the outer losses appear again as Table 2."
    found = {}
    for about, scored in read_study_table(ROOT/"runs"/"gallery"/"cifar10").samples["cifar10_cpu_meta"]:
        if about["loss"] == "gamma-dece":
            found.setdefault(about["calibrator"], []).append(100*scored.ece())
    row = rows(study, "at_work")["FLγ-DECE"]
    assert (row["ECE %"], row["ECE + TS %"]) == (percent(found[""]), percent(found["temperature"]))
    again = rows(study, "without_sece")
    assert set(again) == {"FLγ-CE", "FLγ-SECE"} and again["FLγ-CE"] == rows(study, "at_work")["FLγ-CE"]
    courses = pd.read_csv(ROOT/"runs"/"gallery"/"cifar10"/"gamma.csv")
    last = courses[courses.outer == "sece"].iloc[-1]
    assert f"at {last.test_gamma_mean:.2f} ± {last.test_gamma_std:.2f} with FLγ-SECE" in " ".join(study.result.found)


def test_the_table_is_of_the_runs(study, runs):
    found = rows(study, "twelve_methods")
    assert len(found) == 11 and "n = 500" in table(study, "twelve_methods")[0][0]
    assert sum(map(len, runs.values())) == 7*2 + 2*2 + 2  # fixed losses, bandwidths, variants of gamma-Net
    assert found["FLγ-SECE"]["ECE %"] == percent(chosen_eces(runs, TRIED))
    assert found["mixup"]["ECE %"] == percent(eces(runs["mixup"]))
    assert found["MMCE"]["error %"] == percent([100 - accuracy_percent(run) for run in runs["mmce"]])
    assert found["CE + TS"]["ECE %"] == percent([scaled(run) for run in runs["ce"]])
    assert found["CE + TS"]["ECE %"] == found["CE"]["ECE + TS %"]
    assert found["FL-1"]["true calibration error %"] == percent([true_ce(run) for run in runs["FL-1"]])


def test_every_setting_that_was_tried_is_reported(study, runs):
    found = rows(study, "tried")
    assert list(found) == ["FLγ-SECE, lr 0.002, h 0.01", "FLγ-SECE, lr 0.002, h 0.05", "FLγ-SECE, chosen"]
    for name, row in zip(TRIED, found.values()):
        of_seeds = eces(runs[name])
        assert row["ECE %"] == percent(of_seeds) and float(row["highest %"]) == pytest.approx(of_seeds.max())
        assert row["mean γ"] == percent([run.history["gamma_mean"][-1] for run in runs[name]])
        assert int(row["chosen"]) == sum(choice(runs, TRIED, i) == name for i in range(2))


def test_margins_are_of_the_runs(study, runs):
    ours, fixed = chosen_eces(runs, TRIED), chosen_eces(runs, ("ce", "FL-1"))
    assert margin(study, BELOW_CE) == pytest.approx((eces(runs["ce"]) - ours).mean())
    assert margin(study, BELOW_FL_1) == pytest.approx((eces(runs["FL-1"]) - ours).mean())
    assert margin(study, "one γ for all samples") == pytest.approx((ours - fixed).mean())
    preds = {name: [run.predictions("test") for run in runs[name]] for name in ("ce", "flsd")}
    ce, flsd = (np.mean([100*mce(p.probs, p.target).item() for p in of]) for of in preds.values())
    assert of_id(study, "metareg-05").effect.value == pytest.approx(flsd - ce)
    lowest = of_id(study, "metareg-07")
    assert lowest.claim.endswith("than the other methods") and "margin is against" in lowest.effect.note


def test_claims_of_the_full_setting_state_why_they_are_not_asked(study):
    untested = [f for f in study.result.findings if f.verdict == CANNOT]
    assert {"metareg-08", "metareg-26"} < {f.id for f in untested}
    assert all(f.ours == find_claim(f.id)["cannot"] and f.ours and f.effect is None for f in untested)


def test_functions_that_keep_gamma_positive_are_of_the_runs(study, runs):
    found = rows(study, "positivity")
    options = {
        "sigmoid, 0.5": " gamma0=0.5 positivity=sigmoid", "min-max, random": " init=random positivity=min_max",
        "absolute, 1": ""}
    assert found.keys() == options.keys() and "1 seed" in table(study, "positivity")[0][0]
    for name, option in options.items():
        run = runs["gamma-sece" + option][0]
        want = ece_percent(run), scaled(run), run.history["gamma_mean"][-1]
        assert [found[name][column] for column in ("ECE %", "ECE + TS %", "mean γ")] == [f"{v:.2f}" for v in want]
        assert found[name]["highest γ"] == f"{run.history['gamma_max'][-1]:.2f}"
    sigmoid, min_max, _ = (runs["gamma-sece" + option][0].history["gamma_max"][-1] for option in options.values())
    assert sigmoid < 1 == min_max


def test_gamma_is_recorded_for_test_samples(study, runs):
    run = runs["gamma-sece"][0]
    test = load_data("ambiguous_digits", seed=run.config.seed, **run.config.data_args).test
    with torch.no_grad():
        gamma = run.learned_loss()(run.model().features(test.ready(test.x))).double()
    hit = Scored.of(run.predictions("test")).hit
    assert run.history["test_gamma_mean"][-1] == pytest.approx(gamma.mean().item(), rel=1e-5)
    assert run.history["test_gamma_std"][-1] == pytest.approx(gamma.std(correction=0).item(), rel=1e-3)
    assert run.history["test_gamma_correct"][-1] == pytest.approx(gamma[hit].mean().item(), rel=1e-5)
    assert run.history["test_gamma_misclassified"][-1] == pytest.approx(gamma[~hit].mean().item(), rel=1e-5)


def test_one_seed_on_real_images_without_learning_has_one_exponent(root, runs):
    "Nothing else is decided, and nothing is known of the truth."
    settings = SETTINGS | dict(n_seeds=1, moving_lr=1e-12, quick_data="digits")
    folder = run_here(STUDY, "", settings, root)["experiment"].folder
    assert of_id(folder, DIFFERS).verdict == WRONG
    assert finding(folder, "γ is 1 for every sample").verdict == HOLDS
    learned = eces(runs["gamma-sece"]) - eces(runs["FL-1"])  # by seed, where γ is learned
    assert abs(margin(folder, BELOW_FL_1)) < .1 < abs(learned).max()

    claims = [f for f in folder.result.findings if f.kind != "identity" and f.verdict != CANNOT]
    assert claims and all(f.verdict == OPEN and "n = 1 seed, want 5" in f.effect.note for f in claims)
    header, *_ = table(folder, "twelve_methods")
    assert "n = 697" in header[0] and not any("true" in title for title in header)


def test_the_full_setting_is_the_papers():
    configs = plan(STUDY)
    assert len(configs) == (18 + 6)*5
    assert {(c.model, c.recipe.epochs, c.recipe.batch_size) for c in configs} == {("resnet18", 350, 128)}
