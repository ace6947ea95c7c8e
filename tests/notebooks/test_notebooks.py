"Notebooks that go wrong: what happened comes first, where to look second, in one line that nobody cuts."

import re

import nbformat
import pytest
from conftest import notebook, run_forked

from calibnb import cli
from calibnb.runs.folder import find_runs
from calibnb.notebooks import NotebookError

OPEN = """import os, shutil, signal, sys
from calibnb.notebooks import Experiment
experiment = Experiment('x', dict(seed=seed))"""
CLOSE = "experiment.findings([])"


def outputs(folder):
    return [o for c in nbformat.read(folder / "notebook.ipynb", 4).cells for o in c.get("outputs", [])]


ENDS = dict(
    exit=("raise SystemExit(0)",
          r"the notebook ended in cell 4 by SystemExit before experiment\.findings\(\.\.\.\) was called"),
    exit_3=("sys.exit(3)", r"SystemExit: 3 \(in cell 4\)"),
    over=("1 + 1", r"the notebook ran to its end, but experiment\.findings\(\.\.\.\) was not called"),
    killed=("os.kill(os.getpid(), signal.SIGKILL)",
            r"DeadKernelError: Kernel died in cell 4 \(out of memory, or killed\?\)"),
    slow=("import time; time.sleep(600)", r"a cell took longer than 2 s \(cell 4\)"),
    raised=("raise ValueError('no\\nluck')", r"ValueError: no luck \(in cell 4\)"),
    silent=("raise MemoryError", r"MemoryError: no message \(in cell 4\)"),
)


NEW = ["killed"]  # in a kernel that could speak on the terminal of this process


@pytest.mark.parametrize("how", ENDS)
def test_a_line_says_what_happened_in_which_cell_and_where_to_look(tmp_path, monkeypatch, capfd, request, how):
    how in NEW or request.getfixturevalue("forked_kernels")
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    source, told = ENDS[how]
    light, limit = ("pass", ["--timeout", "2"]) if how == "slow" else (OPEN, [])
    assert cli.main(["run", str(notebook(tmp_path / "theirs.ipynb", light, source)), *limit]) == 1
    (folder,) = find_runs(tmp_path / "runs")
    waited = re.compile(r"theirs: cell \d of \d, \d+ s")  # told after ten seconds, on a busy machine
    lines = [line for line in capfd.readouterr().err.splitlines() if not waited.fullmatch(line)]
    assert len(lines) == 1, lines
    assert re.fullmatch(rf"calibnb: theirs: {told}.*; see {re.escape(str(folder / 'notebook.ipynb'))}", lines[0]), lines
    assert folder.state == "failed" and re.match(told, folder.status["reason"])
    if how == "raised":  # it is tried again, not taken for done
        assert cli.main(["run", str(tmp_path / "theirs.ipynb")]) == 1


def test_the_line_of_the_users_file_and_the_traceback_are_recorded(forked_kernels, tmp_path, monkeypatch, capfd):
    "As of a training that a sweep makes."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    (tmp_path / "fails_later.py").write_text("def loss(logits, target):\n    return {}['k']\n")
    fails = f"sys.path.append({str(tmp_path)!r})\nimport fails_later\nfails_later.loss(0, 1)"
    path = notebook(tmp_path / "theirs.ipynb", OPEN, fails)
    assert cli.main(["run", str(path)]) == 1
    reason = "KeyError: 'k' (fails_later.py, line 2, in loss) (in cell 4)"
    assert capfd.readouterr().err.startswith(f"calibnb: theirs: {reason}; see ")
    (folder,) = find_runs(tmp_path / "runs")
    assert folder.status["reason"] == reason and folder.status["where"] == f"{tmp_path / 'fails_later.py'}:2"
    log = (folder / "log.txt").read_text()
    assert log.count("Traceback (most recent call last)") == 1 and "in loss\n    return {}['k']" in log


FLOODS = dict(
    lines="for i in range(60_000): print('x'*99)",
    one="print('x'*7_000_000)",
    errors="import sys\nfor i in range(70): print('x'*100_000, file=sys.stderr, flush=True)",
    displays="from IPython.display import display\nfor i in range(70): display('x'*100_000)",
)


@pytest.mark.parametrize("how", FLOODS)
def test_a_flood_of_output_is_cut_and_the_notebook_goes_on(tmp_path, how):
    "Six megabytes of text and more: five of them are kept."
    first = f"print('first', flush=True)\n{FLOODS[how]}\nprint('last of its cell', flush=True)"
    later = "print('later', end='', flush=True); print()"
    path = notebook(tmp_path / "flood.ipynb", OPEN, first, later, CLOSE)
    folder = run_forked(path, root=tmp_path / "runs")
    assert folder.state == "done" and (folder / "notebook.ipynb").stat().st_size < 12_000_000
    text = "".join(o.text for o in outputs(folder) if o.output_type == "stream")  # pieces of a line may come apart
    assert text.startswith("first") and text.rstrip().endswith("later") and text.count("is left out") == 1
    assert text.count("last of its cell") == 1  # the tail of a cell is kept, too


def test_an_error_after_a_flood_is_told(tmp_path):
    path = notebook(tmp_path / "flood.ipynb", OPEN, f"{FLOODS['one']}\nraise ValueError('what it was about')")
    with pytest.raises(NotebookError, match=r"flood: ValueError: what it was about \(in cell 4\); see"):
        run_forked(path, root=tmp_path / "runs")
    (folder,) = find_runs(tmp_path / "runs")
    assert [o.ename for o in outputs(folder) if o.output_type == "error"] == ["ValueError"]


def test_a_notebook_that_has_no_room_is_named_and_not_left(small_disk, tmp_path):
    path = notebook(tmp_path / "flood.ipynb", OPEN, "print('x'*4_500_000)", CLOSE)
    with pytest.raises(NotebookError, match=r"No space left on device: '.*/notebook\.ipynb'; see .*/log\.txt"):
        run_forked(path, root=small_disk)
    assert not [*small_disk.rglob("notebook.ipynb")]


BAR = """from IPython.display import clear_output
for i in range(80):
    clear_output(wait=True)
    print('x'*100_000, i, flush=True)"""


def test_figures_and_what_replaces_itself_are_kept(tmp_path):
    "A progress bar writes over itself: what is seen at the end is short, however long it ran."
    path = notebook(tmp_path / "bar.ipynb", OPEN, BAR, CLOSE)
    folder = run_forked(path, root=tmp_path / "runs")
    texts = "".join(o.get("text", "") for o in outputs(folder))
    assert texts.rstrip().endswith("79") and "is left out" not in texts


def test_a_path_with_braces_is_a_path(tmp_path):
    (tmp_path / "{runs}").mkdir()
    path = notebook(tmp_path / "{runs}" / "a{b}.ipynb", OPEN, CLOSE)
    assert run_forked(path, root=tmp_path / "{runs}").state == "done"


def test_a_sweep_tells_the_whole_reason(forked_kernels, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    reason = "word " * 60 + "and the end of it"
    path = notebook(tmp_path / "long.ipynb", OPEN, f"raise ValueError({reason!r})")
    assert cli.main(["sweep", str(path), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "ValueError" in line]
    assert line.endswith(f"ValueError: {reason} (in cell 4)") and "calibnb show long/" in out
