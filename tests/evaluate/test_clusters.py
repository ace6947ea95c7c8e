"""Samples in clusters, and copies of samples, which are clusters that nobody named."""
import re

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.core.two_sets import shared_samples
from calibnb.evaluate import Decisions, compare_models, evaluate, evaluate_shifted
from calibnb.evaluate.audit import check_sets
from calibnb.evaluate.slopes import Slopes
from calibnb.metrics import calibration_slope, ece_difference, mean_difference, rate_difference


def calibrated(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    p = torch.rand(n, generator=draw, dtype=torch.float64)
    return p, (torch.rand(n, generator=draw) < p).long()


def widths(found):
    row = found.rows["uncalibrated"]
    return {name: np.diff(row[name].interval).item() for name in ("error", "nll", "ece", "ada_ece", "smooth_ece")}


@pytest.mark.parametrize("columns", [1, 2])
def test_copies_of_a_file_tell_no_more_than_the_file(columns):
    p, y = calibrated(300)
    probs = p[:, None] if columns == 1 else torch.stack([1 - p, p], 1)
    once = evaluate(Predictions.from_probs(probs, y), calibrators=["temperature", "bbq"])
    five = evaluate(Predictions.from_probs(probs.repeat(5, 1), y.repeat(5)), calibrators=["temperature", "bbq"])
    assert five.recommended == once.recommended == "uncalibrated"  # bbq learns copies by heart
    assert five.rows["bbq"]["nll"].value > five.rows["uncalibrated"]["nll"].value
    for name, width in widths(five).items():
        assert width > .85*widths(once)[name], name
    assert next(c.status for c in five.checks if c.code == "CNB014") == "tip"
    assert any("300 clusters" in note and "299 independent" in note for note in five.notes)


def test_clusters_widen_what_is_said_of_two_models():
    p, y = calibrated(200)
    other = (p + .1*torch.randn(200, generator=torch.Generator().manual_seed(1))).clamp(.01, .99)
    old, new = (Predictions.from_probs(q, y) for q in (p, other))
    copies = torch.arange(200).repeat_interleave(4)
    def width(d): return d.high - d.low
    plain = compare_models(old, new)
    named, found = compare_models(old[copies].clustered(copies), new[copies]), compare_models(old[copies], new[copies])
    assert found.clusters == 200 and any("600 of 800 rows repeat" in note for note in found.notes)
    for name, d in plain.differences.items():  # a miss that was not seen counts less among 800 rows
        assert width(named.differences[name])/width(d) == pytest.approx(1, abs=.15), name
        assert width(found.differences[name]) == pytest.approx(width(named.differences[name])), name
    values = (old.nll, new.nll), (~old.hit, ~new.hit), ((p, y == 1), (other, y == 1))
    for compared, pair in zip((mean_difference, rate_difference, ece_difference), values):
        alone = compared(*pair, cluster=torch.arange(200))  # one sample each
        assert width(alone)/width(compared(*pair)) == pytest.approx(1, abs=.02)


def test_a_rounded_copy_of_the_test_set_is_no_validation_set():
    p, y = calibrated(500)
    with pytest.raises(ValueError, match="val: 49[0-9] of its samples are in preds too"):
        check_sets(Predictions.from_probs(p, y), Predictions.from_probs(p.float(), y))
    others = calibrated(500, seed=1)
    check_sets(Predictions.from_probs(p, y), Predictions.from_probs(*others))


def test_where_nothing_is_missed_each_cluster_counts_once():
    logits = torch.tensor([[4., 0., 0.]]) + torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    once, rows = Predictions(logits, logits.argmax(1)), torch.arange(60).repeat(20)
    many = once[rows].clustered(rows)
    for name in "error", "nll", "ece":
        alone, twenty = (evaluate(q, calibrators=[]).rows["uncalibrated"][name].interval[1] for q in (once, many))
        assert twenty == pytest.approx(alone, rel=.1), name
    rival = Predictions(1.2*logits, logits.argmax(1))
    for pair in zip(*(compare_models(*models).differences.values() for models in ((once, rival), (many, rival[rows])))):
        assert pair[1].high == pytest.approx(pair[0].high, rel=.1, abs=.005)


def test_rounded_and_saturated_scores_are_no_copies():
    draw = torch.Generator().manual_seed(0)
    p = torch.rand(2000, generator=draw, dtype=torch.float64).round(decimals=2)
    y = (p + .05*torch.randn(2000, generator=draw) > .5).long()  # pure nearly everywhere, as copies are
    assert evaluate(Predictions.from_probs(p, y), calibrators=[]).notes == []
    a, b = (Predictions(30*torch.randn(1000, 1, generator=draw), torch.randint(2, (1000,), generator=draw))
            for _ in range(2))
    assert shared_samples(a, b) == 0


def test_few_and_unequal_clusters():
    p, y = calibrated(300)
    preds = Predictions.from_probs(p, y)
    with pytest.raises(ValueError, match="cluster: all samples have the same id"):
        preds.clustered(torch.zeros(300))
    large = torch.cat([torch.zeros(200), torch.arange(1, 101)])
    for ids in torch.arange(300) % 3, large:  # the large cluster fills two of five folds or three
        folds = re.search(r"in (\d) folds", evaluate(preds.clustered(ids), calibrators=["temperature"]).caption())
        assert 2 < int(folds[1]) < 5


def patients(folder, n=60, scans=10):
    "Write files of scans whose patients differ; ids are texts of numbers."
    draw = np.random.default_rng(0)
    z, moved = 2*draw.normal(size=n*scans), np.repeat(1.5*draw.normal(size=n), scans)
    y = (draw.random(n*scans) < 1/(1 + np.exp(-z - moved))).astype(int)
    ids = [f"{i:03d}" for i in np.repeat(np.arange(n), scans)]
    pd.DataFrame(dict(p=1/(1 + np.exp(-z)), patient_id=ids, y=y)).to_csv(folder/"p.csv", index=False)


def test_the_command_names_clusters(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    patients(tmp_path)
    assert cli.main("audit p.csv --no-report".split()) == 0
    assert "600 samples have 60 values of patient_id" in capsys.readouterr().out
    assert cli.main("audit p.csv --no-report --cluster patient_id".split()) == 0
    out = capsys.readouterr().out
    assert "600 samples in 60 clusters" in out and "CNB017" not in out
    assert cli.main("compare p.csv p.csv --cluster patient_id".split()) == 2  # the ECE is undecided
    assert "600 samples in 60 clusters" in capsys.readouterr().out
    assert cli.main("audit p.csv --no-report --cluster patient_id --by patient_id".split()) == 2
    assert "--cluster: given with --by" in capsys.readouterr().err


def test_copies_tell_no_more_by_slopes_costs_and_elsewhere():
    p, y = calibrated(300)
    here, there = (Predictions.from_probs(p[rows], y[rows]) for rows in (slice(0, 150), slice(150, 300)))
    five = torch.arange(150).repeat(5)
    found, copied = (evaluate(preds, calibrators=["platt"]) for preds in (there, there[five]))
    once, copies = (Slopes.of(each).of_row["uncalibrated"] for each in (found, copied))
    for name in "slope", "in_the_large":
        assert copies[name].high - copies[name].low == pytest.approx(once[name].high - once[name].low, rel=.25), name
    widths = [np.diff(Decisions.of(each, 1., 5.).costs[0]["interval"]).item() for each in (found, copied)]
    assert widths[1] == pytest.approx(widths[0], rel=.15)
    carried = evaluate(here, calibrators=["histogram"])
    rows = [evaluate_shifted(carried, here, preds).rows["histogram"] for preds in (there, there[five])]
    assert np.diff(rows[1].interval).item() == pytest.approx(np.diff(rows[0].interval).item(), rel=.1)
    assert rows[1].nll_refitted == pytest.approx(rows[0].nll_refitted, abs=.02)  # a copy in the fit would lower it
    hard = torch.tensor([0., 1., 0., .9])  # 0 and 1 have no log-odds, and one id is left
    assert np.isnan(calibration_slope(hard, [0, 1, 1, 1], cluster=[0, 1, 2, 2]).slope.estimate)
    with pytest.raises(ValueError, match="cluster: all samples have the same id"):
        calibration_slope(hard, [0, 1, 1, 1], cluster=[3]*4)
