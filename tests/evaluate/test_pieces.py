"Files that are read in pieces: the answers of memory at any size of the pieces; bad files are refused."
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.evaluate import Pieces, evaluate_pieces, read_pieces, write_pieces
from calibnb.evaluate.files import read_predictions
from calibnb.posthoc import TemperatureScaling

WORDS = ["cat", "dog", "owl"]
DRAW = np.random.default_rng(0)
LOGITS = 3*DRAW.standard_normal((3000, 3))
TARGET = (LOGITS/2 + DRAW.gumbel(size=(3000, 3))).argmax(1)
FRAME = pd.DataFrame(LOGITS, columns=WORDS).assign(target=np.array(WORDS)[TARGET])


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    Path("parts").mkdir()
    FRAME[:1400].to_parquet("parts/1.parquet", row_group_size=333)
    FRAME[1400:].to_parquet("parts/2.parquet")
    FRAME.to_parquet("all.parquet")
    np.savez("all.npz", logits=LOGITS, target=TARGET)
    np.savez("val.npz", logits=LOGITS[::-1]*1.1, target=TARGET[::-1])
    turned = pd.DataFrame(LOGITS[::-1, ::-1]*1.1, columns=WORDS[::-1])
    turned.assign(target=np.array(WORDS)[TARGET[::-1]]).to_parquet("turned.parquet")


def audited(capsys, *args):
    assert cli.main(["audit", *args, "--logits", "--no-report", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("file, val", [("parts/*.parquet", "turned.parquet"), ("all.npz", "val.npz")])
def test_the_command_goes_in_pieces_by_itself_and_gives_the_answer_of_memory(capsys, file, val):
    names = ["--calibrator", "temperature", "--calibrator", "histogram", "--seed", "3"]
    found = audited(capsys, file, *names, "--val", val, "--rows-in-memory", "1000")
    assert any(note.startswith("All 3,000 samples are measured, in pieces of") for note in found["notes"])
    whole = audited(capsys, "all.npz", *names, "--val", "val.npz")
    assert [found[key] for key in ("recommended", "samples")] == [whole["recommended"], 3000]
    for row, measures in whole["rows"].items():
        for name, m in measures.items():
            if name == "ada_ece":
                continue  # held below
            assert found["rows"][row][name]["value"] == pytest.approx(m["value"], abs=1e-9), (row, name)
    ada = (rows["rows"]["uncalibrated"]["ada_ece"]["value"] for rows in (found, whole))
    assert next(ada) == pytest.approx(next(ada), abs=1e-6)


def test_the_size_of_the_pieces_changes_no_answer():
    how = dict(part=2000, draws=5, calibrators=["temperature", "platt", "histogram"])
    few, many = (evaluate_pieces(Pieces("parts", "logits", rows=rows), **how) for rows in (3000, 701))
    assert few.notes[-1] == many.notes[-1] and few.recommended == many.recommended
    for row, measures in few.rows.items():
        for name, m in measures.items():
            assert many.rows[row][name].value == pytest.approx(m.value, abs=1e-9)


def test_a_single_column_with_words_and_zeros_is_read_as_in_memory():
    p = np.round(1/(1 + np.exp(-LOGITS[:, 0])), 1)
    pd.DataFrame(dict(p=p, y=np.where(TARGET == 0, "yes", "no"))).to_parquet("one.parquet", row_group_size=500)
    with pytest.warns(UserWarning, match="labels have probability 0"):
        whole = read_predictions("one.parquet", "probs", pos_label="yes")
    pieces = Pieces("one.parquet", "probs", pos_label="yes", rows=400)
    assert (pieces.classes, pieces.eps) == (("no", "yes"), pytest.approx(whole.eps)) and whole.eps > 0
    for name in "logits", "target", "given":
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(whole, name))


def test_apply_writes_the_same_probabilities_in_pieces():
    TemperatureScaling().fit(LOGITS, TARGET).save("t.safetensors")
    for out, more in ("memory", []), ("pieces", ["--rows-in-memory", "100"]):
        assert cli.main(["apply", "t.safetensors", "all.parquet", "--logits", "--out", f"{out}.parquet", *more]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet("pieces.parquet"), pd.read_parquet("memory.parquet"), rtol=1e-12)
    assert cli.main(["apply", "t.safetensors", "parts", "--logits", "--out", "out.npy"]) == 0
    np.testing.assert_allclose(np.load("out.npy"), pd.read_parquet("memory.parquet")[WORDS], rtol=1e-12)
    np.savez("maps.npz", logits=LOGITS[:320].reshape(20, 3, 4, 4))  # is not read in pieces
    assert cli.main("apply t.safetensors maps.npz --logits --out maps_out.npz --rows-in-memory 2".split()) == 0
    assert np.load("maps_out.npz")["probs"].shape == (320, 3)


BAD = {
    "no rows": (lambda: FRAME[:0].to_parquet("parts/3.parquet"), "3.parquet: has no rows; leave it out"),
    "other columns": (lambda: FRAME.rename(columns=dict(cat="fox")).to_parquet("parts/3.parquet"),
                      "3.parquet: has the columns 'fox', 'dog', 'owl', 'target', want 'cat', 'dog', 'owl', 'target'"),
    "text": (lambda: FRAME.assign(dog="x").to_parquet("parts/3.parquet"), "column 'dog' holds text, 'x' in row 3000"),
    "nan": (lambda: FRAME.assign(dog=np.nan).to_parquet("parts/3.parquet"), "column 'dog' holds nan in row 3000"),
    "ends early": (lambda: Path("parts/3.parquet").write_bytes(Path("all.parquet").read_bytes()[:-900]),
                   "3.parquet cannot be read as parquet"),
    "damaged": (lambda: Path("parts/3.parquet").write_bytes(
        b"PAR1" + Path("all.parquet").read_bytes()[999:]), "3.parquet cannot be read as parquet"),
    "empty folder": (lambda: [path.unlink() for path in Path("parts").iterdir()], "parts: no .parquet file found"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_piece_is_refused_in_one_line_and_nothing_is_written(case, capsys):
    TemperatureScaling().fit(LOGITS, TARGET).save("t.safetensors")
    spoil, message = BAD[case]
    spoil()
    before = sorted(Path().rglob("*"))
    for command in (["audit", "parts", "--to", "to"], ["apply", "t.safetensors", "parts", "--out", "out.parquet"]):
        assert cli.main([*command, "--logits"]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_an_error_in_a_late_piece_leaves_no_output():
    BAD["damaged"][0]()
    n, reads = read_pieces("parts", "logits", rows=500)
    pieces = ((read.logits.softmax(1), read.logits.argmax(1), read) for read in reads)
    with pytest.raises(ValueError, match="3.parquet cannot be read"):
        write_pieces("out.parquet", pieces, n)
    assert not [*Path().glob("*out.parquet*"), *Path().glob(".*out.parquet*")]


@pytest.mark.parametrize("line, message", [
    ("audit parts --logits --shifted all.npz", "--shifted: needs all rows in memory"),
    ("audit all.npz --logits --rows-in-memory 0", "--rows-in-memory: 0, want a number of rows of at least 1"),
    ("audit parts --logits --val parts --no-report", "val: parts holds the predictions to judge; leave val out"),
    ("audit small.npz --logits --rows-in-memory 9", "small.npz"),
    ("audit probs.npz --logits --rows-in-memory 9 --no-report", "these are probabilities"),
    ("apply t.safetensors parts --logits --out out.csv", "--out: out.csv, but parts is read in pieces"),
    ("apply t.safetensors parts --logits --out parts/1.parquet", "parts/1.parquet would be one of the files of parts"),
    ("apply t.safetensors parts/*.parquet --logits --out parts/9.parquet", "would be one of the files of parts/*"),
    ("audit parts --logits --no-report --tie nan", "--tie: nan, want a number of nats"),
    ("audit all.csv --logits --engine ray", "file format: '.csv'")])
def test_options_that_pieces_do_not_take(line, message, capsys):
    np.savez("probs.npz", logits=np.full((50, 2), .5), target=TARGET[:50].clip(0, 1))
    np.savez_compressed("small.npz", logits=LOGITS, wrong=TARGET)
    FRAME[:20].to_csv("all.csv", index=False)
    TemperatureScaling().fit(LOGITS, TARGET).save("t.safetensors")
    assert cli.main(line.split()) == 2
    assert message in (said := capsys.readouterr().err) and said.count("\n") == 1
