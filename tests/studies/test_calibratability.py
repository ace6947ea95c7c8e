"calibratability, run small: complete, computed from its trainings, and a broken notebook turns its margins."
import numpy as np
import pytest
import torch
from conftest import assert_complete
from reading import assert_open, eces, finding, margin, percent, rows, run_with, shown_rival, table, true_ce, with_loss

from calibnb import cli
from calibnb.metrics import debiased_ece
from calibnb.notebooks.verdicts import spread
from calibnb.posthoc import HistogramBinning, TemperatureScaling, oracle_ece
from calibnb.runs.folder import find_runs

STUDY, SETTINGS = "calibratability", dict(n_seeds=2, epochs=20, resamples=2)


def of_loss(root, loss, **options):
    "Return the trainings with a loss, by seed; other tests leave some without this recorder."
    return [r for r in with_loss(root, STUDY, loss, **options) if "learned_epoch" in r.config.recorders]


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
    assert len(found) == 15 + 4*2 + 3 and len(cells) == len(found)*8 and all("±" in cell for cell in cells)


def test_the_chosen_row_is_of_the_coefficients_chosen_on_validation_samples(root, study):
    chosen = []
    for seed in 0, 1:
        runs = [of_loss(root, "label_smoothing", eps=eps)[seed] for eps in (.01, .05, .1, .2)]
        val = [r.predictions("val") for r in runs]
        errors = np.array([1 - p.hit.double().mean().item() for p in val])
        nearly = errors.min() + (errors.min()*(1 - errors.min())/len(val[0]))**.5
        candidates = [i for i in range(len(runs)) if errors[i] <= nearly]
        chosen.append(runs[min(candidates, key=lambda i: debiased_ece(val[i].probs, val[i].target).item())])
    assert rows(study, "before_and_after")["LS, chosen"]["ECE %"].startswith(percent(eces(chosen)))
    said = rows(study, "coefficients")["LS, chosen"]["median (each repetition) of the grid"]
    assert said.endswith("({:g}, {:g}) of 0.01, 0.05, 0.1, 0.2".format(*(r.config.loss_args["eps"] for r in chosen)))


def test_one_coefficient_for_all_repetitions(root, study):
    "The one with the least mean ECE on the validation samples, as the paper chooses on test samples."
    def mean_ece(gamma): return np.mean([
        binned_ece(val.conf, val.hit) for val in (r.predictions("val") for r in of_loss(root, "focal", gamma=gamma))])
    best = min((1., 2., 3., 5.), key=mean_ece)
    said = rows(study, "coefficients")["FL, once"]["median (each repetition) of the grid"]
    assert said == f"{best:g} of 1, 2, 3, 5"
    want = percent(eces(of_loss(root, "focal", gamma=best)))
    assert rows(study, "before_and_after")["FL, once"]["ECE %"].startswith(want)


def test_few_validation_samples_of_a_regularised_loss(root, study):
    "The first parts that are drawn, calibrated and measured once more, beside what the table has."
    text = rows(study, "coefficients")["L1, once"]["median (each repetition) of the grid"]
    runs = of_loss(root, "lp_norm", alpha=float(text.split(" of ")[0]))
    assert len(runs) == SETTINGS["n_seeds"]
    for method, calibrator in ("TS", TemperatureScaling("nll", "pool")), ("HB", HistogramBinning(smooth=False)):
        want = [first_parts_ece(run, calibrator) for run in runs]
        found, = [row for name, row in rows(study, "validation_size").items() if name.endswith(f"+ {method}")
                  and name.startswith("L1, once")]
        assert float(found["20"]) == pytest.approx(np.mean(want), rel=1e-6)


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
    ("the optimal ECE at the end rises with the exponent of focal loss", "focal", "gamma", (1., 3., 5.))])
def test_the_optimal_ece_is_of_the_runs(root, study, start, loss, option, strengths):
    said = finding(study, start).ours.split(", ")
    runs = [of_loss(root, "ce"), *(of_loss(root, loss, **{option: value}) for value in strengths)]
    for text, of_seeds in zip(said, runs, strict=True):
        tests = [run.predictions("test") for run in of_seeds]
        assert text.endswith(spread([oracle_ece(t.logits, t.target).ece for t in tests], scale=100))


def test_low_confidences(root, study):
    "Of the loss and the calibrator that decide: mean confidence less accuracy below one half."
    found = finding(study, "at low confidences")
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


def test_negative_coefficients(study):
    "Smoothing and a norm with their sign turned have no least loss; a focal exponent below zero has one."
    found = rows(study, "negative_coefficients")
    last = {name: float(row["last epoch"]) for name, row in found.items()}
    assert last["LS, ε = -0.05"] < 0 and last["L1, α = -0.05"] < 0
    assert all(last[name] > 0 for name in ("CE", "FL, γ = -1", "FL, γ = -3"))
    confidence = {name: float(row["confidence %"]) for name, row in found.items()}
    assert confidence["FL, γ = -3"] < confidence["CE"] < confidence["LS, ε = -0.05"]


def test_numbers_of_the_paper(study):
    "Of cross-entropy, on svhn, cifar10, cifar100 and 20newsgroups: ECE, accuracy, ECE + TS, T, ECE + HB."
    want = [[3.03, 95., .72, 1.82, .68], [6.43, 90.46, .95, 2.51, .74], [19.53, 64.64, 1.35, 2.19, 1.27],
            [20.82, 72.85, 3.11, 4.18, 2.52]]
    row, = [r for r in table(study, "paper") if r[0] == "CE"]
    value, sd = ([cell.partition(" ± ")[i] for cell in row[1:]] for i in (0, 2))
    assert [float(v) for v in value] == sum(want, []) and len([s for s in sd if s]) == 16, "T has none"


WRONG = """def get_runs(configs, of=get_runs, **options):
    runs = of(configs := list(configs), **options)
    places = {(c.loss, c.loss_args.get('gamma'), c.seed): i for i, c in enumerate(configs)}
    for seed in {c.seed for c in configs}:
        i, j = (places['inverse_focal', gamma, seed] for gamma in (1., 3.))
        runs[i], runs[j] = runs[j], runs[i]
    return runs"""
BRIEFLY = """
def Trainer(net, loss, recipe, of=Trainer): return of(net, loss, recipe.model_copy(update=dict(epochs=1)))"""


def test_what_is_the_wrong_way_round_turns_the_margin(root, study):
    "The trainings of two losses swapped."
    broken = run_with(STUDY, WRONG + BRIEFLY, SETTINGS, root)
    for start in ("the fitted temperature rises at each step",
                  "before calibration the ECE of inverse focal loss rises"):
        assert margin(study, start) > 0 > margin(broken, start), start
    for start in ("the largest logits have a wider range with IFL-2", "with 20 validation samples TS has a lower ECE",
                  "with every loss, samples learned early have larger"):
        assert margin(study, start) > 0, start


def test_one_seed_of_real_digits(root):
    "No true probabilities, 400 validation samples: parts of at most half of them, and no verdict."
    folder = run_with(STUDY, BRIEFLY, SETTINGS | dict(n_seeds=1, quick_data="digits"), root)
    assert_open(folder, "paper", "ours", "identity", seeds=1)
    assert "from 20 to 200 validation samples" in finding(folder, "from 20").claim
    header, *_ = table(folder, "before_and_after")
    assert header[0].endswith("1 seed, n = 697") and "true calibration error %" not in header


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
    header, *plan = table(folder, "plan")
    assert all(float(row[header.index(hours)]) > 0 for row in plan for hours in ("hours", "gpu_hours"))
    assert cli.main(["run", "calibratability", "-p", "data", "cifar1"]) == 2  # refused before it starts
    assert "want one of svhn, cifar10, cifar100, 20newsgroups" in capsys.readouterr().err
