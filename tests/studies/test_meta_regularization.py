"Learned exponents in a small setting: the tables are those of the runs, and a margin follows what is trained."
import re

import numpy as np
import pytest
import torch
from conftest import assert_complete, claim, run_forked
from reading import (
    ece_percent, finding, kinds, margin, percent, plan, scaled_ece, table, trainings, true_error, with_cell)

from calibnb.data import load_data
from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.meta import MetaRecipe
from calibnb.notebooks import CONTRADICTED, HOLDS, UNDECIDED
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import choose_coefficient

FEW = dict(n_seeds=2, epochs=10)
BELOW_CE = "as trained, FLγ-SECE has a lower ECE than CE"
BELOW_FL_1 = "learning γ gives a lower ECE than leaving it at 1"
DIFFERS = "γ differs between samples after training"
IDENTITIES = "γ is 1 for every sample", "γ-Net has .46 %", DIFFERS, "the ECE with 1000 bins"


@pytest.fixture(scope="module")
def study(root):
    return run_forked("meta_regularization", FEW, root=root)


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
    for run in sorted(trainings(root, "meta_regularization"), key=lambda run: run.config.seed):
        found.setdefault(name(run.config), []).append(run)
    return found


def eces(runs): return np.array([ece_percent(run) for run in runs])


def test_it_is_complete(study):
    assert_complete(study)
    assert kinds(study) == {"paper", "ours", "identity"}
    assert {f.verdict for f in study.result.findings if f.kind != "identity"} == {UNDECIDED}  # two seeds


@pytest.mark.parametrize("start", IDENTITIES)
def test_identities_hold(study, start):
    assert finding(study, start).kind == "identity" and claim(study, start) == HOLDS


def test_the_table_is_of_the_runs(study, runs):
    header, *rows = table(study, "twelve_methods")
    rows = {row[0]: dict(zip(header, row)) for row in rows}
    assert len(rows) == 14 and "n = 10,455" in header[0]
    assert sum(map(len, runs.values())) == 14*2 + 6 + 2  # methods, variants of gamma-Net and bandwidths
    assert rows["FLγ-SECE"]["ECE %"] == percent(eces(runs["gamma-sece"]))
    assert rows["mixup"]["ECE %"] == percent(eces(runs["mixup"]))
    error = [100 - 100*run.predictions("test").hit.double().mean().item() for run in runs["gamma-dece"]]
    assert rows["FLγ-DECE"]["error %"] == percent(error)
    assert rows["CE + TS"]["ECE %"] == percent([scaled_ece(run) for run in runs["ce"]])
    assert rows["CE + TS"]["ECE %"] == rows["CE"]["ECE + TS %"]
    assert rows["FL-1"]["true error %"] == percent([true_error(run) for run in runs["FL-1"]])


def test_the_choice_is_made_on_validation_samples(study, runs):
    grid = {0: "ce", 1: "FL-1", 2: "FL-2", 3: "FL-3"}

    def choice(i):
        preds = {c: runs[name][i].predictions("val") for c, name in grid.items()}
        return choose_coefficient(preds, clusters=runs["ce"][i].rows["val"])

    best = [choice(i) for i in range(2)]
    chosen = [eces(runs[grid[c]])[i] for i, c in enumerate(best)]
    rows = {row[0]: row for row in table(study, "twelve_methods")}
    assert rows["FL, chosen"][3] == percent(chosen)
    better = finding(study, "one γ for all samples")
    assert better.effect.value == pytest.approx((eces(runs["gamma-sece"]) - chosen).mean())
    assert f"γ {min(best)} ({best[0]}, {best[1]}) of 0, 1, 2, 3" in better.ours


def test_margins_are_of_the_runs(study, runs):
    ours = eces(runs["gamma-sece"])
    assert margin(study, BELOW_CE) == pytest.approx((eces(runs["ce"]) - ours).mean())
    assert margin(study, BELOW_FL_1) == pytest.approx((eces(runs["FL-1"]) - ours).mean())
    of_both = finding(study, "γ ends below 1").effect
    outer = re.search("the closest is FLγ-(SECE|DECE)", of_both.note).group(1).lower()
    assert of_both.value == pytest.approx(np.mean([1 - r.history["gamma_mean"][-1] for r in runs[f"gamma-{outer}"]]))


def test_the_lowest_of_twelve_must_beat_each(study, runs):
    "All eleven rivals are recomputed: named is who beats ours most surely, or if none does, who is nearest to it."
    named = {
        "CE": "ce", "FL-1": "FL-1", "FLSD": "flsd", "LS-0.05": "LS-0.05", "LS-0.1": "LS-0.1", "mixup": "mixup",
        "MMCE": "mmce", "CE-DECE": "l2-dece", "CE-SECE": "l2-sece", "FLγ-DECE": "gamma-dece"}
    rivals = {m: resampled(runs[name]) for m, name in named.items()} | {"CE + TS": resampled(runs["ce"], scaled=True)}
    ours = resampled(runs["gamma-sece"])
    assert len(rivals) == 11
    margins = {m: rival["ece"] - ours["ece"] for m, rival in rivals.items()}  # (1 + B, 2)
    means = {m: 100*margin[0].mean() for m, margin in margins.items()}
    certainty = {m: abs(margin[0].mean())/standard_error(margin) for m, margin in margins.items()}
    ahead = [m for m, mean in means.items() if mean < 0]
    expected = max(ahead, key=certainty.get) if ahead else min(certainty, key=certainty.get)
    lowest = finding(study, "FLγ-SECE has the lowest ECE of the twelve").effect
    assert re.search("the closest is ([^;]+)", lowest.note).group(1) == expected
    assert lowest.value == pytest.approx(means[expected])
    assert lowest.floor == pytest.approx(100*max(rival["floor"].mean() for rival in [*rivals.values(), ours]))


def resampled(runs, scaled=False):
    "ECE with its resamples of the test samples (1 + B, S), and floor (S,), of each repetition."
    def measured(run):
        val, test = run.predictions("val"), run.predictions("test")
        calibrator = TemperatureScaling().fit(val.logits, val.target) if scaled else None
        return resampled_measures(Scored.of(test, calibrator), Resamples(run.rows["test"]))
    found = [measured(run) for run in runs]
    return {name: np.stack([np.asarray(m[name]) for m in found], -1) for name in ("ece", "floor")}


def standard_error(margins):
    "Of the mean over repetitions, whose test samples are drawn too."
    return np.sqrt(margins[0].var(ddof=1)/margins.shape[1] + margins[1:].mean(1).var(ddof=1))


def test_tables_2_and_3_are_of_the_runs(study, runs):
    rows = {row[0]: row for row in table(study, "without_sece")[1:]}
    assert {m: row[3] for m, row in rows.items()} == {
        "FLγ-CE": percent(eces(runs["gamma-ce"])), "FLγ-SECE": percent(eces(runs["gamma-sece"])),
        "CE-SECE": percent(eces(runs["l2-sece"]))}
    against_ce = finding(study, "SECE as the outer loss gives a lower ECE than cross-entropy").effect
    assert against_ce.value == pytest.approx((eces(runs["gamma-ce"]) - eces(runs["gamma-sece"])).mean())
    header, *rows = table(study, "positivity")
    rows = {row[0]: dict(zip(header, row)) for row in rows}
    options = {
        "ReLU, 1": " positivity=relu", "softplus, 1": " positivity=softplus",
        "sigmoid, 0.5": " gamma0=0.5 positivity=sigmoid", "min-max, random": " init=random positivity=min_max",
        "absolute, 0.5": " gamma0=0.5", "absolute, random": " init=random", "absolute, 1": ""}
    assert rows.keys() == options.keys() and "1 seed" in header[0]
    for name, option in options.items():
        run = runs["gamma-sece" + option][0]
        assert rows[name]["ECE %"] == f"{ece_percent(run):.2f}" and rows[name]["ECE + TS %"] == f"{scaled_ece(run):.2f}"
        assert rows[name]["mean γ"] == f"{run.history['gamma_mean'][-1]:.2f}"
    assert float(rows["sigmoid, 0.5"]["highest γ"]) < 1 == float(rows["min-max, random"]["highest γ"])


def test_gamma_is_recorded_for_test_samples(study, runs):
    run = runs["gamma-sece"][0]
    test = load_data("noisy_digits", seed=run.config.seed, **run.config.data_args).test
    with torch.no_grad():
        gamma = run.learned_loss()(run.model().features(test.ready(test.x))).double()
    assert run.history["test_gamma_mean"][-1] == pytest.approx(gamma.mean().item(), rel=1e-5)
    assert run.history["test_gamma_std"][-1] == pytest.approx(gamma.std(correction=0).item(), rel=1e-3)


def test_bandwidths(study, runs):
    assert {run.config.meta.outer_args["bandwidth"] for run in [*runs["gamma-sece"], *runs["l2-sece"]]} == {.01}
    tried = {run.config.meta.outer_args["bandwidth"] for name in runs if name.startswith("gamma-sece bandwidth")
             for run in runs[name]}
    assert tried == {.001, .1}


def test_without_learning_there_is_one_exponent(root, study, tmp_path):
    notebook = with_cell("meta_regularization", tmp_path)
    folder = run_forked(notebook, dict(n_seeds=1, epochs=10, meta_lr=1e-12), root=root)
    assert claim(folder, DIFFERS) == CONTRADICTED and claim(folder, "γ is 1 for every sample") == HOLDS
    assert abs(margin(folder, "γ ends below 1")) < 1e-6
    assert abs(margin(folder, BELOW_FL_1)) < .1 < abs(margin(study, BELOW_FL_1))


def test_one_seed_on_real_images(root, tmp_path):
    "Nothing is decided, and nothing is known of the truth."
    one = dict(n_seeds=1, epochs=10, quick_data="digits")
    folder = run_forked(with_cell("meta_regularization", tmp_path), one, root=root)
    assert {f.verdict for f in folder.result.findings if f.kind != "identity"} == {UNDECIDED}
    header, *_ = table(folder, "twelve_methods")
    assert "n = 697" in header[0] and not any("true" in title for title in header)


def test_the_full_setting_is_the_papers():
    configs = plan("meta_regularization")
    assert len(configs) == (14 + 6 + 4)*5
    assert {(c.model, c.recipe.epochs, c.recipe.batch_size) for c in configs} == {("resnet18", 350, 128)}
