"`make gpu`, as far as a machine without a GPU can tell: rows are whole, and what fails does not take the rest along."
import sys
from importlib.machinery import PathFinder

import gpu
import gpu_pieces
import pytest
import torch
from conftest import ROOT, forks
from failing_sections import is_in_bad_fork
from gpu_rows import Bench, rows_of

from calibnb.processes.pool import in_processes

DRY = Bench(torch.device("cpu"), dry=True)


@pytest.mark.parametrize("section, least", [
    (gpu_pieces.loss_section, 2*3*len(gpu_pieces.OUR_LOSSES)),
    (gpu_pieces.streaming_section, len(gpu_pieces.STREAMS)),
])
def test_a_dry_section_is_whole(section, least):
    "Two of them; `make gpu DRY=1` tries all."
    with torch.compiler.set_stance("force_eager"):
        rows = list(rows_of(section, DRY))
    assert len(rows) > least
    for row in rows:
        cells = str(row).split(" | ")
        assert len(cells) == gpu.HEADER.split("\n")[0].count("|") - 1 and row.found and not row.error, row
        assert (row.met is None) == (not row.target)
    assert len({row.what for row in rows}) == len(rows)


def test_what_fails_is_told_at_the_top_and_the_rest_goes_on(tmp_path, capsys):
    forks()
    places = dict(error="with_an_error", dies="that_dies", hangs="that_hangs")
    sections = {name: gpu.Section(name, f"failing_sections:{f}", 60) for name, f in places.items()}
    sections["hangs"].at_most = .1
    page = tmp_path/"page.md"
    gpu.run_all(sections, DRY, "a machine", page)
    top, *tables = page.read_text().split("\n## ")
    assert "no number on this page means anything" in top and "a machine" in top
    assert "- `error`: second failed: ZeroDivisionError: division by zero" in top
    assert "- section `dies` is not whole, 1 rows are there: JobDied: the process ended with code 3" in top
    assert "- section `hangs` is not whole, 0 rows are there: TimeoutError: not done after" in top
    assert "1 met, 1 NOT MET: third | of three" in top
    assert all(line in tables[0] for line in ["| first | 1 s |", "| second | ZeroDivisionError: division by zero |",
                                              "| third \\| of three | 3 s |"])
    assert "before the end" in tables[1]


def test_no_time_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "IN_ALL", 0)
    sections = gpu.all_sections()
    gpu.run_all(sections, DRY, "a machine", tmp_path/"page.md")
    assert all(section.error.startswith("no time was left") for section in sections.values())
    assert len(list(gpu.shortcomings(sections))) == len(sections)


def test_without_cuda_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    line, = capsys.readouterr().out.splitlines()
    assert "no CUDA device" in line and "--dry" in line and "make gpu DRY=1" in line


def test_each_section_is_there_and_says_what_it_does():
    for section in gpu.all_sections().values():
        assert gpu.function_at(section.place).__doc__


def test_a_copy_may_begin_with_cuda():
    "A process that has asked for GPUs cannot lend them to its copies: nothing that the fork server imports may ask."
    forks()
    outcome, = in_processes(is_in_bad_fork, [()], 1)
    assert outcome.value is False


def test_no_script_stands_before_a_package():
    "The folder of a script is searched first, also by the packages that it imports."
    elsewhere = [path for path in sys.path if path != str(ROOT/"benchmarks")]
    for script in (ROOT/"benchmarks").glob("*.py"):
        assert PathFinder.find_spec(script.stem, elsewhere) is None, script
