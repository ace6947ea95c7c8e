"The classes in the report of an audit: their errors against NumPy, their order and names, and audits without them."
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibnb import cli

N, DRAW = 3000, np.random.default_rng(0)
LOGITS = 2*DRAW.standard_normal((N, 12)) - np.arange(12)/4  # class 11 is rare
TARGET = (LOGITS + DRAW.gumbel(size=LOGITS.shape)).argmax(1)
NAMES = [f"{k} </script><b>" for k in range(12)]


@pytest.fixture
def report(tmp_path, monkeypatch):
    "Audit logits, and return the text of the report and its data."
    monkeypatch.chdir(tmp_path)

    def write(logits, *more):
        frame = pd.DataFrame(logits, columns=NAMES).assign(target=np.array(NAMES)[TARGET], who=np.arange(N)//3)
        frame.to_csv("net.csv", index=False)
        flags = ["--logits", "--calibrator", "vector", *(more or ["--ignore-col", "who"])]
        assert cli.main(["audit", "net.csv", *flags]) == 0
        text = Path("calibnb-audit/net/report.html").read_text()
        return text, json.loads(re.search('id="data">(.*?)</script>', text)[1])
    return write


def by_hand(logits):
    "Return the (12,) ECE of each class, bin by bin."
    probs = np.exp(logits)/np.exp(logits).sum(1, keepdims=True)
    ids = np.clip(np.ceil(15*probs) - 1, 0, 14)
    gaps = (TARGET[:, None] == np.arange(12)) - probs
    return sum(abs(np.where(ids == m, gaps, 0).sum(0)) for m in range(15))/N


def test_the_worst_classes_come_first(report):
    "The logits of a frequent and of a rare class are too large; both lead, and vector scaling mends them."
    biased = LOGITS + np.isin(np.arange(12), [2, 9])
    text, data = report(biased)
    shown, ece = data["classes"], by_hand(biased)
    assert {one["name"] for one in shown[:2]} == {NAMES[2], NAMES[9]} and len(shown) == 8
    for one in shown:
        k = NAMES.index(one["name"])
        rows = one["rows"]
        assert one["n"] == f"{(TARGET == k).sum():,} samples" and list(rows) == ["uncalibrated", "vector"]
        assert rows["uncalibrated"]["lines"][0] == f"ECE {100*ece[k]:.3f} %"
        assert [sum(b["n"] for b in row["bins"]) for row in rows.values()] == [N, N]
    assert "After vector: none." in text and "4 classes with a smaller value are not shown" in text
    assert text.count("<b>") == text.count("</b>") and text.count("<script") == 2 and len(text) < 500_000


def test_chance_is_no_finding(report):
    "At most 5 % of calibrated models have a class with a finding; this one has none. Clusters have no level of chance."
    assert "No class is miscalibrated beyond chance (12 classes, smallest corrected p = " in report(LOGITS)[0]
    text, data = report(LOGITS, "--cluster", "who")
    assert "it is not known what chance explains" in text
    first = data["classes"][0]
    assert NAMES.index(first["name"]) == by_hand(LOGITS).argmax() and len(first["rows"]["uncalibrated"]["lines"]) == 1


@pytest.mark.parametrize("flags", ["--probs", "--confidence p --correct y"])
def test_one_column_has_no_classes(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p = DRAW.random(300).round(2)
    pd.DataFrame(dict(p=p, y=(DRAW.random(300) < p).astype(int))).to_csv("one.csv", index=False)
    target = [] if "correct" in flags else ["--target-col", "y"]
    assert cli.main(["audit", "one.csv", *flags.split(), *target, "--calibrator", "platt"]) == 0
    text = Path("calibnb-audit/one/report.html").read_text()
    assert "<h2>Classes" not in text and '"classes":[]' in text
