"""Jobs in processes of their own: how they end, and runs made in them."""
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import forks, patience, wait_for
from simple_jobs import call, script, sleep
from torch.distributed.run import get_args_parser

from calibnb.cli import main
from calibnb.notebooks import run_notebook
from calibnb.processes.distributed import torchrun
from calibnb.processes.pool import PATIENCE, JobDied, fork_server, forkserver, in_processes, worker_count
from calibnb.train import Recipe
from calibnb.runs import RunConfig, get_run, get_runs


@pytest.fixture(autouse=True)
def at_once():
    "Start jobs as copies of a process that has imported everything."
    forks()


def double(x, send):
    send(x)
    return 2 * x


def fail(reason, send):
    raise ValueError(reason)


def die(sign, send):
    os.kill(os.getpid(), sign)
    time.sleep(3600)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_in(path):
    "Wait for the id that a job of `sleep` writes."
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def gone(pid):
    wait_for(lambda: not alive(pid))
    return True


def test_the_fork_server_ignores_ctrl_c_while_it_imports(monkeypatch):
    "Otherwise a traceback of the module that is being imported is printed on the terminal."
    seen = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: seen.append(signal.getsignal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    fork_server()
    assert seen == [signal.SIG_IGN] and signal.getsignal(signal.SIGINT) is before


def test_every_job_ends_once_and_says_how():
    told = []
    ends = {o.index: o for o in in_processes(double, [(i,) for i in range(5)], 2, on_message=told.append)}
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


def test_a_job_that_takes_too_long_is_ended(tmp_path):
    limit = patience(.3)
    (ended,) = in_processes(sleep, [(3600, tmp_path / "pid")], 1, timeout=limit)
    assert type(ended.error) is TimeoutError and f"{limit:g} s" in str(ended.error) and limit < ended.seconds < 3600
    assert gone(pid_in(tmp_path / "pid"))


def deaf(seconds, file, send):
    "Sleep on when told to end, but say so."
    signal.signal(signal.SIGTERM, lambda *_: file.with_suffix(".told").touch())
    sleep(seconds, file, send)


def until_told(file, send):
    wait_for(file.with_suffix(".told").exists)


def test_a_job_that_does_not_end_when_told_to_holds_nobody_up(tmp_path):
    limit, file = patience(1), tmp_path / "deaf"
    others = [(sleep, 0.6 * limit, tmp_path / "other"), (until_told, file), *[(sleep, 0, tmp_path / "other")] * 2]
    jobs = in_processes(call, [(deaf, 3600, file), *others], 2, timeout=limit)
    assert sorted(next(jobs).index for _ in range(4)) == [1, 2, 3, 4] and alive(pid_in(file))
    os.kill(pid_in(file), signal.SIGKILL)
    assert type(next(jobs).error) is TimeoutError and next(jobs, None) is None


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


def give(kind, send):
    if kind == "message":
        send(Unreadable())
    return dict(function=lambda: 1, value=Unreadable(), tensor=torch.arange(5), message=1)[kind]


def test_what_cannot_be_pickled_or_read_is_an_error_of_its_job_alone():
    kinds = "function", "value", "tensor", "message"
    ends = {kinds[o.index]: o for o in in_processes(give, [(kind,) for kind in kinds], 2)}
    assert "local object" in str(ends["function"].error) and type(ends["function"].error) is not JobDied
    assert type(ends["value"].error) is ValueError and ends["tensor"].value.tolist() == [0, 1, 2, 3, 4]
    assert "a message of the job cannot be read (ValueError: invalid literal" in str(ends["message"].error)


def threads_of_job(send):
    return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()


@pytest.mark.parametrize("given, threads", [(None, 2), ("1,4", 1), ("16", 2)])  # OMP_NUM_THREADS; 2 cores for a job
def test_a_job_has_its_share_of_the_cores_or_fewer_threads(monkeypatch, given, threads):
    monkeypatch.setattr("calibnb.processes.pool.core_count", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    (ended,) = in_processes(threads_of_job, [()], 1)
    assert ended.value == (str(threads), threads), ended


CONFIG = RunConfig(experiment="pool", recipe=Recipe.quick(1))
STARTS = {  # what starts processes: the function that has their environment, and how it comes to be called
    "a command": ("calibnb.cli.command._do", lambda: main(["list", "losses"])),
    "torchrun": ("calibnb.processes.distributed._follow", lambda: get_run(CONFIG, processes=2, device="cpu")),
    "a kernel": ("papermill.execute_notebook", lambda: run_notebook("toy_gaussian", again=True, progress=False)),
    "the fork server": ("multiprocessing.forkserver.ensure_running", fork_server),
}


@pytest.mark.parametrize("given, spins", [({}, "1000"), (dict(GOMP_SPINCOUNT="7"), "7")], ids=str)
@pytest.mark.parametrize("how", STARTS)
def test_idle_threads_release_their_core_soon_unless_the_environment_decides(monkeypatch, tmp_path, how, given, spins):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path))
    for name in "GOMP_SPINCOUNT", "OMP_WAIT_POLICY":
        monkeypatch.setenv(name, "")  # what a command sets goes after the test
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen, (called, start) = [], STARTS[how]

    def watch(*args, **options):
        seen.append(dict(args[2] if called.endswith("_follow") else os.environ))
        raise RuntimeError("seen")
    monkeypatch.setattr(called, watch)
    with pytest.raises(Exception, match="seen"):
        start()
    assert seen[0].get("GOMP_SPINCOUNT") == spins


def test_deaf_jobs_are_ended_together(tmp_path, monkeypatch):
    files = [tmp_path / f"{i}" for i in range(4)]
    jobs = in_processes(deaf, [(0.1, tmp_path / "short"), *[(3600, file) for file in files]], 5)
    assert next(jobs).index == 0
    pids, each = [pid_in(file) for file in files], patience(.5)
    monkeypatch.setattr("calibnb.processes.pool.PATIENCE", each)
    start = time.monotonic()
    jobs.close()
    assert time.monotonic() - start < 3 * each  # not four times
    assert all(gone(pid) for pid in pids)


def test_who_stops_listening_stops_the_jobs(tmp_path):
    jobs = in_processes(sleep, [(0, tmp_path / "short"), (3600, tmp_path / "long")], 2)
    assert next(jobs).index == 0
    pid = pid_in(tmp_path / "long")
    jobs.close()
    assert gone(pid)


def test_torchrun_is_given_what_its_parser_takes(monkeypatch, tmp_path):
    "It is started in tests/slow/test_kills.py, which takes seconds."
    seen = []
    monkeypatch.setattr("calibnb.processes.distributed._follow", lambda *args: seen.append(args) or 3)
    assert torchrun("json.tool", ["x.json", "--indent", "2"], 2, tmp_path / "out", env=dict(GIVEN="yes")) == 3
    ((program, flag, module, *typed), output, env, stop), = seen
    args = get_args_parser().parse_args(typed)
    assert (program, flag, module, output) == (sys.executable, "-m", "torch.distributed.run", tmp_path / "out")
    assert args.standalone and args.nproc_per_node == "2" and args.module and not stop()
    assert (args.training_script, args.training_script_args) == ("json.tool", ["x.json", "--indent", "2"])
    assert env["GIVEN"] == "yes" and int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) == PATIENCE and env["PATH"]


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
    again = "calibnb.runs.run.in_processes"
    monkeypatch.setattr(again, lambda *args, **options: pytest.fail("loaded, not trained again"))
    get_runs(configs, tmp_path / "there", workers=2)


def test_a_failing_run_says_why_and_the_others_can_go_on(tmp_path):
    bad = RunConfig(experiment="pool", loss="ce", data="npz:/nowhere.npz", recipe=Recipe.quick(2))
    good = [RunConfig(experiment="pool", loss="ce", recipe=Recipe.quick(2, seed=s)) for s in (0, 1)]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        get_runs([bad, *good], tmp_path, workers=2, progress=False)
    assert len(get_runs(good, tmp_path, workers=2, progress=False)) == 2


def test_the_environment_sets_the_number_of_workers(monkeypatch):
    monkeypatch.setenv("CALIBNB_WORKERS", "3")
    assert worker_count("auto") == 3 and worker_count(2) == 2
    monkeypatch.setenv("CALIBNB_WORKERS", "two")
    with pytest.raises(ValueError, match="workers: 'two'"):
        worker_count("auto")


def test_jobs_end_silently_with_a_killed_parent(tmp_path):
    "Also a job that ignores SIGTERM, and sends a message and a value to the parent that is gone."
    command = script(tmp_path / "master.py", "jobs = [(simple_jobs.sleep, 3600), (simple_jobs.outlive,)]",
                     "paths = [pathlib.Path(name) for name in sys.argv[2:]]",
                     "jobs = [(*job, path) for job, path in zip(jobs, paths)]",
                     "list(in_processes(simple_jobs.call, jobs, 2))")
    paths = [tmp_path / name for name in ("sleep", "outlive")]
    with open(tmp_path / "stderr", "w") as stderr:
        master = subprocess.Popen([*command, *map(str, paths)], stderr=stderr)
        try:
            pids = [pid_in(path) for path in paths]
        finally:
            master.kill()
            master.wait()
    assert all(gone(pid) for pid in pids) and not (tmp_path / "stderr").read_text()
