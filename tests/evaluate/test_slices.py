"Slices of an audit at the command line: in the answer, in JSON that fits its schema, in the report, and refused."
import inspect
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from jsonschema import Draft202012Validator

from calibnb import cli, evaluate
from calibnb.core import Predictions
from calibnb.evaluate import slices
from calibnb.evaluate.groups import Grouping, crossed, groupings

SCHEMA = json.loads((Path(__file__).resolve().parents[2]/"docs"/"audit-1.schema.json").read_text())
BAD = "<script>b"


def drawn(n, seed=0):
    "A calibrated model of four classes that is overconfident at one of five sites."
    draw = torch.Generator().manual_seed(seed)
    z = 3*torch.randn(n, 4, generator=draw)
    site = np.random.default_rng(seed).choice(["a", BAD, "c", "d", "e"], n)
    y = torch.multinomial(torch.where(torch.from_numpy(site == BAD)[:, None], z/3, z).softmax(1), 1, generator=draw)
    return z, y[:, 0], dict(site=site, week=np.arange(n) % 52)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    z, y, groups = drawn(2000)
    table = pd.DataFrame(z.numpy(), columns=[f"logit_{k}" for k in range(4)]).assign(y=y.numpy(), **groups)
    table.to_csv("all.csv", index=False)
    np.savez("big.npz", logits=z, y=y, **groups)


def audit(capsys, line):
    return cli.main(["audit", *line.split(), "--calibrator", "temperature"]), capsys.readouterr()


def test_answer_and_report(capsys):
    code, out = audit(capsys, "all.csv --by site --by week")
    assert code == 0 and f"1 of 9 slices differs beyond chance from the whole: site = {BAD}, whose bias is" in out.out
    assert f"→ site = {BAD}" in out.out and "  site = a" in out.out
    page = Path("calibnb-audit/all/report.html").read_text()
    section = page[page.index("<h2>Slices</h2>"):page.index("<h2>Make this page again</h2>")]
    assert section.count("<tr") == 11 and section.count('<tr class="chosen">') == 1
    assert page.count("<script") == 2 and "--by site --by week" in page


def test_json_fits_its_schema(capsys):
    by = "--by site --by week --by predicted_class --by confidence_band --find-slices"
    _, out = audit(capsys, f"all.csv {by} --json --no-report")
    found = json.loads(out.out)
    Draft202012Validator(SCHEMA).validate(found)
    by_name = {row["slice"]: row for row in found["slices"]["slices"]}
    assert BAD in found["slices"]["slices"][1]["slice"] and found["slices"]["slices"][1]["p_max"] < .05
    assert f"site = {BAD}, predicted_class = 0" in by_name
    assert [row["p_max"] for name, row in by_name.items() if "confidence" in name] == [None]*4


@pytest.mark.parametrize("line, message", [
    ("all.csv --by stie", "did you mean 'site'?"),
    ("all.csv --by site --find-slices", "--find-slices: needs two columns of --by or more"),
    ("all.csv --by site --by week --least 1900", "--by: no value of 'site' has 1900 samples"),
    ("all.csv --by site --by week --least 0", "--least: 0, want a number of at least 2"),
    ("all.csv --least 60", "--least: 60, but no slices; give --by, too"),
])
def test_refusals(line, message, capsys):
    code, out = audit(capsys, f"{line} --logits --no-report")
    assert code == 2 and message in out.err and out.err.count("\n") == 1


def test_the_seed_draws_the_permutations(capsys):
    found = [audit(capsys, f"all.csv --by week --json --no-report --seed {seed}")[1].out for seed in (0, 1)]
    assert json.loads(found[0])["slices"]["slices"] != json.loads(found[1])["slices"]["slices"]


def test_ranges_of_large_numbers_have_names_of_their_own():
    names = Grouping.of("date", np.arange(20240101, 20240161), 5).names
    assert "20240115 < date ≤ 20240130" in names and len({*names}) == 4
    assert len({*Grouping.of("x", 1e7 + np.arange(60)/7, 5).names}) == 4


def test_cyclic_shifts_agree_with_permutations(monkeypatch):
    "Strata of 2,500 samples: p values of cyclic shifts and of permutations differ by the noise of 1,000 draws."
    z, y, groups = drawn(10_000, seed=1)
    z[groups["site"] == BAD] /= 3  # nobody differs
    preds = Predictions(z, y, groups=dict(site=groups["site"]))
    monkeypatch.setattr("calibnb.evaluate.groups._SHIFTED", 1)
    shifted = {s.name: s.p for s in slices(preds).slices}
    monkeypatch.setattr("calibnb.evaluate.groups._SHIFTED", 10**9)
    permuted = {s.name: s.p for s in slices(preds).slices}
    for name, p in shifted.items(): assert abs(p - permuted[name]) < 4*(2*max(p*(1 - p), .01)/1000)**.5, name


def test_slices_of_all_columns_have_names_of_their_own():
    "Names of two columns, of intersections, and of a column that is named like a band of confidence."
    z, y, groups = drawn(2000)
    conf = z.softmax(1).amax(1).numpy()
    groups = {"a": np.where(y % 2, "1, b = 2", "1"), "b": np.where(y > 1, "2", "2, b = 2"), "confidence": conf}
    found = slices(Predictions(z, y, groups=groups), ["a", "b", "confidence", "confidence_band"], find=True, least=5)
    names = [s.name for s in found.slices]
    assert len({*names}) == len(names) and found.frame().index.is_unique
    with pytest.raises(ValueError, match="groups: two columns are named '1'"): Predictions(z, y, groups={1: y, "1": y})


@pytest.mark.parametrize("rare, least, said", [
    ([None], 5, "part: the missing value with fewer than 5 samples is left out, 1 sample."),
    (["b"], 5, "part: 1 value with fewer than 5 samples is left out, 1 sample."),
    (["b", "c", None], 5, "part: 2 values and the missing value with fewer than 5 samples are left out, 3 samples."),
    (["b", None], 2, 'part: 1 value and the missing value with fewer than 2 samples are pooled as "other", 2 samples.'),
])
def test_a_note_calls_a_missing_value_missing(rare, least, said):
    assert Grouping.of("part", ["a"]*9 + rare, least).note == said


def test_a_printed_excess_is_explained():
    z, y, groups = drawn(2000)
    found, told = slices(Predictions(z, y, groups=groups), ["site"]), "bias beyond the bias of all samples"
    assert told in found.text() and told in found.caption()
    assert "excess" not in found.text(40)  # too narrow for the column


def test_slices_have_fifty_samples_unless_asked():
    for function in evaluate.slices, evaluate.compare_models, groupings, crossed:
        assert inspect.signature(function).parameters["least"].default == 50
