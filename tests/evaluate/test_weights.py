"""Sampling weights: a sample of weight 10 stands for ten of the population."""
import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import (
    compare_models, evaluate, evaluate_several, evaluate_shifted, expected_accuracy, labels_needed, slices, write_page
)
from calibnb.evaluate.slopes import Slopes
from calibnb.widgets import reliability_explorer


def drawn(n, columns=1, seed=0):
    "Return calibrated predictions of a population, and the weights of a file that keeps few of one label."
    draw = torch.Generator().manual_seed(seed)
    z = 1.5*torch.randn(n, 3 if columns > 1 else 1, generator=draw, dtype=torch.float64)
    probs = z.softmax(1) if columns > 1 else (z - 1).sigmoid()
    y = torch.multinomial(probs if columns > 1 else torch.cat([1 - probs, probs], 1), 1, generator=draw)[:, 0]
    kept = (y > 0) | (torch.rand(n, generator=draw) < .2)
    return Predictions(z if columns > 1 else z - 1, y)[kept], torch.where(y > 0, 1., 5.)[kept]


@pytest.mark.parametrize("columns", [1, 3])
def test_weights_count_like_copies_in_clusters(columns):
    preds, _ = drawn(3000, columns)
    weight = 1 + torch.arange(len(preds)) % 3
    rows = torch.arange(len(preds)).repeat_interleave(weight)
    options = dict(calibrators=[], more_bins=(10,))
    weighted = evaluate(preds.weighted(weight), **options).rows["uncalibrated"]
    copied = evaluate(preds[rows].clustered(rows), **options).rows["uncalibrated"]
    assert {*weighted} == {*copied} - {"ada_ece", "smooth_ece", "classwise_ece"}
    for name, m in weighted.items():
        assert m.value == pytest.approx(copied[name].value, rel=1e-9), name
        assert np.diff(m.interval) == pytest.approx(np.diff(copied[name].interval), rel=.15), name


def test_a_calibrated_model_is_calibrated_on_a_file_with_few_negatives():
    preds, weight = drawn(8000)
    assert evaluate(preds, calibrators=["platt"]).recommended == "platt"
    found = evaluate(preds.weighted(100*weight))  # of any scale
    assert found.recommended == "uncalibrated" and not found.diagnosis.is_miscalibrated
    assert [*found.rows] == ["uncalibrated", "temperature", "platt", "histogram", "isotonic"]
    assert any("ets, vector, matrix, bbq and pipelines are left out" in note for note in found.notes)
    sharp = Predictions(2*preds.logits, preds.target)
    repaired = evaluate(sharp.weighted(weight), calibrators=["platt", "vector"])
    p = repaired.fitted["platt"].transform(torch.tensor([[2.]])).item()
    assert p == pytest.approx(1/(1 + np.exp(-1)), abs=.03)
    assert any("vector could not be fitted: sample_weight" in note for note in repaired.notes)


def test_two_models_are_compared_on_the_population():
    preds, weight = drawn(6000)
    lower = Predictions(preds.logits - 1.2, preds.target)  # wrong on the population, better on the file
    higher = Predictions(preds.logits + 1.2, preds.target)
    assert compare_models(preds, higher).verdict("nll") == "better"
    found = compare_models(preds.weighted(weight), higher)
    assert found.verdict("nll") == "worse" and "with sampling weights" in found.caption()
    assert compare_models(preds.weighted(weight), lower).verdict("ece") == "worse"
    share = weight.double()/weight.sum()
    assert found.differences["nll"].value == pytest.approx((share*(higher.nll - preds.nll)).sum().item(), rel=1e-9)
    assert found.differences["error"].new == pytest.approx((share*~higher.hit).sum().item(), rel=1e-9)
    copies = torch.arange(len(preds)).repeat_interleave(weight.long())
    slow = compare_models(preds[copies].clustered(copies), higher[copies])
    for name, d in found.differences.items():
        twin = slow.differences[name]
        assert (d.old, d.new) == pytest.approx((twin.old, twin.new), rel=1e-9), name
        assert d.value == pytest.approx(twin.value, rel=.05, abs=1e-3), name
        assert d.high - d.low == pytest.approx(twin.high - twin.low, rel=.15), name


def test_the_best_model_is_the_best_of_the_population():
    preds, weight = drawn(6000)
    higher = Predictions(preds.logits + 1.2, preds.target)  # better on the file
    assert higher.nll.mean() < preds.nll.mean()
    models = dict(preds=preds.weighted(weight), higher=higher.weighted(weight))
    assert evaluate_several(models, calibrators=[]).best == ["preds"]


def test_rows_of_a_table_share_the_weights():
    "Folds have other mean weights; a temperature changes no error, and the few samples behind a choice are samples."
    preds, _ = drawn(1000, 3)
    weight = torch.where(torch.arange(len(preds)) < 40, 40., 1.).double()
    found = evaluate(Predictions(3*preds.logits, preds.target).weighted(weight), calibrators=["temperature"])
    before, after = (found.rows[row]["error"].value for row in ("uncalibrated", "temperature"))
    assert after == pytest.approx(before, rel=1e-12)
    scored = found.scored["temperature"]
    assert found.rows["temperature"]["nll"].value == pytest.approx((weight/weight.sum() @ scored.nll).item(), rel=1e-6)
    gain = (weight*(found.scored["uncalibrated"].nll - scored.nll)).sort(descending=True)[0]
    least = int((gain.sum() - gain.cumsum(0) <= 0).nonzero()[0, 0]) + 1
    assert found.choice.deciding_samples("temperature", "uncalibrated") == least


def test_labels_needed_with_weights():
    preds, weight = drawn(2000)
    conf, y = preds.probs[:, 0], preds.target
    plain, same = (labels_needed(conf, y, width=10, weight=w) for w in (None, torch.full_like(conf, 3.)))
    shown = "bins are off as these labels show"
    assert same.now == plain.now and same.n == pytest.approx(plain.assumed[shown], rel=.15)
    assert labels_needed(conf, y, width=10, weight=weight).now["ece"] < 8 < 20 < plain.now["ece"]


def test_a_page_and_everything_that_knows_no_weights(tmp_path):
    preds, weight = drawn(1000)
    preds = Predictions(preds.logits, preds.target, groups=dict(site=np.arange(len(preds)) % 2)).weighted(weight)
    found = evaluate(preds, calibrators=["platt"])
    assert "sampling weights" in write_page(found, tmp_path/"a.html").read_text()
    scored = found.scored["uncalibrated"]
    calls = [lambda: slices(preds, "site"), lambda: Slopes.of(found), lambda: evaluate_shifted(found, preds, preds),
             lambda: expected_accuracy(preds.probs, preds), lambda: reliability_explorer(preds), scored.classwise_ece,
             scored.judged.ada_ece, lambda: compare_models(Predictions(preds.logits, preds.target), preds)]
    for call in calls:
        with pytest.raises(ValueError, match="sampling weights"):
            call()
    with pytest.raises(ValueError, match="metrics: 'ks_error', but the samples have weights"):
        evaluate(preds, metrics=["ks_error"])


@pytest.mark.parametrize("weight, said", [
    ([1, 2], r"weight: shape \(2,\), want \(3,\)"), ([1, -2, 1], "weight: -2 in row 1"), ([0]*3, "weight: 0 for every"),
    ([1, 2, np.nan], "weight: nan in row 2"), (["a", "b", "c"], "weight: ")])
def test_wrong_weights(weight, said):
    with pytest.raises(ValueError, match=said):
        Predictions([[1.], [2.], [3.]], [0, 1, 1]).weighted(weight)


def test_the_commands_take_a_column_of_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    preds, weight = drawn(4000)
    table = pd.DataFrame(dict(p=preds.probs[:, 0], y=preds.target, w=weight))
    table.to_csv("p.csv", index=False)
    table.assign(w=table.w.where(table.index > 9, 0)).to_csv("zeros.csv", index=False)
    table.assign(w=["much", *table.w[1:]]).to_csv("text.csv", index=False)
    for line in "audit p.csv", "audit p.csv --val zeros.csv --n", "audit zeros.csv":
        assert cli.main(f"{line.removesuffix(' --n')} --weight w --no-report".split()) == (2 if "--n" in line else 0)
    out, err = capsys.readouterr()
    assert "No miscalibration is seen beyond chance" in out and f"zeros.csv: {len(table) - 10:,} samples" in out
    assert "so calibrators would be judged on samples they were fitted on" in err
    assert cli.main("compare p.csv p.csv --weight w".split()) == 0
    assert cli.main("compare zeros.csv p.csv --weight w".split()) == 0
    assert f"{len(table) - 10:,} samples with sampling weights" in capsys.readouterr().out
    assert cli.main("plan p.csv --width 5 --weight w".split()) == 0
    assert "drawn with the same weights" in capsys.readouterr().out
    table.assign(row=table.index).rename(columns=dict(w="survey_weight")).to_csv("named.csv", index=False)
    assert cli.main(["audit", "named.csv"]) == 2
    assert "--weight survey_weight" in capsys.readouterr().err
    refused = {"audit text.csv": "'w' holds 'much' in row 0, want numbers",
               "compare text.csv p.csv": "'w' holds 'much' in row 0, want numbers",
               "audit p.csv --slopes": "--weight: given with --slopes, which knows no weights"}
    for line, said in refused.items():
        assert cli.main(f"{line} --weight w".split()) == 2
        assert said in capsys.readouterr().err
