"""Kills and resumes at length: workers, sweeps, trainings of one process and of two, ended at any moment.

The fast tests have one killed worker, one killed training, one Ctrl-C of each kind, and one SIGTERM to two processes.
"""
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, forks, patience, wait_for
from killing import SMALL, assert_same_run, child, plain, saved_at, saved_state
from sweeping import LONG, begun, command, held_command, running, spec_file, started, with_checkpoint
from sweeping import faulty_notebook, nothing_goes_on, own_names, two_workers  # noqa: F401

from calibnb.meta import MetaRecipe
from calibnb.processes.distributed import torchrun
from calibnb.runs import RunConfig, get_run
from calibnb.runs.folder import RunFolder, find_runs
from calibnb.sweep import expand
from calibnb.train import Recipe


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_worker_is_replaced_and_its_run_goes_on(tmp_path, how):
    root, go = tmp_path/"runs", tmp_path/"go"
    master = held_command(["sweep", spec_file(tmp_path, LONG), "--workers", "2"], root, go)
    wait_for(lambda: with_checkpoint(root), 120, lambda: master.poll() is None)
    victim = with_checkpoint(root)[0]
    os.kill(victim.status["pid"], how)
    go.touch()
    out, err = master.communicate(timeout=patience(240))
    assert master.returncode == 0, err
    assert "2 done" in out and all(f.state == "done" for f in find_runs(root))
    assert begun(victim) == 2 and "resuming from checkpoint.pt" in (victim/"log.txt").read_text()


@pytest.mark.parametrize("whose", ["ours", "a user's"])
def test_a_killed_sweep_leaves_nothing_running_and_goes_on_when_started_again(tmp_path, own, monkeypatch, whose):
    "Also one of names that a file of the user's registers."
    monkeypatch.setenv("CALIBNB_PLUGINS", "")
    spec = dict(LONG, base=LONG["base"] | dict(loss="own_loss", model="own_net")) if whose == "a user's" else LONG
    root, args = tmp_path/"runs", ["sweep", spec_file(tmp_path, spec), "--plugin", str(tmp_path/"own.py")]
    master = held_command(args, root, tmp_path/"go")
    wait_for(lambda: with_checkpoint(root), 120, lambda: master.poll() is None)
    pids, interrupted = [f.status["pid"] for f in running(root)], with_checkpoint(root)
    master.kill()
    master.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 90)
    assert {f.state for f in find_runs(root)} <= {"interrupted", "failed", "died"}
    again = command(args, root)
    out, err = again.communicate(timeout=patience(240))
    assert again.returncode == 0 and all(f.state == "done" for f in find_runs(root)), err
    assert all("resuming from checkpoint.pt" in (f/"log.txt").read_text() for f in interrupted)
    monkeypatch.setenv("CALIBNB_PLUGINS", str(tmp_path/"own.py"))
    there, alone = (get_run(expand(spec)[0].config, folder, progress=False) for folder in (root, tmp_path/"alone"))
    assert there.metrics == alone.metrics  # as if nothing had happened


def test_trainings_interrupted_from_a_terminal_say_so(tmp_path):
    "Ctrl-C goes to every process of the group: one that is started, and that leads a group, as in a terminal."
    def hears():  # also where the tests run in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    root, args = tmp_path/"runs", ["sweep", spec_file(tmp_path, LONG)]
    env = os.environ | dict(CALIBNB_RUNS=str(root), CALIBNB_TEST_GO=str(tmp_path/"go"))
    how = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hears)
    master = subprocess.Popen([sys.executable, ROOT/"tests"/"holding.py", *args], env=env, **how)
    started.append(master)
    wait_for(lambda: len(with_checkpoint(root)) == 2, 120, lambda: master.poll() is None)
    os.killpg(master.pid, signal.SIGINT)
    out, err = master.communicate(timeout=patience(120))
    assert master.returncode == 130 and "; saved: 2 checkpoints; to continue: calibnb sweep" in err
    assert {f.status["reason"] for f in find_runs(root)} == {"interrupted"}


def test_two_sweeps_of_the_same_notebook_run_it_once(faulty, tmp_path):
    root = tmp_path/"runs"
    args = ["sweep", faulty, "--grid", "seed=0:4", "-p", "seconds", "0.2"]
    both = [command(args, root) for _ in range(2)]
    for master in both:
        out, err = master.communicate(timeout=patience(240))
        assert master.returncode == 0, err
    assert len(find_runs(root)) == 4 and all(f.state == "done" and begun(f) == 1 for f in find_runs(root))


BILEVEL = RunConfig(
    data_args=dict(n_meta=100), meta=MetaRecipe(lr=1e-3), recipe=Recipe.quick(50, keep="val_nll"),
    recorders=["gamma_stats", "meta_progress"], **SMALL)
CHANGING = RunConfig(
    data_args=dict(pool=1), loss="adafocal", loss_args=dict(n_bins=5), recipe=Recipe.quick(60),
    recorders=["gamma_stats"], **SMALL)
KILLED = dict(plain=(plain(75), 5, 140), bilevel=(BILEVEL, 4, 120), changing=(CHANGING, 4, 120))


@pytest.mark.parametrize("setting, kills, steps", KILLED.values(), ids=KILLED)
def test_a_run_killed_at_random_moments_ends_in_the_same_bits(tmp_path, setting, kills, steps):
    """SIGKILL at any moment changes neither weights, optimisers, history nor predictions.

    There is augmentation, mixup, a best epoch to keep, recorders and a loss that learns.
    """
    whole = get_run(setting, tmp_path/"whole", progress=False)
    path, draw, moments = setting.path(tmp_path/"killed"), random.Random(0), []
    # every second one is saved after each batch, so some end within an epoch however fast the machine is
    for process, pipe in [child(setting, tmp_path/"killed", .02*(k % 2), steps) for k in range(kills)]:
        before = saved_at(path)
        pipe.send("go")
        wait_for(lambda: saved_at(path) != before, alive=process.is_alive)
        time.sleep(draw.uniform(0, .1))
        process.kill()
        process.join()
        assert RunFolder(path).state == "died", "over before it could be killed"
        state = saved_state(path)
        moments.append((len(state["history"]), state["step"]))
    assert len(set(moments)) > kills/2 and any(step for _, step in moments), moments
    resumed = get_run(setting, tmp_path/"killed", progress=False)
    assert_same_run(resumed, whole)
    assert bool(saved_state(whole.path)["loss"]) == (setting is CHANGING)


def train_on_two(setting, root):
    get_run(setting, root, processes=2, device="cpu", tensorboard=True)


def test_interrupting_torchrun_saves_the_epoch_its_processes_are_in(tmp_path):
    "When a cluster ends the job, the processes it started save and stop, and none outlives it."
    setting = RunConfig(data_args=dict(n_train=40), recipe=Recipe(epochs=100000, batch_size=4, lr=1e-4), **SMALL)
    process = forks().Process(target=train_on_two, args=(setting, tmp_path))
    process.start()
    folder = RunFolder(setting.path(tmp_path))

    def hears_signals():
        "Both processes do once an epoch has ended, which adds its numbers to the event file of 161 bytes."
        return [file for file in folder.path.glob("tensorboard/*") if file.stat().st_size > 300]
    try:
        wait_for(hears_signals, alive=process.is_alive)
        process.terminate()
        process.join(patience(60))
        assert process.exitcode == 143
    finally:
        process.kill()
    assert folder.state == "interrupted" and "SIGTERM; the state is saved" in folder.status["reason"]
    state = saved_state(folder)
    assert len(state["own"]) == 2 and (state["step"] or state["history"])


def test_torchrun_returns_the_code_and_keeps_the_output_of_its_processes(tmp_path):
    "Of a module that needs nothing heavy."
    assert torchrun("json.tool", ["--help"], 2, tmp_path/"out") == 0
    assert (tmp_path/"out").read_text().count("usage: ") == 2
    assert torchrun("json.tool", ["/no/such/file"], 2, tmp_path/"out") == 1
    told = (tmp_path/"out").read_text()  # of one process at least: torchrun ends the other one when the first fails
    assert "No such file or directory: '/no/such/file'" in told
