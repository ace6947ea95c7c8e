"calibratability, run small: complete, computed from its trainings, and a broken notebook turns its margins."
import functools

import numpy as np
import pytest
import torch
from conftest import assert_complete
from reading import (
    assert_open, eces, finding, margin, percent, plan, rows, run_here, scaled, shown_rival, table, true_ce, with_loss)
from torch.nn import functional as F

from calibnb import cli
from calibnb.core.runtime import seed_everything
from calibnb.data import load_data
from calibnb.metrics import debiased_ece
from calibnb.models import make_model
from calibnb.posthoc import HistogramBinning, TemperatureScaling, oracle_ece
from calibnb.runs.folder import find_runs
from calibnb.studies import spread
from calibnb.train import Trainer

STUDY, SETTINGS = "calibratability", dict(smoke=True, n_seeds=2, epochs=4, resamples=2)


def of_loss(root, loss, n_train=200, share=1, **options):
    "Return the trainings with a loss, by seed; those of the dose response have half as many samples, and a share."
    def wanted(args): return (args["n_train"], args["share"]) == (n_train, share)
    return [run for run in with_loss(root, STUDY, loss, **options) if wanted(run.config.data_args)]


def temperature(run):
    val = run.predictions("val")
    return TemperatureScaling("nll", "pool").fit(val.logits, val.target).temperature_


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")


def test_the_table_is_of_the_runs(root, study):
    found = rows(study, "before_and_after")
    losses = {"CE": ("ce", {}), "FL-3": ("focal", dict(gamma=3.)), "L1-0.05": ("lp_norm", dict(alpha=.05))}
    for label, (loss, options) in losses.items():
        runs = of_loss(root, loss, **options)
        assert [r.config.seed for r in runs] == [0, 1]
        assert found[label]["ECE %"].split(" ●")[0].split(" ○")[0] == percent(eces(runs))
        assert found[label]["true calibration error %"].startswith(percent([true_ce(run) for run in runs]))
        assert found[label]["T"] == percent([temperature(run) for run in runs])
    cells = [cell for row in found.values() for cell in row.values()]
    assert len(found) == 10 + 4*2 + 3 and len(cells) == len(found)*8 and all("±" in cell for cell in cells)


def test_the_chosen_row_is_of_the_coefficients_chosen_on_validation_samples(root, study):
    chosen = []
    for seed in 0, 1:
        runs = [of_loss(root, "label_smoothing", eps=eps)[seed] for eps in (.05, .2)]
        val = [r.predictions("val") for r in runs]
        errors = np.array([1 - p.hit.double().mean().item() for p in val])
        nearly = errors.min() + (errors.min()*(1 - errors.min())/len(val[0]))**.5
        candidates = [i for i in range(len(runs)) if errors[i] <= nearly]
        chosen.append(runs[min(candidates, key=lambda i: debiased_ece(val[i].probs, val[i].target).item())])
    assert rows(study, "before_and_after")["LS, chosen"]["ECE %"].startswith(percent(eces(chosen)))
    said = rows(study, "coefficients")["LS, chosen"]["median (each repetition) of the grid"]
    assert said.endswith("({:g}, {:g}) of 0.05, 0.2".format(*(r.config.loss_args["eps"] for r in chosen)))


def test_one_coefficient_for_all_repetitions(root, study):
    "The one with the least mean ECE on the validation samples, as the paper chooses on test samples."
    def mean_ece(gamma): return np.mean([
        binned_ece(val.conf, val.hit) for val in (r.predictions("val") for r in of_loss(root, "focal", gamma=gamma))])
    best = min((3., 5.), key=mean_ece)
    said = rows(study, "coefficients")["FL, once"]["median (each repetition) of the grid"]
    assert said == f"{best:g} of 3, 5"
    want = percent(eces(of_loss(root, "focal", gamma=best)))
    assert rows(study, "before_and_after")["FL, once"]["ECE %"].startswith(want)


def test_few_validation_samples_of_a_regularised_loss(root, study):
    "The first parts that are drawn, calibrated and measured once more, beside what the table has."
    text = rows(study, "coefficients")["L1, once"]["median (each repetition) of the grid"]
    runs = of_loss(root, "lp_norm", alpha=float(text.split(" of ")[0]))
    assert len(runs) == SETTINGS["n_seeds"]
    for method, calibrator in CALIBRATORS.items():
        want = [first_parts_ece(run, calibrator) for run in runs]
        found, = [row for name, row in rows(study, "validation_size").items() if name.endswith(f"+ {method}")
                  and name.startswith("L1, once")]
        assert float(found["20"]) == pytest.approx(np.mean(want), rel=1e-6)
    by_ts, by_hb = ([first_parts_ece(run, c) for run in of_loss(root, "ce")] for c in CALIBRATORS.values())
    found = margin(study, "with 20 validation samples TS has a lower ECE than HB")
    assert found == pytest.approx(np.mean(by_hb) - np.mean(by_ts), rel=1e-6)


CALIBRATORS = dict(TS=TemperatureScaling("nll", "pool"), HB=HistogramBinning(smooth=False))


def first_parts_ece(run, calibrator):
    val, test = run.predictions("val"), run.predictions("test")
    draw = torch.Generator().manual_seed(0)
    parts = [val[torch.randperm(len(val), generator=draw)[:20]] for _ in range(SETTINGS["resamples"])]
    probs = [calibrator.fit(part.logits, part.target).transform(test.logits) for part in parts]
    return np.mean([100*binned_ece(p.gather(1, test.pred[:, None])[:, 0], test.hit) for p in probs])


def binned_ece(conf, hit, n_bins=15):
    bins = (conf.double()*n_bins).ceil().clamp(1, n_bins).long() - 1
    gaps = torch.zeros(n_bins, dtype=torch.float64).index_add_(0, bins, hit.double() - conf.double())
    return gaps.abs().sum().item()/len(conf)


@pytest.mark.parametrize("start, loss, option, strengths", [
    ("the optimal ECE at the end rises with the coefficient of the L1 norm", "lp_norm", "alpha", (.01, .05)),
    ("the optimal ECE at the end rises with the exponent of focal loss", "focal", "gamma", (3., 5.))])
def test_the_optimal_ece_is_of_the_runs(root, study, start, loss, option, strengths):
    said = finding(study, start).ours.split(", ")
    runs = [of_loss(root, "ce"), *(of_loss(root, loss, **{option: value}) for value in strengths)]
    for text, of_seeds in zip(said, runs, strict=True):
        tests = [run.predictions("test") for run in of_seeds]
        assert text.endswith(spread([oracle_ece(t.logits, t.target).ece for t in tests], scale=100))


def test_margins_of_inverse_focal_loss(root, study):
    "Each step of the exponent, in the logarithm of the temperature and in the ECE."
    order = [of_loss(root, "ce"), *(of_loss(root, "inverse_focal", gamma=gamma) for gamma in (1., 2., 3.))]
    steps = np.diff([np.mean([np.log(temperature(run)) for run in runs]) for runs in order])
    assert margin(study, "the fitted temperature rises at each step") in map(pytest.approx, steps)
    ce, one, _, three = (eces(runs).mean() for runs in order)
    found = margin(study, "before calibration the ECE of inverse focal loss rises")
    assert found in map(pytest.approx, (three - one, one - ce))


def test_low_confidences(root, study):
    "Of the loss and the calibrator that decide: mean confidence less accuracy below one half."
    found = finding(study, "at confidences below one half")
    label = shown_rival(found)
    family, scaled = label.split(",")[0], label.endswith("+ TS")
    loss, option = {"LS": ("label_smoothing", "eps"), "L1": ("lp_norm", "alpha"), "FL": ("focal", "gamma")}[family]
    text = rows(study, "coefficients")[f"{family}, once"]["median (each repetition) of the grid"]
    gaps = []
    for run in of_loss(root, loss, **{option: float(text.split(" of ")[0])}):
        test = run.predictions("test")
        probs = (test.logits/(temperature(run) if scaled else 1)).double().softmax(1)
        conf = probs.amax(1)
        gaps.append((conf - test.hit.double())[conf < .5].mean().item())
    assert found.effect.value == pytest.approx(100*np.mean(gaps), rel=1e-4)


def test_the_logits_of_the_training_samples(root, study):
    "The range of the largest logits, and how much larger they are of samples learned early."
    def recorded(loss, value, **options):
        return np.mean([value(r.recorded("learned_epoch"), r.config.recipe.epochs)
                        for r in of_loss(root, loss, **options)])
    def log_range(found, epochs):
        return np.log(np.subtract(*np.quantile(found["max_logit"].double(), [.99, .01])))
    def gap(found, epochs):
        logit, epoch = found["max_logit"].double(), 1. + found["last_wrong"].double()
        middle = epoch[epoch <= epochs].quantile(.5)
        late = (epoch > middle) & (epoch <= epochs)
        return (logit[epoch <= middle].mean() - logit[late].mean())/logit.std(correction=0)
    wider = recorded("inverse_focal", log_range, gamma=2.) - recorded("ce", log_range)
    assert margin(study, "the largest logits have a wider range with IFL-2") == pytest.approx(wider)
    assert margin(study, "with CE, samples learned early have larger") == pytest.approx(recorded("ce", gap))


def test_the_dose_is_of_the_runs(root, study):
    "The difference to cross-entropy after TS rises from the share 0 to the share 1 of ambiguous digits."
    def after_ts(loss, share, **options):
        runs = of_loss(root, loss, 100, share, **options)
        assert len(runs) == 2
        return np.array([scaled(run, scaling=TemperatureScaling("nll", "pool")) for run in runs])
    excess = [after_ts("focal", share, gamma=3.) - after_ts("ce", share) for share in (0, 1)]
    start = "from no label noise to the most, the ECE after TS rises less with FL-3"
    assert margin(study, start) == pytest.approx((excess[0] - excess[1]).mean())
    said = finding(study, start).ours
    assert said.startswith(f"0 % noise: {percent(excess[0])}, ") and said.endswith(percent(excess[1]))


def smoothed(logits, target, eps):
    log_probs = logits.log_softmax(1)
    return ((eps - 1)*log_probs.gather(1, target[:, None]).mean() - eps*log_probs.mean())


def with_norm(logits, target, alpha):
    return F.cross_entropy(logits, target) + alpha*logits.abs().sum()/len(logits)


def focal(logits, target, gamma):
    p = logits.softmax(1).gather(1, target[:, None])
    return -((1 - p)**gamma*p.log()).mean()


def test_negative_coefficients(root, study):
    "The row of each loss whose sign is turned, from a training with its formula written once more."
    found, (run, _) = rows(study, "negative_coefficients"), of_loss(root, "ce")
    losses = {"LS, ε = -0.05": (smoothed, dict(eps=-.05)), "L1, α = -0.05": (with_norm, dict(alpha=-.05)),
              "FL, γ = -1": (focal, dict(gamma=-1.)), "FL, γ = -3": (focal, dict(gamma=-3.))}
    assert list(found) == ["CE", *losses]
    for name, (loss, options) in losses.items():
        seed_everything(0)
        splits = load_data("ambiguous_digits", seed=0, **run.config.data_args)
        recipe = run.config.recipe.model_copy(update=dict(epochs=2, milestones=()))
        trainer = Trainer(make_model("mlp", 10, (1, 8, 8)), functools.partial(loss, **options), recipe)
        trainer.fit(splits)
        assert float(found[name]["last epoch"]) == pytest.approx(trainer.history["train_loss"][-1], rel=.01), name
        test = trainer.predict(splits.test)
        assert float(found[name]["confidence %"]) == pytest.approx(100*test.conf.mean().item(), abs=.06), name
        assert float(found[name]["accuracy %"]) == pytest.approx(100*test.hit.double().mean().item(), abs=.06), name


def test_numbers_of_the_paper(study):
    "Of cross-entropy, on svhn, cifar10, cifar100 and 20newsgroups: ECE, accuracy, ECE + TS, T, ECE + HB."
    want = [[3.03, 95., .72, 1.82, .68], [6.43, 90.46, .95, 2.51, .74], [19.53, 64.64, 1.35, 2.19, 1.27],
            [20.82, 72.85, 3.11, 4.18, 2.52]]
    row, = [r for r in table(study, "paper") if r[0] == "CE"]
    value, sd = ([cell.partition(" ± ")[i] for cell in row[1:]] for i in (0, 2))
    assert [float(v) for v in value] == sum(want, []) and len([s for s in sd if s]) == 16, "T has none"


SHARP = """def get_runs(configs, of=get_runs, **options):
    def sharp(preds): return Predictions(10*preds.logits, preds.target)
    runs = of(configs, **options)
    for run in runs:
        if run.config.loss == 'focal': run.predictions = lambda part, of=run.predictions: sharp(of(part))
    return runs"""


def test_focal_loss_with_other_logits_on_real_digits(root):
    """The logits of focal loss are ten times as large, so its temperature is above 1 and above the one of CE.

    No true probabilities, 200 validation samples: parts of at most half of them, and no verdict.
    """
    folder = run_here(STUDY, SHARP, SETTINGS | dict(n_seeds=1, quick_data="digits"), root)["experiment"].folder
    assert_open(folder, "paper", "ours", "identity", seeds=1)
    sizes = table(folder, "validation_size")[0][1:]
    assert sizes == ["20", "100"]
    header, *_ = table(folder, "before_and_after")
    assert header[0].endswith("1 seed, n = 897") and "true calibration error %" not in header
    text = rows(folder, "coefficients")["FL, once"]["median (each repetition) of the grid"]
    (run,), (ce,) = (with_loss(root, STUDY, loss, "digits", **options) for loss, options in (
        ("focal", dict(gamma=float(text.split(" of ")[0]))), ("ce", {})))
    val = run.predictions("val")
    T = TemperatureScaling("nll", "pool").fit(10*val.logits, val.target).temperature_
    found = margin(folder, "the temperature of focal loss is below 1")
    assert found < 0 and found == pytest.approx(-np.log(T))
    found = finding(folder, "CE has a higher temperature than each regularised loss")
    assert found.effect.value < 0 and found.effect.value == pytest.approx(np.log(temperature(ce)/T))


def test_a_dry_run_shows_the_runs_and_makes_none(forked_kernels, tmp_path, monkeypatch, capsys):
    "In the paper's own setting, whose data need not be there."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path))
    line = "run calibratability -p quick False -p data cifar100 -p dry_run True"
    assert cli.main(line.split()) == 0
    out = capsys.readouterr().out
    assert "90 runs planned, none made" in out and out.count("resnet32") == 90
    assert "{'gamma': 5.0}" in out and "200" in out and "512" in out
    folder, = find_runs(tmp_path)
    assert folder.state == "done" and not folder.result.findings
    header, *planned = table(folder, "plan")
    assert all(float(row[header.index("gpu_hours")]) > 0 for row in planned)
    assert not any(row[header.index("hours")] for row in planned)  # of finished runs, of which there are none
    with pytest.raises(ValueError, match="smoke: True belongs to the quick setting"):
        plan(STUDY, smoke=True)
