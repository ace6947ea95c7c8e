"What the tests share: golden vectors, paths, how long to wait, the number of threads."
import itertools
import json
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from calibnb.processes.threads import omp_threads

# Promises of equal bits are for the CPU; set CUDA_VISIBLE_DEVICES to run the tests marked cuda.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# For kernels and children, too: two processes of several threads each wait for one another.
THREADS = omp_threads(os.environ) or 1
os.environ["OMP_NUM_THREADS"] = str(THREADS)
# A thread that waits for another leaves its core to other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The tests themselves are spread over the cores.
os.environ.setdefault("CALIBNB_WORKERS", "1")
# Notebooks are checked without web addresses, whose grammar takes a second of each process.
sys.modules.setdefault("rfc3987_syntax", None)

import nbformat  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from nbformat.v4 import new_code_cell, new_notebook  # noqa: E402
from torch.distributed import TCPStore  # noqa: E402

from close import rounding, within  # noqa: E402, F401

from calibnb import studies  # noqa: E402
from calibnb.cli import main  # noqa: E402
from calibnb.notebooks import Notebook, run_notebook  # noqa: E402
from calibnb.studies.papers import figure_index  # noqa: E402
from calibnb.processes.pool import core_count, fork_server, in_processes  # noqa: E402
from calibnb.sweep import engines  # noqa: E402

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT/"benchmarks"))  # last: nothing there stands before a package
VERDICTS = {getattr(studies, name) for name in ("HOLDS HOLDS_BUT_SMALL CONTRADICTED CONTRADICTED_BUT_SMALL WRONG "
                                                 "EQUIVALENT OPEN CANNOT").split()}
VECTORS = ROOT/"tests"/"vectors"
EXPERIMENTS = ROOT/"nbs"/"experiments"


def vectors(name):
    "A file of golden numbers: (cases, data)."
    file = json.loads((VECTORS/f"{name}.json").read_text())
    return file["cases"], file.get("data", {})


def tensors(record):
    "Lists of a record as tensors: floats in float64, ids in int64."
    return {k: torch.tensor(v, dtype=torch.int64 if k == "labels" else torch.float64) for k, v in record.items()}


def patience(seconds):
    """How long to wait for what takes less than `seconds` on an idle machine.

    CALIBNB_TEST_PATIENCE times that; by default three times, and more where several processes share a core.
    """
    if factor := os.environ.get("CALIBNB_TEST_PATIENCE"):
        return seconds*float(factor)
    return 3*seconds*max(1., processes_at_work()/core_count())


LATE = """import sys, time
sys.stdout.flush_timeout = sys.stderr.flush_timeout = 0
get_ipython().kernel.iopub_thread.schedule(lambda: time.sleep(6))
'late'"""  # a cell whose output comes seconds after its end, as on a busy machine


# what a study imports to draw figures and show findings
SHOWN = ("matplotlib_inline.backend_inline", "matplotlib.backends.backend_svg", "PIL.PngImagePlugin", "calibnb.plots",
         "calibnb.studies.verdicts", "calibnb.studies.claims", "pyarrow.pandas_compat")


def forks():
    """The fork server of this worker. What it has imported, kernels and jobs begin with: a copy of it is there at once,
    where a process that imports torch anew takes three seconds of a core, and one that imports this file half a one."""
    path = os.pathsep.join([str(ROOT/"tests"), os.environ.get("PYTHONPATH", "")])  # Python 3.11 has no other way
    with patch.dict(os.environ, PYTHONPATH=path.strip(os.pathsep)):
        return fork_server(["conftest", *engines._PRELOAD, *SHOWN, "pytest"])


def group_of(n):
    "The store of a group of n processes, and the environment of each as torchrun makes it."
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a port that is free
    group = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
                 TORCHELASTIC_USE_AGENT_STORE="True")
    return store, [group | dict(RANK=str(r), LOCAL_RANK=str(r)) for r in range(n)]


def on_processes(n, function, *args):
    "What `function(*args)` gives on each of n processes, one group as torchrun makes it; the first error is raised."
    forks()
    store, ranks = group_of(n)
    ends = {end.index: end for end in in_processes(_called, [(function, args)]*n, n, slots=ranks)}
    for end in ends.values():
        if end.error:
            raise end.error
    return [ends[r].value for r in range(n)]


def _called(function, args, send):
    torch.set_num_threads(1)
    return function(*args)


class Command:
    """A command as `subprocess.Popen` has it, but a copy of the fork server; what it begins are copies, too.

    A new command, and a fork server of its own, would import torch for ten seconds of a core before they begin.
    """
    number = itertools.count()

    def __init__(self, function, *args, env, folder):
        context, server = forks(), multiprocessing.forkserver._forkserver
        known = vars(server).keys() & {"_forkserver_address", "_forkserver_authkey"}
        reach = {name: getattr(server, name) for name in known}
        number = next(self.number)
        self.files = [folder/f"{number}.{name}" for name in ("out", "err")]
        self.process = context.Process(target=_as_command, args=(function, args, env, self.files, reach))
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.process.kill()

    def communicate(self, timeout=None):
        self.process.join(timeout)
        assert self.returncode is not None, "it takes too long"
        return [file.read_text() for file in self.files]


def _as_command(function, args, env, files, reach):
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    module = multiprocessing.forkserver
    module.ensure_running = lambda: None  # it runs already
    vars(module._forkserver).update(reach, ensure_running=module.ensure_running)
    sys.exit(function(*args))


def forked_torchrun(main, module, arguments, processes, output, *, env, **options):
    "`torchrun` of the function that a module runs, in copies."
    store, ranks = group_of(processes)
    output = Path(output)
    each = [Command(main, arguments, env=os.environ | env | rank, folder=output.parent) for rank in ranks]
    output.write_text("".join(text for process in each for text in process.communicate(patience(60))))
    return max(process.returncode for process in each)


def run_forked(notebook, params={}, **options):
    "`run_notebook` in a kernel that is a copy, like those of a sweep."
    forks()
    return run_notebook(notebook, params, forked=True, **options)


def in_copies(run):
    return lambda *args, **options: run(*args, **options | dict(forked=True))


@pytest.fixture
def forked_kernels(monkeypatch):
    "Let the command line run notebooks in kernels that are copies, like those of a sweep."
    forks()
    monkeypatch.setattr(Notebook, "run", in_copies(Notebook.run))


def main_with_forked_kernels(args):
    "The command line in a process of its own, with kernels that are copies."
    Notebook.run = in_copies(Notebook.run)
    return main(args)


def code_cell(source, *tags):
    return new_code_cell(source, metadata=dict(tags=list(tags)))


def write_cells(path, *cells):
    "Write a notebook of code cells; return its path."
    kernel = dict(kernelspec=dict(name="python3", display_name="python3", language="python"))
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=[*cells], metadata=kernel), path)
    return path


def write_notebook(path, parameters, *sources):
    "Write a notebook of a cell of parameters and others; return its path as text."
    return str(write_cells(path, code_cell(parameters, "parameters"), *map(new_code_cell, sources)))


def notebook(path, *sources):
    "Parameters, which are cell 1, or 1 and 2 once papermill has added its own, then these cells."
    write_notebook(path, "seed: int = 0", *sources)
    return path


def for_slow_kernels():
    "Options for papermill, which gives up early on a busy machine."
    return dict.fromkeys(("start_timeout", "iopub_timeout"), int(patience(60)))


def processes_at_work():
    "How many processes want a core: on average over the last minute, or now if that is more and the system says so."
    lately, now = os.getloadavg()[0] if hasattr(os, "getloadavg") else 1., Path("/proc/loadavg")
    if not now.exists():
        return lately
    runnable = now.read_text().split()[3].split("/")[0]  # "0.20 0.18 0.12 1/80 11206": one of 80 processes
    return max(lately, int(runnable))


def wait_for(condition, seconds=60, alive=lambda: True):
    "Wait until `condition()` is true; fail when that is late, or when what should bring it about is no longer alive."
    start, limit = time.monotonic(), 0.
    while not condition():
        limit = max(limit, patience(seconds))  # the machine may be busier by now
        assert time.monotonic() - start < limit, "waited in vain"
        assert alive() or condition(), "over before it could happen"
        time.sleep(.02)


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error::UserWarning")
    config.addinivalue_line("markers", "cuda: compares what a GPU computes with what the CPU does")


def pytest_collection_modifyitems(items):
    "The slowest files come first, so that all workers end together."
    slowest = ["test_house.py", "test_calibratability.py", "test_defaults.py", "test_evaluate.py", "test_sweep.py",
               "test_train.py", "test_losses.py", "test_weighted_gradients.py", "test_notebooks.py", "test_files.py",
               "test_verdicts.py", "test_cli_errors.py", "test_standins.py", "test_pool.py", "test_metrics.py",
               "test_train_and_report.py", "test_experiments.py", "test_loss_comparison.py"]
    place = {name: i for i, name in enumerate(slowest)}
    items.sort(key=lambda item: place.get(item.path.name, len(slowest)))


@pytest.fixture(scope="session", autouse=True)
def number_of_threads():
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    "One folder for the runs of a test file, so that trainings are shared."
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def small_disk(tmp_path):
    "A disk of 4 MB."
    disk = tmp_path/"disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


# Places that are computed take two thirds of the time of a figure; the gallery has the figures as they are.
PLAIN_FIGURES = """import matplotlib as mpl, matplotlib.layout_engine
matplotlib.layout_engine.ConstrainedLayoutEngine.execute = lambda self, fig: None
mpl.rcParams.update({'savefig.bbox': None, 'axes.titley': 1., 'savefig.dpi': 72})"""


def with_cell(name, source, root):
    "Write the code of a study with one more cell after its imports; return its path."
    source = f"{PLAIN_FIGURES}\n{source}"
    nb = nbformat.read(EXPERIMENTS/f"{name}.ipynb", 4)
    opens, = [i for i, c in enumerate(nb.cells) if "experiment = Experiment(" in c.source]
    nb.cells.insert(opens + 1, nbformat.v4.new_code_cell(source))
    nb.cells = [c for c in nb.cells if c.cell_type == "code"]
    path = Path(tempfile.mkdtemp(dir=root.parent))/f"{name}.ipynb"
    nbformat.write(nb, path)
    return path


@pytest.fixture(scope="module")
def study(request, root):
    "The study that a test file names, run once with the file's settings; its notebook is written once, at the end."
    module = request.module
    with patch("papermill.engines.NotebookExecutionManager.save"):  # which papermill calls twice a cell
        return run_forked(with_cell(module.STUDY, "", root), module.SETTINGS, root=root)


def pictures(path):
    "Return the number of pictures in a notebook."
    outputs = (o.get("data", {}) for c in nbformat.read(path, 4).cells for o in c.get("outputs", []))
    return sum("image/png" in o for o in outputs)


def assert_complete(folder):
    "An experiment that is done has the figures and tables of the papers, findings, and no warnings or floods of text."
    assert folder.state == "done"
    outputs = [o for c in nbformat.read(folder/"notebook.ipynb", 4).cells for o in c.get("outputs", [])]
    saved = {kind: {p.stem for p in (folder/"figures").glob(f"*.{kind}")} for kind in ("png", "svg")}
    assert saved["png"] == saved["svg"] and len(saved["png"]) == pictures(folder/"notebook.ipynb") > 0
    assert all(p.stat().st_size > 5000 for p in (folder/"figures").iterdir())
    named = [row for row in figure_index() if row["notebook"] == folder.path.parent.name]
    assert {row["name"] for row in named if row["kind"] == "figure"} <= saved["png"]
    tables = {p.stem for p in (folder/"tables").glob("*.csv")}
    assert {row["name"] for row in named if row["kind"] == "table"} <= tables and tables
    assert {f.verdict for f in folder.result.findings} <= VERDICTS
    assert not [o for o in outputs if o.get("name") == "stderr"], "warnings in the executed notebook"
    streams = "".join(o["text"] for o in outputs if o["output_type"] == "stream")
    assert len(streams) < 4000, "the log is flooded"
