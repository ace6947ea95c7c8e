"""Sweeps on clusters: Ray of two nodes, submitit's own processes, and a real Slurm of one node on this machine.

What is not installed is skipped. The fast tests have stand-ins that do each job at once.
"""
import ctypes
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
from conftest import forks, patience, wait_for
from sweeping import measures, same_tables
from sweeping import own_names, two_workers  # noqa: F401

from calibnb import cli
from calibnb.cli import main
from calibnb.files import pieces
from calibnb.posthoc import TemperatureScaling
from calibnb.runs.folder import find_runs
from calibnb.runs.watch import watch_lines
from calibnb.sweep import engines as engines_room
from calibnb.sweep import expand, running, sweep

RAY_WAITS = dict(gcs_server_port_wait_time_s=30, agent_register_timeout_ms=30_000, worker_register_timeout_seconds=60,
                 py_gcs_connect_timeout_s=30, health_check_timeout_ms=10_000)
RAY_PORTS = "metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port"


def free_ports(n):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@pytest.fixture
def patient_ray(monkeypatch):
    "Let Ray wait longer on a busy machine: it gives up a node after 30 s, and helpers without ports after 15 s."
    for name, wait in RAY_WAITS.items():
        monkeypatch.setenv(f"RAY_{name}", str(int(patience(wait))))
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not the cluster that this machine may belong to
    ray = pytest.importorskip("ray")
    get_node, start, nodes = ray._private.services.get_node, ray._private.services.start_ray_process, []
    def is_there(*node):
        try:
            return nodes.append(get_node(*node)) is None
        except RuntimeError:
            return False
    def with_port(command, *args, **kwargs):
        if given := re.search(r"--listen-port=(\d+)", " ".join(map(str, command))):
            command = [*command, f"--dashboard_agent_listen_port={given[1]}"]
        return start(command, *args, **kwargs)
    monkeypatch.setattr("ray._private.services.get_node", lambda *node: wait_for(lambda: is_there(*node)) or nodes[-1])
    monkeypatch.setattr("ray._private.services.start_ray_process", with_port)
    return ray


def test_a_ray_cluster_of_two_nodes_makes_the_same_table_and_calibrates_the_same(tmp_path, patient_ray, own,
                                                                                  monkeypatch):
    from ray.cluster_utils import Cluster
    cluster, ray = Cluster(), patient_ray
    logits = np.random.default_rng(0).standard_normal((2000, 3))
    np.savez(tmp_path/"logits.npz", logits=logits)
    TemperatureScaling().fit(logits, logits.argmax(1)*(logits[:, 0] < 1)).save(tmp_path/"t.safetensors")
    monkeypatch.setattr(pieces, "_PIECE", 1000)  # six tasks
    def calibrated(engine):
        out = tmp_path/f"{engine}.npy"
        command = [str(tmp_path/"t.safetensors"), str(tmp_path/"logits.npz"), "--out", str(out), "--engine", engine]
        assert cli.main(["apply", *command, "--rows-in-memory", "1"]) == 0
        return np.load(out)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, include_dashboard=False, **dict(zip(RAY_PORTS, free_ports(len(RAY_PORTS)))))
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        there = sweep(own, tmp_path/"ray", engine="ray", progress=False)
        np.testing.assert_array_equal(calibrated("ray"), calibrated("local"))  # bits: the same pieces
    finally:
        ray.shutdown()
        cluster.shutdown()
    here = sweep(own, tmp_path/"here", workers=1, progress=False)
    assert list(there.state) == ["done"]*2 and list(here.state) == ["done"]*2, (there.reason, here.reason)
    assert all(folder.status["job"].startswith("Ray worker ") for folder in find_runs(tmp_path/"ray"))
    assert measures(tmp_path/"ray").equals(measures(tmp_path/"here"))


@pytest.fixture
def local_submitit(tmp_path, monkeypatch):
    "Make submitit take its local executor, as on a machine without Slurm; the commands of Slurm that are here say no."
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit, "AutoExecutor", partial(submitit.AutoExecutor, cluster="local"))
    commands, calls = tmp_path/"slurm_commands", tmp_path/"slurm_calls"
    commands.mkdir()
    for name in ("sbatch", "srun", "sacct", "scancel", "squeue"):
        (commands/name).write_text(f"#!/bin/sh\necho {name} >> '{calls}'; exit 1\n")
        (commands/name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    yield
    assert not calls.exists(), f"asked Slurm: {calls.read_text()}"


@pytest.mark.usefixtures("local_submitit")
def test_submitit_makes_the_same_table_and_tells_what_failed(tmp_path, own):
    same_tables(own, tmp_path, engine="slurm", workers=2)


CONF = """ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={0}
SlurmdPort={1}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdTimeout=60
KillWait=5
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 Sockets=2
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def ends_with_parent():
    "Let the kernel end this process if the tests are killed."
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def slurm(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(20)).stdout.split()


@pytest.fixture(scope="module")
def slurm_servers(tmp_path_factory):
    "The two servers of Slurm; it needs no munge, as no other machine and no other user is there."
    pytest.importorskip("submitit")
    for name in "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel":
        if not shutil.which(name, path=PATH):
            pytest.skip(f"{name} is not installed")
    home, servers = tmp_path_factory.mktemp("slurm"), []
    names = dict(user=getpass.getuser(), host=socket.gethostname().partition(".")[0], home=home)
    (home/"slurm.conf").write_text(CONF.format(*free_ports(2), **names))
    for name in "state", "spool":
        (home/name).mkdir()
    with pytest.MonkeyPatch.context() as patch, open(home/"log.txt", "w") as log:
        patch.setenv("SLURM_CONF", str(home/"slurm.conf"))
        patch.setenv("PATH", PATH)
        try:
            how = dict(stdout=log, stderr=log, start_new_session=True, preexec_fn=ends_with_parent)
            for command in ("slurmctld", "-D"), ("slurmd", "-D", "-N", "localhost"):
                servers.append(subprocess.Popen(command, **how))
            try:
                wait_for(lambda: "idle" in slurm("sinfo", "-h", "-o", "%T"), 15,
                         lambda: all(server.poll() is None for server in servers))
            except (AssertionError, subprocess.TimeoutExpired):
                pytest.skip(f"Slurm does not start: {(home/'log.txt').read_text()[-500:]}")
            yield
            slurm("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full")
            slurm("scancel", "--user", getpass.getuser())
            wait_for(lambda: not slurm("squeue", "-h"), 30)
        finally:
            for server in reversed(servers):
                server.terminate()
                try:
                    server.wait(patience(5))
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()


@pytest.fixture
def limited():
    "No test of this file hangs."
    def end(*_): raise TimeoutError("the test takes too long")
    handler = signal.signal(signal.SIGALRM, end)
    signal.alarm(int(patience(300)))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.fixture
def quick_slurm(slurm_servers, limited, monkeypatch):
    "Slurm that is asked often; no job takes longer than a few minutes."
    monkeypatch.setattr(engines_room, "_POLL_S", dict(slurm=.1, local=.1))
    monkeypatch.setattr(engines_room, "_QUEUE_S", .3)
    monkeypatch.setattr(engines_room, "_RESULT_S", 1.)
    return dict(engine="slurm", options=dict(timeout_min=int(patience(300)//60) + 1))


def long_runs(own, n):
    base = own["base"] | {"recipe.epochs": 100_000}
    return expand(own | dict(base=base, grid=dict(seed=list(range(n)))))


def test_slurm_makes_the_same_table_and_names_jobs_and_logs(quick_slurm, tmp_path, own, monkeypatch, capfd):
    forks()
    there = same_tables(own, tmp_path, **quick_slurm)
    assert "sacct" not in capfd.readouterr().err
    assert main(["show", there.run[1], "--root", str(tmp_path/"there")]) == 0
    shown = capfd.readouterr().out
    assert all(text in shown for text in ("no luck today", "Slurm job ", "own.py", "_log.err"))


def test_jobs_cancelled_in_the_queue_and_at_work_are_interrupted(quick_slurm, tmp_path, own, monkeypatch):
    root, shown, seen = tmp_path/"runs", [], []
    class Shown:
        def __init__(self, lines, show): shown.append(lines)
        def __enter__(self): return self
        def __exit__(self, *args): pass
    monkeypatch.setattr(running, "LiveLines", Shown)
    jobs = partial(slurm, "squeue", "-h", "-o", "%i")
    def cancel():
        try:
            wait_for(lambda: list(root.glob("*/*/progress.json")), 90)
            wait_for(lambda: any("queued: Resources" in line for line in shown[0](100)))
            seen.extend([shown[0](100), watch_lines(root, 100)])
        finally:
            ours = {file.name.partition("_")[0] for file in (root/".slurm").glob("*_submitted.pkl")}
            for state in "PENDING", "RUNNING":
                slurm("scancel", *ours.intersection(jobs("-t", state)))
    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    options = quick_slurm["options"] | dict(cpus_per_task=2)  # one job at a time
    table = sweep(long_runs(own, 2), root, **quick_slurm | dict(options=options))
    thread.join()
    (title, live, queued), (_, watched) = seen
    host = socket.gethostname().partition(".")[0]
    assert title.endswith(", 1 queued") and "seed=1" in queued
    assert all(f"on {host} " in line and "job " in line and "/100000" in line for line in (live, watched))
    assert list(table.state) == ["interrupted"]*2 and list(table.tries) == [1, 1]
    assert all(reason.startswith("interrupted: Slurm job ") for reason in table.reason)
    assert [folder.state for folder in find_runs(root)] == ["interrupted"]
    assert main(["show", table.run[1], "--root", str(root)]) == 0


def test_a_sweep_that_ends_early_takes_its_jobs_out_of_the_queue_and_says_so(
        quick_slurm, tmp_path, own, capsys):
    slurm("scontrol", "update", "nodename=localhost", "state=drain", "reason=test")
    try:
        pairs = [(job.config, tmp_path/"runs") for job in long_runs(own, 2)]
        news = engines_room.run_on_slurm(pairs, "auto", 1, None, quick_slurm["options"])
        assert next(news).note == "submitted"
        assert len(slurm("squeue", "-h", "-o", "%i")) == 2
        news.close()
        assert not slurm("squeue", "-h")
        assert "Slurm cancels 2 jobs (2 queued)" in capsys.readouterr().err
    finally:
        slurm("scontrol", "update", "nodename=localhost", "state=resume")


def test_what_slurm_refuses_is_said(quick_slurm, tmp_path, own):
    options = quick_slurm["options"] | dict(slurm_partition="nowhere")
    with pytest.raises(ValueError, match="options: Slurm refuses a job: .*invalid partition specified: nowhere"):
        sweep(long_runs(own, 1), tmp_path/"runs", engine="slurm", options=options, progress=False)
