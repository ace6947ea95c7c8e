"What calibrators are worth on samples from elsewhere: the numbers of audits there, by hand, and at the command line."
import json

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import UNCALIBRATED, check_shifted, evaluate, evaluate_shifted
from calibnb.metrics import ece, nll
from calibnb.posthoc import make_calibrator

NAMES = ["temperature", "vector", "histogram", "temperature+isotonic"]


def sampled(n, factor, K=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2*factor*torch.randn(n, K, generator=draw)
    return Predictions(logits, torch.multinomial((logits/factor).softmax(1), 1, generator=draw)[:, 0])


@pytest.fixture(scope="module")
def sets():
    return sampled(800, 2.), sampled(500, 3., seed=1)


@pytest.fixture(scope="module")
def carried(sets):
    here, there = sets
    found = evaluate(here, calibrators=NAMES, n_boot=5, draws=3)
    return found, evaluate_shifted(found, here, there, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_fitted_here_by_hand_and_refitted_as_an_audit_there_has_it(sets, carried, name):
    here, there = sets
    found, shifted = carried
    row = shifted.rows[name]
    probs = found.fitted[name].transform(there.logits.double())
    assert (row.nll_here, row.ece_here) == tuple(found.rows[name][k].value for k in ("nll", "ece"))
    assert row.nll == pytest.approx(nll(probs, there.target).item(), abs=1e-9)
    if name == "temperature":  # of the others, another class may have more probability than the prediction
        assert row.ece == pytest.approx(ece(probs, there.target).item(), abs=1e-9)
    gain = nll(there.probs, there.target) - nll(probs, there.target)
    assert row.gain == pytest.approx(gain.item(), abs=1e-9) and row.interval[0] < row.gain < row.interval[1]
    audited = evaluate(there, calibrators=NAMES, n_boot=5, draws=3, seed=3).rows[name]
    exactly = 1e-9 if "+" not in name else .02  # there the second part is fitted on the cross-fitted first
    assert row.nll_refitted == pytest.approx(audited["nll"].value, abs=exactly)
    assert row.ece_refitted == pytest.approx(audited["ece"].value, abs=exactly)


def test_the_interval_of_a_gain(sets):
    "That of paired differences: it holds the true gain in 33 of 40 other sets: fewer once in 1,400 times."
    found = evaluate(sets[0], calibrators=["temperature"], n_boot=5, draws=3)
    fitted, held = found.fitted["temperature"], 0
    def gain(preds): return (preds.nll.mean() - nll(fitted.transform(preds.logits), preds.target)).item()
    truth = gain(sampled(100_000, 3., seed=9))
    for seed in range(40):
        low, high = evaluate_shifted(found, sets[0], sampled(300, 3., seed=100 + seed)).rows["temperature"].interval
        held += low <= truth <= high
    assert held >= 33


def test_a_calibrator_that_harms_is_told(sets):
    "Fitted where logits are three times too large, used where they are right."
    here = sampled(800, 3.)
    found = evaluate(here, calibrators=["temperature"], n_boot=5, draws=3)
    told = evaluate_shifted(found, here, sampled(500, 1., seed=2)).advice()
    assert "it harms: use none, or fit one there" in told


def test_what_cannot_be_refitted_is_a_note(sets):
    "A row of a name of one's own, on top of nothing that was fitted."
    here, there = sets
    found = evaluate(here, calibrators={"both": make_calibrator("temperature+platt")}, n_boot=5, draws=3)
    shifted = evaluate_shifted(found, here, there)
    assert shifted.rows["both"].nll_refitted is None and shifted.rows["both"].gain is not None
    assert shifted.notes == ("both: both has no row to refit on",) and "–" in shifted.text()


def test_at_the_command_line(tmp_path, capsys, monkeypatch, sets):
    monkeypatch.chdir(tmp_path)
    for name, preds in zip(("here", "there"), sets):
        np.savez(f"{name}.npz", logits=preds.logits, target=preds.target)
    line = ["audit", "here.npz", "--logits", "--no-report", "--shifted", "there.npz", "--calibrator", "temperature"]
    assert cli.main(line) == 0
    out = capsys.readouterr().out
    assert "On there.npz, 500 samples" in out and "fitted here lowers the NLL there" in out
    assert cli.main([*line, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["shifted"]["samples"] == 500 and list(record["shifted"]["rows"])[0] == UNCALIBRATED
    given = record["shifted"]["rows"][UNCALIBRATED]
    assert given["nll"] == pytest.approx(sets[1].nll.mean().item(), abs=1e-6) and given["gain"] is None
    probs = {name: preds.probs.numpy() for name, preds in zip(("here", "there"), sets)}
    for name, preds in zip(("here", "there"), sets):
        np.savez(f"{name}.npz", probs=probs[name], target=preds.target)
    assert cli.main(["audit", "here.npz", "--probs", *line[3:]]) == 0
    assert "On there.npz, 500 samples" in capsys.readouterr().out


@pytest.mark.parametrize("K", [4, 1], ids=["classes", "one column"])
def test_a_label_with_probability_zero_there_is_infinite(tmp_path, capsys, monkeypatch, K):
    "As an audit of that file has it; the temperature fitted here brings a finite NLL, and that it helps is said."
    monkeypatch.chdir(tmp_path)
    for name, preds in zip(("here", "there"), (sampled(400, 2.), sampled(300, 3., seed=1))):
        probs, target = preds.probs.clone(), preds.target
        if K == 1:
            probs, target = probs[:, :1], (target == 0).long()
        if name == "there":
            wrong = 1 - target[:1] if K == 1 else torch.eye(K)[(target[0] + 1) % K]
            probs[0] = wrong
        np.savez(f"{name}.npz", probs=probs, target=target)
    line = "audit here.npz --probs --no-report --shifted there.npz --calibrator temperature"
    assert cli.main(line.split()) == 0
    told = capsys.readouterr().out.split("On there.npz")[1]
    assert [line for line in told.split("\n") if line.startswith(UNCALIBRATED)][0].split()[2] == "∞"
    assert "lowers the NLL there by ∞: it helps, without it the NLL is infinite" in told
    assert "there.npz: 1 of 300 labels have probability 0, so the uncalibrated NLL is infinite" in told


def test_predictions_of_another_form_are_refused():
    "One column against the two of the same classes; zeros replaced with another weight."
    two = sampled(100, 2., K=2)
    one = sampled(100, 2., K=2, seed=1)
    with pytest.raises(ValueError, match="shifted: one column, P.y = 1., but preds: 2 classes; want the same"):
        check_shifted(two, Predictions(one.logits[:, 1] - one.logits[:, 0], one.target))
    with pytest.raises(ValueError, match="shifted: zeros were replaced with eps 0.1"):
        check_shifted(Predictions.from_probs(two.probs, two.target), Predictions.from_probs(one.probs, one.target, .1))


def test_the_table_lies_beside_the_others(tmp_path, capsys, monkeypatch, sets):
    "And an audit without samples from elsewhere takes it away again."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    for name, preds in zip(("here", "there"), sets):
        np.savez(f"{name}.npz", logits=preds.logits, target=preds.target)
    line = ["audit", "here.npz", "--logits", "--to", "aud", "--calibrator", "temperature"]
    assert cli.main([*line, "--shifted", "there.npz", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["shifted"]["rows"]
    table = pd.read_csv("aud/tables/shifted.csv", index_col=0)
    assert list(table.index) == list(rows)
    assert table.nll.tolist() == pytest.approx([row["nll"] for row in rows.values()])
    assert [*table.loc["temperature", ["lo", "hi"]]] == pytest.approx(rows["temperature"]["interval"])
    assert len(list((tmp_path/"aud"/"tables").iterdir())) > 1
    assert cli.main(line) == 0
    assert not (tmp_path/"aud"/"tables"/"shifted.csv").exists()
