"Live lines: what runs, what is left, and what other processes notice of it."
import fcntl
import io
import logging
import threading
import time
from contextlib import redirect_stderr
from types import SimpleNamespace

import IPython

from calibnb.cli import main
from calibnb.core.live import LiveLines
from calibnb.processes.pool import JobDied, Outcome
from calibnb.runs import RunConfig, get_runs, train_file
from calibnb.runs import run as run_room
from calibnb.runs.folder import RunFolder, write_json
from calibnb.runs.watch import live_trainings, watch_lines
from calibnb.sweep.running import _LinesOfSweep, _follow, _record_failure, _Row
from calibnb.sweep.spec import Job
from calibnb.train import Recipe

def seeded(seed): return RunConfig(model_args=dict(hidden=[4]), recipe=Recipe.quick(1, seed=seed))


CONFIG = seeded(0)
STATE = dict(epoch=1, epochs=2, epochs_done=.5, train_loss=1., val_nll=None, val_error=None, left_s=3.)


def begun(config, root, age=0, **state):
    "Return the folder of a training that sent news `age` seconds ago."
    folder = RunFolder(config.path(root))
    folder.begin("train", config.model_dump(mode="json"))
    write_json(folder/"progress.json", STATE | dict(updated=time.time() - age, notebook=None) | state)
    return folder


def test_a_training_that_failed_or_sends_no_news_is_not_live(tmp_path):
    failed, quiet, runs = [begun(seeded(seed), tmp_path, age)
                           for seed, age in enumerate([0, 300, 0])]
    failed.fail("ValueError: no luck")
    names = [name for name, _ in live_trainings(tmp_path, [f.path for f in (failed, quiet, runs)])]
    assert len(names) == 1 and names[0].endswith("-s2")


def deaths(): yield Outcome(0, error=JobDied("killed"))


def test_a_sweep_counts_jobs_and_not_tries_or_trainings_of_a_notebook(tmp_path):
    rows = [_Row(Job("a", CONFIG), tmp_path), _Row(Job("b", seeded(1)), tmp_path)]
    lines = _LinesOfSweep(tmp_path, rows, rows)
    lines.start -= 10
    assert _follow(deaths(), rows, retries=1) == rows[:1]
    assert lines(120) == ["sweep of 2 runs: 0 of 2 done"]
    begun(seeded(2), tmp_path, notebook=str(rows[1].folder.path))
    title, line = lines(120)
    assert title == "sweep of 2 runs: 0 of 2 done" and "-s2 " in line
    assert _follow(deaths(), rows, retries=1) == []
    assert lines(120)[0] == "sweep of 2 runs: 1 of 2 done, 1 failed, about 10 s left"


def test_lines_survive_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(LiveLines, "pause_s", .002)
    answers = iter([["first"], OSError("stale file handle"), ["third"]])
    reached = threading.Event()
    def lines(width):
        answer = next(answers, ["last"])
        if answer == ["third"]: reached.set()
        if isinstance(answer, OSError): raise answer
        return answer
    with redirect_stderr(io.StringIO()) as printed, LiveLines(lines): reached.wait(10)
    assert printed.getvalue().split()[:3] == ["first", "first", "third"]
    begun(CONFIG, tmp_path)
    (tmp_path/"other"/"0000-s0"/"status.json").mkdir(parents=True)  # not readable as a file
    assert watch_lines(tmp_path)[0].startswith("1 running, in ")


def test_a_long_cell_tells_the_terminal_of_papermill_what_is_done(monkeypatch):
    terminal, told = io.StringIO(), threading.Event()
    def lines(width):
        if terminal.getvalue(): told.set()
        return ["70 runs: 20 of 70 done"]
    log = logging.Logger("kernel")
    log.addHandler(logging.StreamHandler(terminal))
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=SimpleNamespace(log=log)))
    monkeypatch.setattr(IPython.display, "display", lambda *args, **options: SimpleNamespace(update=id))
    monkeypatch.setattr(LiveLines, "pause_s", .01)
    with LiveLines(lines):
        assert told.wait(10)
    assert terminal.getvalue().startswith("70 runs: 20 of 70 done\n")


def test_watch_tries_a_lock_once_in_ten_seconds_and_creates_nothing(tmp_path, monkeypatch):
    folder, tries = begun(CONFIG, tmp_path, age=30), []
    assert not (folder/".lock").exists()
    assert [watch_lines(tmp_path, now=1e10)[0].split(",")[0] for _ in range(3)] == ["1 died"]*3
    assert not (folder/".lock").exists()
    with folder.locked():
        monkeypatch.setattr(RunFolder, "is_locked", lambda self: tries.append(self) or True)
        for second in range(20): watch_lines(tmp_path, now=2e10 + second)
    assert len(tries) == 2


def test_a_failure_is_recorded_though_another_process_tries_the_lock(tmp_path):
    folder = begun(CONFIG, tmp_path)
    lock = open(folder/".lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(.05, lock.close).start()
    _record_failure(folder, JobDied("killed"))
    assert folder.status["reason"] == "JobDied: killed"


def test_runs_that_differ_in_an_option_of_the_loss_have_a_line_each(tmp_path):
    configs = [seeded(0).model_copy(update=dict(loss="focal", loss_args=dict(gamma=gamma))) for gamma in (1., 3.)]
    states, shown = [], run_room._RunningTrainings(2)
    get_runs(configs, tmp_path, progress=states.append)
    first, second = [state["label"] for state in states if state["ended"]]
    assert (first, second) == ("train/digits-mlp-focal_g1-s0", "train/digits-mlp-focal_g3-s0")
    assert {(state["epoch"], state["epochs_done"]) for state in states} == {(1, 1)}
    for state in states: shown.update(state | dict(ended=False))
    shown.update(states[0] | dict(ended=True))
    title, line = shown.lines(120)
    assert title.startswith("2 runs: 1 of 2 done") and line.startswith(second)


def test_a_run_on_several_processes_sends_states_and_is_counted(tmp_path, monkeypatch):
    def torchrun(module, arguments, processes, output, env, stop):
        "Train in this process instead."
        folder = begun(CONFIG, tmp_path, age=-1)
        assert not stop() and not stop()
        write_json(folder/"progress.json", STATE | dict(updated=time.time() + 2, epoch=2))
        assert not stop()
        train_file(arguments[0], tmp_path, "cpu")
        return 0
    monkeypatch.setattr(run_room, "torchrun", torchrun)
    states = []
    get_runs([CONFIG], tmp_path, progress=states.append, processes=2)
    assert [(state["epoch"], state["ended"]) for state in states] == [(1, False), (2, False), (2, True)]
    get_runs([CONFIG], tmp_path, progress=states.append)
    assert len(states) == 3, "a run that was done before is not counted"


def test_watch_once_prints_what_runs(tmp_path, capsys):
    begun(CONFIG, tmp_path)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "ce-s0" in capsys.readouterr().out
