"""Sweeps: each run is made once, a failure is recorded with its reason, and the other runs are finished."""
import os
import signal
import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace

import nbformat
import pytest
import torch
import yaml
from conftest import ROOT, main_with_forked_kernels, patience, wait_for, write_notebook
from nbformat.v4 import new_code_cell
from sweeping import LONG, begun, command, held_command, running, same_tables, spec_file, with_checkpoint
from sweeping import faulty_notebook, nothing_goes_on, own_names, two_workers  # noqa: F401

from calibnb.cli import main
from calibnb.cli.run import _print_means
from calibnb.runs.folder import Result, RunFolder, find_runs, run_path, write_json
from calibnb.runs import Run, RunConfig, get_run
from calibnb.sweep import SweepSpec, expand, sweep
from calibnb.sweep.engines import engines
from calibnb.train import Recipe


def test_every_failure_is_recorded_and_the_rest_is_finished(faulty, tmp_path):
    root = tmp_path/"runs"
    spec = dict(notebook=faulty, grid=dict(how=["raises", "well", "killed", "stuck", "no result"]))
    limit = patience(1.2)  # twice the time of a notebook that is not stuck
    table = sweep(spec, root, timeout=limit, progress=False).set_index("job")
    assert Counter(table.state) == {"failed": 4, "done": 1}
    reasons = {
        "well": "",
        "raises": "ValueError: no luck today",
        "killed": "Kernel died",
        "stuck": f"not done after {limit:g} s",
        "no result": "no valid result",
    }
    for job, row in table.iterrows():
        folder, how = RunFolder(root/row.run), job.removeprefix("how=")
        assert (folder.state == "done") == (how == "well")
        assert begun(folder) == 1 and row.tries == 1
        assert reasons[how] in row.reason, (how, row.reason)
        if how != "well":
            assert reasons[how] in folder.status["reason"], (how, folder.status)
    # the executed notebook is there, with the traceback
    raised = RunFolder(root/table.run.iloc[0])
    nb = nbformat.read(raised/"notebook.ipynb", 4)
    assert any(o.get("ename") == "ValueError" for c in nb.cells for o in c.get("outputs", []))
    # again: what is done stays done, the others are tried again
    again = sweep(spec | dict(grid=dict(how=["raises", "well"])), root, progress=False)
    assert list(again.state) == ["failed", "done before"]
    assert all(begun(RunFolder(root/r.run)) == (1 if r.state == "done before" else 2) for r in again.itertuples())


WRONG = [  # specification, text of the error; `faulty` stands for the notebook
    (dict(notebook="faulty", grid=dict(hwo=["well"])), "hwo"),
    (dict(notebook="faulty", base=dict(seconds="long")), "seconds"),
    (dict(grid={"loss": "ce,focl"}), "sweep, loss=focl: .*nothing was started"),
    (dict(grid={"recipe.lr": [-1]}), "lr"),
    (dict(base={"loss": "focal", "loss.gamma": 1}), "loss.gamma"),
    (dict(base=dict(loss="ce"), grid=dict(loss="focal,brier")), "grid: loss is in base too"),
    (dict(base={"recipe.seed": 3}, grid=dict(seed="0:2")), "grid: seed is in base too"),
    (dict(base=dict(seed=3), grid={"recipe.seed": "0:2"}), "grid: recipe.seed is in base too"),
    (dict(base=dict(recipe=dict(epochs=3)), grid={"recipe.epochs": [1, 2]}), "grid: recipe.epochs is in base too"),
    (dict(cases=[{"loss": "focal", "loss_args.gamma": 2}], grid=dict(loss_args=[dict(gamma=1), dict(gamma=3)])),
     "grid: loss_args is in cases too"),
    (dict(notebook="toy_gaussian", base=dict(seed=3), grid=dict(seed="0:2")), "grid: seed is in base too"),
]


@pytest.mark.parametrize("spec, message", WRONG)
def test_a_wrong_specification_is_refused_before_anything_starts(faulty, tmp_path, spec, message):
    if spec.get("notebook") == "faulty":
        spec = spec | dict(notebook=faulty)
    with pytest.raises(ValueError, match=message):
        sweep(spec, tmp_path/"runs")
    assert not (tmp_path/"runs").exists()


def test_a_folder_that_cannot_be_written_fails_alone(faulty, tmp_path):
    root = tmp_path/"runs"
    jobs = expand(dict(notebook=faulty, grid=dict(seed=[0, 1])))
    barred = jobs[0].folder(root).path
    barred.parent.mkdir(parents=True)
    barred.write_text("a file where the folder should be")  # also root cannot write below it
    table = sweep(jobs, root, progress=False)
    assert list(table.state) == ["failed", "done"] and "Error" in table.reason[0]
    if os.geteuid():
        barred.unlink()
        barred.mkdir(mode=0o500)
        table = sweep(jobs, root, progress=False)
        assert list(table.state) == ["failed", "done before"] and "PermissionError" in table.reason[0]


def test_a_full_disk_fails_with_its_reason(faulty, small_disk):
    table = sweep(dict(notebook=faulty, grid=dict(how=["well", "full"])), small_disk, workers=1, progress=False)
    assert list(table.state) == ["done", "failed"] and "No space left" in table.reason[1]
    assert [RunFolder(small_disk/run).state == "done" for run in table.run] == [True, False]


def test_a_killed_worker_is_replaced_and_its_run_ends_in_the_same_bits(tmp_path):
    "Other signals, and a sweep that is killed itself, in tests/slow/test_kills.py."
    root, go = tmp_path/"runs", tmp_path/"go"
    master = held_command(["sweep", spec_file(tmp_path, LONG), "--workers", "2"], root, go)
    wait_for(lambda: with_checkpoint(root), 120, lambda: master.poll() is None)
    victim = with_checkpoint(root)[0]
    os.kill(victim.status["pid"], signal.SIGKILL)
    go.touch()
    out, err = master.communicate(timeout=patience(240))
    assert master.returncode == 0, err
    assert "2 done" in out and all(f.state == "done" for f in find_runs(root))
    assert begun(victim) == 2 and "resuming from checkpoint.pt" in (victim/"log.txt").read_text()
    there, alone = Run(victim.path), get_run(Run(victim.path).config, tmp_path/"alone", progress=False)
    assert there.history.rows == alone.history.rows and there.metrics == alone.metrics
    assert torch.equal(there.predictions().logits, alone.predictions().logits)  # bits: a resumed run is the run


@pytest.mark.parametrize("typed, what", [("run {} -p how stuck", "notebook faulty"),
                                         ("sweep {} --grid seed=0:2 -p how stuck", "sweep of 2 runs")])
def test_ctrl_c_prints_one_line_that_says_what_is_saved_and_which_command_continues(faulty, tmp_path, typed, what):
    root, n = tmp_path/"runs", 1 + typed.startswith("sweep")
    typed = typed.format(faulty)
    master = command(typed.split(), root)
    wait_for(lambda: len(running(root)) == n, 120, lambda: master.poll() is None)
    master.send_signal(signal.SIGINT)
    out, err = master.communicate(timeout=patience(120))
    assert master.returncode == 130 and not out
    assert err == f"calibnb: interrupted: {what}; saved: nothing yet; to continue: calibnb {typed}\n"
    assert {f.status["reason"] for f in find_runs(root)} == {"interrupted"}


TRAINS_AND_WAITS = """import time
from calibnb.notebooks import Experiment
from calibnb.runs import RunConfig, get_run
from calibnb.train import Recipe
experiment = Experiment('study', dict(seed=seed, n_seeds=n_seeds))
get_run(RunConfig(recipe=Recipe.quick(1, seed=seed)), progress=False)
time.sleep(3600)"""


@pytest.mark.parametrize("typed, report", [
    ("run {0} {1}", "notebook study; saved: 1 finished notebook, 1 finished training"),
    ("run {1} --until-decided", "more seeds of study; saved: 1 finished training")])
def test_ctrl_c_counts_finished_notebooks_and_their_finished_trainings(faulty, tmp_path, typed, report):
    root = tmp_path/"runs"
    study = write_notebook(tmp_path/"study.ipynb", "seed: int = 0\nn_seeds: int = 5", TRAINS_AND_WAITS)
    typed = typed.format(faulty, study)
    get_run(RunConfig(recipe=Recipe.quick(1, seed=1)), root, progress=False)  # not a training of the notebook
    master = command(typed.split(), root, main_with_forked_kernels)
    wait_for(lambda: [f.state for f in find_runs(root) if f.info["kind"] == "train"] == ["done"]*2, 120,
             lambda: master.poll() is None)
    master.send_signal(signal.SIGINT)
    out, err = master.communicate(timeout=patience(120))
    assert master.returncode == 130 and f"interrupted: {report}; to continue: calibnb {typed}\n" in err


def test_two_sweeps_of_the_same_grid_make_every_run_once(tmp_path):
    root, args = tmp_path/"runs", ["sweep", spec_file(tmp_path, LONG | dict(grid=dict(seed="0:4")))]
    both = [command(args, root) for _ in range(2)]
    for master in both:
        out, err = master.communicate(timeout=patience(240))
        assert master.returncode == 0, err
    assert len(find_runs(root)) == 4 and all(f.state == "done" and begun(f) == 1 for f in find_runs(root))


def test_command_line(faulty, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    def planned():
        assert main(["sweep", faulty, "--grid", "how=well,raises", "--dry-run"]) == 0
        return capsys.readouterr().out
    assert "2 runs, 2 to be made" in planned() and not find_runs()
    assert main(["sweep", faulty, "--grid", "how=well,raises"]) == 1
    assert "1 done, 1 failed" in capsys.readouterr().out.replace("1 failed, 1 done", "1 done, 1 failed")
    assert "2 runs, 1 to be made" in planned()
    nb = nbformat.read(faulty, 4)
    nb.cells.append(new_code_cell("1 + 1"))
    nbformat.write(nb, faulty)
    assert "2 runs, 2 to be made" in planned()  # a notebook that changed is run again
    (tmp_path/"bad.yaml").write_text("grid: {loss: [ce]}\nbses: {}\n")
    assert main(["sweep", str(tmp_path/"bad.yaml")]) == 2
    assert "bses" in capsys.readouterr().err


def test_entries_of_dictionaries_can_be_axes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    line = "sweep train --grid loss=focal --grid loss_args.gamma=1,2 -p recipe.epochs 5 --dry-run"
    assert main(line.split()) == 0
    assert "2 runs, 2 to be made" in capsys.readouterr().out
    base = {"recipe.epochs": "5", "recipe.lr": ".2"}
    one, two = expand(dict(notebook="train", base=base, grid={"loss": ["ce", "brier"]}))
    assert one.config[1]["recipe"] == dict(epochs=5, lr=.2) and one.folder().path != two.folder().path
    assert not (tmp_path/"runs").exists()


def test_a_dry_run_builds_no_network(tmp_path, monkeypatch, capsys):
    "A plan of nine ViTs timed a training step: 73 s and 3 GB."
    def built(*args, **options): raise AssertionError("a network is built")
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    for module in "models.named", "runs.plans", "runs.training":
        monkeypatch.setattr(f"calibnb.{module}.make_model", built)
    assert main(["sweep", "sweeps/lin2025_vit.yaml", "--dry-run"]) == 0
    assert "9 runs, 9 to be made" in capsys.readouterr().out
    config = RunConfig(recipe=Recipe.quick(epochs=2, seed=0))
    folder = RunFolder(config.path())
    folder.begin("train", config.settings)
    folder.record(Result(metrics={}, findings=[]))
    folder.finish()
    status = folder.status | dict(start="2026-01-01T00:00:00", end="2026-01-01T01:00:00")
    write_json(folder/"status.json", status)
    (tmp_path/"three.yaml").write_text("preset: quick\nbase: {recipe.epochs: 2}\ngrid: {seed: '0:3'}")
    assert main(["sweep", str(tmp_path/"three.yaml"), "--dry-run"]) == 0
    assert "2.0 hours of training, as finished runs of the same kind took" in capsys.readouterr().out



def test_each_run_sees_the_gpu_of_its_worker(faulty, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    spec = dict(notebook=faulty, base=dict(how="gpu", seconds=1), grid=dict(seed="0:2"))
    table = sweep(spec, tmp_path, workers=2, progress=False)
    assert {(tmp_path/run/"files"/"gpu.txt").read_text() for run in table.run} == {"3", "7"}


SMALL = dict(preset="quick", base={"recipe.epochs": 2}, grid=dict(loss="ce,brier"))


def test_out_of_memory_ends_one_run_and_not_the_sweep(tmp_path, own):
    "A loss that asks for too much beside one that does not."
    greedy = """
@register_loss("greedy")
def greedy(z, y):
    if len(z) > 2: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 TiB.")
    return nn.functional.cross_entropy(z, y)
"""
    with open(tmp_path/"own.py", "a") as file:
        file.write("import torch\n" + greedy)
    table = sweep(own | dict(grid=dict(loss="greedy,ce")), tmp_path/"runs", workers=1, progress=False).set_index("job")
    assert list(table.state) == ["failed", "done"]
    assert all(why in table.reason.iloc[0] for why in ("out of memory with batch_size=64", "3 TiB"))
    assert RunFolder(tmp_path/"runs"/table.run.iloc[0]).state == "failed" and table.tries.iloc[0] == 1


def ray_in_this_process(calls, connected=False):
    "A stand-in for Ray of one core: a task is done at once, where it is asked for."
    def remote(**options):
        calls.append("remote")
        return lambda function: SimpleNamespace(remote=lambda *job: partial(lambda value: value, function(*job)))
    return SimpleNamespace(
        is_initialized=lambda: connected, init=lambda **options: calls.append("init"),
        shutdown=lambda: calls.append("shutdown"), cluster_resources=dict, remote=remote,
        nodes=lambda: [dict(Alive=True, Resources=dict(CPU=1.))], get=lambda task: task(),
        wait=lambda tasks, timeout: (tasks[:1], tasks[1:]))


@pytest.mark.parametrize("connected", [True, False])
def test_a_sweep_starts_and_ends_ray_unless_it_is_connected(monkeypatch, connected):
    calls = []
    monkeypatch.setitem(sys.modules, "ray", ray_in_this_process(calls, connected))
    assert list(engines["ray"]([], 1, 1, None, {})) == []
    assert calls == (["remote"] if connected else ["init", "remote", "shutdown"])


@pytest.fixture
def inline_submitit(monkeypatch):
    "Let submitit do each job at once, in this process."
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit, "AutoExecutor", partial(submitit.AutoExecutor, cluster="debug"))


@pytest.mark.usefixtures("inline_submitit")
@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_an_engine_of_clusters_makes_the_same_table_and_tells_what_failed(tmp_path, own, monkeypatch, engine):
    "A cluster of two nodes, jobs in processes of their own and a real Slurm: tests/slow/test_cluster.py."
    monkeypatch.setitem(sys.modules, "ray", ray_in_this_process([]))
    monkeypatch.setenv("CALIBNB_JOB", "")  # what a job sets goes after the test
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path/"there"/".slurm"))  # as in a job
    same_tables(own, tmp_path, engine=engine, workers=2)
    about = dict(ray=("job", "Ray worker "), slurm=("log", str(tmp_path/"there"/".slurm")))
    key, begins = about[engine]
    assert [run.status[key].startswith(begins) for run in find_runs(tmp_path/"there")] == [True, True]


@pytest.mark.parametrize("wrong, told", [
    (dict(options=dict(slurm_partitoin="gpu")), "slurm_partitoin"),
    (dict(per_gpu=2), "per_gpu: 2"),
])
@pytest.mark.usefixtures("inline_submitit")
def test_what_submitit_does_not_know_is_refused(faulty, tmp_path, wrong, told):
    with pytest.raises(ValueError, match=told):
        sweep(dict(notebook=faulty), tmp_path/"slurm", engine="slurm", progress=False, **wrong)


def test_an_engine_that_is_not_there_is_named(tmp_path, monkeypatch):
    for engine, package in ("ray", "ray"), ("slurm", "submitit"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=f"engine: {package} is not installed"):
            sweep(SMALL, tmp_path, engine=engine, progress=False)
    with pytest.raises(ValueError, match="did you mean 'ray'"):
        sweep(SMALL, tmp_path, engine="rya", progress=False)


@pytest.fixture
def table_file(tmp_path):
    cases = [dict(loss="ce"), dict(loss="brier")]
    return spec_file(tmp_path, dict(preset="quick", base={"recipe.epochs": 2}, cases=cases, grid=dict(seed=[0, 1, 2])))


@pytest.mark.parametrize("what, args, message", [
    ("FILE", "--grid loss=focal,mmce", "loss is in cases too"),
    ("FILE", "-p loss focal", "-p loss: the cases of"),
    ("train", "-p recipe.lrr 3", "lrr: not known"),
])
def test_a_wrong_command_is_refused_in_one_line(tmp_path, monkeypatch, capsys, table_file, what, args, message):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    assert main(["sweep", what.replace("FILE", table_file), *args.split(), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and not (tmp_path/"runs").exists()


def test_what_is_typed_changes_the_base_and_an_axis_of_the_same_name(tmp_path, monkeypatch, capsys, table_file):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    assert main(["sweep", table_file, "-p", "recipe.epochs", "3", "--grid", "seed=5", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 runs, 2 to be made"  # no finished run tells the hours


def test_the_sweeps_of_the_papers_can_be_read():
    for path in (ROOT/"sweeps").glob("*.yaml"):
        assert SweepSpec.model_validate(yaml.safe_load(path.read_text())).settings(), path


def test_a_sweep_of_the_training_notebook_prints_means_and_collect_selects(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path))
    folders = [RunFolder(run_path("train", dict(seed=seed), tmp_path)) for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        with folder.locked(), folder.running("notebook", dict(seed=seed)), monkeypatch.context() as patch:
            patch.setenv("CALIBNB_NOTEBOOK_FOLDER", str(folder.path))
            run = get_run(RunConfig(model_args=dict(hidden=[4]), recipe=Recipe.quick(1, seed=seed)), progress=False)
            folder.record(run.folder.result)
    _print_means([SimpleNamespace(folder=lambda folder=folder: folder) for folder in folders])
    assert "Mean ± standard deviation over 2 seeds." in capsys.readouterr().out
    assert main(["collect", "--where", "seed=1"]) == 0 and capsys.readouterr().out.count(" done ") == 1
