"The documentation site: every signature is one, the how-to runs, and no link leads nowhere."
import inspect
import re
import sys
from importlib import import_module

from conftest import ROOT


sys.path.insert(0, str(ROOT/"docs"))
import evidence  # noqa: E402
import make_docs as build  # noqa: E402


def test_the_page_of_a_function_has_each_parameter_and_an_example():
    examples = 0
    for notebook in build.rooms():
        name, page = build.page_of(notebook)
        module = import_module(f"calibnb.{name}")
        entries = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
        functions = {n: f for n in module.__all__ if inspect.isfunction(f := getattr(module, n)) and n in entries}
        for function, f in functions.items():
            call = re.search(r"```python\n(.*?)\n```", entries[function], re.S)[1]
            for parameter in inspect.signature(f).parameters:
                assert re.search(rf"\b{parameter}\b", call), (name, function, parameter)
            examples += "*Example*" in entries[function]
            outside_of_code = re.sub(r"```.*?```", "", entries[function], flags=re.S)
            assert ">>>" not in outside_of_code, (name, function)
    assert examples > 300


PAGE = """<a href="b.html#here">x</a>
<a href="b.html#there">x</a>
<a href="c.html">x</a>
<a href="https://example.org">x</a>
<img src="d.png">
<a href="../a.html">x</a>
<script src="https://example.org/x.js"></script>
<a href="b.html?q=1#here">x</a>"""


def test_broken_links_are_found(tmp_path):
    (tmp_path/"a.html").write_text(PAGE)
    (tmp_path/"b.html").write_text('<p id="here">x</p>')
    wrong = ["b.html#there", "c.html", "../a.html", "d.png", "https://example.org/x.js"]
    assert build.broken_links(tmp_path) == [("a.html", link) for link in wrong]


def test_the_evidence_of_the_readme_is_that_of_the_gallery():
    "Run `make sync` after `make gallery`."
    assert evidence.cell(ROOT) in (ROOT/"README.md").read_text(encoding="utf-8")
