"Programs that begin anew, with nothing imported: what they import, and what they need of the machine."
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import patience
from simple_jobs import script

from calibnb.files.formats import write_npz

SETTINGS_FOLDERS = "IPYTHONDIR", "MPLCONFIGDIR", "JUPYTER_RUNTIME_DIR", "XDG_CONFIG_HOME"


@pytest.fixture
def file(tmp_path):
    "Predictions of 300 samples."
    rng = np.random.default_rng(0)
    logits = 2*rng.standard_normal((300, 4))
    write_npz(tmp_path/"a.npz", logits=2*logits, target=(logits + rng.gumbel(size=logits.shape)).argmax(1))
    return str(tmp_path/"a.npz")


def started(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(120), **options)


def test_an_answer_does_not_wait_for_pandas_or_scipy_stats(file):
    code = ("import sys; from calibnb import cli; assert cli.main(sys.argv[1:]) == 0\n"
            "assert not {'pandas.core.frame', 'scipy.stats._stats_py', 'matplotlib'} & {*sys.modules}\n"
            "import pandas, scipy.stats; print(pandas.DataFrame(dict(a=[1])).shape, scipy.stats.norm.cdf(0))")
    ended = started(sys.executable, "-c", code, "audit", file, "--logits", "--no-report")
    assert ended.returncode == 0 and ended.stdout.endswith("(1, 1) 0.5\n"), ended.stderr


def test_an_audit_without_a_home_gives_its_report_and_no_warnings(file, tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in SETTINGS_FOLDERS}
    env |= dict(HOME="/proc/nonexistent", CALIBNB_RUNS=str(tmp_path/"runs"))
    ended = started(str(Path(sys.executable).parent/"calibnb"), "audit", file, "--logits", cwd=tmp_path, env=env)
    assert ended.returncode == 0 and not ended.stderr, ended
    assert (tmp_path/"calibnb-audit"/Path(file).stem/"report.html").exists()


def test_jobs_may_use_threads(tmp_path):
    "One worker has all the cores; a copy of a process that has used threads would hang."
    command = script(tmp_path/"master.py",
                     "options = dict(timeout=float(sys.argv[2]), preload=['calibnb.runs.run', 'sklearn.datasets'])",
                     "jobs = in_processes(simple_jobs.add_up, [(1_000_000,)], 1, **options)",
                     "print(next(jobs))")
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    run = started(*command, str(patience(30)), env=env)
    assert f"({len(os.sched_getaffinity(0))}, 1000000.0)" in run.stdout, run.stdout + run.stderr


ALONE = """from calibnb.processes.kernels import _kernel_main
from calibnb.processes.pool import _job_main, fork_server
context = fork_server(["calibnb.processes.kernels"])
for target, args in (_job_main, (str.upper, ('a',), {}, 1)), (_kernel_main, ()):
    ours, theirs = context.Pipe(duplex=False) if target is _job_main else context.Pipe()
    ours.close()
    process = context.Process(target=target, args=(*args, theirs))
    process.start()
    process.join()
    print(target.__name__, process.exitcode)
"""


def test_a_process_without_a_parent_ends_before_it_begins(tmp_path):
    command = script(tmp_path/"alone.py", *ALONE.splitlines())
    ended = started(*command)
    assert ended.stdout.split() == ["_job_main", "0", "_kernel_main", "0"] and not ended.stderr, ended.stderr
