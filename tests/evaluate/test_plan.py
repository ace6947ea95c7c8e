"The number of labels that an ECE needs: power and coverage of simulated audits, and the command."
import json
import math
import re

import numpy as np
import pytest
import torch

from calibnb import cli
from calibnb.evaluate import labels_needed
from calibnb.metrics.bins import width_bins
from calibnb.metrics.intervals import gap_interval

DRAW = torch.Generator().manual_seed(0)
CONF = 1 - .5*torch.rand(4000, generator=DRAW, dtype=torch.float64)**2
PROBS = torch.stack([CONF, 1 - CONF], 1)


CASES = [(dict(below=2), 1), (dict(width=2), 0), (dict(width=2), 1)]


@pytest.mark.parametrize("options, points", CASES[::2])
def test_power_and_coverage(options, points, audits=60):
    """Audits of single samples, whose confidences are too high by some points, decide in 80 % of all cases.

    Up to 3.1 standard errors, which chance exceeds once in 1,000 times, and to what the plan approximates.
    """
    def noise(share): return 3.1*math.sqrt(share*(1 - share)/audits)
    n, gap = labels_needed(PROBS, **options, assumed_ece=points).n, points/100
    ends = []
    for _ in range(audits):
        some = CONF[torch.randint(len(CONF), (n,), generator=DRAW)]
        table = width_bins(some, torch.rand(n, generator=DRAW, dtype=torch.float64) < some - gap, 15)
        ends.append(gap_interval(table.gap, table.acc, table.count, table.weight))
    low, high = torch.tensor(ends).T
    reached = high < .02 if "below" in options else high - low <= .02
    assert -noise(.8) - .02 < reached.double().mean() - .8 < noise(.8) + .04
    assert ((low <= gap + 1e-12) & (gap <= high)).double().mean() > .95 - noise(.95)


def refused(capsys, line):
    assert cli.main(["plan", *line.split()]) == 2
    return capsys.readouterr().err


def test_the_command(tmp_path, monkeypatch, capsys):
    "Logits and probabilities, one column and two, with labels and without."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(labels_needed.__kwdefaults__, "draws", 100)  # a third of what it takes
    odds, labels = (CONF/(1 - CONF)).log(), torch.rand(len(CONF), generator=DRAW) < CONF
    np.savez("logits.npz", logits=torch.stack([odds, 0*odds], 1))
    np.savez("probs.npz", probs=PROBS)
    np.savez("column.npz", probs=CONF)
    np.savez("labelled.npz", probs=CONF, target=labels)
    found = {}
    for name in "logits", "column", "labelled":
        kind = "--logits" if name == "logits" else "--probs"
        assumed = [] if name == "labelled" else ["--assume", "0"]
        assert cli.main(["plan", f"{name}.npz", kind, "--below", "2", "--json", *assumed]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    assert found["column"]["n"] == labels_needed(PROBS, below=2, assumed_ece=0).n
    assert found["logits"]["n"] == pytest.approx(found["column"]["n"], rel=.02)
    assert found["labelled"]["now"]["n"] == len(CONF)
    assert cli.main(["plan", "probs.npz", "--probs", "--width", "2", "--assume", "0"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"About [\d,]+ labels give the ECE an interval of at most 2 points", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "--power: 2, want a share" in refused(capsys, "probs.npz --probs --width 1 --power 2")
    assert "--below: 0, want percentage points" in refused(capsys, "probs.npz --probs --below 0")
    assert "--assume: 60, want percentage points" in refused(capsys, "probs.npz --probs --below 2 --assume 60")
