"One training, the report of many, and the gallery of all: computed from the runs, and refused where there are none."
import json
import shutil
import sys

import nbformat
import numpy as np
import pytest
from conftest import ROOT, assert_complete, run_forked, with_cell
from reading import ece_percent, eces, finding, rows, scaled, shown_rival, table, trainings

from calibnb.notebooks import NotebookError
from calibnb.notebooks.pages import copy_notebook
from calibnb.posthoc import TemperatureScaling
from calibnb.runs import RunConfig, get_run
from calibnb.runs.folder import RunFolder
from calibnb.studies import OPEN
from calibnb.studies.papers import paper_value
from calibnb.train import Recipe

sys.path.insert(0, str(ROOT/"docs"))
from gallery import write_gallery  # noqa: E402


@pytest.fixture(scope="module")
def training(root):
    settings = dict(loss="focal", loss_args=dict(gamma=5), recipe=dict(epochs=3), model_args=dict(hidden=[16]))
    return run_forked("train", settings, root=root)


@pytest.fixture(scope="module")
def few(root):
    "Two losses with two seeds, and one of them once more with another option."
    losses = dict(CE=("ce", {}), FL=("focal", dict(gamma=3.)))
    configs = [RunConfig(experiment="few", loss=loss, loss_args=args, recipe=Recipe.quick(5, seed=s))
               for loss, args in losses.values() for s in range(2)]
    configs.append(RunConfig(experiment="few", loss="label_smoothing", loss_args=dict(mode="off_target"),
                             recipe=Recipe.quick(5, seed=0)))
    return [get_run(config, root, progress=False) for config in configs]


def test_one_training_of_anything(root, training):
    assert_complete(training)
    run, = trainings(root, "train")
    assert run.config.loss_args["gamma"] == 5. and run.config.recipe.epochs == 3
    preds, found = run.predictions("test"), finding(training, "the network is overconfident")
    lean = preds.conf.mean() - preds.hit.double().mean()
    assert found.effect.value == pytest.approx(100*lean.item(), abs=1e-6) and found.effect.n_test == len(preds)
    assert finding(training, "the test NLL is higher").verdict == OPEN  # by one seed


def test_the_report_is_of_the_runs(root, few):
    folder = run_forked("report", dict(experiments=["few"]), root=root)
    assert_complete(folder)
    assert {(f.kind, f.verdict) for f in folder.result.findings} == {("ours", OPEN)}
    uncalibrated, focal = rows(folder, "table_1"), [run for run in few if run.config.loss == "focal"]
    assert list(uncalibrated) == ["CE", "FL-3", "LS-0.05"]
    row, after, by_ece = uncalibrated["FL-3"], rows(folder, "table_1_scaled")["FL-3"], TemperatureScaling.reference()
    assert row["n"] == "2"
    val = [run.predictions("val") for run in focal]
    for found, name, values in (
            (row, "ece", eces(focal)/100), (after, "ece_ts", [scaled(run)/100 for run in focal]),
            (after, "ece_ref", [scaled(run, scaling=by_ece)/100 for run in focal]),
            (after, "T_ref", [by_ece.fit(p.logits, p.target).temperature_ for p in val])):
        seen = [float(found[name]), float(found[f"{name}_sd"])]
        assert seen == pytest.approx([np.mean(values), np.std(values, ddof=1)], rel=1e-4)
    found = finding(folder, "table 1: CE has the lowest ECE as trained")
    leads = {"FL-3": [ece_percent(fl) - ece_percent(ce) for ce, fl in zip(few[:2], focal)],
             "LS-0.05": [ece_percent(few[-1]) - ece_percent(few[0])]}
    of_rival = leads[shown_rival(found)]
    assert found.effect.value == pytest.approx(sum(of_rival)/len(of_rival))
    assert f"n = {len(of_rival)} seed" in found.effect.note
    note = "LS-0.05: mode off"  # an option in which the rows of the table do not differ
    for kind, mark in dict(md=note, tex=note, html="<h2>digits, mlp", csv="FL-3,,2,").items():
        assert mark in (folder/"files"/f"report.{kind}").read_text(encoding="utf-8")
    with pytest.raises(NotebookError, match="no finished training of nothing"):
        run_forked("report", dict(experiments=["nothing"]), root=root)


def remade(run, place, info={}, **changes):
    "A copy of a run that says that its settings, or what was read for it, are others."
    found = json.loads((run.path/"run.json").read_text())
    config = RunConfig.model_validate(found["settings"] | dict(experiment="remade") | changes)
    path = place/"remade"/f"{len(list(place.glob('*/*')))}-s{config.seed}"
    shutil.copytree(run.path, path)
    text = json.dumps(found | info | dict(settings=config.model_dump(mode="json")))
    (path/"run.json").write_text(text)


@pytest.fixture(scope="module")
def report(root):
    "The notebook, whose figures are drawn faster."
    return with_cell("report", "", root)


@pytest.fixture(scope="module")
def report_of_remade(few, report, tmp_path_factory):
    """A plugin's loss before and after a change, data before and after a change, networks that share a split, and the
    data and the network of a paper."""
    place = tmp_path_factory.mktemp("remade")
    for run in few[:4]:
        remade(run, place)
        remade(run, place, dict(content="0123456789abcdef"))
    for seed, code in enumerate(("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb")):
        remade(few[2], place, loss="mine", loss_args={}, code={"loss mine": code})
        remade(few[seed], place, data_seed=7)
        remade(few[seed + 2], place, data_seed=7)
    for run in few:
        remade(run, place, data="cifar10", data_args={}, model="resnet50", model_args={})
    half, foreign = (shutil.copytree(few[0].path, place/"remade"/f"99{name}-s0") for name in ("half", "foreign"))
    (half/"predictions"/"val.safetensors").write_bytes(b"half")
    info = few[0].folder.info
    (foreign/"run.json").write_text(json.dumps(info | dict(settings=info["settings"] | dict(colour=3))))
    RunFolder(place/"remade"/"99-s0").begin("train", dict(loss="ce"))
    return run_forked(report, dict(root=str(place)), root=place)


def test_old_code_of_a_plugin_has_a_row_of_its_own(report_of_remade):
    assert list(rows(report_of_remade, "table_1")) == ["CE", "FL-3", "mine, version aaaaaaaa", "mine, version bbbbbbbb"]
    found = finding(report_of_remade, "table 1: CE has the lowest ECE as trained")
    assert found.ours == "compared with FL-3, mine, version aaaaaaaa, mine, version bbbbbbbb"


def test_a_run_that_is_not_whole_is_left_out_with_a_line(report_of_remade):
    outputs = [o for c in nbformat.read(report_of_remade/"notebook.ipynb", 4).cells for o in c.get("outputs", [])]
    lines = [line for o in outputs for line in o.get("text", "").splitlines() if line.startswith("left out")]
    assert len(lines) == 3 and lines[0] == "left out: 1 died; `calibnb runs` lists them"
    assert lines[1].endswith(", colour: not known") and "val.safetensors is not" in lines[2]


def test_other_data_and_another_split_are_tables_of_their_own(report_of_remade):
    titles = (report_of_remade/"files"/"report.md").read_text().splitlines()
    for of_table in "; 1: content of the data None", "; 2: content of the data 01234567", " (data_seed 7)":
        assert f"## digits, mlp, 5 epochs{of_table}" in titles
    split = next(i for i, title in enumerate(t for t in titles if t.startswith("## ")) if "data_seed 7" in title)//2 + 1
    assert not [f for f in report_of_remade.result.findings if f.claim.startswith(f"table {split}:")]
    assert "2 training runs on one split." in "".join(titles)
    for i in 3, 4:
        assert [row[:3] for row in table(report_of_remade, f"table_{i}")][1:] == [["CE", "", "2"], ["FL-3", "", "2"]]


def test_the_papers_numbers_stand_beside_ours(report_of_remade):
    "Also those of smoothing that leaves the label out, which is another loss than the usual one."
    before, after = ({tuple(row[:2]): dict(zip(head, row)) for row in found}
                     for head, *found in (table(report_of_remade, name) for name in ("table_2", "table_2_scaled")))
    paper = before["CE", "Mukhoti 2020"]
    assert (float(paper["ece"]), float(paper["error"])) == pytest.approx((.0435, .0495))
    assert float(before["LS-0.05", "Mukhoti 2020"]["ece"]) == pytest.approx(.0296)
    paper = after["FL-3", "Mukhoti 2020"]
    assert (float(paper["ece_ref"]), float(paper["T_ref"]), paper["ece_ts"]) == (pytest.approx(.0142), 1.1, "")


def test_a_report_of_one_loss_is_its_table_until_another_training(report, tmp_path):
    "There is nothing to compare, but the table is shown; of settings that differ in the recipe, both."
    def trained(lr):
        config = RunConfig(experiment="alone", loss="focal", recipe=Recipe.quick(3, lr=lr))
        get_run(config, tmp_path, progress=False)
    settings = dict(root=str(tmp_path), experiments=["alone"])
    trained(.1)
    assert run_forked(report, settings, root=tmp_path).fresh
    assert not run_forked(report, settings, root=tmp_path).fresh
    trained(.05)
    folder = run_forked(report, settings, root=tmp_path)
    assert folder.fresh
    assert_complete(folder)
    for name in "report.md", "runs.csv":
        text = (folder/"files"/name).read_text()
        assert all(f"3 epochs; {i}: lr 0." in text for i in (1, 2))
    assert len(table(folder, "table_1")) == 2 and table(folder, "table_1")[1][:3] == ["FL-3", "", "1"]
    assert folder.result.findings == []
    outputs = [o for c in nbformat.read(folder/"notebook.ipynb", 4).cells for o in c.get("outputs", [])]
    said = "".join(o["data"].get("text/markdown", "") for o in outputs if "data" in o)
    assert "No setting has 2 methods" in said and "nothing is tested" in said


def test_a_gallery_has_a_page(training, tmp_path):
    copy_notebook(training, tmp_path)
    page = write_gallery(tmp_path, ["train"]).read_text(encoding="utf-8")
    assert "## [One training" in page and "(train.ipynb)" in page and "Observations: " in page
    assert (tmp_path/"train.png").stat().st_size < 200_000


def test_numbers_of_the_papers_are_cited_right():
    assert paper_value("Lin 2025", place="Table 6", method="BSCE-GRA-4") == 1.13
    assert paper_value("Mukhoti 2020", data="CIFAR-100", model="ResNet-50", method="FL-3", metric="ECE % + TS") == 1.97
