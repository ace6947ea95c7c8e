"Live lines: what runs, what is left, and what other processes notice of it."
import fcntl
import io
import threading
import time
from contextlib import redirect_stderr

from calibnb.core.live import LiveLines
from calibnb.processes.pool import JobDied, Outcome
from calibnb.runs import RunConfig
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
    def lines(width):
        answer = next(answers, ["last"])
        if isinstance(answer, OSError): raise answer
        return answer
    with redirect_stderr(io.StringIO()) as printed, LiveLines(lines): time.sleep(.3)
    assert printed.getvalue().split()[:3] == ["first", "first", "third"]
    begun(CONFIG, tmp_path)
    (tmp_path/"other"/"0000-s0"/"status.json").mkdir(parents=True)  # not readable as a file
    assert watch_lines(tmp_path)[0].startswith("1 running, in ")


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
    threading.Timer(.1, lock.close).start()
    _record_failure(folder, JobDied("killed"))
    assert folder.status["reason"] == "JobDied: killed"
