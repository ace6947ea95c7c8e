"shift, run small: complete, computed from its trainings on images shifted here, and broken on purpose it turns."
import nbformat
import numpy as np
import pytest
import torch
from conftest import EXPERIMENTS, assert_complete
from reading import assert_open, finding, margin, percent, plan, rows, run_here, table, with_loss

from calibnb.data import corrupt_split, load_data
from calibnb.metrics import ece, nll
from calibnb.posthoc import TemperatureScaling
from calibnb.studies import CONTRADICTED, WRONG

KINDS = {"gaussian_noise": "imagenet_c", "contrast": "cifar10_c"}
STUDY, SETTINGS = "shift", dict(smoke=True, n_seeds=2, epochs=5, members=2, kinds=[*KINDS])


def networks(root, loss):
    "Return the networks of the two repetitions, and of their ensembles: (split, weights) -> run."
    return {(r.config.seed % 1000, r.config.seed): r for r in with_loss(root, STUDY, loss, "digits")}


def logits(run, kind, severity, split):
    "Return the logits of the shifted test set of a repetition, by the network itself, and its labels."
    test = load_data("digits", seed=split, pool=1).test
    test = corrupt_split(test, kind, severity, seed=split, constants=KINDS[kind])
    with torch.no_grad():
        return run.model()(test.x), test.y


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "ours", "identity")
    assert len(plan(STUDY)) == 40


def test_the_table_is_of_the_networks_on_shifted_images(root, study):
    found, runs, expected = rows(study, "severities"), networks(root, "ce"), []
    for split in (0, 1):
        run = runs[split, split]
        val = run.predictions("val")
        fitted = TemperatureScaling().fit(val.logits, val.target)
        of_kinds = []
        for kind in KINDS:
            z, y = logits(run, kind, 3, split)
            p, q = z.double().softmax(1), fitted.transform(z)
            refined = TemperatureScaling().fit(z, y).transform(z)
            errors = 100*ece(p, y), 100*ece(q, y), 100*(p.argmax(1) != y).double().mean()
            of_kinds.append([*errors, nll(p, y), nll(refined, y)])
        expected.append(np.mean(of_kinds, 0))
    cells = {("CE", "ECE %, 3"): 1, ("CE + TS", "ECE %, 3"): 1, ("CE", "error %, 3"): 1, ("CE", "NLL, 3"): 2,
             ("CE", "refinement, 3"): 2}
    for ((row, column), digits), values in zip(cells.items(), np.transpose(expected), strict=True):
        assert found[row][column] == percent(values, digits)
    assert found["CE + TS"]["error %, 3"] == found["CE"]["error %, 3"]
    clean, worst = (float(found["CE + TS"][f"ECE %, {severity}"].split()[0]) for severity in ("clean", 5))
    assert margin(study, "temperature scaling: the ECE") == pytest.approx(worst - clean, abs=.11)


def test_an_ensemble_is_the_mean_of_networks_of_one_split(root, study):
    runs, eces = networks(root, "ce"), []
    assert {key for key in runs} == {(0, 0), (1, 1), (0, 1000), (1, 1001)}
    assert all(r.rows["test"].equal(runs[split, split].rows["test"]) for (split, _), r in runs.items())
    for split in (0, 1):
        both = [[logits(runs[split, split + 1000*m], kind, 5, split) for m in (0, 1)] for kind in KINDS]
        eces.append(np.mean([100*ece((a.double().softmax(1) + b.double().softmax(1))/2, y).item()
                             for (a, y), (b, _) in both]))
    assert rows(study, "severities")["ensemble"]["ECE %, 5"] == percent(eces, 1)


def letters():
    "Return the letters that the study draws, by its own function."
    cells = [c.source for c in nbformat.read(EXPERIMENTS/f"{STUDY}.ipynb", 4).cells if c.cell_type == "code"]
    imports, = [cell for cell in cells if "experiment = Experiment(" in cell]
    drawing, = [cell for cell in cells if "def letters()" in cell]
    names = {}
    exec(imports.split("set_style()")[0] + drawing.split("elsewhere = ")[0], names)
    return names["letters"]()


def test_samples_from_elsewhere(root, study):
    "AUROC by counting pairs, and the confidence, of letters."
    head, *lines = table(study, "elsewhere")
    assert head[0].startswith("160 samples from elsewhere") and len(lines) == 7
    found, aurocs, confidences = rows(study, "elsewhere"), [], []
    for split in (0, 1):
        run = networks(root, "ce")[split, split]
        with torch.no_grad(): outside = run.model()(letters().x).double().softmax(1).amax(1)
        inside = run.predictions("test").conf.double()[:, None]
        aurocs.append(100*((inside > outside).double() + (inside == outside)/2).mean())
        confidences.append(100*outside.mean())
    assert found["CE"]["AUROC %"] == percent(aurocs, 1)
    assert found["CE"]["mean confidence %"] == percent(confidences, 1)
    lead = margin(study, "FL-3 has a higher AUROC on samples from elsewhere")
    theirs, ours = (float(found[method]["AUROC %"].split()[0]) for method in ("CE + TS", "FL-3"))
    assert lead == pytest.approx(ours - theirs, abs=.11)


def long_tail(y, ratio, seed, order):
    "Rows of a test set whose class shares fall by equal factors, as the study draws them."
    draw = np.random.default_rng([seed, order])
    rows = [draw.permutation(np.flatnonzero(y == k)) for k in range(10)]
    share = [ratio**(-place/9) for place in draw.permutation(10)]
    largest = min(len(each)/q for each, q in zip(rows, share))
    return np.concatenate([each[:int(largest*q + 1e-9)] for each, q in zip(rows, share)])


def by_em(p, source):
    "Shares of the classes by the rule of Saerens et al., and one sample spread evenly."
    shares = source
    for _ in range(3000):
        weighed = p*shares/source
        shares = (weighed/weighed.sum(1, keepdims=True)).mean(0)
    return (len(p)*shares + .1)/(len(p) + 1)


def test_at_another_prevalence(root, study):
    "NLL and errors of the shares at the largest ratio, computed by Bayes' rule."
    found, expected = rows(study, "prevalence"), {"not adjusted": [], "known shares": [], "EM": []}
    for split in (0, 1):
        run = networks(root, "ce")[split, split]
        val, (z, y) = run.predictions("val"), logits(run, "contrast", 0, split)
        p, y = TemperatureScaling().fit(val.logits, val.target).transform(z.double()).numpy(), y.numpy()
        source, each = np.bincount(val.target)/len(val), {name: [] for name in expected}
        for order in range(2):
            kept = long_tail(y, 30., split, order)
            shares = np.bincount(y[kept], minlength=10)/len(kept)
            assert shares.max()/shares.min() > 15
            for name, prior in zip(expected, (source, shares, by_em(p[kept], source))):
                q = p[kept]*prior/source
                nats = -np.log(q[range(len(kept)), y[kept]]/q.sum(1)).mean()
                each[name].append((nats, 100*abs(prior - shares).mean()))
        for name, values in each.items():
            expected[name].append(np.mean(values, 0))
    for name, values in expected.items():
        nats, off = np.transpose(values)
        assert found[name]["NLL, 30"] == percent(nats, 3)
        assert found[name]["error of a share, 30"] == percent(off, 2)
    gain = np.subtract(*(np.mean(expected[name], 0)[0] for name in ("not adjusted", "known shares")))
    assert margin(study, "the known shares of the classes") == pytest.approx(gain, abs=1e-6)


def test_a_calibrator_that_changes_predictions_breaks_the_identity(root, study):
    "The trainings are those of the study."
    wrong = """def make_calibrator(name, of=make_calibrator):
    calibrator = of('matrix' if name == 'temperature' else name)
    calibrator.temperature_ = 1.
    return calibrator"""
    wrong += "\ndef adjust_prior(*args, of=adjust_prior): return .999*of(*args) + .0001"
    folder = run_here(STUDY, wrong, SETTINGS | dict(n_seeds=1), root)["experiment"].folder
    assert finding(folder, "a temperature changes no prediction").verdict == WRONG
    assert finding(folder, "an adjustment to other shares and back").verdict == CONTRADICTED
