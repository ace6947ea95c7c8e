"Experiments through papermill: they run, find their runs again, refuse what is wrong, and say why they stopped."
import json
from functools import partial

import nbformat
import numpy as np
import papermill
import pytest
from conftest import EXPERIMENTS, LATE, assert_complete, for_slow_kernels, forks, notebook, pictures, run_forked
from papermill.cli import papermill as papermill_command

from calibnb import cli
from calibnb.notebooks import Notebook, NotebookError
from calibnb.notebooks.pages import copy_notebook
from calibnb.processes.kernels import forked_kernels as kernels_that_are_copies
from calibnb.runs.folder import RunFolder, find_runs

PLAIN = dict(kernel_name="python3", progress_bar=False)
SMALL = """import matplotlib.pyplot as plt
from calibnb.notebooks import Experiment
from calibnb.notebooks.parameters import check_parameters
from calibnb.runs import RunConfig, get_run
from calibnb.studies import Claim, decide
from calibnb.train import Recipe
experiment = Experiment('small', check_parameters(globals()))
run = get_run(RunConfig(experiment='small', recipe=Recipe.quick(2, seed=seed)), progress=False)
fig, ax = plt.subplots()
run.history.frame().plot('epoch', 'train_loss', ax=ax)
experiment.figure(fig, 'losses')
experiment.table(run.history.frame(), 'history')
experiment.findings(decide([Claim('ours', 'the loss falls', '', [.1]*5, sesoi=.01)], keep=experiment.keep))"""


@pytest.fixture(scope="module")
def small(root):
    "The notebook of a small experiment: a training, a figure, a table and a finding."
    return notebook(root.parent/"study"/"small.ipynb", SMALL)


@pytest.fixture(scope="module")
def made(root, small):
    return run_forked(small, root=root)


@pytest.fixture(scope="module")
def audit(root):
    draw = np.random.default_rng(0)
    logits = 2*draw.standard_normal((200, 3))
    np.savez(root.parent/"a.npz", logits=2*logits, target=(logits + draw.gumbel(size=logits.shape)).argmax(1))
    return run_forked("audit", dict(file=str(root.parent/"a.npz"), calibrators=["temperature"]), root=root)


@pytest.mark.parametrize("name", ["made", "audit"])
def test_an_experiment_leaves_notebook_figures_tables_findings(request, name):
    assert_complete(request.getfixturevalue(name))


def test_a_cover_stands_at_the_top_and_not_in_its_cell_again(tmp_path):
    covers = SMALL.replace("experiment.figure(fig, 'losses')", """
        for name in ('one', 'two'): experiment.figure(fig, name, cover=True)""".strip())
    path = notebook(tmp_path/"small.ipynb", "from calibnb.notebooks import show_summary; show_summary()", covers)
    outputs = [o for c in nbformat.read(run_forked(path, root=tmp_path)/"notebook.ipynb", 4).cells
               for o in c.get("outputs", []) if "data" in o]
    names = [o.metadata.get("image/png", {}).get("name") for o in outputs]
    assert names[1:4] == ["two", "one", None] and names.count("one") == names.count("two") == 1
    assert outputs[3].data["text/markdown"] == "The figure *two* stands at the top."


def test_an_audit_keeps_its_calibrator(audit):
    from calibnb.posthoc import Calibrator
    assert sorted(p.name for p in (audit/"files").iterdir()) == ["calibrator.safetensors", "recommendation.txt"]
    assert Calibrator.load(audit/"files"/"calibrator.safetensors").n_classes_ == 3


def test_a_second_time_nothing_is_trained_and_nothing_executed(root, small, made):
    def starts():
        return {f.path: f.status["start"] for f in find_runs(root) if f.info["kind"] == "train"}

    before = starts()
    assert before
    again = run_forked(small, root=root)
    assert again.path == made.path and not again.fresh
    once_more = run_forked(small, root=root, again=True)
    assert once_more.fresh  # the notebook, on the trainings that exist
    assert starts() == before


def as_function(source, parameters, to="out.ipynb"):
    "In a kernel that is a copy."
    forks()
    options = PLAIN | for_slow_kernels() | dict(kernel_manager_class=kernels_that_are_copies())
    papermill.execute_notebook(source, to, parameters=parameters, **options)


def as_command(source, parameters):
    "What the shell would start, in this process and with a kernel that is a copy."
    forks()
    given = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    in_a_copy = partial(papermill.execute_notebook, kernel_manager_class=kernels_that_are_copies())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("papermill.cli.execute_notebook", in_a_copy)
        papermill_command.main([source, "out.ipynb", *given, "--no-progress-bar"], standalone_mode=False)


@pytest.mark.parametrize("run", [as_command, as_function])
def test_plain_papermill_from_any_directory(tmp_path, monkeypatch, run, small):
    "In the folder of a seed of its own, and under the same name as `calibnb run` would use."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.chdir(tmp_path)
    run(str(small), dict(seed=3))
    assert pictures(tmp_path/"out.ipynb") == 1
    folder, = [f for f in find_runs(tmp_path/"runs") if f.info["kind"] == "notebook"]
    assert folder.state == "done" and list((folder/"figures").glob("*.png"))
    assert folder.path == Notebook(small).folder(Notebook(small).plan(dict(seed=3)), tmp_path/"runs").path


def refused(path, tmp_path, **parameters):
    "What plain papermill says when the notebook refuses its parameters."
    with pytest.raises(papermill.PapermillExecutionError) as error:
        as_function(str(path), parameters, str(tmp_path/"out.ipynb"))
    return error.value


@pytest.mark.parametrize("parameters, kind, message", [
    (dict(sede=3), "KeyError", "sede is not declared in the parameters cell; did you mean seed?"),
    (dict(n_seeds=0), "ValueError", "n_seeds: 0, want at least 1"),
], ids=["wrong name", "wrong value"])
@pytest.mark.filterwarnings("ignore")
def test_plain_papermill_refuses(tmp_path, parameters, kind, message):
    error = refused(EXPERIMENTS/"toy_gaussian.ipynb", tmp_path, **parameters)
    assert error.ename == kind and message in error.evalue


def without_tag(tmp_path):
    nb = nbformat.read(EXPERIMENTS/"toy_gaussian.ipynb", 4)
    for c in nb.cells:
        c.metadata.pop("tags", None)
    nbformat.write(nb, tmp_path/"toy_gaussian.ipynb")
    return tmp_path/"toy_gaussian.ipynb"


@pytest.mark.filterwarnings("ignore")
def test_a_lost_tag_is_noticed(tmp_path):
    path = without_tag(tmp_path)
    error = refused(path, tmp_path, seed=3)
    assert error.ename == "ValueError" and "lost its tag `parameters`" in error.evalue
    with pytest.raises(ValueError, match="0 cells tagged `parameters`, want 1"):
        run_forked(path, dict(seed=3), root=tmp_path)


def test_a_slow_kernel_is_no_failure(tmp_path, monkeypatch):
    "On a busy machine it may begin after minutes, and what a cell shows arrive seconds after the cell's end."
    execute, given = papermill.execute_notebook, {}

    def spy(*args, **options):
        given.update(options)
        return execute(*args, **options)

    monkeypatch.setattr("papermill.execute_notebook", spy)
    folder = run_forked(notebook(tmp_path/"slow.ipynb", GOOD, LATE), root=tmp_path/"runs")
    shown, = nbformat.read(folder/"notebook.ipynb", 4).cells[-1].outputs
    assert shown.data["text/plain"] == "'late'" and given["start_timeout"] >= 600


def test_a_failing_cell_is_noted_under_plain_papermill(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    check = "from calibnb.notebooks.parameters import check_parameters\nsettings = check_parameters(globals())"
    begin = "from calibnb.notebooks import Experiment\nexperiment = Experiment('stops', settings)"
    path = notebook(tmp_path/"stops.ipynb", check, begin, "open('/nowhere')")
    assert refused(path, tmp_path).ename == "FileNotFoundError"
    folder, = find_runs(tmp_path/"runs")
    assert folder.state == "failed" and "FileNotFoundError" in folder.status["reason"]


GOOD = "from calibnb.notebooks import Experiment\nExperiment('good', dict(seed=seed)).findings([])"


def test_a_notebook_that_changed_is_executed_again(tmp_path):
    path = notebook(tmp_path/"good.ipynb", GOOD)
    assert run_forked(path, root=tmp_path/"runs").fresh and not run_forked(path, root=tmp_path/"runs").fresh
    notebook(path, GOOD, "1/0")
    with pytest.raises(NotebookError, match="ZeroDivisionError"):
        run_forked(path, root=tmp_path/"runs")


def test_after_plain_papermill_the_executed_notebook_is_still_made(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    path = notebook(tmp_path/"good.ipynb", GOOD)
    as_function(str(path), {}, str(tmp_path/"out.ipynb"))
    folder, = find_runs(tmp_path/"runs")
    assert folder.state == "done" and not (folder/"notebook.ipynb").exists()
    assert (run_forked(path)/"notebook.ipynb").exists()


def test_a_notebook_in_use_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    path = notebook(tmp_path/"good.ipynb", GOOD)
    done = run_forked(path)
    with RunFolder(done.path).locked():
        error = refused(path, tmp_path)
    assert error.ename == "RunError" and f"is in use by process {done.status['pid']}" in error.evalue


def test_one_failure_does_not_stop_the_others(forked_kernels, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    bad = notebook(tmp_path/"bad.ipynb", "1/0")
    good = notebook(tmp_path/"good.ipynb", GOOD)
    assert cli.main(["run", str(bad), str(good)]) == 1
    out = capsys.readouterr()
    assert "ZeroDivisionError" in out.err and "good  seed 0  done" in out.out
    assert cli.main(["list", "runs"]) == 0
    shown = capsys.readouterr().out
    assert "failed   bad/" in shown and "done     good/" in shown


def test_a_copy_for_others_holds_nothing_of_this_machine(made, tmp_path):
    copy = copy_notebook(made, tmp_path)
    text = copy.read_text()
    assert copy.name == "small.ipynb" and pictures(copy) == 1
    assert "papermill" not in json.loads(text)["metadata"] and str(made.path) not in text


def test_a_setting_that_cannot_be_had_fails_with_the_reason(tmp_path, monkeypatch):
    "The paper's own setting needs data that are not here: said before anything is trained, and how to get them."
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path/"data"))
    with pytest.raises(NotebookError, match="cifar10 is not in .*run `calibnb download cifar10`"):
        run_forked("nll_overfitting", dict(quick=False), root=tmp_path/"runs")
    failed = find_runs(tmp_path/"runs")
    assert all(f.state == "failed" and "calibnb download cifar10" in f.status["reason"] for f in failed)
    assert "nll_overfitting" in {f.path.parent.name for f in failed}
