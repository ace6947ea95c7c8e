"`calibnb audit` of several models in one file, and of the labels of a multilabel model, beside one audit each."
import json

import numpy as np
import pandas as pd
import pytest

from calibnb.cli.command import main
from calibnb.metrics import ece
from calibnb.posthoc import Calibrator

DRAW = np.random.default_rng(0)
P = DRAW.random(600)
Y = (DRAW.random(600) < P).astype(int)
SHARP = P**2/(P**2 + (1 - P)**2)
FEW = "--calibrator platt --no-report"


@pytest.fixture
def files(tmp_path, monkeypatch):
    "Tables of each model, of both, and of two labels; the models are rows of one table in another order."
    monkeypatch.chdir(tmp_path)
    models = {name: pd.DataFrame(dict(model=name, site="a", prob=p, target=Y))
              for name, p in dict(b=P, a=SHARP).items()}
    for name, table in models.items():
        table.drop(columns="model").to_csv(f"{name}.csv", index=False)
    pd.concat(models.values()).to_csv("models.csv", index=False)
    pd.DataFrame(dict(id=range(600), dog=1 - Y, p_cat=SHARP, p_dog=1 - P, cat=Y)).to_csv("tags.csv", index=False)
    np.savez("tags.npz", probs=np.c_[SHARP, 1 - P], target=np.c_[Y, 1 - Y], classes=["cat", "dog"])
    return tmp_path


def record(capsys, line):
    assert main(f"audit {line} --json".split()) == 0
    return json.loads(capsys.readouterr().out)


def test_each_model_has_the_audit_of_its_own_file(files, capsys):
    both = record(capsys, f"models.csv --probs --ignore-col site --model-col model {FEW}")
    assert [*both["audits"]] == ["b", "a"], "in the order of the file"
    for name, found in both["audits"].items():
        alone = record(capsys, f"{name}.csv --probs --ignore-col site {FEW}")
        assert {k: alone[k] for k in found} == found
    pair, = both["comparisons"]
    assert (pair["old"], pair["new"], pair["measures"]["nll"]["verdict"]) == ("b", "a", "worse")


@pytest.mark.parametrize("given", ["tags.csv --multilabel cat,dog", "tags.npz --multilabel",
                                   "tags.csv --multilabel cat,dog --prob-cols p_cat,p_dog"])
def test_the_mean_of_the_labels_is_the_multilabel_error(files, capsys, given):
    found = record(capsys, f"{given} --probs {FEW}")
    want = ece(np.c_[SHARP, 1 - P], np.c_[Y, 1 - Y], task="multilabel").item()
    assert abs(found["means"]["ece"] - want) < 1e-9 and [*found["audits"]] == ["cat", "dog"]


def test_one_calibrator_serves_all_labels(files, capsys):
    assert main("audit tags.csv --probs --multilabel cat,dog --calibrator platt --to out".split()) == 0
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if "to do" in line).split("calibnb ")[1]
    assert main(command.replace("FILE", "tags.csv").replace("OUT.csv", "done.csv").split()) == 0
    saved, done = Calibrator.load("out/calibrator.safetensors"), pd.read_csv("done.csv")
    np.testing.assert_allclose(done[["p_cat", "p_dog"]], saved.transform_probs(np.c_[SHARP, 1 - P]), atol=1e-6)
    assert len(pd.read_csv("out/tables/measures.csv").label.unique()) == 2


def test_reports_and_calibrators_of_models_lie_in_folders(files, capsys):
    assert main("audit models.csv --probs --ignore-col site --model-col model --calibrator platt --to out".split()) == 0
    assert {p.parent.name for p in files.glob("out/*/report.html")} == {"a", "b"}
    assert (files/"out"/"a"/"calibrator.safetensors").exists() and "a against b" in capsys.readouterr().out
    assert main("audit models.csv --probs --ignore-col site --model-col model --calibrator platt --to out".split()) == 0


def test_rows_are_paired_by_ids_and_other_samples_are_not_ranked(files, capsys):
    table = pd.read_csv("models.csv").drop(columns="site")
    table["id"] = [*range(600)]*2
    table.sample(frac=1, random_state=0).to_csv("mixed.csv", index=False)
    both = record(capsys, f"models.csv --probs --ignore-col site --model-col model {FEW}")
    mixed = record(capsys, f"mixed.csv --probs --model-col model {FEW}")
    pair, = mixed["comparisons"]
    want = both["comparisons"][0]["measures"]["nll"]["value"]*(1 if pair["new"] == "a" else -1)
    assert abs(pair["measures"]["nll"]["value"] - want) < 1e-9 and "by the ids in id" in mixed["notes"][0]
    table.drop(columns="id").iloc[:-100].to_csv("fewer.csv", index=False)
    fewer = record(capsys, f"fewer.csv --probs --model-col model {FEW}")
    assert fewer["best"] == [] and "they have 600 and 500 samples" in fewer["notes"][1]
    table.drop(index=table.index[3]).to_csv("gap.csv", index=False)
    gap = record(capsys, f"gap.csv --probs --model-col model {FEW}")
    assert "they have 599 and 600 samples" in gap["notes"][1] and "paired by the ids" in gap["notes"][0]
    table.assign(id=7).to_csv("twice.csv", index=False)
    twice = record(capsys, f"twice.csv --probs --model-col model {FEW}")
    assert "by their order, since id: b has '7' twice" in twice["notes"][0] and twice["comparisons"]


def test_samples_without_a_label_leave_all_labels(files, capsys):
    table = pd.read_csv("tags.csv").astype(dict(cat=float))
    table.loc[3, "cat"] = np.nan
    table.to_csv("tags.csv", index=False)
    assert main(f"audit tags.csv --probs --multilabel cat,dog {FEW}".split()) == 2
    assert "lacks a label (1 such rows); leave them out: --drop-missing" in capsys.readouterr().err
    assert main(f"audit tags.csv --probs --multilabel cat,dog --drop-missing {FEW}".split()) == 0
    said = capsys.readouterr().out
    assert "2 labels, 599 samples" in said and "1 of 600 samples lack a label and are left out" in said


def test_models_called_dots_stay_in_the_folder(files, capsys):
    table = pd.read_csv("models.csv").drop(columns="site").replace(dict(model=dict(a="..", b=".")))
    table.to_csv("dots.csv", index=False)
    assert main("audit dots.csv --probs --model-col model --calibrator platt --to out/here".split()) == 0
    assert {p.parent.name for p in files.glob("**/report.html")} == {"model (1)", "model (2)"}


def test_answers_of_zero_and_infinity_are_json(files, capsys):
    np.savez("zero.npz", probs=np.c_[np.where(Y == 1, 0, .3), 1 - P], target=np.c_[Y, 1 - Y])
    assert record(capsys, f"zero.npz --probs --multilabel {FEW}")["means"]["nll"] is None
    np.savez("half.npz", probs=np.c_[P, 1 - P], target=np.c_[Y, 1 - Y]/2)
    assert main(f"audit half.npz --probs --multilabel {FEW}".split()) == 2
    assert "want 0 or 1 for each of probs (600, 2), as integers or booleans" in capsys.readouterr().err


@pytest.mark.parametrize("line, error", [
    ("models.csv --model-col model --id site", "site: b has 'a' twice, want one row for each id"),
    ("models.csv --id prob", "--id: given without --model-col, whose models it pairs"),
    ("--multilabel tags.csv", "file: none given; name the file before --multilabel"),
    ("tags.csv --multilabel cat,dog --wide", "--wide: given with --multilabel; audit one label alone for this"),
    ("models.csv --model-col modle", "column: 'modle' is not known; did you mean 'model'"),
    ("models.csv --model-col site --ignore-col model", "site: one model, 'a', want two or more"),
    ("models.csv --model-col model --by site", "--by: given with --model-col; audit one model alone for this"),
    ("tags.csv --multilabel cat,dog --cluster id", "--cluster: given with --multilabel; audit one label alone"),
    ("tags.csv --multilabel cat,cow", "multilabel: no column 'cow'; columns: 'id', 'dog', 'p_cat'"),
    ("tags.csv --multilabel", "multilabel: a table, want the names of the columns of labels"),
    ("tags.csv --multilabel cat,dog --prob-cols p_cat", "multilabel: 2 labels, but 1 columns of scores; want one each"),
    ("tags.csv --multilabel cat,id", "multilabel: 0 columns of scores are named after 'id', want 1"),
    ("a.csv --multilabel target", "multilabel: 0 columns of scores are named after 'target', want 1"),
])
def test_wrong_flags_have_one_line(files, capsys, line, error):
    assert main(f"audit {line} --probs --no-report".split()) == 2
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1
