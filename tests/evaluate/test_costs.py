"Costs and net benefits of an audit: a slow twin, their intervals, and what the command line refuses."
import json
import re

import numpy as np
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.core.checks import reaches
from calibnb.evaluate import evaluate
from calibnb.evaluate.costs import Decisions
from calibnb.posthoc import make_calibrator

DRAW = torch.Generator().manual_seed(0)
ODDS = torch.randn(1500, generator=DRAW, dtype=torch.float64) - 1
TARGET = torch.rand(1500, generator=DRAW) < ODDS.sigmoid()
ONE, TWO = 3*ODDS, torch.stack([torch.zeros_like(ODDS), 3*ODDS], 1)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("one.npz", logits=ONE, target=TARGET)
    np.savez("three.npz", logits=2*np.eye(3)[[0, 1, 2]*20], target=[0, 1, 2]*20)


@pytest.mark.parametrize("logits", [ONE, TWO], ids=["one column", "two columns"])
def test_slow_twin(logits):
    "One sample after the other; intervals of the gain from resamples of another kind."
    found = evaluate(Predictions(logits, TARGET.long()), calibrators=["temperature"], n_boot=20, draws=5)
    decisions, each = Decisions.of(found, 1, 4), {}
    for name, one in found.scored.items():
        each[name] = (one.one if one.binary else torch.where(one.pred == 1, one.conf, 1 - one.conf)).numpy()
    before, after, y = each["uncalibrated"], each["temperature"], TARGET.numpy()
    def benefits(p, t):
        weight = {True: 1, False: -t/(1 - t)}
        return np.array([weight[hit]*(one >= t) for one, hit in zip(p.tolist(), y.tolist())])
    for row in decisions.thresholds:
        gains = benefits(after, row["threshold"]) - benefits(before, row["threshold"])
        assert [row["gain"], row["after"] - row["before"]] == pytest.approx([gains.mean()]*2)
        means = gains[np.random.default_rng(1).integers(len(y), size=(500, len(y)))].mean(1)
        ends = np.quantile(means, [.025, .975])
        np.testing.assert_allclose(row["interval"], ends, atol=.2*max(1e-9, np.ptp(ends)))
    costs = [sum((p < .2)*y*4 + (p >= .2)*~y)/len(y) for p in (before, after, 1 + 0*before, 0*before)]
    assert [row["cost"] for row in decisions.costs] == pytest.approx(costs)
    assert decisions.saved["value"] == pytest.approx(costs[0] - costs[1])


def test_the_saved_cost_has_the_interval_of_the_gain():
    "The saved cost is cost_fn times the gain in net benefit at the threshold of the costs, also on few samples."
    found = evaluate(Predictions(ONE[:60], TARGET[:60].long()), calibrators=["temperature"], n_boot=20, draws=5)
    decisions = Decisions.of(found, 1, 4)
    row, = (row for row in decisions.thresholds if row["threshold"] == decisions.threshold)
    assert decisions.saved["value"] == pytest.approx(4*row["gain"])
    assert decisions.saved["interval"] == pytest.approx([4*end for end in row["interval"]])


@pytest.mark.parametrize("flags, message", [
    ("one.npz --cost-fp 1", "--cost-fp: given without --cost-fn; want both costs"),
    ("one.npz --cost-fn 1", "--cost-fn: given without --cost-fp; want both costs"),
    ("one.npz --cost-fp 0 --cost-fn 1", "--cost-fp: 0, want a number above 0"),
    ("one.npz --cost-fp 1 --cost-fn nan", "--cost-fn: nan, want a number above 0"),
    ("three.npz --cost-fp 1 --cost-fn 2", "--cost-fp: given for 3 classes, want two"),
])
def test_refusals(flags, message, capsys):
    assert cli.main(["audit", "--logits", "--no-report", *flags.split()]) == 2
    assert re.match(f"calibnb: {re.escape(message)}.*\n$", capsys.readouterr().err)


def test_the_command_prints_the_costs(capsys):
    command = "audit one.npz --logits --no-report --calibrator temperature --cost-fp 1 --cost-fn 4".split()
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "predict y = 1 if P(y = 1) ≥ 0.200" in text and "Calibration saves " in text
    assert max(map(len, text[text.index("A false positive"):].splitlines())) <= 80
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["decisions"]
    assert [row["name"] for row in found["costs"]] == ["uncalibrated", "temperature", "treat everybody", "treat nobody"]


def test_the_threshold_in_the_command_is_the_one_of_the_costs(capsys):
    "With four digits it was .1667, which a probability of 1/6 does not reach."
    np.savez("new.npz", logits=TWO, target=TARGET.long())
    assert cli.main("audit new.npz --logits --calibrator temperature --cost-fp 1 --cost-fn 5 --to audit".split()) == 0
    printed = float(re.search(r"--threshold (\S+) ", capsys.readouterr().out)[1])
    assert reaches(torch.tensor([1/6], dtype=torch.float64), printed).all()


def test_the_command_of_an_audit_predicts_at_the_threshold_of_the_costs(capsys):
    np.savez("new.npz", logits=TWO, target=TARGET.long())
    assert cli.main("audit new.npz --logits --calibrator temperature --cost-fp 1 --cost-fn 4 --to audit".split()) == 0
    command = re.search("to do +calibnb (apply .*)\n", capsys.readouterr().out)[1]
    assert "--threshold 0.2 " in command
    assert cli.main(command.replace("FILE", "new.npz").split()) == 0
    written = np.load("OUT.npz")
    np.testing.assert_array_equal(written["prediction"], written["probs"][:, -1] >= .2)
    assert 0 < written["prediction"].mean() != (written["probs"][:, -1] >= .5).mean()


@pytest.mark.parametrize("file, flags, message", [
    ("one.npz", "--threshold 20", "--threshold: 20, want a probability above 0 and below 1"),
    ("three.npz", "--threshold .2", "--threshold: c.safetensors has 3 classes, want a binary model"),
])
def test_wrong_thresholds(file, flags, message, capsys):
    scores = np.load(file)
    target = np.concatenate([[1]*9, scores["target"][9:]])  # temperature scaling needs errors
    make_calibrator("temperature").fit(scores["logits"], target).save("c.safetensors")
    assert cli.main(["apply", "c.safetensors", file, "--logits", "--out", "out.npz", *flags.split()]) == 2
    assert capsys.readouterr().err == f"calibnb: {message}\n"
