"""Jobs in processes of their own: how they end, and that runs made so are the same."""
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import forks, patience, wait_for
from simple_jobs import sleep

from calibnb.cli import main
from calibnb.notebooks import run_notebook
from calibnb.processes.pool import JobDied, fork_server, in_processes, worker_count
from calibnb.train import Recipe
from calibnb.runs import RunConfig, get_run, get_runs


@pytest.fixture(autouse=True)
def at_once():
    "Jobs begin as copies of a process that has imported everything."
    forks()


def double(x, tell):
    tell(x)
    return 2 * x


def fail(reason, tell):
    raise ValueError(reason)


def die(sign, tell):
    os.kill(os.getpid(), sign)
    time.sleep(3600)


class Odd(Exception):
    "Cannot be made anew from its args, as pickle does."

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raise_odd(a, tell):
    raise Odd(a, a)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def told_pid(path):
    "Of the process that `sleep`s, once it does."
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def gone(pid):
    wait_for(lambda: not alive(pid))
    return True


def test_every_job_ends_once_and_says_how():
    told = []
    ends = {o.index: o for o in in_processes(double, [(i,) for i in range(5)], 2, told=told.append)}
    assert {i: o.value for i, o in ends.items()} == {i: 2 * i for i in range(5)}
    assert sorted(told) == list(range(5))
    assert all(o.error is None and o.seconds > 0 for o in ends.values())


def test_errors_and_deaths_are_told_and_the_rest_goes_on():
    ends = list(in_processes(fail, [("no luck",), ("nor here",)], 2))
    assert sorted(str(o.error) for o in ends) == ["no luck", "nor here"]
    assert all(type(o.error) is ValueError and "in fail" in o.trace for o in ends)
    ends = {o.index: o.error for o in in_processes(die, [(signal.SIGKILL,), (signal.SIGSEGV,)], 1)}
    assert all(type(e) is JobDied for e in ends.values())
    assert str(ends[0]) == "the process was ended by SIGKILL" and "SIGSEGV" in str(ends[1])
    (real_time,) = in_processes(die, [(37,)], 1)  # 37: a real-time signal, which has no name
    assert type(real_time.error) is JobDied and str(real_time.error) == "the process was ended by signal 37"
    (odd,) = in_processes(raise_odd, [(1,)], 1)
    assert str(odd.error) == "Odd: 1 and 1"


def test_a_job_that_takes_too_long_is_ended(tmp_path):
    limit = patience(1)
    (ended,) = in_processes(sleep, [(3600, tmp_path / "pid")], 1, timeout=limit)
    assert type(ended.error) is TimeoutError and f"{limit:g} s" in str(ended.error) and limit < ended.seconds < 3600
    assert gone(told_pid(tmp_path / "pid"))


def deaf(seconds, file, tell):
    "Sleep on when told to end, but say so."
    signal.signal(signal.SIGTERM, lambda *_: file.with_suffix(".told").touch())
    sleep(seconds, file, tell)


def until_told(file, tell):
    wait_for(file.with_suffix(".told").exists)


def call(job, *args, tell):
    job(*args, tell=tell)


def test_a_job_that_does_not_end_when_told_to_holds_nobody_up(tmp_path):
    limit, file = patience(2), tmp_path / "deaf"
    others = [(sleep, 0.6 * limit, tmp_path / "other"), (until_told, file), *[(sleep, 0, tmp_path / "other")] * 2]
    jobs = in_processes(call, [(deaf, 3600, file), *others], 2, timeout=limit)
    assert sorted(next(jobs).index for _ in range(4)) == [1, 2, 3, 4] and alive(told_pid(file))
    os.kill(told_pid(file), signal.SIGKILL)
    assert type(next(jobs).error) is TimeoutError and next(jobs, None) is None


def give_back(what, tell):
    return lambda: what


def test_a_result_that_cannot_be_sent_is_an_error_of_the_job():
    (ended,) = in_processes(give_back, [(1,)], 1)
    assert "local object" in str(ended.error) and type(ended.error) is not JobDied


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


def unreadable(kind, tell):
    return Unreadable() if kind == "value" else torch.arange(5)


def test_values_are_sent_whole_or_not_at_all():
    ends = {o.index: o for o in in_processes(unreadable, [("value",), ("tensor",)], 2)}
    assert type(ends[0].error) is ValueError and ends[1].value.tolist() == [0, 1, 2, 3, 4]


def tell_unreadable(then, tell):
    tell(Unreadable())
    return then


def test_a_message_that_cannot_be_read_is_an_error_of_its_job_alone():
    ends = {o.index: o for o in in_processes(call, [(tell_unreadable, 1), (double, 2)], 2)}
    assert "a message of the job cannot be read (ValueError: invalid literal" in str(ends[0].error)
    assert ends[1].error is None and ends[1].value is None


OF_THE_PARENT = [  # OMP_NUM_THREADS of the parent, threads that a job gets of 2 that fall to it
    (None, 2), ("", 2), ("many", 2), ("2,1", 2), ("1,4", 1), ("1", 1), ("16", 2), ("0", 2)]


@pytest.mark.parametrize("given, threads", OF_THE_PARENT)
def test_a_job_has_its_share_of_the_cores_or_fewer_threads(monkeypatch, given, threads):
    monkeypatch.setattr("calibnb.processes.pool.core_count", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    (ended,) = in_processes(threads_of_job, [()], 1)
    assert ended.value == (str(threads), threads), ended


def threads_of_job(tell):
    return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()


STARTS = {  # what starts processes, and how the environment of the started one is seen
    "a command": lambda patch, seen: main(["list", "losses"]) or seen.append(dict(os.environ)),
    "torchrun": lambda patch, seen: started_by("calibnb.runs.launch._follow", patch, seen, launch_two),
    "a kernel": lambda patch, seen: started_by("papermill.execute_notebook", patch, seen, run_any_notebook),
    "the fork server": lambda patch, seen: started_by(
        "multiprocessing.forkserver.ensure_running", patch, seen, fork_server),
}


def started_by(name, patch, seen, start):
    def watch(*args, **options):
        env = args[-1] if name.endswith("_follow") else os.environ
        seen.append(dict(env))
        raise Seen
    patch.setattr(name, watch)
    with pytest.raises(Exception, match="Seen"):
        start()


class Seen(Exception):
    "The environment."
    def __init__(self):
        super().__init__("Seen")


def launch_two():
    get_run(RunConfig(experiment="pool", recipe=Recipe.quick(1)), processes=2, device="cpu")


def run_any_notebook():
    run_notebook("toy_gaussian", again=True, progress=False)


SPINS = [({}, "1000"), (dict(GOMP_SPINCOUNT="7"), "7"), (dict(OMP_WAIT_POLICY="active"), None)]


@pytest.mark.parametrize("given, spins", SPINS, ids=str)
@pytest.mark.parametrize("how", STARTS)
def test_threads_that_wait_soon_leave_their_core_unless_the_environment_decides(
        monkeypatch, tmp_path, how, given, spins):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path))
    for name in "GOMP_SPINCOUNT", "OMP_WAIT_POLICY":
        monkeypatch.setenv(name, "")  # what a command sets goes after the test
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []
    STARTS[how](monkeypatch, seen)
    assert seen[0].get("GOMP_SPINCOUNT") == spins


def test_deaf_jobs_are_ended_together(tmp_path, monkeypatch):
    files = [tmp_path / f"{i}" for i in range(4)]
    jobs = in_processes(deaf, [(0.1, tmp_path / "short"), *[(3600, file) for file in files]], 5)
    assert next(jobs).index == 0
    pids, each = [told_pid(file) for file in files], patience(1)
    monkeypatch.setattr("calibnb.processes.pool.PATIENCE", each)
    start = time.monotonic()
    jobs.close()
    assert time.monotonic() - start < 3 * each  # not four times
    assert all(gone(pid) for pid in pids)


def test_who_stops_listening_stops_the_jobs(tmp_path):
    jobs = in_processes(sleep, [(0, tmp_path / "short"), (3600, tmp_path / "long")], 2)
    assert next(jobs).index == 0
    pid = told_pid(tmp_path / "long")
    jobs.close()
    assert gone(pid)


HERE = os.path.dirname(__file__)
BEGIN = """import pathlib, sys
sys.path.insert(0, sys.argv[1])
import simple_jobs
from calibnb.processes.pool import in_processes
"""


def script(path, *lines):
    "A program that finds `simple_jobs` and does `lines` as the main process; the command that runs it."
    path.write_text(BEGIN + "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in lines))
    return [sys.executable, str(path), HERE]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_jobs_do_not_outlive_a_killed_master(tmp_path):
    command = script(tmp_path / "master.py", "jobs = [(3600, pathlib.Path(sys.argv[2]))]",
                     "list(in_processes(simple_jobs.sleep, jobs, 1))")
    master = subprocess.Popen([*command, str(tmp_path / "pid")])
    try:
        pid = told_pid(tmp_path / "pid")
    finally:
        master.kill()
        master.wait()
    assert gone(pid)


def test_runs_side_by_side_are_the_same_runs(tmp_path, monkeypatch):
    configs = [RunConfig(experiment="pool", loss=loss, recipe=Recipe.quick(2, seed=seed))
               for loss in ("ce", "brier") for seed in (0, 1)]
    here = get_runs(configs, tmp_path / "here", progress=False)
    there = get_runs(configs, tmp_path / "there", workers=2, progress=False)
    for a, b in zip(here, there):
        assert torch.equal(a.predictions().logits, b.predictions().logits)  # bits: one seed, one thread
        assert a.metrics == b.metrics
        said = b.folder.info if "pid" in b.folder.info else b.folder.status
        assert str(said["pid"]) != str(os.getpid())
    again = "calibnb.runs.many.in_processes"
    monkeypatch.setattr(again, lambda *args, **options: pytest.fail("loaded, not trained again"))
    get_runs(configs, tmp_path / "there", workers=2)


def test_a_failing_run_says_why_and_the_others_can_go_on(tmp_path):
    bad = RunConfig(experiment="pool", loss="ce", data="npz:/nowhere.npz", recipe=Recipe.quick(2))
    good = [RunConfig(experiment="pool", loss="ce", recipe=Recipe.quick(2, seed=s)) for s in (0, 1)]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        get_runs([bad, *good], tmp_path, workers=2, progress=False)
    assert len(get_runs(good, tmp_path, workers=2, progress=False)) == 2


def test_jobs_may_use_threads(tmp_path):
    "One worker has all the cores; a copy of a process that has used threads would hang."
    command = script(tmp_path / "master.py",
                     "options = dict(timeout=float(sys.argv[2]), preload=['calibnb.runs.many', 'sklearn.datasets'])",
                     "jobs = in_processes(simple_jobs.add_up, [(1_000_000,)], 1, **options)",
                     "print(next(jobs))")
    env, wait = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}, patience(120)
    run = subprocess.run([*command, str(patience(30))], env=env, capture_output=True, text=True, timeout=wait)
    assert f"({len(os.sched_getaffinity(0))}, 1000000.0)" in run.stdout, run.stdout + run.stderr


def test_number_of_workers(monkeypatch):
    monkeypatch.setenv("CALIBNB_WORKERS", "3")
    assert worker_count("auto") == 3 and worker_count(2) == 2
    monkeypatch.setenv("CALIBNB_WORKERS", "two")
    with pytest.raises(ValueError, match="workers: 'two'"):
        worker_count("auto")


ALONE = """from calibnb.processes.kernels import _serve
from calibnb.processes.pool import _job, fork_server
context = fork_server(["calibnb.processes.kernels"])
for target, args in (_job, (str.upper, ('a',), {}, 1)), (_serve, ()):
    ours, theirs = context.Pipe(duplex=False) if target is _job else context.Pipe()
    ours.close()
    process = context.Process(target=target, args=(*args, theirs))
    process.start()
    process.join()
    print(target.__name__, process.exitcode)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_process_without_a_parent_ends_before_it_begins(tmp_path):
    command = script(tmp_path / "alone.py", *ALONE.splitlines())
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["_job", "0", "_serve", "0"] and not ended.stderr, ended.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_process_that_outlives_its_parent_ends_without_a_word(tmp_path):
    command = script(tmp_path / "alone.py", "jobs = [(pathlib.Path(sys.argv[2]),)]",
                     "list(in_processes(simple_jobs.outlive, jobs, 1))")
    with open(tmp_path / "stderr", "w") as stderr:
        master = subprocess.Popen([*command, str(tmp_path / "pid")], stderr=stderr)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert master.poll() is None
            time.sleep(0.05)
        master.kill()
        master.wait()
    assert gone(int((tmp_path / "pid").read_text())) and not (tmp_path / "stderr").read_text()
