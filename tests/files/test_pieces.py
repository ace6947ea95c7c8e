"Files with many rows: a random part is audited, all are calibrated in pieces; bad files are refused."
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibnb import cli
from calibnb.files import read_pieces, write_pieces
from calibnb.files.columns import ColumnNames
from calibnb.files.predictions import read_predictions
from calibnb.files.stored import StoredArray, random_rows, stored
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


@pytest.mark.parametrize("file", ["parts/*.parquet", "parts", "all.npz", "all.parquet"])
def test_all_rows_of_many_files_are_audited_as_those_of_one(capsys, file):
    names = ["--calibrator", "temperature", "--val", "turned.parquet" if file != "all.npz" else "val.npz"]
    found = audited(capsys, file, *names, "--rows", "all")
    whole = audited(capsys, "all.npz", *names[:2], "--val", "val.npz")
    assert found["samples"] == 3000 and not any("random part" in note for note in found["notes"])
    for row, measures in whole["rows"].items():
        for name, m in measures.items():
            assert found["rows"][row][name]["value"] == pytest.approx(m["value"], abs=1e-9), (row, name)


@pytest.mark.parametrize("file", ["parts", "all.npz", "all.parquet"])
def test_a_random_part_is_the_same_rows_in_every_format(file):
    names = ColumnNames(rows=1000)
    with pytest.warns(UserWarning, match=r"a random part of 9\d\d of 3,000 rows|of 1,0\d\d of 3,000 rows"):
        read = read_predictions(file, "logits", names=names)
    rows = random_rows(3000, 1000)
    np.testing.assert_array_equal(read.logits, LOGITS[rows])
    np.testing.assert_array_equal(read.target, TARGET[rows])


def test_a_part_of_scores_and_labels_in_two_files_and_slices_of_it(capsys):
    np.save("scores.npy", LOGITS), np.save("labels.npy", TARGET)
    one = audited(capsys, "scores.npy", "--target", "labels.npy", "--rows", "1000", "--calibrator", "temperature")
    two = audited(capsys, "all.parquet", "--rows", "1000", "--calibrator", "temperature", "--by", "predicted_class")
    assert one["rows"] == two["rows"] and len(two["slices"]["slices"]) == 4
    assert sum("a random part of" in note and "standard error" in note for note in two["notes"]) == 1


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


def test_what_is_left_out_of_pieces_is_said_once(capsys):
    TemperatureScaling().fit(LOGITS, TARGET).save("t.safetensors")
    FRAME.assign(id=range(3000)).to_parquet("ids.parquet")
    command = ["apply", "t.safetensors", "ids.parquet", "--logits", "--out", "out.parquet", "--rows-in-memory", "100"]
    assert cli.main(command) == 0
    assert capsys.readouterr().err == "note: column 'id' is not a class and is left out\n"


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
    n, reads = 3000, read_pieces("parts", "logits", rows=500)
    pieces = ((read.logits.softmax(1), read.logits.argmax(1), read) for read in reads)
    with pytest.raises(ValueError, match="3.parquet cannot be read"):
        write_pieces("out.parquet", pieces, n)
    assert not [*Path().glob("*out.parquet*"), *Path().glob(".*out.parquet*")]


@pytest.mark.parametrize("line, message", [
    ("audit all.npz --logits --rows 0", "--rows: '0', want a number of rows of at least 1, or 'all'"),
    ("apply t.safetensors all.npz --logits --out o.npy --rows-in-memory 0", "--rows-in-memory: 0, want a number"),
    ("audit probs.npz --logits --rows 9 --no-report", "these are probabilities"),
    ("apply t.safetensors all3.npz --logits --out o.npy --rows-in-memory 9", "these are probabilities"),
    ("apply t.safetensors parts --logits --out out.csv", "--out: out.csv, but parts is read in pieces"),
    ("apply t.safetensors parts --logits --out parts/1.parquet", "parts/1.parquet would be one of the files of parts"),
    ("apply t.safetensors parts/*.parquet --logits --out parts/9.parquet", "would be one of the files of parts/*"),
    ("audit parts --logits --no-report --tie nan", "--tie: nan, want a number of nats"),
    ("apply t.safetensors all.csv --logits --engine ray --out o.npy", "file format: '.csv'")])
def test_options_that_pieces_do_not_take(line, message, capsys):
    np.savez("probs.npz", logits=np.full((50, 2), .5), target=TARGET[:50].clip(0, 1))
    np.savez("all3.npz", logits=np.full((50, 3), 1/3))
    FRAME[:20].to_csv("all.csv", index=False)
    TemperatureScaling().fit(LOGITS, TARGET).save("t.safetensors")
    assert cli.main(line.split()) == 2
    assert message in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_an_array_without_its_last_row_ends_early():
    np.save("a.npy", LOGITS)
    whole = Path("a.npy").read_bytes()
    assert len(StoredArray("a.npy")) == 3000
    Path("a.npy").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="ends early: it has 2,999 of 3,000 rows"):
        StoredArray("a.npy")


def test_pieces_of_parquet_files_are_the_rows_asked_for():
    rows = stored("parts")
    for start, stop, size in (0, 3000, 700), (0, 333, 333), (332, 334, 5), (100, 1500, 250), (1399, 1402, 1):
        found = list(rows.pieces(start, stop, size))
        pd.testing.assert_frame_equal(pd.concat(found, ignore_index=True), FRAME[start:stop].reset_index(drop=True))
        assert all(len(piece) == size for piece in found[:-1])
