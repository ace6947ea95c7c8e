"Checks with codes: in the answer, in JSON that fits its schema, in the report, and left out on demand."
import json
import re
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import CHECKS, UNCALIBRATED, evaluate, gate
from calibnb.evaluate.answer import verdict
from calibnb.evaluate.choice import Choice
from calibnb.evaluate.page import write_page
from calibnb.metrics import Measure

DOCS = Path(__file__).resolve().parents[2]/"docs"
SCHEMA = json.loads((DOCS/"audit-1.schema.json").read_text())


def sharp(n=800, factor=2.):
    "Logits of four classes, `factor` times the true ones, and labels."
    draw = torch.Generator().manual_seed(0)
    logits = 2*torch.randn(n, 4, generator=draw)
    return factor*logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logits, target = sharp()
    np.savez("sharp.npz", logits=logits, target=target)
    probs = torch.where(logits.softmax(1) < .01, 0, logits.softmax(1))
    np.savez("zeros.npz", probs=probs/probs.sum(1, keepdim=True), target=target)
    return tmp_path


def audit(capsys, *args):
    code = cli.main(["audit", *args, "--calibrator", "temperature", "--no-report"])
    return code, capsys.readouterr()


@pytest.mark.parametrize("args", [["sharp.npz"], ["zeros.npz"], ["sharp.npz", "--shifted", "other.npz"],
                                  ["sharp.npz", "--max-ece", "10", "--after", "--fail-on", "CNB002"]])
def test_json_fits_its_schema(here, capsys, args):
    logits, target = sharp(factor=3.)
    np.savez("other.npz", logits=logits + 1e-3*torch.randn(800, 4), target=target)
    code, out = audit(capsys, *args, "--json")
    found = json.loads(out.out)
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(found)
    assert code == 0 and [c["code"] for c in found["checks"]] == sorted(CHECKS)
    assert found["rows"].keys() == {"uncalibrated", "temperature"}


def test_zeros_are_told_once_and_can_be_ignored(here, capsys):
    code, out = audit(capsys, "zeros.npz")
    assert code == 0 and out.out.count("labels have probability 0") == 1 and "CNB010 exact zeros: " in out.out
    _, out = audit(capsys, "zeros.npz", "--ignore", "cnb010")
    assert "CNB010" not in out.out and "probability 0" not in out.out
    code, out = audit(capsys, "zeros.npz", "--ignore", "CNB01")
    assert code == 2 and "--ignore: 'CNB01' is not known" in out.err


def test_every_code_has_its_section():
    page = (DOCS/"checks.md").read_text()
    assert all(f"\n## {code}\n" in page and f"(#{code.lower()})" in page for code in CHECKS)


def test_three_exit_codes(tmp_path, monkeypatch, capsys):
    "Logits of twice the true size fail, true logits pass, and sixty samples cannot decide."
    monkeypatch.chdir(tmp_path)
    codes, said = {}, {}
    for model, args in dict(sharp=(4000, 2.), calibrated=(4000, 1.), few=(60, 1.)).items():
        logits, target = sharp(*args)
        np.savez(f"{model}.npz", logits=logits, target=target)
        line = [f"{model}.npz", "--max-ece", "7", "--fail-on", "CNB002", "--junit", f"{model}.xml"]
        codes[model], out = audit(capsys, *line)
        said[model] = out.out
    assert codes == dict(sharp=1, calibrated=0, few=2)
    parts = {model: ElementTree.parse(tmp_path/f"{model}.xml").getroot() for model in ("sharp", "calibrated", "few")}
    assert {m: (s.get("tests"), s.get("failures"), s.get("errors")) for m, s in parts.items()} == dict(
        sharp=("2", "1", "0"), calibrated=("2", "0", "0"), few=("2", "0", "1"))
    assert "samples would decide" in parts["few"].find("testcase/error").get("message")
    assert "UNDECIDED  ECE at most 7 %: ECE " in said["few"]


def biased():
    "Binary predictions whose log-odds are twice the true ones, and shifted."
    draw = torch.Generator().manual_seed(0)
    z = 1.5*torch.randn(2000, 1, generator=draw, dtype=torch.float64)
    return Predictions(2.5*z + 1.5, (torch.rand(2000, generator=draw, dtype=torch.float64) < z[:, 0].sigmoid()).long())


@pytest.mark.parametrize("calibrator, outcome, advice", [
    ("platt", "passed", "agrees with the share"), ("temperature", "failed", "with an offset (--calibrator platt)")])
def test_the_bias_that_a_calibrator_leaves_decides_after_it(calibrator, outcome, advice):
    found = evaluate(biased(), calibrators=[calibrator], n_boot=20, draws=20)
    assert found.recommended == calibrator
    before, after = (gate(found, fail_on=["CNB005"], after=after)[0] for after in (False, True))
    assert before.outcome == "failed" and after.outcome == outcome and after.name.endswith(f"after {calibrator}")
    check, = (c for c in found.checks if c.code == "CNB005")
    assert advice in check.advice
    said = verdict(found)
    assert "P(y = 1) is too high by" in said and "probability of the predicted label is too high" in said
    assert "overconfident" not in said


def test_the_tile_of_the_nll_shows_an_nll(tmp_path):
    preds = biased()
    p = preds.probs[:, 0].clone()
    for worst in None, 0.:
        if worst is not None: p[preds.target == 1] = p[preds.target == 1].where(p[preds.target == 1] > .05, worst)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = evaluate(Predictions.from_probs(p, preds.target), calibrators=["platt"], n_boot=20, draws=2)
        page = write_page(found, tmp_path/"page.html").read_text()
        tile = page.split("<h2>NLL</h2>")[1].split("</section>")[0]
        row = "platt" if worst is not None else UNCALIBRATED
        assert f"<b>{found.rows[row]['nll'].value:.4f}</b>" in tile and ("infinite" in tile) == (worst is not None)


def of_classes(n, seed, factor=1.5):
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(n, 5, generator=draw)
    return Predictions(factor*logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0])


def test_validation_labels_without_a_class():
    "The class is named, no row of the table makes it impossible, and vector scaling may still be recommended."
    preds, val = of_classes(1500, 0), of_classes(1500, 1)
    val = val[val.target != 2]
    found = evaluate(preds, val, calibrators=["temperature", "vector", "matrix"])
    missing = next(c for c in found.checks if c.code == "CNB015")
    assert missing.status == "tip" and missing.text == "1 of 5 classes have no validation sample: '2'."
    assert [note for note in found.notes if note.startswith("vector: ") and "no sample of class 2 in the fit" in note]
    nll = {row: found.rows[row]["nll"].value for row in found.rows}
    assert nll["vector"] < nll["uncalibrated"] and "vector" not in found.doubtful


@pytest.mark.parametrize("code, spoil", [
    ("CNB002", lambda v: Predictions(v.logits, (v.target + 1) % 5)),
    ("CNB014", lambda v: v[torch.cat([torch.arange(1500), torch.arange(100)])]),
    ("CNB015", lambda v: v[v.target != 2])])
def test_checks_of_labels_look_at_the_validation_set(code, spoil):
    preds, val = of_classes(1500, 0), of_classes(1500, 1)
    def outcome(val):
        found = evaluate(preds, val, calibrators=["temperature"])
        return next(c for c in found.checks if c.code == code)
    assert outcome(val).status == "passed"
    spoilt = outcome(spoil(val))
    assert spoilt.status in ("issue", "tip") and "validation" in spoilt.text


@pytest.mark.filterwarnings("ignore:1 of 1500 labels have probability 0")
def test_zeros_of_validation_labels_are_an_issue():
    preds, val = (Predictions.from_probs(p.probs, p.target, .01) for p in (of_classes(1500, 0), of_classes(1500, 1)))
    probs = val.probs.clone()
    probs[0, val.target[0]] = 0
    val = Predictions.from_probs(probs/probs.sum(1, keepdim=True), val.target, .01)
    found = evaluate(preds, val, calibrators=["temperature"])
    zeros = next(c for c in found.checks if c.code == "CNB010")
    assert zeros.status == "issue" and zeros.text.startswith("Validation samples: 1 of 1500 labels have probability 0")


def test_audit_of_masked_classes():
    preds, val = of_classes(1500, 0), of_classes(1500, 1)
    def masked(p):
        logits = p.logits.clone()
        logits[::2, 4] = -torch.inf
        kept = logits.gather(1, p.target[:, None])[:, 0] > -torch.inf
        return Predictions(logits[kept], p.target[kept])
    preds, val = masked(preds), masked(val)
    assert preds.nll.isfinite().all() and preds.probs[preds.logits == -torch.inf].eq(0).all()
    for found in evaluate(preds, val), evaluate(preds):
        assert len(found.rows) > 5 and not [note for note in found.notes if "could not be fitted" in note]
        for row in found.rows.values(): assert np.isfinite([m.value for m in row.values() if m.value is not None]).all()


def test_the_samples_that_would_decide_are_told_without_the_bias_of_the_ece():
    "A true ECE of 2 % and a limit of 5 %: an interval of 560 samples is twice as wide as what decides."
    wanted = []
    for seed in range(9):
        draw = torch.Generator().manual_seed(seed)
        p = torch.rand(560, generator=draw, dtype=torch.float64)
        y = (torch.rand(560, generator=draw) < (p + .04*(p > .5)).clip(0, 1)).long()
        text = gate(evaluate(Predictions.from_probs(p, y), calibrators=[]), max_ece=.05)[0].text
        wanted += [int(n.replace(",", "")) for n in re.findall(r"about ([\d,]+) samples would decide", text)]
    assert len(wanted) > 5 and min(wanted) > 560 and 1000 < sorted(wanted)[len(wanted)//2] < 5000


def test_no_calibrator_that_raises_the_nll_is_recommended():
    given = {UNCALIBRATED: (.5, .06), "temperature": (.502, .05), "platt": (.4995, .055)}
    row = {name: dict(nll=Measure(value=nll, n=500), ece=Measure(value=ece, n=500, floor_high=.02, p=.01))
           for name, (nll, ece) in given.items()}
    assert Choice(row, best=["platt", UNCALIBRATED, "temperature"]).row == "platt"  # not the lowest ECE
    del row["platt"]
    assert Choice(row, best=[UNCALIBRATED, "temperature"]).row == UNCALIBRATED
