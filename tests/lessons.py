"""Run the lessons of all rooms, of a wing or of a room: `python tests/lessons.py [nbs/10_metrics] [--slow] [--store]`.

nbdev decides which cells of a room run. Each room runs in a copy (a fork) of this process, which has imported torch,
pandas and a shell already, and shares one fork server with the others. A failure shows room, cell and line. With
--store, the rooms whose code changed since their outputs were stored run, and their outputs are stored anew; with
--compare, a room fails if it prints or draws something else than its notebook shows.
"""
import argparse
import multiprocessing.forkserver
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # two processes of several threads each wait for one another
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
sys.modules.setdefault("rfc3987_syntax", None)  # the grammar of web addresses takes a second of each process

import nbdev.test  # noqa: E402
from execnb.shell import CaptureShell  # noqa: E402
from matplotlib_inline.backend_inline import set_matplotlib_formats  # noqa: E402
from sklearn import set_config  # noqa: E402
from nbdev.config import get_config  # noqa: E402

from calibnb.notebooks import Notebook  # noqa: E402
from calibnb.processes.pool import fork_server  # noqa: E402
from calibnb.sweep import engines  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT/"docs"))
import outputs  # noqa: E402

PRELOADED = ("pandas", "scipy.stats", "sklearn.linear_model", "matplotlib.pyplot", "torch._dynamo", "torch.export",
             "torchmetrics", "fastcore.test")


def rooms(path):
    "Return the notebooks of a folder that nbdev tests, or one notebook."
    found = [path] if path.is_file() else sorted(path.rglob("*.ipynb"))
    return [p for p in found if not (p.parent/".notest").exists() and ".ipynb_checkpoints" not in p.parts]


def run(path, skipped, use=None):
    "Run the lessons of a room in this process; return True if they pass, else print where they fail."
    cells, run_all = [], shell.run_all
    def keeping(nb, **options):
        cells.extend(nb.cells)
        for cell in cells:
            if cell.cell_type == "code":
                cell.outputs = []  # the shell leaves the outputs of a cell that no longer prints
        run_all(nb, **options)
    def with_path(path):
        shell.run_all = keeping
        sys.modules["__main__"] = shell.user_module  # lessons define there what they send to other processes
        shell.set_path(path)
        return shell
    nbdev.test.CaptureShell = with_path
    run_notebook = Notebook.run
    Notebook.run = lambda *args, **options: run_notebook(*args, **options | dict(forked=True))  # kernels are copies
    server = multiprocessing.forkserver
    server.ensure_running = server._forkserver.ensure_running = lambda: None  # it runs, and is no child of this process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # figures with sliders print themselves
    passed, _ = nbdev.test.test_nb(path, skip_flags=skipped, basepath=ROOT)
    if not passed or not use:
        return passed
    wrong = use(path, {cell.id: cell.outputs for cell in cells if cell.cell_type == "code"})
    sys.stderr.write(f"{wrong}\n"*bool(wrong))
    return not wrong


def in_copies(paths, skipped, workers, use=None):
    "Run each room in a copy of this process; yield (path, passed, CPU seconds) when one ends."
    waiting, running = paths[::-1], {}
    while waiting or running:
        if waiting and len(running) < workers:
            path = waiting.pop()
            pid = os.fork()
            if not pid:
                passed = run(path, skipped, use)
                sys.stderr.flush()
                os._exit(not passed)
            running[pid] = path
        else:
            pid, status, used = os.wait4(-1, 0)
            if pid in running:
                yield running.pop(pid), not status, used.ru_utime + used.ru_stime


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("path", type=lambda text: Path(text).resolve(), nargs="?", default=ROOT/"nbs")
    flags.add_argument("--slow", action="store_true", help="the rooms with a cell that begins with `#| slow`, whole")
    flags.add_argument("--store", action="store_true", help="store the outputs of the rooms whose code changed")
    flags.add_argument("--compare", action="store_true", help="fail where outputs differ from those that are stored")
    flags.add_argument("--slowest", type=int, default=0, metavar="N", help="show CPU seconds of the N slowest")
    given = flags.parse_args()
    found, skipped, start = rooms(given.path), get_config().tst_flags.split(), time.monotonic()
    if given.slow:
        found, skipped = [path for path in found if "#| slow" in path.read_text(encoding="utf-8")], ["cuda"]
    use = outputs.store if given.store else outputs.differing if given.compare else None
    if use:
        set_config(display="text")  # the picture of an estimator is 30 kB of CSS
        found = [path for path in found if path.relative_to(ROOT/"nbs").parts[0][0].isdigit()]
    if given.store:
        found = list(filter(outputs.is_stale, found))
    for name in PRELOADED:
        import_module(name)
    fork_server(engines._PRELOAD)
    this_module, shell = sys.modules["__main__"], CaptureShell()
    sys.modules["__main__"] = this_module  # the shell has put its own there
    set_matplotlib_formats("png", dpi=80, metadata=dict(Software=None))
    os.chdir(ROOT/"nbs")
    with tempfile.TemporaryDirectory() as folder:  # what rooms leave behind
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        ended = sorted(in_copies(found, skipped, len(os.sched_getaffinity(0)), use))
    for path, _, seconds in sorted(ended, key=lambda end: -end[2])[:given.slowest]:
        print(f"{seconds:6.2f} s  {path.relative_to(ROOT/'nbs')}")
    failed = [str(path.relative_to(ROOT)) for path, passed, _ in ended if not passed]
    print(f"lessons of {len(ended)} rooms, in {time.monotonic() - start:.0f} s", *failed, sep="\nfailed: ")
    print(f"lessons: {len(ended) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)
