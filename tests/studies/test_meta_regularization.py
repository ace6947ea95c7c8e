"Learned exponents in a small setting: the tables are those of the runs, and a margin follows what is trained."
import re

import numpy as np
import pytest
from conftest import assert_complete, claim, run_forked
from reading import broken_copy, changed, ece_percent, finding, kinds, margin, percent, table, trainings

from calibnb.data import load_data
from calibnb.metrics import ece
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
    "Method -> its runs, by seed, of those methods that the tests look at."
    def name(config):
        if config.meta:
            return f"{config.meta.learn}-{config.meta.outer}"
        if config.recipe.mixup:
            return "mixup"
        return f"FL-{config.loss_args['gamma']:g}" if config.loss == "focal" else config.loss
    found = {}
    for run in sorted(trainings(root, "meta_regularization"), key=lambda run: run.config.seed):
        found.setdefault(name(run.config), []).append(run)
    return found


def eces(runs): return np.array([ece_percent(run) for run in runs])


def test_it_is_complete(study):
    assert_complete(study, figures=5, tables=3)
    assert kinds(study) == {"paper", "ours", "identity"}
    assert {f.verdict for f in study.result.findings if f.kind != "identity"} == {UNDECIDED}  # two seeds


@pytest.mark.parametrize("start", IDENTITIES)
def test_identities_hold(study, start):
    assert finding(study, start).kind == "identity" and claim(study, start) == HOLDS


def test_the_table_is_of_the_runs(study, runs):
    header, *rows = table(study, "twelve_methods")
    rows = {row[0]: dict(zip(header, row)) for row in rows}
    assert len(rows) == 14 and "n = 10,455" in header[0] and sum(map(len, runs.values())) == 26
    assert rows["FLγ-SECE"]["ECE %"] == percent(eces(runs["gamma-sece"]))
    assert rows["mixup"]["ECE %"] == percent(eces(runs["mixup"]))
    error = [100 - 100*run.predictions("test").hit.double().mean().item() for run in runs["gamma-dece"]]
    assert rows["FLγ-DECE"]["error %"] == percent(error)
    assert rows["CE + TS"]["ECE %"] == percent([scaled_ece(run) for run in runs["ce"]])
    assert rows["CE + TS"]["ECE %"] == rows["CE"]["ECE + TS %"]
    assert rows["FL-1"]["true error %"] == percent([true_error(run) for run in runs["FL-1"]])


def scaled_ece(run):
    val, test = run.predictions("val"), run.predictions("test")
    probs = TemperatureScaling().fit(val.logits, val.target).transform(test.logits)
    return 100*ece(probs, test.target).item()


def true_error(run):
    "Of the confidences, in percent, from the predictions on disk."
    posterior = load_data("noisy_digits", seed=run.config.seed, **run.config.data_args).test.posterior
    conf, pred = run.predictions("test").probs.max(1)
    return 100*(posterior.gather(1, pred[:, None])[:, 0] - conf).abs().mean().item()


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
    lowest = finding(study, "FLγ-SECE has the lowest ECE of the twelve").effect
    rival = re.search("the closest is ([^;]+)", lowest.note).group(1)
    others = {m: eces(runs[name]) for m, name in dict(CE="ce", MMCE="mmce", FLSD="flsd", mixup="mixup").items()}
    others |= {"FL-1": eces(runs["FL-1"]), "CE-DECE": eces(runs["l2-dece"]), "CE-SECE": eces(runs["l2-sece"])}
    others |= {"CE + TS": np.array([scaled_ece(run) for run in runs["ce"]]), "FLγ-DECE": eces(runs["gamma-dece"])}
    assert lowest.value == pytest.approx((others[rival] - eces(runs["gamma-sece"])).mean())


def test_swapped_losses_turn_the_margins(root, study, tmp_path):
    ce, fl_1 = "'CE': {},\n    'FL-1': focal(1.),", "'CE': focal(1.),\n    'FL-1': {},"
    swapped = run_forked(changed("meta_regularization", tmp_path, ce, fl_1), FEW, root=root)
    assert margin(swapped, BELOW_CE) == pytest.approx(margin(study, BELOW_FL_1))
    assert margin(swapped, BELOW_FL_1) == pytest.approx(margin(study, BELOW_CE))
    assert margin(study, BELOW_CE) < 0 < margin(swapped, BELOW_CE)


def test_without_learning_there_is_one_exponent(root, study, tmp_path):
    notebook = broken_copy("meta_regularization", tmp_path, {})
    folder = run_forked(notebook, FEW | dict(meta_lr=1e-12), root=root)
    assert claim(folder, DIFFERS) == CONTRADICTED and claim(folder, "γ is 1 for every sample") == HOLDS
    assert abs(margin(folder, "γ ends below 1")) < 1e-6
    assert abs(margin(folder, BELOW_FL_1)) < .1 < abs(margin(study, BELOW_FL_1))


def test_one_seed_on_real_images(root):
    "Nothing is decided, nothing is known of the truth, and nothing is warned of."
    folder = run_forked("meta_regularization", dict(n_seeds=1, epochs=10, quick_data="digits"), root=root)
    assert_complete(folder, figures=5, tables=3)
    assert {f.verdict for f in folder.result.findings if f.kind != "identity"} == {UNDECIDED}
    header, *_ = table(folder, "twelve_methods")
    assert "n = 697" in header[0] and not any("true" in title for title in header)


def test_the_full_setting_is_the_papers(tmp_path):
    folder = run_forked("meta_regularization", dict(quick=False, dry_run=True), root=tmp_path)
    header, *rows = table(folder, "plan")
    plan = [dict(zip(header, row)) for row in rows]
    assert len(plan) == 13*5 and not folder.result.findings
    assert {(row["model"], row["epochs"], row["batch_size"]) for row in plan} == {("resnet18", "350", "128")}
    assert all(float(row["hours"]) > 0 for row in plan)
    assert folder.info["settings"]["bandwidth"] == .01


def test_the_outer_loss_has_the_bandwidth_of_the_settings(study, runs):
    assert study.info["settings"]["bandwidth"] == .01
    assert {run.config.meta.outer_args["bandwidth"] for run in [*runs["gamma-sece"], *runs["l2-sece"]]} == {.01}
