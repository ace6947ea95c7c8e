"The identity of a run: what its files hold now, wherever they lie. Another content is another run, and none is lost."
import os
import shutil

import numpy as np
import pytest
from conftest import write_notebook

from calibnb.cli import main
from calibnb.core import content
from calibnb.core.content import content_hash
from calibnb.notebooks.execute import Notebook, run_notebook
from calibnb.runs import Run, RunConfig, collect, compare, get_run, get_runs
from calibnb.runs import run as run_module, training
from calibnb.runs.folder import RunFolder, find_runs, read_json, write_json
from calibnb.sweep.spec import Job
from calibnb.train import Recipe


def written(path, seed=0):
    "An .npz file, of one size whatever the seed."
    x = np.random.default_rng(seed).standard_normal((60, 3)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(60) % 2)
    return path


def overwritten(here, monkeypatch):
    written(here/"x.npz", 1)


def with_its_time(here, monkeypatch):
    before = (here/"x.npz").stat()
    written(here/"x.npz", 1)
    os.utime(here/"x.npz", ns=(before.st_atime_ns, before.st_mtime_ns))


def copied_with_time(here, monkeypatch):
    other, before = written(here/"other.npz", 1), (here/"x.npz").stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.copy2(other, here/"x.npz")  # cp -p


def in_another_folder(here, monkeypatch):
    (here/"elsewhere").mkdir()
    written(here/"elsewhere"/"x.npz", 1)
    monkeypatch.chdir(here/"elsewhere")


CHANGES = dict(overwritten=overwritten, with_its_time=with_its_time, copied_with_time=copied_with_time,
               in_another_folder=in_another_folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    "A folder with x.npz, which is the current one; fingerprints are kept in it."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    monkeypatch.setattr(content, "_STORE", str(tmp_path/"contents"))
    written(tmp_path/"x.npz")
    return tmp_path


def config(data="npz:x.npz", **more):
    return RunConfig(data=data, model_args=dict(hidden=[4]), recipe=Recipe.quick(1), **more)


def test_trainings_of_other_data_are_not_compared(here, monkeypatch):
    get_run(config(), progress=False)
    overwritten(here, monkeypatch)
    get_run(config(), progress=False)
    table = collect()
    assert table.content.nunique() == 2 and table["files.npz:x.npz"].nunique() == 2
    with pytest.raises(ValueError, match="loss 'ce' has rows with several content"):
        compare(table)
    assert len(compare(table[table.content == table.content[0]])) > 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_of_other_data_is_another_run(here, monkeypatch, change):
    job, first = Job("x", config()), get_run(config(), progress=False)
    metrics = first.metrics
    shutil.copy2("x.npz", here/"kept.npz")
    assert job.done() and get_run(config()).path == first.path
    CHANGES[change](here, monkeypatch)
    assert not job.done()
    second, = get_runs([config()], progress=False)
    assert second.path != first.path and second.metrics != metrics and job.done()
    assert Run(first.path).metrics == metrics and len(find_runs()) == 2
    shutil.copy(here/"kept.npz", "x.npz")
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("trained again"))
    assert get_run(config()).path == first.path


OPEN = "from calibnb.data import load_data\nfrom calibnb.notebooks import Experiment\nimport os"
CLOSE = "experiment = Experiment('study', dict(seed=seed))\nlen(load_data(data).train)\nexperiment.findings([])"


def notebook(path, *sources, parameters="seed: int = 0\ndata: str = 'npz:x.npz'"):
    return write_notebook(path, parameters, *(sources or (OPEN, CLOSE)))


def runs_made(capsys, *line):
    "True for each run that a command has executed, False for those that were done before."
    assert main(["run", *line]) == 0
    return ["reused from" not in text for text in capsys.readouterr().out.split("\n") if "  seed " in text]


def test_a_notebook_on_other_data_is_another_run(here, forked_kernels, monkeypatch, capsys):
    "The other changes above, and what our notebooks name, have other folders: `test_what_a_file_holds_...`."
    study = notebook(here/"study.ipynb")
    assert runs_made(capsys, study) == [True] and runs_made(capsys, study) == [False]
    first, = find_runs()
    with_its_time(here, monkeypatch)
    assert runs_made(capsys, study) == [True] and runs_made(capsys, study) == [False]
    assert first.state == "done" and len(find_runs()) == 2


def test_a_data_set_that_the_cells_read_is_looked_at_again(here, forked_kernels, capsys):
    study = notebook(here/"study.ipynb", OPEN, CLOSE.replace("(data)", "('npz:x.npz')"), parameters="seed: int = 0")
    assert runs_made(capsys, study) == [True] and runs_made(capsys, study) == [False]
    with_its_time(here, None)
    assert runs_made(capsys, study) == [True]
    (here/"x.npz").unlink()  # on a machine without the data the run is still there
    assert runs_made(capsys, study) == [False]


def images(folder):
    from PIL import Image
    for name in "ab":
        (folder/name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder/name/"1.png")
    return folder


NAMED = {  # what a configuration names -> the file that is changed
    "corrupted": (lambda here: config("corrupted:npz:x.npz"), "x.npz"),
    "images": (lambda here: config(f"imagefolder:{images(here/'images')}"), "images/b/1.png"),
    "home": (lambda here: config("npz:~/x.npz"), "x.npz"),
    "audit": (lambda here: ("audit", dict(file=str(here/"x.npz"))), "x.npz"),
    "train": (lambda here: ("train", dict(data="npz:x.npz", model_args=dict(hidden=[4]))), "x.npz"),
    "labels": (lambda here: ("audit", dict(file="absent.npz", target_file="x.npz")), "x.npz"),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_a_file_holds_names_the_folder(here, monkeypatch, what):
    monkeypatch.setenv("HOME", str(here))
    make, file = NAMED[what]
    named = make(here)

    def place():
        if isinstance(named, RunConfig):
            return named.path("runs")
        notebook, values = Notebook(named[0]), named[1]
        return notebook.folder(notebook.plan(values), "runs").path
    first, text = place(), (here/file).read_bytes()
    (here/file).write_bytes(text[:-1] + b"!")
    assert place() != first
    (here/file).write_bytes(text)
    assert place() == first


def test_other_files_of_a_known_data_set_make_a_run_beside_the_first(here, monkeypatch):
    "Nobody names the files under CALIBNB_DATA: the first run has the name that it always had."
    monkeypatch.setenv("CALIBNB_DATA", str(here))
    plain = config("svhn").path("runs")
    for part in "train", "test":
        (here/f"{part}_32x32.mat").write_text("one")
    assert config("svhn").path("runs") == plain
    write_json(plain/"run.json", dict(content=content_hash(here/"train_32x32.mat", here/"test_32x32.mat")))
    assert config("svhn").path("runs") == plain
    (here/"test_32x32.mat").write_text("two")
    beside = config("svhn").path("runs")
    assert beside != plain
    write_json(beside/"run.json", dict(content="another"))
    shutil.rmtree(plain)
    assert config("svhn").path("runs") == beside


def test_names_of_runs_on_embedded_data_stay():
    "These are as old as the package."
    assert RunConfig().path("r").name == "5856c385-s0"
    train = Notebook("train")
    assert train.folder(train.plan(), "r").path.name == "40b003bd-s0"


def test_unchanged_files_are_not_read_again(here, forked_kernels, monkeypatch, capsys):
    read, digest = [], content._file_digest
    monkeypatch.setattr(content, "_file_digest", lambda path: read.append(str(path)) or digest(path))
    monkeypatch.setattr(content, "_TICK_NS", 0)
    study = notebook(here/"study.ipynb")
    for _ in range(2):
        get_run(config(), progress=False)
        runs_made(capsys, study)
        content._cached.clear()  # as in a new process
    assert [path for path in read if path.endswith("x.npz")] == ["x.npz"]


def test_a_young_file_is_read_whatever_its_time_says(here, monkeypatch):
    "As if the clock of the file system stood still between two writes."
    now = content.time.time_ns()
    monkeypatch.setattr(content, "_file_states", lambda files: [(label, 1, 1, now, now) for label, _ in files])
    before = content_hash("x.npz")
    written("x.npz", 1)
    assert content_hash("x.npz") != before


def test_two_notebooks_of_one_name_have_two_folders(here, forked_kernels, capsys):
    first, second = notebook(here/"a"/"study.ipynb"), notebook(here/"b"/"study.ipynb", OPEN, "1 + 1", CLOSE)
    for _ in range(2):
        runs_made(capsys, first, second)
    assert [read_json(run/"run.json")["notebook"] for run in find_runs()].count(first) == 1
    assert len(find_runs()) == 2 and runs_made(capsys, first, second) == [False, False]


def test_a_cell_boundary_is_part_of_the_code(here, forked_kernels, capsys):
    study = notebook(here/"study.ipynb")
    assert runs_made(capsys, study) == [True]
    notebook(here/"study.ipynb", f"{OPEN}\n{CLOSE}")
    assert runs_made(capsys, study) == [True] and len(find_runs()) == 1


def busy_once(monkeypatch, meanwhile):
    "As if another process had the lock of the first folder, and did this before it released the lock."
    acquire = RunFolder.acquire

    def wait(self, *args):
        monkeypatch.setattr(RunFolder, "acquire", acquire)
        meanwhile()
        acquire(self, *args)
    monkeypatch.setattr(RunFolder, "acquire", wait)


def test_a_notebook_that_waits_for_its_namesake_leaves_its_run(here, forked_kernels, monkeypatch):
    one, other = notebook(here/"a"/"study.ipynb"), notebook(here/"b"/"study.ipynb", OPEN, "1 + 1", CLOSE)
    runs = []
    busy_once(monkeypatch, lambda: runs.append(run_notebook(other, progress=False)))
    runs.append(run_notebook(one, progress=False))
    assert [run.info["notebook"] for run in runs] == [other, one]
    assert len(find_runs()) == 2 and [run.state for run in find_runs()] == ["done"]*2


def test_a_notebook_whose_file_changes_while_it_waits_is_another_run(here, forked_kernels, monkeypatch):
    study = notebook(here/"study.ipynb")
    busy_once(monkeypatch, lambda: written("x.npz", 1))
    late = run_notebook(study, progress=False)
    assert late.path == Notebook(study).folder(Notebook(study).plan()).path
    written("x.npz", 0)
    assert run_notebook(study, progress=False).fresh


def test_a_training_whose_files_change_while_it_waits_is_of_the_new_ones(here, monkeypatch):
    before = get_run(config(), progress=False)
    shutil.rmtree(before.path)
    busy_once(monkeypatch, lambda: written("x.npz", 1))
    after = get_run(config(), progress=False)
    assert after.path == config().path() and after.path != before.path
