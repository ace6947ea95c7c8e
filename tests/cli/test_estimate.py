"calibnb estimate: accuracy on predictions without labels, after a calibrator, and the exit code under a shift."
import json

import numpy as np
import pytest

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import expected_accuracy
from calibnb.posthoc import make_calibrator

DRAW = np.random.default_rng(0)
LOGITS = 2*DRAW.standard_normal((3000, 3))
TARGET = (LOGITS + DRAW.gumbel(size=LOGITS.shape)).argmax(1)  # drawn from softmax(LOGITS)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("test.npz", logits=2*LOGITS[:1000], target=TARGET[:1000])  # overconfident


def estimate(capsys, *args):
    code = cli.main(["estimate", *args, "--like", "test.npz", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_estimate_is_near_the_hidden_accuracy_with_and_without_a_calibrator(capsys):
    np.savez("new.npz", logits=2*LOGITS[1000:])
    hidden = (LOGITS[1000:].argmax(1) == TARGET[1000:]).mean()
    assert cli.main(["audit", "test.npz", "--calibrator", "temperature", "--to", "audit"]) == 0
    capsys.readouterr()
    for more in [], ["--calibrator", "audit/calibrator.safetensors"]:
        code, found = estimate(capsys, "new.npz", *more)
        assert code == 0 and found["trustworthy"] and found["n"] == 2000
        assert found["interval"][0] < hidden < found["interval"][1] and abs(found["accuracy"] - hidden) < .02


def test_other_shares_of_classes_are_called(capsys):
    np.savez("new.npz", logits=2*LOGITS[1000:] + [2, 0, 0])
    code, found = estimate(capsys, "new.npz")
    assert code == 2 and not found["trustworthy"] and found["p_classes"] < 1e-6


def test_columns_are_matched_by_name(capsys):
    header = "cat,dog,owl,target"
    np.savetxt("test.csv", np.c_[2*LOGITS[:1000], TARGET[:1000]], delimiter=",", header="cat,dog,owl,y", comments="")
    rows = open("test.csv").read().splitlines()[1:]
    words = [",".join([*row.split(",")[:3], header.split(",")[int(float(row.split(",")[3]))]]) for row in rows]
    open("test.csv", "w").write("\n".join([header, *words]))
    np.savetxt("new.csv", 2*LOGITS[1000:][:, [2, 0, 1]], delimiter=",", header="owl,cat,dog", comments="")
    assert cli.main(["estimate", "new.csv", "--like", "test.csv", "--logits"]) == 0
    assert "look like those of the labelled samples" in capsys.readouterr().out


def test_a_calibrator_of_logits_takes_no_probabilities(capsys):
    "As in `calibnb apply`; each file would be calibrated by a map for other scores."
    assert cli.main(["audit", "test.npz", "--calibrator", "temperature", "--to", "audit"]) == 0
    probs = np.exp(LOGITS)/np.exp(LOGITS).sum(1, keepdims=True)
    np.savez("test.npz", probs=probs[:1000], target=TARGET[:1000])
    np.savez("new.npz", probs=probs[1000:])
    capsys.readouterr()
    assert cli.main(["estimate", "new.npz", "--like", "test.npz", "--calibrator", "audit/calibrator.safetensors"]) == 2
    assert "was fitted on logits; give a file of logits" in capsys.readouterr().err


def test_zeros_are_as_in_apply_after_a_calibrator_that_replaced_none(capsys):
    "The fit saw no 0, so `apply` keeps a class of probability 0; the labelled file has a 0 of its own."
    probs = np.exp(2*LOGITS)/np.exp(2*LOGITS).sum(1, keepdims=True)
    make_calibrator("vector").fit_probs(probs[:1000], TARGET[:1000]).save("c.safetensors")
    def with_zeros(p): return np.where(p < .3, 0, p)/np.where(p < .3, 0, p).sum(1, keepdims=True)
    new, kept = with_zeros(probs[1000:]), probs[:1000].copy()
    kept[0] = .5, .5, 0
    np.savez("test.npz", probs=kept, target=[0, *TARGET[1:1000]])
    np.savez("new.npz", probs=new)
    assert cli.main("apply c.safetensors new.npz --probs --out o.npz".split()) == 0
    assert cli.main("apply c.safetensors test.npz --probs --out t.npz".split()) == 0
    capsys.readouterr()
    _, found = estimate(capsys, "new.npz", "--calibrator", "c.safetensors")
    labelled = np.load("t.npz")
    labelled = Predictions.from_probs(labelled["probs"], labelled["target"], 0.)
    want = expected_accuracy(np.load("o.npz")["probs"], labelled)
    assert found["accuracy"] == pytest.approx(want.accuracy, abs=1e-9) and found["p_confidence"] == want.p_confidence
