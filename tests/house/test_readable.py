"What makes a page readable, held by tests: one decision a line, sources that are listed, plain English."
import ast
import json
import re
import sys

import pytest
from conftest import ROOT
from test_house import NOTEBOOKS, cells, source, tracked

sys.path.insert(0, str(ROOT/"docs"))
import sources  # noqa: E402

CODE = {str(p.relative_to(ROOT/"nbs")): {c["id"]: source(c) for c in cells(p)} for p in NOTEBOOKS}


def python_files():
    "Files that are written by hand: tests, benchmarks, the site's."
    files = (p for folder in ("tests", "benchmarks", "docs") for p in (ROOT/folder).rglob("*.py"))
    return {str(p.relative_to(ROOT)): {"": p.read_text()} for p in sorted(files)}


def without_magics(text):
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.split("\n"))


def faults(text):
    "Yield the expressions of a text that decide more than one thing."
    for node in ast.walk(ast.parse(without_magics(text))):
        if what := fault(node):
            yield f"line {node.lineno}: {what}"


def fault(node):
    "What is wrong with an expression, if anything."
    if isinstance(node, ast.IfExp):
        parts = node.test, node.body, node.orelse
        if any(isinstance(inner, ast.IfExp) for part in parts for inner in ast.walk(part)):
            return "a conditional expression within another"
    if isinstance(node, ast.Compare) and sum(isinstance(op, (ast.Eq, ast.Is)) for op in node.ops) > 1:
        return "a chain of equalities"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
        return "statements joined by commas"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.IfExp):
        return "a conditional expression as a statement"
    if isinstance(node, ast.Lambda) and any(isinstance(inner, ast.IfExp) for inner in ast.walk(node.body)):
        return "a lambda with a branch"


def test_one_decision_a_line():
    assert not [(name, id_, what) for name, texts in (CODE | python_files()).items() for id_, text in texts.items()
                for what in faults(text)]


def test_sources_are_those_that_are_cited():
    known = sources.known_sources(ROOT)
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert notebook == sources.with_sources(notebook, known), f"{path.name}: run `make sync`"


def test_every_source_is_cited_somewhere():
    known = sources.known_sources(ROOT)
    text = "\n".join(source(c) for p in NOTEBOOKS for kind in ("code", "markdown") for c in cells(p, kind)
                     if c["id"] != sources.CELL)
    assert sources.cited(text, known) == list(known)


def test_a_paper_has_one_key():
    known = {"Guo 2017": "Guo et al."}
    assert sources.cited("as in [Guo 2017, Eq. 3], [guo], x[2017]", known) == ["Guo 2017"]
    for wrong in ("[Guo 2018]", "[Guo et al. 2017]", "[Guo 2017; Lin and Xu 2025]"):
        with pytest.raises(ValueError, match="nbs/sources.csv does not have it"):
            sources.cited(wrong, known)


PLAIN = {  # turned-round English that readers stumbled over
    r"\bas it were\b", r"\bnone done twice\b", r"\bto be had here\b", r"\bas the reference code has it\b",
    r"\beach its share\b", r"\bno sample twice\b",
}


def test_english_is_plain():
    for path in tracked():
        if path.suffix in (".ipynb", ".md", ".py") and path.name != "test_readable.py" and "gallery" not in path.parts:
            text = path.read_text(encoding="utf-8")
            assert not [p for p in PLAIN if re.search(p, text)], path
