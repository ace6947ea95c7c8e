"The studies in their quick mode: what must hold does, computed from numbers; a claim broken on purpose does not."
import csv

import nbformat
import numpy as np
import pytest
from conftest import EXPERIMENTS, assert_complete, claim, run_forked

from calibnb.metrics import ece
from calibnb.notebooks import FAILS, HOLDS, NOISY, NotebookError
from calibnb.notebooks.pages import copy_notebook, write_gallery
from calibnb.notebooks.papers import paper_value
from calibnb.train import Recipe
from calibnb.runs import Run, RunConfig, get_run
from calibnb.runs.folder import find_runs

FIGURES_AND_TABLES = dict(
    calibratability=(6, 4),
    weighted_gradients=(2, 7),
    loss_comparison=(2, 3),
    train=(2, 2),
    report=(1, None))


@pytest.fixture(scope="module")
def study(root):
    "A study by its name, run once."
    done = {}
    def run(name):
        if name not in done:
            done[name] = run_forked(name, root=root)
        return done[name]
    return run


def table(folder, name):
    "The rows of a table that a study kept, as text."
    with open(folder/"tables"/f"{name}.csv", newline="") as file:
        return list(csv.reader(file))


def trainings(root, experiment):
    "The runs that a study has trained."
    folders = [f for f in find_runs(root) if f.path.parent.name == experiment and f.info["kind"] == "train"]
    return [Run(f.path) for f in folders]


def percent(values):
    "As the tables have it: mean ± standard deviation over repetitions."
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def ece_percent(run):
    preds = run.predictions("test")
    return 100*ece(preds.probs, preds.target).item()


def marked(row):
    "Does a test see a difference to the baseline?"
    return any("○" in cell or "●" in cell for cell in row)


def changed(name, tmp_path, old, new):
    "The study with one thing changed."
    nb = nbformat.read(EXPERIMENTS/f"{name}.ipynb", 4)
    cell, = [c for c in nb.cells if old in c.source]
    cell.source = cell.source.replace(old, new)
    nbformat.write(nb, tmp_path/"changed.ipynb")
    return tmp_path/"changed.ipynb"


@pytest.mark.parametrize("name", FIGURES_AND_TABLES)
def test_a_study_leaves_notebook_figures_tables_findings(study, name):
    figures, tables = FIGURES_AND_TABLES[name]
    folder = study(name)
    assert_complete(folder, figures, tables or len(list((folder/"tables").glob("*.csv"))))


RISING = "the fitted temperature rises from focal loss over CE"
SURER = "before calibration inverse focal loss"


@pytest.mark.parametrize("name, start", [
    ("calibratability", RISING),
    ("calibratability", "LS-0.1 and FL-5 leave the network underconfident"),
    ("calibratability", SURER),
    ("calibratability", "more validation samples lower the ECE"),
    ("calibratability", "TS is better than HB at every size"),
    ("calibratability", "the optimal ECE is below"),
    ("calibratability", "the range of the largest logits"),
    ("calibratability", "samples learned early"),
    ("weighted_gradients", "every loss trains"),
    ("weighted_gradients", "the gradient norm is BS"),
    ("weighted_gradients", "norm and Brier score correlate least with dual focal"),
    ("weighted_gradients", "divided by the norm of the features"),
    ("weighted_gradients", "the mean confidence falls"),
    ("weighted_gradients", "BSCE-GRA is less confident than BSCE"),
    ("weighted_gradients", "the hypergradient in closed form"),
    ("weighted_gradients", "the weights leave the network underconfident"),
    ("loss_comparison", "focal loss makes the network less confident"),
    ("loss_comparison", "so does entropy regularisation"),
    ("loss_comparison", "L1-0.05 halves"),
    ("loss_comparison", "the ECE changes by more than 2 points"),
])
def test_what_must_hold_does(study, name, start):
    assert claim(study(name), start) == HOLDS


@pytest.mark.parametrize("name, start", [
    ("calibratability", "before calibration each regularised loss has a lower ECE"),  # on digits they overshoot
    ("weighted_gradients", "BSCE-GRA has the lowest ECE before"),                     # on digits it overshoots
])
def test_what_the_notebook_says_fails_on_digits_does(study, name, start):
    assert claim(study(name), start) == FAILS


def test_tables_of_calibratability(study):
    folder = study("calibratability")
    svhn = [3.03, .72, .68, 1.82]
    cifar10 = [6.43, .95, .74, 2.51]
    cifar100 = [19.53, 1.35, 1.27, 2.19]
    newsgroups = [20.82, 3.11, 2.52, 4.18]
    ce_of_paper = table(folder, "paper")[-4]
    assert [float(v) for v in ce_of_paper[1:]] == [*svhn, *cifar10, *cifar100, *newsgroups]
    rows = table(folder, "before_and_after")
    assert len(rows) == 12 and sum("±" in cell for row in rows[1:] for cell in row) == 11*5
    _, ce, *others = rows
    assert any(map(marked, others)) and not marked(ce)


def test_another_order_of_losses_turns_the_findings(root, study, tmp_path):
    study("calibratability")
    folder = run_forked(changed("calibratability", tmp_path, "(3., 2., 1.)", "(1., 2., 3.)"), root=root)
    assert claim(folder, RISING) == FAILS and claim(folder, SURER) == HOLDS


def test_weighted_gradients_beside_the_paper(study):
    row, = [r for r in table(study("weighted_gradients"), "paper") if r[0] == "BSCE-GRA"]
    assert [float(v) for v in row[1:8]] == [.74, .74, 1.59, 1.59, 4.57, 1.47, 94.69]


def test_swapped_losses_turn_the_findings(root, study, tmp_path):
    study("loss_comparison")
    swapped = "dict(network=network, loss={'CE': 'FL-3', 'FL-3': 'CE'}.get(loss, loss), seed"
    notebook = changed("loss_comparison", tmp_path, "dict(network=network, loss=loss, seed", swapped)
    folder = run_forked(notebook, root=root)
    assert claim(folder, "focal loss makes the network less confident") == FAILS
    assert claim(folder, "so does entropy regularisation") == HOLDS


def test_one_training_of_anything(root):
    settings = dict(loss="focal", loss_args=dict(gamma=5), recipe=dict(epochs=10), model_args=dict(hidden=[16]))
    folder = run_forked("train", settings, root=root)
    assert claim(folder, "the network is overconfident") in (FAILS, NOISY)
    run, = [r for r in trainings(root, "train") if r.config.loss == "focal"]
    assert run.config.loss_args["gamma"] == 5. and run.config.recipe.epochs == 10
    with pytest.raises(ValueError, match="'focall' is not known; did you mean 'focal'"):
        run_forked("train", dict(loss="focall"), root=root)


def test_the_report_is_of_the_runs(root, study, tmp_path):
    for name in "train", "loss_comparison":
        study(name)
    folder = run_forked("report", dict(experiments=["loss_comparison"]), root=root)
    fl_3 = {row[0]: row for row in table(folder, "table_1")}["FL-3"]

    def is_of_that_row(config):
        same_loss = config.loss == "focal" and config.loss_args["gamma"] == 3.
        same_network = config.data_args["n_train"] == 700 and config.model_args["hidden"] == [256, 256]
        return same_loss and same_network and config.recorders
    same = [r for r in trainings(root, "loss_comparison") if is_of_that_row(r.config)]
    assert len(same) == 2 and fl_3[1] == "2"
    assert fl_3[4].startswith(percent([ece_percent(r) for r in same]))
    for kind, mark in dict(md="| CE | 2 |", tex="\\begin{tabular}", html="<h2>digits, mlp").items():
        assert mark in (folder/"files"/f"report.{kind}").read_text(encoding="utf-8")
    with pytest.raises(NotebookError, match="no finished training of nothing"):
        run_forked("report", dict(experiments=["nothing"]), root=root)


def test_a_gallery_has_a_page(study, tmp_path):
    for name in "loss_geometry", "train":
        copy_notebook(study(name), tmp_path)
    page = write_gallery(tmp_path, ["train"]).read_text(encoding="utf-8")
    assert page.index("## [One training") < page.index("(loss_geometry.ipynb)")
    assert "Identities: 16 holds, 1 contradicted here." in page
    assert all((tmp_path/f"{n}.png").stat().st_size < 200_000 for n in ("train", "loss_geometry"))


@pytest.mark.parametrize("name", ["toy_gaussian"])
def test_the_full_setting_can_be_planned(tmp_path, name):
    "Without the data: what would be trained, and the hours it takes."
    folder = run_forked(name, dict(quick=False, dry_run=True), root=tmp_path)
    plan = table(folder, "plan")
    assert len(plan) > 5 and float(plan[1][plan[0].index("hours")]) > 0 and not folder.result.findings


def test_numbers_of_the_papers_are_cited_right():
    assert paper_value("Lin 2025", place="Table 6", method="BSCE-GRA-4") == 1.13
    assert paper_value("Mukhoti 2020", data="CIFAR-100", method="FL-3", metric="ECE % + TS") == 1.97


def test_a_report_of_one_loss_is_its_table(tmp_path):
    "There is nothing to compare, but the table is shown."
    get_run(RunConfig(experiment="alone", loss="focal", recipe=Recipe.quick(3)), tmp_path, progress=False)
    folder = run_forked("report", dict(root=str(tmp_path), experiments=["alone"]), root=tmp_path)
    assert_complete(folder, 1, 2)
    assert len(table(folder, "table_1")) == 2 and table(folder, "table_1")[1][:2] == ["FL-3", "1"]
    assert [(f.ours, f.verdict) for f in folder.result.findings] == [("no other loss", NOISY)]*2
    outputs = [o for c in nbformat.read(folder/"notebook.ipynb", 4).cells for o in c.get("outputs", [])]
    assert any("No setting has 2 methods" in o.data.get("text/markdown", "") for o in outputs if "data" in o)
