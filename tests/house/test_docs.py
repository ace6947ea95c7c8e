"The documentation site: every signature is one, the how-to runs, and no link leads nowhere."
import ast
import re
import subprocess
import sys

import nbformat
import pytest

from conftest import LATE, ROOT, patience

sys.path.insert(0, str(ROOT/"docs"))
import make_docs as build  # noqa: E402


@pytest.mark.parametrize("notebook", [p for p, m in build.MODULES.items() if not m.endswith("__init__")], ids=lambda p: p.stem)
def test_signatures_are_whole(notebook):
    name, page = build.api_page(notebook)
    public = re.findall(r"^##+ (?:\w+\.)?(\w+)$", page, re.M)
    blocks = re.findall(r"```python\n(.*?)\n```", page, re.S)
    assert len(blocks) == len(public)
    for block in blocks:
        head = next(line for line in block.splitlines() if not line.startswith("@"))
        if head.startswith("class"):
            block = block[block.index("class "):]
            block = "\n".join([block.splitlines()[0] + ":", *(f"    {line}" for line in block.splitlines()[1:]), *(["        pass"] if "def " in block else ["    pass"])])
        ast.parse(block if head.startswith("class") else block + "\n    pass")


def test_the_how_to_runs(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT/"docs"/"how-to.md").read_text(), re.S))
    command, wait = [sys.executable, "-c", code], patience(300)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=wait)
    assert done.returncode == 0, done.stderr
    assert (tmp_path/"calibrator.safetensors").exists() and list((tmp_path/"my_runs").glob("*/*/result.json"))


def test_what_a_page_shows_may_arrive_late(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "EXECUTED", tmp_path/"executed")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LATE)]), tmp_path/"late.ipynb")
    cell, = nbformat.read(build.execute(tmp_path/"late.ipynb"), 4).cells
    assert [o.data["text/plain"] for o in cell.outputs] == ["'late'"]


def test_broken_links_are_found(tmp_path):
    (tmp_path/"a.html").write_text('<a href="b.html#here">x</a><a href="b.html#there">x</a><a href="c.html">x</a><a href="https://example.org">x</a><img src="d.png"><a href="../a.html">x</a><script src="https://example.org/x.js"></script><a href="b.html?q=1#here">x</a>')
    (tmp_path/"b.html").write_text('<p id="here">x</p>')
    assert build.broken_links(tmp_path) == [("a.html", "b.html#there"), ("a.html", "c.html"), ("a.html", "../a.html"), ("a.html", "d.png"), ("a.html", "https://example.org/x.js")]


def test_no_link_of_the_site_leads_nowhere(tmp_path, monkeypatch):
    for name in "SOURCE", "SITE", "DOCS":
        monkeypatch.setattr(build, name, {"SOURCE": tmp_path/"source", "SITE": tmp_path/"site", "DOCS": tmp_path}[name])
    build.build(run=False)
    assert (tmp_path/"site"/"nbs"/"20_losses"/"04_weighted.html").exists() and (tmp_path/"site"/"api"/"losses.weighted.html").exists()
