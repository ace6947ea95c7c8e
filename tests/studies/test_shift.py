"shift, run small: complete, computed from its trainings on images shifted here, and broken on purpose it turns."
import numpy as np
import pytest
import torch
from conftest import assert_complete, run_forked
from reading import assert_undecided_by_two, finding, kinds, margin, plan, table, trainings, with_cell

from calibnb.data import corrupt_split, load_data
from calibnb.metrics import ece, nll
from calibnb.notebooks import CONTRADICTED
from calibnb.posthoc import TemperatureScaling

KINDS = {"gaussian_noise": "imagenet_c", "contrast": "cifar10_c"}
SMALL = dict(n_seeds=2, epochs=20, members=2, kinds=[*KINDS])


@pytest.fixture(scope="module")
def study(root):
    return run_forked("shift", SMALL, root=root)


def networks(root, loss):
    "Of the two repetitions, and of their ensembles: (split, weights) -> run."
    runs = [r for r in trainings(root, "shift") if r.config.loss == loss and r.config.recipe.epochs == 20]
    return {(r.config.seed % 1000, r.config.seed): r for r in runs}


def logits(run, kind, severity, split):
    "Of the shifted test set of a repetition, by the network itself."
    test = load_data("digits", seed=split, pool=1).test
    test = corrupt_split(test, kind, severity, seed=split, constants=KINDS[kind])
    with torch.no_grad():
        return run.model()(test.x), test.y


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert kinds(study) == {"paper", "ours", "identity"}
    assert_undecided_by_two(study)
    assert len(plan("shift")) == 40


def test_the_table_is_of_the_networks_on_shifted_images(root, study):
    head, *lines = table(study, "severities")
    rows = {line[0]: dict(zip(head[1:], line[1:])) for line in lines}
    runs, expected = networks(root, "ce"), dict(ece=[], error=[], nll=[], scaled=[], refinement=[])
    for split in (0, 1):
        found, run = {k: [] for k in expected}, runs[split, split]
        val = run.predictions("val")
        fitted = TemperatureScaling().fit(val.logits, val.target)
        for kind in KINDS:
            z, y = logits(run, kind, 3, split)
            p, q = z.double().softmax(1), fitted.transform(z)
            suits = TemperatureScaling().fit(z, y).transform(z)
            values = 100*ece(p, y), 100*(p.argmax(1) != y).double().mean(), nll(p, y), 100*ece(q, y), nll(suits, y)
            for name, value in zip(("ece", "error", "nll", "scaled", "refinement"), values):
                found[name].append(value.item())
        for name, values in found.items():
            expected[name].append(np.mean(values))

    def text(values, digits): return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
    assert rows["CE"]["ECE %, 3"] == text(expected["ece"], 1)
    assert [rows[name]["error %, 3"] for name in ("CE", "CE + TS")] == [text(expected["error"], 1)]*2
    assert rows["CE"]["NLL, 3"] == text(expected["nll"], 2)
    assert rows["CE + TS"]["ECE %, 3"] == text(expected["scaled"], 1)
    assert rows["CE"]["refinement, 3"] == text(expected["refinement"], 2)
    rise = [float(rows["CE + TS"][f"ECE %, {severity}"].split()[0]) for severity in ("clean", 5)]
    assert margin(study, "temperature scaling: the ECE") == pytest.approx(rise[1] - rise[0], abs=.11)


def test_an_ensemble_is_the_mean_of_networks_of_one_split(root, study):
    runs, eces = networks(root, "ce"), []
    assert {key for key in runs} == {(0, 0), (1, 1), (0, 1000), (1, 1001)}
    assert all(r.rows["test"].equal(runs[split, split].rows["test"]) for (split, _), r in runs.items())
    for split in (0, 1):
        both = [[logits(runs[split, split + 1000*m], kind, 5, split) for m in (0, 1)] for kind in KINDS]
        eces.append(np.mean([100*ece((a.double().softmax(1) + b.double().softmax(1))/2, y).item()
                             for (a, y), (b, _) in both]))
    head, *lines = table(study, "severities")
    found, = [line[head.index("ECE %, 5")] for line in lines if line[0] == "ensemble"]
    assert found == f"{np.mean(eces):.1f} ± {np.std(eces, ddof=1):.1f}"


def test_samples_from_elsewhere(study):
    head, *lines = table(study, "elsewhere")
    assert head[0].startswith("160 samples from elsewhere") and len(lines) == 11
    values = {line[0]: [float(cell.split(" ")[0]) for cell in line[1:]] for line in lines}
    assert all(50 < auroc < 100 and 0 < fpr < 100 for auroc, fpr, _ in values.values())
    assert values["CE"][2] > values["CE + TS"][2]  # a temperature above 1 takes confidence
    lead = margin(study, "FL-3 tells samples from elsewhere")
    assert lead == pytest.approx(values["FL-3"][0] - values["CE + TS"][0], abs=.11)


def test_a_calibrator_that_changes_predictions_breaks_the_identity(root, tmp_path):
    wrong = """def make_calibrator(name, of=make_calibrator):
    calibrator = of('matrix' if name == 'temperature' else name)
    calibrator.temperature_ = 1.
    return calibrator"""
    folder = run_forked(with_cell("shift", tmp_path, wrong), SMALL, root=root)
    assert finding(folder, "a temperature changes no prediction").verdict == CONTRADICTED
