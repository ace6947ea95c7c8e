"Columns of csv files by name: matched, kept in what is written, and refused where they are others."
import json
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import check_sets, evaluate
from calibnb.files.columns import ColumnNames
from calibnb.files.pieces import read_pieces
from calibnb.files.predictions import read_columns, read_predictions, read_sets
from calibnb.posthoc import Calibrator, make_calibrator
from calibnb.posthoc.calibrator import fit_to

DRAW = torch.Generator().manual_seed(0)
WORDS = ["cat", "dog", "owl"]
LOGITS = (4*torch.randn(600, 3, generator=DRAW)).double() + torch.tensor([1., 0., -1.])
TARGET = torch.multinomial((LOGITS/2).softmax(1), 1, generator=DRAW)[:, 0]
LABELS = np.array(WORDS)[TARGET]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))


def write(name, columns=WORDS, rows=slice(None), called=None, target=LABELS, **others):
    "Logits with their columns in some order, and perhaps under other names; labels as they are called."
    values = LOGITS[rows][:, [WORDS.index(word) for word in columns]].numpy()
    frame = pd.DataFrame(values, columns=called or columns).assign(**others)
    frame.assign(y=target[rows]).to_csv(name, index=False)


def refused(capsys, *args):
    "The one line that a command ends with."
    assert cli.main([*args]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("calibnb: ")
    return err


def test_apply_finds_the_columns_by_name_and_keeps_their_names(capsys):
    "Of vector scaling, which treats each class differently."
    write("fit.csv")
    write("turned.csv", WORDS[::-1])
    write("others.csv", called=["cat", "dog", "fox"], target=TARGET.numpy())
    preds = read_predictions("fit.csv", "logits")
    found = evaluate(preds, calibrators=["vector"], draws=5, n_boot=20)
    found.fitted["vector"].save("c.safetensors")
    calibrator = Calibrator.load("c.safetensors")
    assert {preds.classes, calibrator.class_names_} == {tuple(WORDS)}
    want = calibrator.transform(LOGITS)
    for name in "fit", "turned":
        assert cli.main(["apply", "c.safetensors", f"{name}.csv", "--logits", "--out", "out.csv"]) == 0
        got, given = pd.read_csv("out.csv"), pd.read_csv(f"{name}.csv")
        assert list(got) == [*given.columns[:3], "prediction", "target"] and (got.target == LABELS).all()
        np.testing.assert_allclose(got[WORDS], want, atol=1e-6)
        assert (got.prediction == np.array(WORDS)[calibrator.predict(LOGITS)]).all()
        assert (read_predictions("out.csv", "probs").ordered(WORDS).target == TARGET).all()
    assert cli.main(["apply", "c.safetensors", "turned.csv", "--logits", "--out", "out.npz"]) == 0
    np.testing.assert_allclose(np.load("out.npz")["probs"][:, ::-1], want, atol=1e-6)
    assert (np.load("out.npz")["prediction"] == 2 - calibrator.predict(LOGITS).numpy()).all()
    capsys.readouterr()
    err = refused(capsys, "apply", "c.safetensors", "others.csv", "--logits", "--out", "out.npz")
    assert "file: others.csv: classes: the columns are 'cat', 'dog', 'fox', want 'cat', 'dog', 'owl'" in err
    calibrator.fit(LOGITS, TARGET)
    assert calibrator.class_names_ == ()   # of other samples, whose names are not known


def test_names_that_only_count_are_no_names():
    write("c.csv", called=["class_0", "class_1", "class_2"], target=TARGET.numpy())
    write("fit.csv", rows=slice(300))
    assert read_predictions("c.csv", "logits").classes == ()
    assert read_sets("c.csv", "logits", val_path="fit.csv")[1].classes == tuple(WORDS)


# how people name three classes in a header, and how the labels of the classes look beside it
NAMED = {
    "zero-padded": (["prob_000", "prob_002", "prob_010"], ["000", "002", "010"], [0, 2, 10]),
    "floats": (["1.0", "2.0", "3.5"], ["1.0", "2.0", "3.5"], [1., 2., 3.5]),
    "floats with a prefix": (["p_1.0", "p_2.0", "p_2.5"], ["1.0", "2.0", "2.5"], [1., 2., 2.5]),
    "negative": (["prob_-1", "prob_0", "prob_1"], ["-1", "0", "1"], [-1, 0, 1]),
    "mixed with words": (["1", "02", "other"], ["1", "02", "other"], None),
    "codes that end in digits": (["E10", "E11", "I10"], ["E10", "E11", "I10"], None),
    "numbers that skip": (["c1", "c2", "c4"], ["1", "2", "4"], [1, 2, 4]),
    "counted, out of order": (["prob_2", "prob_0", "prob_1"], ["2", "0", "1"], [2, 0, 1]),
    "counted from 1": (["1", "2", "3"], ["1", "2", "3"], [1, 2, 3]),
    "words with a prefix": (["score_cat", "score_dog", "score_owl"], WORDS, None),
}


@pytest.mark.filterwarnings("ignore:.*are read as names of columns, which count from 1")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".feather", ".jsonl"])
@pytest.mark.parametrize("style", NAMED)
def test_labels_that_are_names_of_columns_are_read_as_these(style, suffix):
    "As text or as numbers, in the file or in one of their own; also where the last classes are absent."
    columns, words, numbers = NAMED[style]
    write_as = {".parquet": "to_parquet", ".feather": "to_feather"}
    def written(rows, labels):
        frame = pd.DataFrame(LOGITS[rows].numpy(), columns=columns)
        if labels is not None:
            frame["y"] = labels[rows]
        if suffix == ".jsonl":
            frame.to_json("a.jsonl", orient="records", lines=True, double_precision=15)
        elif suffix.startswith(".csv"):
            frame.to_csv(f"a{suffix}", index=False)
        else:
            getattr(frame, write_as[suffix])(f"a{suffix}")
    for labels in (np.array(values)[TARGET] for values in (words, numbers) if values is not None):
        for rows in slice(None), TARGET < 2:
            written(rows, labels)
            counted = style == "counted, out of order"
            want = LOGITS[rows].gather(1, TARGET[rows, None])
            preds = read_predictions(f"a{suffix}", "logits")
            assert torch.allclose(preds.logits.gather(1, preds.target[:, None]).double(), want, atol=1e-5)
            assert preds.classes == () if counted else len(set(preds.classes)) in (0, 3)
            np.save("labels.npy", labels[rows].astype(str) if labels.dtype == object else labels[rows])
            written(rows, None)
            apart = read_predictions(f"a{suffix}", "logits", "labels.npy")
            # bits: read, not computed
            assert torch.equal(apart.target, preds.target) and torch.equal(apart.logits, preds.logits)


def test_a_validation_set_is_put_into_order_by_name(capsys):
    write("test.csv", rows=slice(300))
    write("val.csv", rows=slice(300, 600))
    write("turned.csv", ["owl", "cat", "dog"], slice(300, 600))
    write("others.csv", rows=slice(300, 600), called=["cat", "dog", "fox"], target=TARGET.numpy())
    for flag in "--val", "--shifted":
        said = []
        for val in "val.csv", "turned.csv":
            line = ["audit", "test.csv", "--logits", "--no-report", "--json", "--calibrator", "vector"]
            assert cli.main([*line, flag, val]) == 0
            said.append(json.loads(capsys.readouterr().out.replace(val, "val.csv")))
        assert said[0]["rows"].keys() == said[1]["rows"].keys()
        nll = [[row["nll"]["value"] for row in one["rows"].values()] for one in said]
        np.testing.assert_allclose(*nll, rtol=1e-4)
        err = refused(capsys, "audit", "test.csv", "--logits", flag, "others.csv")
        assert "file: others.csv: classes: the columns are 'cat', 'dog', 'fox', want 'cat', 'dog', 'owl'" in err
    preds, val = (Predictions(LOGITS[rows], TARGET[rows], classes=WORDS) for rows in (slice(300), slice(300, 600)))
    turned = val.ordered(WORDS[::-1])
    check_sets(preds, turned.ordered(WORDS))
    with pytest.raises(ValueError, match=r"permuted against preds; give val.ordered\(preds.classes\)"):
        check_sets(preds, turned)


def binary(name, column, labels, rows=slice(None), flip=False):
    p = (LOGITS[:, 1] - LOGITS[:, 0]).sigmoid().numpy()[rows]
    words = np.array(labels)[(TARGET.numpy()[rows] == 1).astype(int)]
    pd.DataFrame({column: 1 - p if flip else p, "y": words}).to_csv(name, index=False)


def test_a_column_named_by_the_other_label_is_not_read_as_this_one(capsys):
    binary("no.csv", "no", ["no", "yes"], flip=True)
    err = refused(capsys, "audit", "no.csv", "--probs", "--pos-label", "yes")
    assert "pos_label: 'yes', but the column is named after the other label, 'no'" in err
    read = read_predictions("no.csv", "probs")
    assert read.classes == ("yes", "no") and torch.equal(read.target, (TARGET != 1).long())
    assert read_predictions("no.csv", "probs", pos_label="no").classes == ("yes", "no")


def test_one_column_of_the_other_class_is_refused(capsys):
    binary("yes.csv", "yes", ["no", "yes"], slice(300))
    binary("no.csv", "no", ["no", "yes"], slice(300, 600), flip=True)
    err = refused(capsys, "audit", "yes.csv", "--probs", "--val", "no.csv")
    assert "file: no.csv: classes: the column is for 'no', want 'yes'" in err
    preds = read_predictions("yes.csv", "probs")
    evaluate(preds, calibrators=["platt"], draws=5, n_boot=20).fitted["platt"].save("c.safetensors")
    err = refused(capsys, "apply", "c.safetensors", "no.csv", "--probs", "--out", "out.csv")
    assert "column 'no' is the only one, want 'yes', the class of the fit" in err
    assert cli.main(["apply", "c.safetensors", "yes.csv", "--probs", "--out", "out.csv"]) == 0
    assert list(pd.read_csv("out.csv")) == ["yes", "prediction", "target"]
    assert set(pd.read_csv("out.csv").target) == {"no", "yes"}


def test_labels_that_are_ids_beside_labels_that_are_words(capsys):
    "Clear where the column is named by its label; otherwise told."
    binary("test.csv", "p", ["no", "yes"], slice(300))
    binary("val.csv", "p", [0, 1], slice(300, 600))
    err = refused(capsys, "audit", "test.csv", "--probs", "--pos-label", "yes", "--val", "val.csv")
    assert "file: val.csv: pos_label: 'yes' is not a label in column 'y': '0', '1'; write the words there too" in err
    for name, labels, rows in ("test", ["no", "yes"], slice(300)), ("val", [0, 1], slice(300, 600)):
        binary(f"{name}.csv", "yes", labels, rows)
    test, val = read_sets("test.csv", "probs", val_path="val.csv")
    assert torch.equal(val.target, (TARGET[300:] == 1).long()) and test.classes == ("no", "yes")


def test_names_of_a_classifier_of_scikit_learn_are_kept(tmp_path):
    from sklearn.linear_model import LogisticRegression
    X = LOGITS.numpy()
    classifier = LogisticRegression().fit(X, LABELS)
    preds = Predictions.of(classifier, X, LABELS)
    preds.save(tmp_path/"p.safetensors")
    assert {preds[:9].classes, Predictions.load(tmp_path/"p.safetensors").classes} == {tuple(WORDS)}
    assert Predictions.of(classifier, X, LABELS, pos_label="dog").classes == ("", "dog")
    assert Predictions.of(LogisticRegression().fit(X, TARGET), X, TARGET).classes == ()


def test_all_stray_columns_are_named_at_once(capsys):
    write("a.csv", ID=range(600), where="Rome", city="Rome", weight=1)
    err = refused(capsys, "audit", "a.csv", "--logits")
    assert "3 columns are not classes: 'weight' is not a class" in err and "'where' holds text, 'Rome' in line 2" in err
    assert "'ID'" not in err and "--ignore-col NAME" in err
    probs = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=WORDS).assign(age=34, year=2026, city="Rome", y=LABELS)
    probs.to_csv("p.csv", index=False)
    err = refused(capsys, "audit", "p.csv", "--probs")
    assert "3 columns are not classes: 'city' holds text" in err
    assert "'age' holds 34" in err and "'year' holds 2026" in err


@pytest.mark.parametrize("labels", [np.array(WORDS, dtype=object)[TARGET], TARGET.double().numpy()])
def test_a_missing_label_is_told_as_missing(labels, capsys):
    labels = labels.copy()
    labels[[3, 7]] = np.nan
    write("a.csv", target=labels)
    err = refused(capsys, "audit", "a.csv", "--logits")
    assert "column 'y' has no label in line 5, and 2 such lines; give each sample a label" in err


def test_labels_in_a_file_of_their_own_are_held_against_the_label_asked_for(capsys):
    binary("p.csv", "p", [0, 1])
    np.save("y.npy", (TARGET == 1).long().numpy()[:, None])
    read = read_predictions("p.csv", "probs", "y.npy", pos_label=0)
    assert torch.equal(read.target, (TARGET != 1).long())
    err = refused(capsys, "audit", "p.csv", "--probs", "--target", "y.npy", "--pos-label", "maybe")
    assert "pos_label: 'maybe' is not a label in column 'target': '0', '1'" in err


def test_long_numbers_are_told_apart_as_labels():
    binary("p.csv", "p", [1000001, 1000002])
    assert torch.equal(read_predictions("p.csv", "probs", pos_label=1000002).target, (TARGET == 1).long())


def test_true_and_false_name_columns():
    "As scikit-learn's `classes_` has them."
    columns = pd.DataFrame((LOGITS[:, :2].softmax(1)).numpy(), columns=["True", "False"])
    columns.assign(y=(TARGET == 0).numpy()).to_csv("b.csv", index=False)
    assert torch.equal(read_predictions("b.csv", "probs").target, (TARGET != 0).long())


def test_a_header_alone_is_told(capsys):
    open("h.csv", "w").write("cat,dog,y\n")
    assert "a header and no samples" in refused(capsys, "audit", "h.csv", "--logits")


def tables_with_a_way_out():
    "Name -> flags, a table, and the flags that make the command work."
    draw, words = np.random.default_rng(0), np.array(WORDS)[TARGET]
    table = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=WORDS)
    city, age = draw.choice(["Rome", "Oslo"], 600), draw.integers(20, 60, 600)
    holes = table.mask(draw.random((600, 3)) < .01)
    unlabelled = pd.Series(words, dtype=object).where(draw.random(600) < .99)
    hit, conf = draw.random(600) < .7, draw.random(600)
    score = np.where(hit, "C", draw.choice(["I", "P", "N"], 600))
    left = pd.DataFrame(dict(prob_left=conf, y=np.where(hit, "left", "stayed")))
    stated = "--confidence conf --correct score"
    return dict(
        truth=("--probs", table.assign(reality=words), "--target-col reality"),
        text=("--probs", table.assign(city=city, animal=words), "--target-col animal --ignore-col city"),
        several=("--probs", table.assign(age=age, city=city, outcome=TARGET.numpy()),
                 "--target-col outcome --ignore-col city,age"),
        churn=("--probs", pd.DataFrame(dict(p=conf, churned=hit.astype(int))), "--target-col churned"),
        scores=("--probs", holes.assign(y=words), "--drop-missing"),
        labels=("--probs", table.assign(y=unlabelled), "--drop-missing"),
        all=("--probs", holes.assign(reality=unlabelled, city=city),
             "--target-col reality --ignore-col city --drop-missing"),
        left=("--probs", left, "--pos-label left"),
        stayed=("--probs", left.rename(columns=dict(prob_left="Stayed %")), "--pos-label stayed"),
        unclear=("--probs", left.rename(columns=dict(prob_left="prob_x")), ""),
        two=("--probs", table.assign(a=words, b=words), ""),
        numbers=("--probs", pd.DataFrame(dict(p=conf, y=np.where(hit, 2, 1))), ""),
        inspect=(stated, pd.DataFrame(dict(conf=conf, score=score)), "--pos-label C"))


@pytest.mark.parametrize("name", tables_with_a_way_out())
def test_the_command_of_an_error_works_when_typed(name, capsys):
    flags, table, more = tables_with_a_way_out()[name]
    table.to_csv("t.csv", index=False)
    line = f"audit t.csv {flags} --no-report --json --calibrator temperature"
    err = refused(capsys, *line.split())
    assert ("; try: calibnb " in err) == bool(more), err
    if not more: return
    command = err.split("; try: ")[1].strip()
    assert command == f"calibnb {line} {more}"
    assert cli.main(command.split()[1:]) == 0
    found = json.loads(capsys.readouterr().out)
    want = table.dropna()
    assert found["samples"] == len(want)
    if "--drop-missing" in more:
        assert f".csv: {600 - len(want)} of 600 samples lack a score or a label" in str(found["notes"])
    if name == "inspect":
        assert abs(found["rows"]["uncalibrated"]["error"]["value"] - (want.score != "C").mean()) < 1e-12
        assert all(f"{word!r} ({(want.score == word).sum()})" in str(found["notes"]) for word in "IPN")
    if "animal" in more or "reality" in more:
        labels = want.filter(regex="animal|reality").iloc[:, 0]
        error = (want[WORDS].idxmax(axis=1) != labels).mean()
        assert abs(found["rows"]["uncalibrated"]["error"]["value"] - error) < 1e-12


def test_apply_needs_no_kind_and_leaves_out_rows_without_a_score(capsys):
    write("fit.csv")
    for kind in "logits", "probs":
        preds = read_predictions("fit.csv", "logits")
        if kind == "probs": preds = Predictions.from_probs(preds.probs, preds.target, classes=WORDS)
        found = evaluate(preds, calibrators=["temperature"], draws=5, n_boot=20)
        found.fitted["temperature"].save(f"{kind}.safetensors")
    scores = dict(logits=LOGITS, probs=LOGITS.softmax(1))
    for kind, values in scores.items():
        table = pd.DataFrame(values.numpy(), columns=WORDS).assign(id=range(600), y=LABELS)
        table.loc[[3, 8], "dog"] = np.nan
        table.to_csv("new.csv", index=False)
        line = f"apply {kind}.safetensors new.csv --keep id --out out.csv"
        err = refused(capsys, *line.split())
        assert cli.main(err.split("; try: calibnb ")[1].split()) == 0
        assert "2 of 600 samples lack a score" in capsys.readouterr().err
        got = pd.read_csv("out.csv")
        assert [*got.id] == [i for i in range(600) if i not in (3, 8)] and (got.target == LABELS[got.id]).all()
    table.add_prefix("logit_").to_csv("said.csv", index=False)
    assert "file: said.csv holds logits, but probs.safetensors was fitted on prob" in refused(
        capsys, *"apply probs.safetensors said.csv --out out.csv".split())


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_label_of_a_classifier_is_told_as_missing(missing):
    from sklearn.linear_model import LogisticRegression
    X = LOGITS.numpy()
    classifier, labels = LogisticRegression().fit(X, LABELS), LABELS.astype(object)
    labels[[3, 7]] = missing
    with pytest.raises(ValueError, match="y: no label in row 3, and 2 such rows; leave out the samples without a"):
        Predictions.of(classifier, X, labels)


def probs_table():
    table = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=[f"prob_{word}" for word in WORDS])
    return table.assign(y_true=TARGET.numpy())


@pytest.mark.parametrize("name, flags, note", [
    ("index.csv", "", "column 'Unnamed: 0' is not a class and is left out"),
    ("part.csv", "", "column 'Unnamed: 0' is not a class and is left out"),
    ("more.csv.gz", "", "columns 'id', 'age' are not classes and are left out"),
    ("more.parquet", "--ignore-col age --ignore-col id", None),
    ("more.feather", "--ignore-col age --ignore-col id", None),
    ("named.jsonl", "--target-col why --prob-cols a,b,c --ignore-col city", None),
    ("lists.jsonl", "", None),
    ("lists.parquet", "", None),
    ("arrays.npz", "", None),
    ("numbers.npz", "", None),
])
def test_forgiven_files_give_the_same_answer(name, flags, note, capsys):
    "The kind, the labels and the classes are told from names or flags; what is left out is noted."
    table = probs_table()
    table.to_csv("index.csv")
    table.set_axis([*range(7, 1207, 2)]).iloc[::-1].to_csv("part.csv")  # row numbers of a part, in another order
    more = table.assign(id=range(600), age=34)
    more.to_csv("more.csv.gz", index=False)
    more.to_parquet("more.parquet")
    more.to_feather("more.feather")
    renamed = table.set_axis(["a", "b", "c", "why"], axis=1).assign(city="Rome", d=7.)
    renamed.to_json("named.jsonl", orient="records", lines=True, double_precision=15)
    rows = [dict(probs=p, label=y) for p, y in zip(table.iloc[:, :3].values.tolist(), TARGET.tolist())]
    open("lists.jsonl", "w").write("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet("lists.parquet")
    np.savez("arrays.npz", y_prob=table.iloc[:, :3].to_numpy(), y_true=TARGET)
    classes, labels = np.array(["000", "002", "010"]), np.array([0, 2, 10])[TARGET]  # no ids, but numbers of the names
    np.savez("numbers.npz", y_prob=table.iloc[:, :3].to_numpy(), y_true=labels, classes=classes)
    assert cli.main(["audit", name, *flags.split(), "--no-report", "--json", "--calibrator", "temperature"]) == 0
    found = json.loads(capsys.readouterr().out)
    want = Predictions.from_probs(LOGITS.softmax(1), TARGET).nll.mean().item()
    assert found["classes"] == 3 and abs(found["rows"]["uncalibrated"]["nll"]["value"] - want) < 1e-6
    assert [note]*bool(note) == [text for text in found["notes"] if "left out" in text]


@pytest.mark.parametrize("kind, columns, labels, kept", [
    ("probs", dict(call=[.2, .9, .4], fold=[.8, .1, .6]), ["fold", "call", "fold"], ["call", "fold"]),
    ("probs", dict(call=[.2, .9, .4], fold=[.8, .1, .6]), [1, 0, 1], ["call", "fold"]),
    ("probs", dict(id=["x", "y", "z"], call=[1., 0, 0], fold=[0., 1, 1]), [0, 1, 1], ["call", "fold"]),
    ("logits", dict(call=[4, 2, 2], fold=[3, 1, 3]), ["call", "call", "fold"], ["call", "fold"]),
    ("logits", dict(id=[5, 6, 7], call=[1., 2, 3], fold=[.5, 2, 4]), [0, 0, 1], ["call", "fold"]),
    ("probs", dict(id=[5, 6, 7], p=[.2, .9, .4]), [0, 1, 0], ["p"]),
    ("probs", dict(a=[.2, .9, .4], b=[.8, .1, .6], fold=[0, 0, 0]), [1, 0, 1], ["a", "b"]),
])
@pytest.mark.filterwarnings("ignore:column")
def test_a_class_may_have_the_name_of_ids_or_folds(kind, columns, labels, kept):
    pd.DataFrame(columns).assign(target=labels).to_csv("f.csv", index=False)
    assert read_columns("f.csv", kind).header == kept
    pd.read_csv("f.csv").to_parquet("f.parquet")
    assert [read.logits.shape[1] for read in read_pieces("f.parquet", kind, rows=1)] == [len(kept)]*3
    assert len(kept) == 1 or torch.equal(read_predictions("f.csv", kind).pred, read_columns("f.csv", kind).target)


def test_apply_runs_as_the_audit_tells(capsys):
    table = probs_table().set_axis(["cat", "dog", "owl", "reality"], axis=1).assign(
        site=np.arange(600) % 2, other=TARGET.numpy())
    table.to_csv("t.csv", index=False)
    line = "audit t.csv --probs --target-col reality --ignore-col other --by site --calibrator temperature"
    assert cli.main(line.split()) == 0
    told, = (line for line in capsys.readouterr().out.splitlines() if "calibnb apply" in line)
    command = told.split("calibnb ")[1].replace("OUT.csv", "out.csv").split()
    assert "reality,other,site" in command
    for name in "t.csv", "new.csv":
        table[["cat", "dog", "owl"]].to_csv("new.csv", index=False)
        assert cli.main([name if part == "FILE" else part for part in command]) == 0
        assert [*pd.read_csv("out.csv")] == ["cat", "dog", "owl", "prediction"]


@pytest.mark.parametrize("scores, labels", [("predictions", "ground_truth"), ("preds", "y_test"), ("scores", "truth"),
                                            ("predict_proba", "actual")])
def test_files_that_others_write_are_read_without_flags(scores, labels, capsys):
    "Rows of numbers in [0, 1] that sum to 1 are probabilities, and a note says so; a plain name of labels goes first."
    np.savez("t.npz", **{scores: LOGITS.softmax(1).numpy(), labels: TARGET.numpy()})
    assert cli.main(["audit", "t.npz", "--no-report", "--calibrator", "temperature"]) == 0
    out, err = capsys.readouterr()
    assert "t.npz: 600 samples, 3 classes" in out
    assert ("t.npz: each row sums to 1, so these are probabilities" in err) == (scores != "predict_proba")
    np.savez("t.npz", **{scores: LOGITS.numpy(), labels: TARGET.numpy()})
    if scores != "predict_proba":
        assert "does not say what it holds; give --logits or --probs" in refused(capsys, "audit", "t.npz")
    frame = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=WORDS)
    frame.assign(target=LABELS, **{labels: "unknown"}).to_csv("t.csv", index=False)
    with pytest.warns(UserWarning, match=f"column '{labels}' is not a class and is left out"):
        assert torch.equal(read_predictions("t.csv", "probs").target, TARGET)


def test_a_column_of_labels_in_a_file_of_their_own():
    probs_table().drop(columns="y_true").to_csv("p.csv", index=False)
    pd.DataFrame(dict(age=34, truth=TARGET)).to_csv("t.csv", index=False)
    assert torch.equal(read_predictions("p.csv", "probs", "t.csv", names=ColumnNames("truth")).target, TARGET)


@pytest.mark.parametrize("text, message", [
    ("", "cannot be read as jsonl (no samples)"),
    ('{"logit_0": 1, "logit_1": 2, "y": 0}\n\n{"logit_0": 1,\n', "(line 3: "),
    ('{"a": 1, "b": 2, "y": 0}\n\n{"a": 1, "b": "two", "y": 1}\n', "'two' in line 3"),
])
def test_lines_are_counted_from_one_with_blank_lines(text, message, capsys):
    Path("f.jsonl").write_text(text)
    assert message in refused(capsys, "audit", "f.jsonl", "--logits")


def test_one_rule_for_the_kind_in_three_commands(capsys):
    probs_table().to_csv("p.csv")
    binary("p2.csv", "p", [1, 2])
    for line in "audit p.csv --no-report --calibrator platt", "compare p.csv p.csv", "plan p.csv --width 60":
        assert cli.main(line.split()) == 0
        out = capsys.readouterr()
        assert "column 'Unnamed: 0' is not a class and is left out" in out.out + out.err
        assert " p2.csv does not say what it holds; give --logits or --probs" in refused(
            capsys, *line.replace("p.csv", "p2.csv").split())
    assert "column: 'agee' is not known" in refused(capsys, "audit", "p.csv", "--ignore-col", "agee")


def test_two_columns_of_a_binary_model_also_show_the_ece_of_one(capsys):
    two = LOGITS[:, :2].softmax(1).numpy()
    pd.DataFrame(two, columns=["prob_0", "prob_1"]).assign(y=(TARGET == 1).numpy().astype(int)).to_csv("2.csv")
    assert cli.main(["audit", "2.csv", "--no-report", "--calibrator", "temperature"]) == 0
    said = capsys.readouterr().out
    assert "  of P(y = 1) " in said and "CNB031 two columns of a binary model (tip): The ECE of P(y = 1) is" in said


@pytest.mark.parametrize("header, order", [("cat,dog", [0, 1]), ("prob_False,prob_True", [0, 1]),
                                           ("true,false", [1, 0]), ("True,False", [1, 0]), ("prob_yes,prob_no", [1, 0]),
                                           ("neg,pos", [0, 1]), ("prob_1,prob_2", [0, 1])])
def test_true_and_false_are_labels_of_two_columns(header, order, tmp_path, capsys):
    "True is the column that is named after it, or the second column; audit and apply agree."
    y = np.arange(60) % 2
    p = np.where(y[:, None] == order, .9, .1)
    p[:6] = 1 - p[:6]  # six errors
    lines = [f"{a:.2f},{b:.2f},{bool(label)}" for (a, b), label in zip(p, y)]
    (tmp_path/"b.csv").write_text("\n".join([f"{header},target", *lines]) + "\n")
    args = "audit b.csv --probs --no-report --json --calibrator temperature".split()
    assert cli.main(args) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]["error"]["value"] == pytest.approx(.1)
    scores = read_columns("b.csv", "probs")
    assert (scores.logits.argmax(1) == scores.target).double().mean().item() == pytest.approx(.9)
    make_calibrator("temperature").fit_probs(scores.logits.softmax(1), scores.target).save("c.safetensors")
    assert cli.main("apply c.safetensors b.csv --probs --out o.csv".split()) == 0
    written = pd.read_csv("o.csv", dtype=str)
    assert (written["prediction"] == written["target"]).mean() == pytest.approx(.9)


def test_cells_that_a_spreadsheet_would_compute_are_told(capsys):
    write("a.csv", code=np.array(["=1+1", "-1", "+x"])[np.arange(600) % 3])
    make_calibrator("temperature").fit(LOGITS, TARGET).save("c.safetensors")
    assert cli.main("apply c.safetensors a.csv --logits --keep code --out out.csv".split()) == 0
    assert capsys.readouterr().err == ("note: column 'code': a spreadsheet computes cells such as '=1+1'; they are "
                                       "written as they are, so import the file as text\n")
    assert pd.read_csv("out.csv").code[:3].tolist() == ["=1+1", "-1", "+x"]


CELLS = np.array(["007", "7", "07", "1.10", "1.1", "NA", ""])[np.arange(600) % 7]


def test_columns_that_are_no_scores_keep_their_text(capsys):
    "A csv file has no types: numbers would merge 007 and 7, 1.10 and 1.1, and NA and an empty cell."
    write("old.csv", code=CELLS)
    pd.read_csv("old.csv").assign(code=[cell or None for cell in CELLS]).to_parquet("old.parquet")
    make_calibrator("temperature").fit(LOGITS, TARGET).save("c.safetensors")
    line = "apply c.safetensors old.csv --logits --prob-cols cat,dog,owl --keep code --out out.csv"
    assert cli.main(line.split()) == 0
    assert pd.read_csv("out.csv", dtype=str, keep_default_na=False).code.tolist() == CELLS.tolist()
    said = []
    for suffix in "csv", "parquet":
        capsys.readouterr()
        line = f"audit old.{suffix} --logits --by code --calibrator temperature --no-report --json"
        assert cli.main(line.split()) == 0
        said.append(json.loads(capsys.readouterr().out)["slices"])
        names = {one["slice"] for one in said[-1]["slices"][1:]}
        assert names == {*(f"code = {cell}" for cell in CELLS[:6]), "code is missing"}
        assert cli.main(f"compare old.{suffix} old.{suffix} --logits --by code --json".split()) == 0
        assert json.loads(capsys.readouterr().out)["slices"].keys() == names
    assert said[0] == said[1]


@pytest.mark.parametrize("many", [np.arange(600) % 21 + .5, np.arange(600) % 30, np.r_[np.zeros(590), 1:11]])
def test_a_column_of_more_than_twenty_numbers_has_ranges(many):
    "Also if its first rows have few; cells that are no numbers are then missing; one more text makes categories."
    from calibnb.evaluate.groups import groupings
    cells = np.array([f"{x:06.2f}" for x in many], dtype=object)
    cells[:590:59] = "NA"
    many = pd.Series(many).where(cells != "NA")
    if many.nunique() < 20:  # late: more than the rows that are tried first
        cells = np.r_[np.tile(cells[:590], 2), np.array([f"{x:06.2f}" for x in range(30)], dtype=object)]
        many = pd.Series(pd.to_numeric(pd.Series(cells), errors="coerce"))
    frame = pd.DataFrame(LOGITS.repeat(3, 1)[:len(cells)].numpy(), columns=WORDS).assign(y=0, age=cells)
    frame.to_csv("a.csv", index=False)
    preds = read_predictions("a.csv", "logits", groups=["age"])
    np.testing.assert_array_equal(preds.groups["age"], many)  # bits: read, not computed
    assert "age is missing" in groupings(preds, "age", 2)[0].names
    frame.assign(age=np.where(np.arange(len(cells)) == len(cells) - 1, "?", cells)).to_csv("b.csv", index=False)
    words = read_predictions("b.csv", "logits", groups=["age"]).groups["age"]
    assert words.tolist()[:-1] == cells.tolist()[:-1]


@pytest.mark.parametrize("columns", [["1", "01", "001"], ["prob_1", "prob_01", "prob_1e0"], ["1", "1.0", "2"],
                                     ["NA", "EU", "US"], ["p_null", "p_nan", "p_None"], ["TRUE", "True", "true"],
                                     ["9007199254740992", "9007199254740993", "1"]])
def test_labels_are_names_of_columns_as_text_first(columns):
    "Also text that states a number, a truth value or a missing value; of these, only an empty cell is missing."
    words = np.array([name.split("_")[-1] for name in columns], dtype=object)[TARGET]
    write("a.csv", called=columns, target=words)
    write("scores.csv", called=columns)
    scores = pd.read_csv("scores.csv").drop(columns="y")
    scores.to_csv("scores.csv", index=False)
    pd.DataFrame(dict(y=words)).to_csv("y.csv", index=False)
    for read in read_predictions("a.csv", "logits"), read_predictions("scores.csv", "logits", "y.csv"):
        assert torch.equal(read.target, TARGET)
    words[3] = ""
    write("a.csv", called=columns, target=words)
    with pytest.raises(ValueError, match="column 'y' has no label in line 5; give"):
        read_predictions("a.csv", "logits")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_a_logit_of_minus_infinity_is_a_masked_class_in_every_format(suffix, capsys):
    logits = LOGITS.numpy().copy()
    logits[TARGET == 1, 0] = -np.inf
    frame = pd.DataFrame(logits, columns=WORDS).assign(y=TARGET.numpy())
    if suffix == ".npz":
        np.savez("a.npz", logits=logits, y=TARGET)
    elif suffix == ".jsonl":
        Path("a.jsonl").write_text("\n".join(map(json.dumps, frame.to_dict("records"))))
    else:
        getattr(frame, f"to_{suffix[1:]}")(f"a{suffix}", index=False)
    assert torch.equal(read_predictions(f"a{suffix}", "logits").logits.isneginf(), torch.from_numpy(logits) == -np.inf)
    frame.assign(cat=np.inf).to_csv("b.csv", index=False)
    assert "column 'cat' holds inf in line 2, want finite numbers" in refused(capsys, "audit", "b.csv", "--logits")


def test_what_a_file_holds_is_judged_without_the_columns_of_slices_and_ids(capsys):
    "Of text, of numbers, and of numbers that make the rows sum to more than 1."
    probs = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=WORDS).assign(y=LABELS)
    probs = probs.assign(site=np.where(np.arange(600) % 2, "a", "b"), age=np.arange(600) % 50, key=np.arange(600))
    for by in ["site"], ["age"], ["site", "age"]:
        probs[[*WORDS, "y", *by]].to_csv("by.csv", index=False)
        line = ["audit", "by.csv", *(word for name in by for word in ("--by", name)), "--calibrator", "temperature"]
        assert cli.main([*line, "--no-report"]) == 0
        assert "each row sums to 1, so these are probabilities" in capsys.readouterr().err
    probs[[*WORDS, "y", "site", "key"]].to_csv("old.csv", index=False)
    assert cli.main("compare old.csv old.csv --by site --id key".split()) in (0, 2)
    assert capsys.readouterr().err.count("each row sums to 1") == 2
    for line in "audit old.csv --by nope", "audit by.csv --by siet", "compare old.csv old.csv --id nope":
        assert "column: '" + line.split()[-1] + "' is not known" in refused(capsys, *line.split())
    probs[:0].to_csv("empty.csv", index=False)
    assert "file: empty.csv: a header and no samples" in refused(capsys, "audit", "empty.csv")


@pytest.mark.parametrize("name", ["p", "score", "y_score", "P", "p1", "y_pred", "prediction", "spam"])
def test_a_column_in_0_to_1_beside_labels_0_and_1_is_the_probability_of_1(name, capsys):
    binary("b.csv", name, [0, 1])
    assert cli.main("audit b.csv --no-report --calibrator platt".split()) == 0
    out, err = capsys.readouterr()
    assert "P(y = 1)" in out
    assert f"b.csv: column '{name}' holds numbers in [0, 1] beside labels 0 and 1, so it is P(y = 1)\n" in err
    for column, labels in [(TARGET % 2).numpy(), [0, 1]], [LOGITS[:, 0].numpy(), [0, 1]], [None, [1, 2]]:
        binary("b.csv", name, labels)
        if column is not None:
            pd.read_csv("b.csv").assign(**{name: column}).to_csv("b.csv", index=False)
        assert "b.csv does not say what it holds; give --logits or --probs" in refused(capsys, "audit", "b.csv")


def test_the_only_column_of_class_0_is_not_to_be_called_p(capsys):
    pd.DataFrame({"0": [.2, .7], "1": [.8, .3], "y": [1, 0]}).to_csv("b.csv", index=False)
    err = refused(capsys, *"audit b.csv --prob-cols 0".split())
    assert "its name says class 0; a single column is for class 1: give the column of class 1, i.e. 1 - p, or" in err


def test_labels_of_arrays_are_texts_of_their_array_of_classes(capsys):
    "The order of `classes` is that of the columns; of one column, the second class is its own."
    order = [2, 0, 1]
    arrays = dict(logits=LOGITS[:, order], classes=np.array(WORDS)[order])
    np.savez("a.npz", target=LABELS, **arrays)
    preds = read_predictions("a.npz", "logits")
    assert preds.classes == ("owl", "cat", "dog") and torch.equal(preds.ordered(WORDS).target, TARGET)
    np.savez("ids.npz", target=np.argsort(order)[TARGET], **arrays)
    assert torch.equal(read_predictions("ids.npz", "logits").ordered(WORDS).target, TARGET)
    p, y = LOGITS[:, 0].sigmoid(), np.array(["no", "yes"])[TARGET % 2]
    np.savez("b.npz", probs=p, target=y, classes=["no", "yes"])
    read = read_predictions("b.npz", "probs")
    assert read.classes == ("no", "yes") and torch.equal(read.target, TARGET % 2)
    np.savez("c.npz", logits=LOGITS, target=LABELS)
    err = refused(capsys, "audit", "c.npz")
    assert f"target: text, '{LABELS[0]}' in row 0, and nothing names the classes; want class ids from 0, or add" in err
    np.savez("c.npz", logits=LOGITS, target=LABELS, classes=["cat", "dog", "fox"])
    assert "'owl' in row" in refused(capsys, "audit", "c.npz")


@pytest.mark.parametrize("positive, other", [("NA", "EU"), ("01", "1"), ("null", "1")])
def test_the_label_asked_for_keeps_its_text(positive, other, capsys):
    "Given as a flag, as the name of the column, in a file of its own, or as the second class of a calibrator."
    labels = np.array([other, positive], dtype=object)[(TARGET == 1).long()]
    table = pd.DataFrame(dict(p=LOGITS[:, 1].sigmoid(), y=labels))
    table.to_csv("a.csv", index=False)
    table[["p"]].to_csv("p.csv", index=False)
    table[["y"]].to_csv("y.csv", index=False)
    for paths in ("a.csv",), ("p.csv", "y.csv"):
        target = paths[1:] or [None]
        read = read_predictions(paths[0], "probs", *target, pos_label=positive)
        assert torch.equal(read.target, (TARGET == 1).long()) and read.classes == (other, positive)
    assert torch.equal(read_columns("a.csv", "probs", names=(other, positive)).target, read.target)
    if positive != "NA":
        return
    table.rename(columns=dict(p=positive)).to_csv("named.csv", index=False)
    assert torch.equal(read_predictions("named.csv", "probs").target, read.target)
    table.loc[3, "y"] = ""
    table.to_csv("a.csv", index=False)
    assert "column 'y' has no label in line 5; give" in refused(capsys, *"audit a.csv --probs --pos-label NA".split())


def test_a_copied_column_of_numbers_is_numbers_in_parquet():
    "Of a csv file, unless the numbers would lose a part of the text; a column of texts in a parquet file stays text."
    columns = dict(whole=["7", "12", "1"], part=["0.5", "1e-05", ""], long=["9007199254740993", "2", "3"],
                   code=["007", "7", "12"], price=["1.10", "2.5", "3.5"], mixed=["1", "1.0", "2"], gap=["1", "NA", "2"])
    cells = {name: np.array(texts, dtype=object)[np.arange(600) % 3] for name, texts in columns.items()}
    write("a.csv", **cells)
    make_calibrator("temperature").fit(LOGITS, TARGET).save("c.safetensors")
    line = f"apply c.safetensors a.csv --logits --prob-cols cat,dog,owl --keep {','.join(columns)},y --out o.parquet"
    assert cli.main(line.split()) == 0
    written = pd.read_parquet("o.parquet")
    assert [*written.whole[:3], *written.long[:3]] == [7, 12, 1, 9007199254740993, 2, 3]
    assert written.part[:2].tolist() == [.5, 1e-05] and written.part.isna().sum() == 200
    for name in "code", "price", "mixed", "gap", "y":
        assert written[name].tolist() == (LABELS if name == "y" else cells[name]).tolist()
    pd.read_csv("a.csv", dtype=dict(whole=str)).drop(columns="gap").to_parquet("a.parquet")
    assert cli.main(line.replace("a.csv", "a.parquet").replace(",gap", "").split()) == 0
    assert pd.read_parquet("o.parquet").whole.tolist() == cells["whole"].tolist()


def test_labels_of_arrays_are_matched_as_text_first(capsys):
    "Also by `apply`, which writes them, and where the text is a number; a label in Python may be the number itself."
    names = ["000", "002", "010"]
    labels = np.array(names)[TARGET]
    np.savez("a.npz", logits=LOGITS, target=labels, classes=names)
    for kept in names, ["001", "002", "003"]:
        np.savez("a.npz", logits=LOGITS, target=np.array(kept)[TARGET], classes=kept)
        read = read_columns("a.npz", "logits")
        assert torch.equal(read.target, TARGET) and read.words == tuple(kept)
    make_calibrator("temperature").fit(LOGITS, TARGET).save("c.safetensors")
    assert cli.main("apply c.safetensors a.npz --logits --out o.csv".split()) == 0
    assert pd.read_csv("o.csv", dtype=str).target.tolist() == np.array(kept)[TARGET].tolist()
    for kept in np.array([0, 2, 5]), np.array([0., 2., 5.]):  # as scikit-learn's `classes_`; no label is 5
        rows = TARGET.numpy() < 2
        np.savez("numbers.npz", logits=LOGITS[rows], target=kept[TARGET[rows]], classes=kept)
        assert torch.equal(read_predictions("numbers.npz", "logits").target, TARGET[rows])
    for others in ["10", "20", "30"], ["1", "2", "7"]:  # no label is a name, or not all are, so labels are ids
        np.savez("ids.npz", logits=LOGITS, target=TARGET, classes=others)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert torch.equal(read_columns("ids.npz", "logits").target, TARGET)
        assert len(caught) == (others[0] == "1")
    np.savez("names.npz", logits=LOGITS, target=np.array([2, 0, 1])[TARGET], classes=["2", "0", "1"])
    assert torch.equal(read_columns("names.npz", "logits").target, TARGET)
    lines = [dict(p=float(p), y=names[int(k == 1)]) for p, k in zip(LOGITS[:, 1].sigmoid(), TARGET)]
    Path("p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for positive in "002", 2:
        preds = read_predictions("p.jsonl", "probs", pos_label=positive)
        assert torch.equal(preds.target, (TARGET == 1).long()) and preds.classes == ("000", "002")
    lines = [dict(logits=row, y=name) for row, name in zip(LOGITS.tolist(), labels)]
    Path("l.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert f"y: text, '{labels[0]}' in line 1, and nothing names the classes" in refused(capsys, "audit", "l.jsonl")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_stated_confidences_are_found_by_their_usual_names(suffix):
    table = pd.DataFrame(dict(confidence=LOGITS[:, 0].sigmoid(), correct=TARGET % 2, sure=.5))
    def written(columns):
        arrays = {name: table[name].to_numpy() for name in columns}
        np.savez("a.npz", **arrays) if suffix == "npz" else table[columns].to_csv("a.csv", index=False)
    for columns in ["confidence", "correct"], ["confidence"]:
        written(columns)
        read = read_columns(f"a.{suffix}", "confidence")
        assert torch.allclose(read.logits[:, 0].sigmoid(), LOGITS[:, 0].sigmoid())
        assert read.target is None if len(columns) == 1 else torch.equal(read.target, TARGET % 2)
    written(["sure", "correct"])
    with pytest.raises(ValueError, match=f"file: a.{suffix}.*confidence.*'?sure"):
        read_columns(f"a.{suffix}", "confidence")


@pytest.mark.parametrize("width", [3, 1])
@pytest.mark.parametrize("suffix, place", [(".csv", "line 6"), (".jsonl", "line 5"), (".npz", "row 4"),
                                           (".parquet", "row 4")])
def test_a_sample_without_any_class_is_told_by_its_place(suffix, place, width, capsys):
    "All logits of it are -inf."
    logits = LOGITS[:, :width].numpy().copy()
    logits[4] = -np.inf
    frame = pd.DataFrame(logits, columns=WORDS[:width]).assign(y=TARGET.numpy() if width > 1 else TARGET.numpy() % 2)
    if suffix == ".npz":
        np.savez("a.npz", logits=logits, y=frame["y"])
    elif suffix == ".jsonl":
        Path("a.jsonl").write_text("\n".join(map(json.dumps, frame.to_dict("records"))))
    else:
        getattr(frame, f"to_{suffix[1:]}")(f"a{suffix}", index=False)
    err = refused(capsys, "audit", f"a{suffix}", "--logits")
    assert f"a{suffix}: logits: {place} holds only -inf, want a finite logit in each row" in err
    with pytest.raises(ValueError, match=f"logits: {place} holds only -inf"):
        read_columns(f"a{suffix}", "logits")
    if suffix in (".npz", ".parquet"):
        with pytest.raises(ValueError, match=f"logits: {place} holds only -inf"):
            list(read_pieces(f"a{suffix}", "logits", rows=3))


def test_a_column_to_leave_out_may_be_in_one_of_two_files(capsys):
    probs_table().to_csv("old.csv", index=False)
    probs_table().assign(note="seen").to_csv("new.csv", index=False)
    commands = "compare old.csv new.csv", "compare new.csv old.csv", "estimate new.csv --like old.csv"
    for command in commands:
        assert cli.main([*command.split(), "--probs", "--ignore-col", "note"]) == 0
    err = refused(capsys, *"compare old.csv new.csv --probs --ignore-col nota".split())
    assert "column: 'nota' is not known" in err


def test_single_precision_in_a_table_is_rounded_as_such(capsys):
    "In float32, .2 is above the edge 3/15; in a csv file it lies on it."
    table = pd.DataFrame(dict(p=np.tile([.2, .4, .6, .8], 50), y=np.tile([0, 1], 100)))
    table.to_csv("p.csv", index=False)
    table.astype(dict(p="float32")).to_parquet("p.parquet")
    found = []
    for name in "p.csv", "p.parquet":
        assert cli.main(["audit", name, "--probs", "--no-report", "--json", "--calibrator", "temperature"]) == 0
        found.append(json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]["ece"]["value"])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_plan_says_that_it_cannot_read_the_labels(capsys):
    p = np.linspace(.01, .99, 200)
    pd.DataFrame(dict(score=p, y=["no", "yes"]*100)).to_csv("p.csv", index=False)
    assert cli.main("plan p.csv --probs --below 5".split()) == 0
    assert "the labels cannot be read" in capsys.readouterr().err


def test_a_command_proposes_no_flag_that_it_lacks(capsys):
    table = probs_table()
    table.iloc[3, 0] = np.nan
    table.to_csv("hole.csv", index=False)
    table.iloc[:, :3].to_csv("scores.csv", index=False)
    table.iloc[:, 3:].to_csv("labels.csv", index=False)
    for command in "compare hole.csv hole.csv", "audit scores.csv --target labels.csv":
        err = refused(capsys, *command.split(), "--probs")
        assert "leave out the row" in err and "drop-missing" not in err
    assert "audit hole.csv --probs --drop-missing" in refused(capsys, *"audit hole.csv --probs".split())


def test_a_class_may_be_called_weight():
    table = probs_table()
    table.set_axis(["weight", "b", "c", "y"], axis=1).to_csv("w.csv", index=False)
    assert cli.main("audit w.csv --no-report --calibrator temperature --prob-cols weight,b,c".split()) == 0


def test_labels_of_a_second_file_count_as_those_of_the_first(capsys):
    "Without class 0, labels 1 and 2 beside prob_1, prob_2, prob_3 would be names of columns."
    frame = pd.DataFrame(LOGITS.softmax(1).numpy(), columns=["prob_1", "prob_2", "prob_3"])
    frame = frame.assign(target=TARGET.numpy())
    without = frame[300:].query("target > 0")
    frame[:300].to_csv("all.csv", index=False)
    frame[300:].to_csv("more.csv", index=False)
    without.to_csv("without.csv", index=False)
    line = "audit all.csv --no-report --json --calibrator vector"
    assert cli.main(f"{line} --shifted without.csv".split()) == 0
    nll = json.loads(capsys.readouterr().out)["shifted"]["rows"]["uncalibrated"]["nll"]
    assert nll == pytest.approx(-np.log(without.to_numpy()[np.arange(len(without)), without.target]).mean())
    with_k = frame.assign(target=frame.target + 1)  # label 3 says that they count from 1
    with_k.to_csv("from_1.csv", index=False)
    without.assign(target=without.target.map(str)).to_json("without.jsonl", orient="records", lines=True)
    for first, second, least in (("all.csv", "without.csv", 1), ("all.csv", "without.jsonl", 1),
                                 ("from_1.csv", "without.csv", 0), ("all.csv", "from_1.csv", 0)):
        preds, val = read_sets(first, "probs", val_path=second)
        assert preds.classes == (("0", "1", "2") if first == "all.csv" else ("1", "2", "3"))
        assert val.target.min() == least
    with pytest.warns(UserWarning, match="'1', '2' are read as names of columns, which count from 1"):
        read_predictions("without.csv", "probs")
    line = "audit from_1.csv --val all.csv"
    assert "the labels of the fit, or of the first file, count from 1" in refused(capsys, *line.split())
    fit_to(make_calibrator("vector"), read_predictions("all.csv", "probs")).save("c.safetensors")
    written = []
    for file in "without.csv", "more.csv":
        assert cli.main(f"apply c.safetensors {file} --probs --out out.csv".split()) == 0
        written.append(pd.read_csv("out.csv"))
    whole = written[1][frame.target[300:].to_numpy() > 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(written[0], whole)  # also prediction and target


@pytest.mark.parametrize("fit, new, labels", [("prob_yes", "prob_no", ["no", "yes"]),
                                              ("prob_yes", "prob_not_yes", ["no", "yes"]),
                                              ("p", "p_neg", [False, True]),
                                              ("prob_true", "prob_false", [False, True])])
def test_a_column_about_the_other_label_is_refused(fit, new, labels, capsys):
    p = LOGITS.softmax(1)[:, 0].numpy()
    y = np.array(labels)[(TARGET == 0).long()]
    pd.DataFrame({fit: p, "target": y}).to_csv("fit.csv", index=False)
    pd.DataFrame({new: 1 - p, "target": y}).to_csv("new.csv", index=False)
    pos = ["--pos-label", "yes"]*(labels[1] == "yes")
    preds = read_predictions("fit.csv", "probs", pos_label=pos[1] if pos else None)
    fit_to(make_calibrator("platt"), preds).save("c.safetensors")
    apply = "apply c.safetensors new.csv --probs --out out.csv"
    for line in (*[apply]*(fit != "p"), f"compare fit.csv new.csv {' '.join(pos)}",
                 f"audit fit.csv --val new.csv {' '.join(pos)}", f"audit new.csv {' '.join(pos)}"):
        assert cli.main([*line.split(), *["--probs"]*("--probs" not in line)]) == 2
        assert f"column '{new}'" in capsys.readouterr().err


@pytest.mark.parametrize("column, labels, positive", [("p_no_show", ["no", "yes"], "yes"), ("model_1", [1, 2], "2"),
                                                      ("p_false_alarm", [False, True], None)])
def test_a_name_that_only_contains_the_other_label_is_read(column, labels, positive, capsys):
    p = LOGITS.softmax(1)[:, 0].numpy()
    pd.DataFrame({column: p, "target": np.array(labels)[(TARGET == 0).long()]}).to_csv("a.csv", index=False)
    line = "audit a.csv --no-report --json --probs" + f" --pos-label {positive}"*bool(positive)
    assert cli.main(line.split()) == 0
    error = json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]["error"]["value"]
    assert error == pytest.approx(((p > .5) != (TARGET == 0).numpy()).mean())


def test_a_calibrator_of_counted_columns_asks_for_a_header(capsys):
    "Its class names 0, 1, 2 would make names of the numbers of the first sample."
    pd.DataFrame(LOGITS.numpy(), columns=["logit_1", "logit_2", "logit_3"]).assign(target=TARGET.numpy()).to_csv(
        "a.csv", index=False)
    fit_to(make_calibrator("vector"), read_predictions("a.csv", "logits")).save("c.safetensors")
    Path("b.csv").write_text("0.0,1.0,-2.5\n1.0,2.0,.5\n")
    line = "apply c.safetensors b.csv --logits --out o.csv"
    assert "the first line has '0.0' as a name" in refused(capsys, *line.split())
    write("named.csv", target=LABELS)
    pd.read_csv("named.csv")[WORDS].to_csv("named.csv", index=False)
    assert cli.main("apply c.safetensors named.csv --logits --out o.csv".split()) == 0
    assert set(pd.read_csv("o.csv").prediction) == set(WORDS) and "does not name its classes" in capsys.readouterr().out


def test_signed_labels_and_hints_that_work(capsys):
    p, y = LOGITS.softmax(1)[:, 0].numpy(), np.where(TARGET == 0, -1, 1)
    pd.DataFrame({"prob_-1": p, "target": y}).to_csv("a.csv", index=False)
    assert refused(capsys, "audit", "a.csv", "--no-report").endswith("try: calibnb audit a.csv --no-report "
                                                                     "--pos-label -1\n")
    assert cli.main("audit a.csv --no-report --json --pos-label -1".split()) == 0
    error = json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]["error"]["value"]
    assert error == pytest.approx(((p > .5) != (y == -1)).mean())


@pytest.mark.parametrize("labels, beside", [("ground_truth_label", {}), ("diagnosis", {}), ("animal", {"a,b": "text"}),
                                            ("target", {"y": .2})])
def test_a_proposed_command_keeps_the_labels(labels, beside, capsys):
    "The kind is not stated: the proposal was to leave the labels out. A name with a comma needs quotes."
    probs = LOGITS.softmax(1).numpy()
    frame = pd.DataFrame(probs, columns=WORDS).assign(**{labels: LABELS})
    if "y" in beside:  # three classes, of which one is called y
        frame = pd.DataFrame(probs, columns=["cat", "dog", "y"]).assign(target=np.array(["cat", "dog", "y"])[TARGET])
    else: frame = frame.assign(**beside)
    frame.to_csv("a.csv", index=False)
    assert cli.main(["audit", "a.csv", "--no-report", "--json"]) == 2
    command = capsys.readouterr().err.split("; try: ")[1]
    assert cli.main(shlex.split(command)[1:]) == 0
    error = json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]["error"]["value"]
    assert error == pytest.approx((probs.argmax(1) != TARGET.numpy()).mean())


def test_true_and_false_beside_other_classes_and_beside_an_empty_cell(capsys):
    names = ["True", "False", "Unknown"]
    frame = pd.DataFrame(LOGITS.numpy(), columns=names).assign(target=TARGET.numpy() == 0)[TARGET.numpy() < 2]
    frame.to_csv("a.csv", index=False)
    want = TARGET[TARGET < 2]
    assert torch.equal(read_predictions("a.csv", "logits").target, want)
    assert torch.equal(read_columns("a.csv", "logits").target, want)
    np.savez("a.npz", logits=frame[names].to_numpy(), target=frame.target, classes=names)
    assert torch.equal(read_predictions("a.npz", "logits").target, want)
    p = LOGITS.softmax(1)[:, 0].numpy()
    frame = pd.DataFrame(dict(p=p, target=(TARGET.numpy() == 0).astype(object)))
    frame.loc[3, "target"] = None
    frame.to_csv("b.csv", index=False)
    with pytest.warns(UserWarning, match="b.csv: 1 of 600 samples lack"):
        preds = read_predictions("b.csv", "probs", names=ColumnNames(drop_missing=True))
    assert torch.equal(preds.target, (TARGET == 0).long()[torch.arange(600) != 3])


def test_one_column_of_named_classes_and_false_as_the_positive_label(capsys):
    "As of `decision_function` and `classes_` of scikit-learn."
    margin, y = LOGITS[:, 0].numpy(), np.where(TARGET == 0, 1, -1)
    np.savez("a.npz", logits=margin, target=y, classes=[-1, 1])
    assert torch.equal(read_predictions("a.npz", "logits").target, (TARGET == 0).long())
    np.savez("b.npz", logits=margin, target=(y == 1).astype(int), classes=[1, 0])
    with pytest.raises(ValueError, match="the single column is class 0"): read_predictions("b.npz", "logits")
    pd.DataFrame(dict(p=LOGITS.softmax(1)[:, 1].numpy(), target=TARGET.numpy() == 0)).to_csv("c.csv", index=False)
    preds = read_predictions("c.csv", "probs", pos_label="False")
    fit_to(make_calibrator("platt"), preds).save("c.safetensors")
    assert preds.classes == ("True", "False")
    assert torch.equal(read_columns("c.csv", "probs", 0., preds.classes).target, preds.target)


def test_pieces_are_put_into_the_order_of_their_classes(capsys):
    fit_to(make_calibrator("vector"), Predictions(LOGITS, TARGET, classes=WORDS)).save("c.safetensors")
    np.savez("a.npz", logits=LOGITS.flip(1).numpy(), classes=WORDS[::-1])
    found = []
    for flags in [], ["--rows-in-memory", "100"]:
        assert cli.main(["apply", "c.safetensors", "a.npz", "--logits", "--out", "o.npy", *flags]) == 0
        found.append(np.load("o.npy"))
    assert np.allclose(*found)


def test_numbers_as_text_keep_their_count_in_apply(capsys):
    frame = pd.DataFrame(LOGITS.numpy(), columns=["prob_1", "prob_2", "prob_3"])
    fit_to(make_calibrator("vector"), Predictions(LOGITS, TARGET, classes=("0", "1", "2"))).save("c.safetensors")
    for least in 0, 1:
        rows = TARGET.numpy() >= least
        frame[rows].assign(target=TARGET.numpy()[rows].astype(str)).to_json("a.jsonl", orient="records", lines=True)
        assert cli.main("apply c.safetensors a.jsonl --logits --out o.csv".split()) == 0
        assert (pd.read_csv("o.csv").target == TARGET.numpy()[rows]).all()
