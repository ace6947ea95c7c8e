"Predictions from files, by hand and through `calibnb audit` and `apply`: right, refused in one line, never executed."
import errno
import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from close import close
from conftest import patience, run_forked
from safetensors.torch import save_file
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from calibnb import cli, metrics
from calibnb.core import Predictions
from calibnb.core.reading import first_repeated
from calibnb.evaluate import UNCALIBRATED, evaluate, page
from calibnb.files.formats import named_kind
from calibnb.files.pieces import open_scores
from calibnb.files.predictions import read_columns, read_predictions
from calibnb.posthoc import Calibrator, make_calibrator
from calibnb.posthoc.problems import problem_of

DRAW = torch.Generator().manual_seed(0)
LOGITS = 4*torch.randn(600, 4, generator=DRAW)
TARGET = torch.multinomial((LOGITS/2).softmax(1), 1, generator=DRAW)[:, 0]
PROBS = LOGITS.softmax(1)
ODDS, FLAGS = LOGITS[:, 0] - LOGITS[:, 1:].logsumexp(1), (TARGET == 0).long()  # the first class against the others


def write(path, scores=LOGITS, target=TARGET, name="logits"):
    "Scores of any shape and labels, in the format of the path."
    arrays = {name: scores.numpy(), "target": target.numpy()}
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({name: scores, "labels": target}, path)
    elif path.suffix == ".safetensors":
        save_file({name: scores, "y": target}, path)
    else:
        scores = scores.view(len(target), -1)
        write_table(path, scores, list("abcdefghij")[:scores.shape[1]], Target=target.numpy())
    return path


def write_table(path, scores, columns, **others):
    frame = pd.DataFrame(scores.double().numpy(), columns=columns).assign(**others)
    if path.suffix in (".parquet", ".feather"):
        getattr(frame, f"to_{path.suffix[1:]}")(path)
    else:
        frame.to_csv(path, index=False)
    return path


def test_a_csv_is_read_to_the_last_digit(tmp_path):
    "pandas before 3.1 drops the last digit of most numbers unless it is told not to."
    logits = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = write_table(tmp_path/"test.csv", logits, ["a", "b", "c"], target=[0, 1]*250)
    assert torch.equal(read_predictions(path, "logits").logits, logits)  # bits: saved and loaded


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors", ".csv", ".csv.gz", ".parquet", ".feather"])
def test_every_format(tmp_path, suffix):
    if suffix in (".parquet", ".feather"):
        pytest.importorskip("pyarrow")
    for scores, target in (LOGITS, TARGET), (ODDS, FLAGS), (ODDS[:, None], FLAGS):
        columns = scores.view(len(scores), -1)
        probs = columns.softmax(1) if columns.shape[1] > 1 else columns.sigmoid()
        preds = read_predictions(write(tmp_path/f"a{suffix}", scores, target), "logits")
        assert torch.equal(preds.logits.float(), columns) and torch.equal(preds.target, target)
        preds = read_predictions(write(tmp_path/f"p{suffix}", probs.view(scores.shape), target, "probs"), "probs")
        assert close(preds.probs.float(), probs)
        read = read_columns(tmp_path/f"p{suffix}", "probs").logits.double()
        assert close(read.softmax(1) if read.shape[1] > 1 else read.sigmoid(), probs, columns.shape[1])


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_labels_of_a_columnar_file(tmp_path, suffix):
    "Words, categories and integers that may be missing."
    pytest.importorskip("pyarrow")
    table, path = pd.DataFrame(dict(cat=[.1, .8, .6], dog=[.9, .2, .4])), tmp_path/f"a.{suffix}"
    for labels in ["dog", "cat", "cat"], pd.Categorical(["dog", "cat", "cat"]), pd.array([1, 0, 0], dtype="Int64"):
        getattr(table.assign(target=labels), f"to_{suffix}")(path)
        preds = read_predictions(path, "probs")
        assert preds.target.tolist() == [1, 0, 0] and preds.classes == ("cat", "dog")
    for labels in ["dog", None, "cat"], pd.array([1, None, 0], dtype="Int64"):
        getattr(table.assign(target=labels), f"to_{suffix}")(path)
        with pytest.raises(ValueError, match="column 'target' has no label in row 1"):
            read_predictions(path, "probs")


def test_columnar_files_need_pyarrow(tmp_path, monkeypatch):
    (tmp_path/"a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # cannot be imported
    for name in "pyarrow.parquet", "pyarrow.feather": monkeypatch.delitem(sys.modules, name, raising=False)
    missing = r"pyarrow: not installed; pip install 'calibnb\[tables\]'"
    with pytest.raises(ValueError, match=f"a.parquet cannot be read as parquet .{missing}"):
        read_predictions(tmp_path/"a.parquet", "logits")
    with pytest.raises(ValueError, match=f"a.parquet cannot be read as parquet .{missing}"):
        open_scores(tmp_path/"a.parquet", "logits")


def test_labels_in_a_second_file(tmp_path):
    "Scores from a file that `save` wrote, or without any names."
    np.save(tmp_path/"z.npy", LOGITS.numpy())
    np.save(tmp_path/"y.npy", TARGET.numpy()[:, None])
    pd.DataFrame(LOGITS.double().numpy()).assign(target=TARGET.numpy()).to_csv(tmp_path/"numbers.csv", index=False)
    Predictions(LOGITS, TARGET).save(tmp_path/"p.safetensors")
    (tmp_path/"y.csv").write_text("label\n" + "\n".join(map(str, TARGET.tolist())))
    for name, labels in ("z.npy", "y.npy"), ("z.npy", "y.csv"), ("numbers.csv", None), ("p.safetensors", None):
        preds = read_predictions(tmp_path/name, "logits", labels and tmp_path/labels)
        assert torch.equal(preds.logits.float(), LOGITS) and torch.equal(preds.target, TARGET)
    with pytest.raises(ValueError, match="z.npy holds one array without a name, so no labels"):
        read_predictions(tmp_path/"z.npy", "logits")


class Bomb:
    def __reduce__(self):
        return exec, (f"import pathlib; pathlib.Path({str(Path.cwd()/'exploded')!r}).touch()",)


def bombs(folder):
    "Pickles with code in them, under every name."
    (folder/"a.npz").write_bytes(pickle.dumps(Bomb()))
    (folder/"b.npy").write_bytes(pickle.dumps(Bomb()))
    np.save(folder/"c.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez(folder/"d.npz", logits=np.array([Bomb()], dtype=object), target=TARGET.numpy())
    torch.save(dict(logits=Bomb(), target=TARGET), folder/"e.pt")
    torch.save(Bomb(), folder/"f.pth")
    (folder/"g.safetensors").write_bytes(pickle.dumps(Bomb()))
    (folder/"h.csv").write_bytes(pickle.dumps(Bomb()))
    return sorted(p for p in folder.iterdir() if p.suffix != ".touch")


def test_bombs_do_not_go_off(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for path in bombs(tmp_path):
        with pytest.raises(ValueError, match=f"file: .*{path.name}"):
            read_predictions(path, "logits")
        assert cli.main(["audit", str(path), "--logits"]) == 2
        assert cli.main(["apply", str(path), str(path), "--logits", "--out", "o.npz"]) == 2
        for line in capsys.readouterr().err.splitlines():
            assert line.startswith("calibnb: ") and len(line) < 400
    assert not (tmp_path/"exploded").exists() and not (tmp_path/"o.npz").exists()
    pickle.loads((tmp_path/"a.npz").read_bytes())  # the bomb is live
    assert (tmp_path/"exploded").exists()


def bad_arrays(folder):
    "Files with wrong arrays, what each is read as, and a part of the message."
    nan = LOGITS.clone()
    nan[3, 1] = float("nan")
    yield write(folder/"nan.npz", nan), "logits", "row 3 holds nan or inf"
    yield write(folder/"probs.npz", PROBS), "logits", "these are probabilities"
    reason = "want numbers in [0, 1]; logits need .softmax(1) first"
    yield write(folder/"logits.npz", LOGITS, name="probs"), "probs", reason
    reason = "0 entries called logits, want 1; names in it: 'z', 'target'"
    yield write(folder/"name.npz", LOGITS, name="z"), "logits", reason
    yield write(folder/"three.npz", LOGITS[:3], TARGET[:3]), "logits", "preds: 3 samples, too few"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(LOGITS, .1, 0, torch.qint8)
    for name, tensor, reason in [("sparse", LOGITS.to_sparse(), "sparse tensor"),
                                 ("meta", LOGITS.to("meta"), "on the device meta, which has no values"),
                                 ("quantised", quantised, "is quantised, want .dequantize()"),
                                 ("float8", LOGITS.to(torch.float8_e4m3fn), "holds float8_e4m3fn values"),
                                 ("huge", torch.zeros(1).expand(10**13, 4), "more than the memory holds")]:
        torch.save(dict(logits=tensor, target=TARGET), folder/f"{name}.pt")
        yield folder/f"{name}.pt", "logits", reason
    large = TARGET.numpy().astype(np.uint64)
    large[5] = 2**63
    for name, labels, reason in [("large", large, "target: 9223372036854775808, want numbers below 2**63"),
                                 ("far", np.where(TARGET == 1, 1e300, 0), "want integer class ids")]:
        np.savez(folder/f"{name}.npz", logits=LOGITS.numpy(), target=labels)
        yield folder/f"{name}.npz", "logits", reason


def bad_formats(folder):
    "Files that are absent, damaged or of an unknown format."
    yield folder/"absent.npz", "logits", "does not exist"
    (folder/"broken.npz").write_text("no zip")
    yield folder/"broken.npz", "logits", "cannot be read as npz"
    write(folder/"twice.npz")
    with zipfile.ZipFile(folder/"twice.npz", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("logits.npy", archive.read("logits.npy"))
    yield folder/"twice.npz", "logits", "two entries called 'logits'"
    for name, content in ("no.csv", b""), ("no.csv.gz", b"no gzip"), ("x.parquet", b""), ("junk.pt", b"no tensors"):
        (folder/name).write_bytes(content)
        yield folder/name, "logits", f"{name} cannot be read as "
    (folder/"x.xlsx").write_text("")
    yield folder/"x.xlsx", "logits", "file format: '.xlsx' is not known"


def bad_tables(folder):
    "Tables whose columns cannot be classes in order, or whose labels belong to no class."
    (folder/"blank.csv").write_text('\na,b,target\n1,2,0\n\n\n3,"4\n",1\nx,1,0\n')
    yield folder/"blank.csv", "logits", "column 'a' holds text, 'x' in line 8, want numbers"
    for name, header in dict(twice="a,b,a,target", stripped="a,b, a,target", targets="a,b,target,target").items():
        (folder/f"{name}.csv").write_text(header + "\n1,2,0,0\n")
        yield folder/f"{name}.csv", "logits", "two columns are called"
    pd.DataFrame(LOGITS.numpy()).to_csv(folder/"headerless.csv", header=False, index=False)
    yield folder/"headerless.csv", "logits", "as a name; want a header"
    mixed = write_table(folder/"mixed.csv", LOGITS, ["c9", "c2", "c5", "c7"], target=TARGET.numpy())
    yield mixed, "logits", "which is not the name of a class column, but 2 is one; want names as labels"
    unmatched = write_table(folder/"unmatched.csv", LOGITS, ["c9", "c6", "c5", "c7"], target=TARGET.numpy())
    yield unmatched, "logits", "if they are in the order of the classes, say so: --prob-cols c9,c6,c5,c7"
    p = ODDS.sigmoid()
    def binary(scores=p, column="p", y=FLAGS.numpy(), **others):
        return write_table(folder/f"{len(list(folder.iterdir()))}.csv", scores[:, None], [column], y=y, **others)
    yield binary(100*p), "probs", "want numbers in [0, 1]; logits need .sigmoid() first, percentages /100"
    yield binary(p), "logits", "these are probabilities; read the file as probs"
    yield binary(torch.where(FLAGS == 1, p, float("nan"))), "probs", "column 'p' holds nan in line"
    yield binary(column="class_0"), "probs", "column 'class_0' is the only one, and its name says class 0"
    hint = "labels -1 and 1, want 0 and 1, and nothing says which label 'p' is about"
    yield binary(y=2*FLAGS.numpy() - 1), "probs", hint
    long = np.where(FLAGS[:9] == 1, "x"*100_000, "y"*100_000)
    yield binary(p[:9], y=long), "probs", " ... "
    yield binary(y=np.where(FLAGS == 1, "yes", "no")), "probs", "in line 2, and nothing says which label 'p' is about"
    yield binary(sample_weight=p.numpy()), "probs", "sampling weights as --weight NAME"
    pd.DataFrame(dict(y=FLAGS.numpy())).to_csv(folder/"labels.csv", index=False)
    yield folder/"labels.csv", "probs", "has no classes or no samples"
    pd.DataFrame(dict(p=p.numpy())).to_csv(folder/"unlabelled.csv", index=False)
    yield folder/"unlabelled.csv", "probs", "0 entries called target"


@pytest.mark.parametrize("bad_files", [bad_arrays, bad_formats, bad_tables])
def test_bad_files_end_in_one_line(bad_files, tmp_path, capsys):
    for path, kind, reason in bad_files(tmp_path):
        assert cli.main(["audit", str(path), f"--{kind}"]) == 2, path
        err = capsys.readouterr().err
        assert reason in err and err.count("\n") == 1 and err.startswith("calibnb: ") and len(err) < 400, err


@pytest.mark.parametrize("args, message", [
    (["--bins", "0"], "--bins: 0"),
    (["--val", "b.npz"], "val: 3 classes, want 4"),
    (["--val", "c.npz"], "--val: c.npz does not exist"),
    (["--val", "a.npz"], "the same samples as preds"),
    (["--val-target", "b.npz"], "without --val"),
])
def test_a_wrong_audit_is_refused_before_it_begins(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path/"a.npz")
    write(tmp_path/"b.npz", LOGITS[:, :3], TARGET.clamp_max(2))
    assert cli.main(["audit", "a.npz", "--logits", *args]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path/"runs").exists()


def test_labels_with_probability_zero_are_told(tmp_path, capsys):
    sure = torch.nn.functional.one_hot(LOGITS.argmax(1), 4).double()
    path = str(write(tmp_path/"p.npz", sure, name="probs"))
    assert cli.main(["audit", path, "--probs", "--no-report", "--calibrator", "temperature"]) == 0
    out = capsys.readouterr()
    assert "labels have probability 0, so the uncalibrated NLL is infinite; calibrators replace each 0 by" in out.out
    assert not out.err


def test_what_the_file_holds_is_said_by_a_name_or_a_flag(tmp_path, monkeypatch, capsys):
    "An array or columns called logits or probs, in files whose names can be read at once; nothing is guessed."
    monkeypatch.chdir(tmp_path)
    np.savez("scores.npz", scores=LOGITS, target=TARGET)
    assert cli.main(["audit", "scores.npz"]) == 2
    assert "scores.npz does not say what it holds; give --logits or --probs" in capsys.readouterr().err
    names = [f"prob_{k}" for k in range(4)]
    pd.DataFrame(PROBS.numpy(), columns=names).assign(logit_of=0., y=TARGET.numpy()).to_csv("both.csv", index=False)
    pd.DataFrame(PROBS.numpy(), columns=names).assign(y=TARGET.numpy()).to_csv("probs.csv", index=False)
    write(Path("a.npz"))
    write(Path("a.safetensors"))
    found = [named_kind(name) for name in ("both.csv", "probs.csv", "a.npz", "a.safetensors")]
    assert found == [None, "probs", "logits", "logits"]
    assert cli.main(["audit", "a.npz", "--no-report", "--calibrator", "temperature"]) == 0
    Path("cut.npz").write_bytes(Path("a.npz").read_bytes()[:200])
    assert cli.main(["audit", "cut.npz"]) == 2
    assert "cut.npz" in (err := capsys.readouterr().err) and err.count("\n") == 1


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_audit_and_apply(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path, out = write(tmp_path/"a.npz"), tmp_path/"out"
    assert cli.main(["audit", "a.npz", "--logits", "--to", "out", "--title", "my model"]) == 0
    said = capsys.readouterr().out
    assert "; temperature scaling with T = 2." in said or "; temperature scaling with T = 1.9" in said
    assert "calibnb apply out/calibrator.safetensors FILE --logits" in said and "paper:" not in said
    assert max(map(len, said.split("\n\n")[4].splitlines())) <= 80, "the table fits a terminal"
    assert {p.name for p in out.iterdir()} == {"audit.json", "report.html", "calibrator.safetensors", "tables"}
    report = (out/"report.html").read_text()
    assert "my model" in report and "calibnb audit a.npz --logits" in report and "https:" not in report
    assert len(report) < 500_000 and str(tmp_path) not in report
    kept = pd.read_csv(out/"tables"/"measures.csv", index_col=["calibrator", "metric"], dtype=str)
    assert kept.loc[(UNCALIBRATED, "error"), "value"] == str((LOGITS.argmax(1) != TARGET).double().mean().item())
    calibrator = Calibrator.load(out/"calibrator.safetensors")
    apply = ["apply", "out/calibrator.safetensors"]
    for suffix in ".npz", ".csv", ".safetensors", ".pt", ".npy":
        assert cli.main([*apply, str(path), "--logits", "--out", f"cal{suffix}"]) == 0
        got, labels = read_columns(f"cal{suffix}", "probs")[:2]
        assert torch.allclose(got.exp().float(), calibrator.transform(LOGITS), atol=1e-6)
        assert suffix == ".npy" or torch.equal(labels, read_columns(path, "logits").target)
    write(tmp_path/"three.npz", LOGITS[:, :3], TARGET.clamp_max(2))
    assert cli.main([*apply, "three.npz", "--logits", "--out", "x.npz"]) == 2
    assert cli.main([*apply, "a.npz", "--logits", "--out", "x"]) == 2
    assert cli.main(["apply", "nothing.safetensors", "a.npz", "--logits", "--out", "x.npz"]) == 2
    err = capsys.readouterr().err
    assert "3 classes, want 4" in err and "want a name that ends in" in err and "nothing.safetensors" in err
    assert not (tmp_path/"x.npz").exists()


def test_audit_with_validation_and_of_a_changed_file(tmp_path, capsys):
    "The report is of the file as it is now, though its name is the same."
    write(tmp_path/"val.npz", PROBS[:300], TARGET[:300], "probs")
    write(tmp_path/"test.npz", PROBS[300:], TARGET[300:], "probs")
    args = ["audit", str(tmp_path/"test.npz"), "--probs", "--val", str(tmp_path/"val.npz"), "--to", str(tmp_path/"out"),
            "--calibrator", "temperature"]
    assert cli.main(args) == 0
    first = capsys.readouterr().out
    assert "overconfident" in first
    write(tmp_path/"test.npz", (LOGITS/2).softmax(1)[300:], TARGET[300:], "probs")
    write(tmp_path/"val.npz", (LOGITS/2).softmax(1)[:300], TARGET[:300], "probs")
    assert cli.main(args) == 0
    second = capsys.readouterr().out
    assert "no calibrator lowers the NLL significantly and by more than 0.001 nats" in second
    stale = tmp_path/"out"/"calibrator.safetensors"
    assert not stale.exists(), "a calibrator of the older audit would be taken for this one's"


def test_the_command_itself(tmp_path):
    "In a process of its own, from another directory."
    command = [str(Path(sys.executable).parent/"calibnb"), "audit", "absent.csv", "--logits"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60))
    assert found.returncode == 2 and "absent.csv does not exist" in found.stderr and found.stderr.count("\n") == 1
    assert not found.stdout and not [*tmp_path.iterdir()]


def test_apply_replaces_zeros_as_the_audit_did(tmp_path, monkeypatch, capsys):
    "A forest's zeros: the calibrator's file knows what replaces them, and `apply` uses it."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    votes = torch.rand(400, 30, 3, generator=draw).argmax(2)
    probs = torch.nn.functional.one_hot(votes*(torch.rand(400, 30, generator=draw) < .3), 3).double().mean(1)
    target = torch.multinomial(probs.sqrt(), 1, generator=draw)[:, 0]
    np.savez("p.npz", probs=probs.numpy(), target=target.numpy())
    assert cli.main("audit p.npz --probs --eps .01 --to a --calibrator vector".split()) == 0
    assert "replace each 0 by at most 0.01 divided by" in capsys.readouterr().out
    calibrator = Calibrator.load("a/calibrator.safetensors")
    assert calibrator.eps_ == .01
    assert cli.main(["apply", "a/calibrator.safetensors", "p.npz", "--probs", "--out", "o.npz"]) == 0
    zero = probs == 0
    smallest = torch.where(zero, 1., probs).amin(1, keepdim=True)
    filled = torch.where(zero, (smallest/2).clamp_max(.01/3), probs)
    filled /= filled.sum(1, keepdim=True)
    assert 0 < zero.any(1).sum() < 400
    want = problem_of(calibrator).calibrated(filled.log())
    for got in torch.from_numpy(np.load("o.npz")["probs"]), calibrator.transform(probs):
        assert torch.allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("eps, kind, message", [
    ("1", "--probs", "--eps: 1, want a weight in"),
    (".1", "--logits", "it is for --probs"),
])
def test_wrong_weights_for_zeros(eps, kind, message, tmp_path, capsys):
    path = write(tmp_path/"p.npz", PROBS, name="probs")
    assert cli.main(["audit", str(path), kind, "--eps", eps]) == 2
    assert message in capsys.readouterr().err


def test_the_answer_alone_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.chdir(tmp_path)
    command = ["audit", str(write(tmp_path/"a.npz")), "--logits", "--no-report", "--calibrator", "temperature"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("a.npz: 600 samples, 4 classes") and "; temperature scaling with T = " in out
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["classes"], found["report"]) == (600, 4, None)
    assert found["recommended"] == "temperature" and found["verdict"] in out
    ece = found["rows"]["temperature"]["ece"]
    assert ece["interval"][0] <= ece["value"] <= ece["interval"][1] and ece["floor"] < ece["floor_high"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert cli.main([*command, "--to", "out"]) == 2 and "--to: given with --no-report" in capsys.readouterr().err


def test_an_audit_tries_the_calibrators_that_are_named(tmp_path, capsys):
    names = ["temperature+isotonic", "svs", "temperature"]
    path = str(write(tmp_path/"a.npz"))
    found = audited(path, capsys, "--logits", *(arg for name in names for arg in ("--calibrator", name)))
    assert [*found["rows"]] == [UNCALIBRATED, "temperature", "svs", "temperature+isotonic"]
    table = str(write_table(tmp_path/"t.csv", LOGITS, list("abcd"), truth=TARGET.numpy(), wrong=0))
    settings = dict(file=table, calibrators=["svs"], target_col="truth", ignore_col=["wrong"], kind="logits")
    folder = run_forked("audit", settings, root=tmp_path/"runs")  # the notebook alone, which reads the file
    assert pd.read_csv(folder/"tables"/"measures.csv", index_col=0).index.unique().tolist() == [UNCALIBRATED, "svs"]


def test_an_answer_is_not_lost_with_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    def fail(*args, **options): raise OSError(errno.ENOSPC, "No space left on device", "out")
    monkeypatch.setattr(page, "write_page", fail)
    assert cli.main(["audit", str(write(tmp_path/"a.npz")), "--logits", "--json", "--calibrator", "temperature"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["report"] is None and err.endswith("no space left on device\n")


def audited(name, capsys, *args):
    "What `audit` says of a file, as JSON."
    assert cli.main(["audit", name, "--no-report", "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_binary_model_of_scikit_learn_from_csv(tmp_path, monkeypatch, capsys):
    "One column of probabilities and one of labels: audited in one command, calibrated in another, one column again."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.chdir(tmp_path)
    X, y = make_classification(2400, 20, n_informative=5, n_redundant=10, flip_y=.1, weights=[.7], random_state=0)
    model = GaussianNB().fit(X[:800], y[:800])
    p, labels = model.predict_proba(X[800:])[:, 1].clip(1e-6, 1 - 1e-6), y[800:]
    pd.DataFrame(dict(p=p, y=labels)).to_csv("nb.csv", index=False)
    assert cli.main("audit nb.csv --probs --to out --calibrator isotonic --calibrator platt".split()) == 0
    said = capsys.readouterr().out
    error, top = (100*metrics.ece(q, labels).item() for q in (p, np.stack([1 - p, p], 1)))
    assert said.startswith("nb.csv: 1,600 samples, one column, P(y = 1)")
    assert f"ECE of P(y = 1)  {error:.2f} %" in said and f"top-label ECE    {top:.2f} %" in said
    assert {path.name for path in Path("out").iterdir()} >= {"report.html", "calibrator.safetensors", "tables"}
    assert "one column, P(y = 1)" in Path("out/report.html").read_text()
    assert cli.main(["apply", "out/calibrator.safetensors", "nb.csv", "--probs", "--out", "cal.csv"]) == 0
    assert "1,600 x 1 probabilities of" in capsys.readouterr().out
    written = pd.read_csv("cal.csv")
    assert list(written) == ["p", "prediction", "target"] and (written.target == labels).all()
    calibrator = Calibrator.load("out/calibrator.safetensors")
    np.testing.assert_allclose(written.p, calibrator.transform(p), atol=1e-9)
    want = problem_of(calibrator).calibrated(torch.from_numpy(np.log(p) - np.log1p(-p))[:, None])[:, 0]
    np.testing.assert_allclose(written.p, want, atol=1e-9)
    assert metrics.ece(written.p.to_numpy(), labels) < metrics.ece(p, labels)/2
    again = audited("cal.csv", capsys, "--probs")
    assert again["rows"][UNCALIBRATED]["ece"]["value"] == pytest.approx(metrics.ece(written.p.to_numpy(), labels))


def test_one_column_and_its_validation_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    p = ODDS.sigmoid().double()
    for name, rows in dict(test=slice(300, 600), val=slice(300)).items():
        write_table(Path(f"{name}.csv"), p[rows, None], ["p"], y=FLAGS[rows].numpy())
    found = audited("test.csv", capsys, "--probs", "--val", "val.csv")
    preds, val = (Predictions.from_probs(p[rows], FLAGS[rows]) for rows in (slice(300, 600), slice(300)))
    assert found["rows"]["temperature"] == json.loads(json.dumps(evaluate(preds, val).record()))["rows"]["temperature"]
    write(Path("two.npz"), torch.stack([1 - p, p], 1)[:300], FLAGS[:300], "probs")
    assert cli.main(["audit", "test.csv", "--probs", "--val", "two.npz"]) == 2
    assert "--val: 2 classes, but preds: one column, P(y = 1)" in capsys.readouterr().err


def test_a_base_rate_that_has_shifted_is_mended():
    "Trained with the classes balanced, used where one in eight is of class 1: each P(y = 1) is too large."
    X, y = make_classification(6000, 20, n_informative=5, flip_y=.1, weights=[.9], random_state=0)
    model = LogisticRegression(class_weight="balanced").fit(X[:2000], y[:2000])
    p, labels = model.predict_proba(X)[:, 1], y
    names = ["temperature", "histogram", "isotonic", "platt", "beta"]
    found = evaluate(Predictions.from_probs(p[2000:4000], labels[2000:4000]), calibrators=names, n_boot=20, draws=2)
    ece = {row: measures["ece"].value for row, measures in found.rows.items()}
    assert ece[UNCALIBRATED] > .15 and ece["temperature"] > .1 and max(ece[row] for row in names[1:]) < .04, ece
    assert "too high" in found.advice()
    p, labels = p[4000:], labels[4000:]
    calibrated = found.fitted[found.recommended].transform(p)
    assert metrics.nll(calibrated, labels) < metrics.nll(p, labels) - .1
    assert metrics.ece(calibrated, labels) < .03 < .15 < metrics.ece(p, labels)


def applied(calibrator, path, capsys):
    "What `apply` writes of probabilities in a file."
    calibrator.save(path.parent/"c.safetensors")
    args = [str(path.parent/"c.safetensors"), str(path), "--probs", "--out", str(path.parent/"o.npz")]
    assert cli.main(["apply", *args]) == 0, capsys.readouterr().err
    return np.load(path.parent/"o.npz")


@pytest.mark.parametrize("name", ["isotonic", "svs", "temperature+platt"])
def test_a_calibrator_of_one_column_and_a_file_of_two(name, tmp_path, capsys):
    "And the reverse: log-odds and logits of two classes can say the same."
    p = ODDS.double().sigmoid()
    both = torch.stack([1 - p, p], 1)
    write(tmp_path/"one.npz", p, FLAGS, "probs")
    write(tmp_path/"two.npz", both, FLAGS, "probs")
    fits = (make_calibrator(name).fit_probs(p, FLAGS), make_calibrator(name).fit_probs(both, FLAGS))
    for calibrator, want in zip(fits, (fits[0].transform(p), fits[1].transform(both)[:, 1])):
        one, two = (applied(calibrator, tmp_path/f"{file}.npz", capsys) for file in ("one", "two"))
        assert one["probs"].shape == (600, 1) and two["probs"].shape == (600, 2)
        np.testing.assert_allclose(one["probs"][:, 0], want, atol=1e-9)
        np.testing.assert_allclose(two["probs"], np.stack([1 - want, want], 1), atol=1e-9)
        assert (one["prediction"] == two["prediction"]).all()


def test_columns_and_labels_that_count_from_one(tmp_path, capsys):
    "Labels are those of the columns, and so are the predictions that are written."
    names = [str(k) for k in range(1, LOGITS.shape[1] + 1)]
    path = write_table(tmp_path/"a.csv", LOGITS, names, y=TARGET.numpy() + 1)
    assert torch.equal(read_predictions(path, "logits").target, TARGET)
    assert torch.equal(read_predictions(write_table(path, LOGITS, names, y=TARGET.numpy()), "logits").target, TARGET)
    make_calibrator("temperature").fit(LOGITS, TARGET).save(tmp_path/"c.safetensors")
    for labels in {}, dict(y=TARGET.numpy() + 1):
        write_table(path, LOGITS, names, **labels)
        args = ["apply", str(tmp_path/"c.safetensors"), str(path), "--logits", "--out", str(tmp_path/"o.csv")]
        assert cli.main(args) == 0, capsys.readouterr().err
        found = pd.read_csv(tmp_path/"o.csv")
        assert (found["prediction"] == LOGITS.argmax(1).numpy() + 1).all()
        assert not labels or (found["target"] == TARGET.numpy() + 1).all()


def test_words_of_one_column_are_kept(tmp_path, capsys):
    calibrator = make_calibrator("temperature").fit_probs(ODDS.sigmoid(), FLAGS, classes=("ham", "spam"))
    calibrator.save(tmp_path/"c.safetensors")
    words = np.array(["ham", "spam"])
    path = write_table(tmp_path/"p.csv", ODDS.sigmoid()[:, None], ["p"], y=words[FLAGS.numpy()])
    args = ["apply", str(tmp_path/"c.safetensors"), str(path), "--probs", "--out", str(tmp_path/"o.csv")]
    assert cli.main(args) == 0, capsys.readouterr().err
    found = pd.read_csv(tmp_path/"o.csv")
    assert (found["target"] == words[FLAGS.numpy()]).all()
    assert (found["prediction"] == words[(ODDS > 0).long().numpy()]).all()


def test_a_probability_called_prediction_is_written_beside_the_prediction(tmp_path, capsys):
    make_calibrator("temperature").fit_probs(ODDS.sigmoid(), FLAGS).save(tmp_path/"c.safetensors")
    write_table(tmp_path/"p.csv", ODDS.sigmoid()[:, None], ["prediction"])
    args = ["apply", str(tmp_path/"c.safetensors"), str(tmp_path/"p.csv"), "--probs", "--out", str(tmp_path/"o.csv")]
    assert cli.main(args) == 0, capsys.readouterr().err
    found = pd.read_csv(tmp_path/"o.csv")
    want = make_calibrator("temperature").fit(ODDS, FLAGS).transform(ODDS)
    np.testing.assert_allclose(found["class_1"], want, atol=1e-4)
    assert (found["prediction"] == (found["class_1"] > .5)).all()


def test_names_are_looked_up_and_not_compared_with_one_another():
    "A table of 20,000 classes took a minute to open."
    compared = []

    class Name(str):
        __hash__ = str.__hash__
        def __eq__(self, other): return compared.append(self) or str.__eq__(self, other)

    names = [Name(f"c{k}") for k in range(2000)]
    assert first_repeated(names) is None and first_repeated([*names, "c7", "c1"]) == "c7"
    assert len(compared) < 10*len(names)
