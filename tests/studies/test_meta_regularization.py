"Learned exponents in a small setting: the tables are those of the runs, and a margin follows what is trained."
import re

import numpy as np
import pytest
import torch
from conftest import assert_complete
from reading import (
    accuracy_percent, assert_open, ece_percent, eces, finding, margin, percent, plan, rows, run_here, scaled,
    shown_rival, table, trainings, true_ce)

from calibnb.data import load_data
from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.meta import MetaRecipe
from calibnb.metrics import mce
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import choose_coefficient
from calibnb.studies import HOLDS, OPEN, WRONG

STUDY, SETTINGS = "meta_regularization", dict(smoke=True, n_seeds=2, epochs=3, meta_lr=.002)  # in few steps γ moves
BELOW_CE = "as trained, FLγ-SECE has a lower ECE than CE"
BELOW_FL_1 = "a learned γ gives a lower ECE than γ = 1"
DIFFERS = "γ differs between samples after training"


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


def test_it_is_complete(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")
    for start in "γ is 1 for every sample", "γ-Net has .46 %", DIFFERS, "the ECE with 1000 bins":
        assert finding(study, start).kind == "identity"


def test_the_table_is_of_the_runs(study, runs):
    found = rows(study, "twelve_methods")
    assert len(found) == 14 and "n = 500" in table(study, "twelve_methods")[0][0]
    assert sum(map(len, runs.values())) == 12*2 + 2 + 1  # methods, variants of gamma-Net and a bandwidth
    assert found["FLγ-SECE"]["ECE %"] == percent(eces(runs["gamma-sece"]))
    assert found["mixup"]["ECE %"] == percent(eces(runs["mixup"]))
    assert found["FLγ-DECE"]["error %"] == percent([100 - accuracy_percent(run) for run in runs["gamma-dece"]])
    assert found["CE + TS"]["ECE %"] == percent([scaled(run) for run in runs["ce"]])
    assert found["CE + TS"]["ECE %"] == found["CE"]["ECE + TS %"]
    assert found["FL-1"]["true calibration error %"] == percent([true_ce(run) for run in runs["FL-1"]])


def test_the_choice_is_made_on_validation_samples(study, runs):
    grid = {0: "ce", 1: "FL-1"}

    def choice(i):
        preds = {c: runs[name][i].predictions("val") for c, name in grid.items()}
        return choose_coefficient(preds, clusters=runs["ce"][i].rows["val"])

    best = [choice(i) for i in range(2)]
    chosen = [eces(runs[grid[c]])[i] for i, c in enumerate(best)]
    row, = [row for row in table(study, "twelve_methods") if row[0] == "FL, chosen"]
    assert row[3] == percent(chosen)
    better = finding(study, "one γ for all samples")
    assert better.effect.value == pytest.approx((eces(runs["gamma-sece"]) - chosen).mean())
    assert f"γ {min(best)} ({best[0]}, {best[1]}) of 0, 1" in better.ours


def test_margins_are_of_the_runs(study, runs):
    ours = eces(runs["gamma-sece"])
    assert margin(study, BELOW_CE) == pytest.approx((eces(runs["ce"]) - ours).mean())
    assert margin(study, BELOW_FL_1) == pytest.approx((eces(runs["FL-1"]) - ours).mean())
    of_both = finding(study, "γ ends below its initial value")
    outer = shown_rival(of_both).removeprefix("FLγ-").lower()
    falls = [1 - run.history["gamma_mean"][-1] for run in runs[f"gamma-{outer}"]]
    assert of_both.effect.value == pytest.approx(np.mean(falls))


def test_the_lowest_of_twelve_must_beat_each(study, runs):
    "All eleven rivals are recomputed: the smallest margin and the margin shown are named."
    named = {
        "CE": "ce", "FL-1": "FL-1", "FLSD": "flsd", "LS-0.05": "LS-0.05", "LS-0.1": "LS-0.1", "mixup": "mixup",
        "MMCE": "mmce", "CE-DECE": "l2-dece", "CE-SECE": "l2-sece", "FLγ-DECE": "gamma-dece"}
    rivals = {m: resampled(runs[name]) for m, name in named.items()} | {"CE + TS": resampled(runs["ce"], scaled=True)}
    ours = resampled(runs["gamma-sece"])
    assert len(rivals) == 11
    margins = {m: rival["ece"] - ours["ece"] for m, rival in rivals.items()}  # (1 + B, 2)
    means = {m: 100*margin[0].mean() for m, margin in margins.items()}
    expected = min(means, key=means.get)
    lowest = finding(study, "FLγ-SECE has the lowest ECE of the twelve")
    assert f"the smallest margin is against {expected}" in lowest.effect.note
    assert lowest.effect.value == pytest.approx(means[shown_rival(lowest)])
    assert lowest.effect.floor == pytest.approx(100*max(rival["floor"].mean() for rival in [*rivals.values(), ours]))


def test_the_lowest_of_four_measures_must_beat_each(study, runs):
    "MCE, ACE and CW stand beside the ECE; a claim on the MCE of two methods is recomputed."
    def mean_mce(name):
        preds = [run.predictions("test") for run in runs[name]]
        return np.mean([100*mce(p.probs, p.target).item() for p in preds])
    lower = finding(study, "FLγ-SECE has a lower MCE than FLγ-DECE")
    assert lower.id == "metareg-29"
    assert lower.effect.value == pytest.approx(mean_mce("gamma-dece") - mean_mce("gamma-sece"))
    every = finding(study, "FLγ-SECE has the lowest ECE, MCE, ACE and CW of the twelve")
    assert every.id == "metareg-07" and re.search(r"margin is against .+, (ECE|MCE|ACE|CW)", every.effect.note)


def test_the_outer_loss_of_every_epoch(study, runs):
    def unsteadiness(name):
        losses = [run.history["outer_loss"] for run in runs[name]]
        return np.mean([np.log(np.diff(each).std()/np.mean(each)) for each in losses])
    less = margin(study, "the outer loss of γ-Net varies less")
    assert less == pytest.approx(unsteadiness("gamma-dece") - unsteadiness("gamma-sece"))


def resampled(runs, scaled=False):
    "ECE with its resamples of the test samples (1 + B, S), and floor (S,), of each repetition."
    def measured(run):
        val, test = run.predictions("val"), run.predictions("test")
        calibrator = TemperatureScaling().fit(val.logits, val.target) if scaled else None
        return resampled_measures(Scored.of(test, calibrator), Resamples(run.rows["test"]))
    found = [measured(run) for run in runs]
    return {name: np.stack([np.asarray(m[name]) for m in found], -1) for name in ("ece", "floor")}


def test_tables_2_and_3_are_of_the_runs(study, runs):
    assert {row[0]: row[3] for row in table(study, "without_sece")[1:]} == {
        "FLγ-CE": percent(eces(runs["gamma-ce"])), "FLγ-SECE": percent(eces(runs["gamma-sece"])),
        "CE-SECE": percent(eces(runs["l2-sece"]))}
    against_ce = finding(study, "SECE as the outer loss gives a lower ECE than cross-entropy").effect
    assert against_ce.value == pytest.approx((eces(runs["gamma-ce"]) - eces(runs["gamma-sece"])).mean())
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


def test_the_outer_loss_has_the_bandwidths_of_the_settings(study, runs):
    assert study.info["settings"]["bandwidth"] == .01
    assert {run.config.meta.outer_args["bandwidth"] for run in [*runs["gamma-sece"], *runs["l2-sece"]]} == {.01}
    tried = {run.config.meta.outer_args["bandwidth"] for name in runs if name.startswith("gamma-sece bandwidth")
             for run in runs[name]}
    assert tried == {.1}


def test_gamma_is_recorded_for_test_samples(study, runs):
    run = runs["gamma-sece"][0]
    test = load_data("ambiguous_digits", seed=run.config.seed, **run.config.data_args).test
    with torch.no_grad():
        gamma = run.learned_loss()(run.model().features(test.ready(test.x))).double()
    assert run.history["test_gamma_mean"][-1] == pytest.approx(gamma.mean().item(), rel=1e-5)
    assert run.history["test_gamma_std"][-1] == pytest.approx(gamma.std(correction=0).item(), rel=1e-3)


def test_one_seed_on_real_images_without_learning_has_one_exponent(root, runs):
    "Nothing else is decided, and nothing is known of the truth."
    settings = SETTINGS | dict(n_seeds=1, meta_lr=1e-12, quick_data="digits")
    folder = run_here(STUDY, "", settings, root)["experiment"].folder
    verdicts = [finding(folder, start).verdict for start in (DIFFERS, "γ is 1 for every sample")]
    assert verdicts == [WRONG, HOLDS]
    assert abs(margin(folder, "γ ends below its initial value")) < 1e-6
    learned = eces(runs["gamma-sece"]) - eces(runs["FL-1"])  # by seed, where γ is learned
    assert abs(margin(folder, BELOW_FL_1)) < .1 < abs(learned).max()

    claims = [f for f in folder.result.findings if f.kind != "identity"]
    assert claims and all(f.verdict == OPEN and "n = 1 seed, want 5" in f.effect.note for f in claims)
    header, *_ = table(folder, "twelve_methods")
    assert "n = 697" in header[0] and not any("true" in title for title in header)


def test_the_full_setting_is_the_papers():
    configs = plan(STUDY)
    assert len(configs) == (14 + 6 + 4)*5
    assert {(c.model, c.recipe.epochs, c.recipe.batch_size) for c in configs} == {("resnet18", 350, 128)}
