"Slope, distances and parts of scores in an audit: printed, as JSON, and on the page."
import json

import pytest

from calibnb import cli


def test_an_audit_gives_slopes_before_and_after(tmp_path, monkeypatch, capsys):
    "The logits of the example are twice the true ones, so the slope of the top label is far below 1."
    monkeypatch.chdir(tmp_path)
    assert cli.main(["audit", "--example", "--calibrator", "temperature", "--slopes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["slopes"]
    assert list(found) == ["uncalibrated", "temperature"]
    before, after = (row["slope"] for row in found.values())
    assert before["high"] < .6 and after["low"] < 1 < after["high"]
    brier = found["uncalibrated"]["brier"]
    assert brier["miscalibration"] - brier["discrimination"] + brier["uncertainty"] == pytest.approx(brier["score"])
    page = (tmp_path/"calibnb-audit"/"calibnb-example"/"report.html").read_text()
    assert "Slope and distances" in page and '"corp":{"at":[' in page
    assert cli.main(["audit", "calibnb-example.npz", "--calibrator", "temperature", "--slopes", "--no-report"]) == 0
    said = capsys.readouterr().out
    assert f"calibration slope         {before['estimate']:.3f}" in said
    assert all("a restricted cubic spline on the log-odds" in text for text in (said, page))  # the smoother of ICI
