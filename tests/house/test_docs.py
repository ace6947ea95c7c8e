"The documentation site: every signature is one, the how-to runs, and no link leads nowhere."
import inspect
import re
import sys
from collections import Counter
from importlib import import_module

import nbformat
from conftest import ROOT

from calibnb.studies import CONTRADICTED, EQUIVALENT, HOLDS, HOLDS_BUT_SMALL, OPEN
from calibnb.studies.claims import MIXED, joint_verdict, read_verdicts

sys.path.insert(0, str(ROOT/"docs"))
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


def counted(found):
    "Joint verdicts of claims of papers, each claim once."
    counts = Counter(joint_verdict(v["verdict"] for v in each) for each in found.values())
    return sum(counts.values()), [counts[v] for v in (HOLDS, HOLDS_BUT_SMALL, MIXED, CONTRADICTED, EQUIVALENT, OPEN)]


def sentence_of(counts):
    holds, small, mixed, contradicted, equivalent, still_open = counts
    return (f"{holds} hold, {small} hold by less than matters, {mixed} hold on some data sets only, {contradicted} are "
            f"contradicted, {equivalent} compare equivalent methods, and {still_open} are open")


def test_readme_counts_the_verdicts_of_the_gallery_and_on_real_images():
    "Claims of papers once each, observations and identities separately; renew README's sentences with the gallery."
    gallery = ROOT/"runs"/"gallery"
    verdicts = {key: [v for v in each if v["kind"] == "paper"] for key, each in read_verdicts(gallery).items()}
    on_images = {key: v for key, each in verdicts.items() if (v := [v for v in each if "/" in v["notebook"]])}
    on_small = {key: v for key, each in verdicts.items() if (v := [v for v in each if "/" not in v["notebook"]])}
    others = Counter()
    for path in gallery.glob("*.ipynb"):
        for key, n in nbformat.read(path, 4).metadata["findings"].items():
            others[key.partition(":")[0]] += n
    n, counts = counted(on_small)
    small = (f"Of 167 empirical claims of the papers, {n} are tested on these small data, each "
             f"counted once: {sentence_of(counts)}; {others['ours']} observations of our own and "
             f"{others['identity']} identities are counted separately.")
    n, counts = counted(on_images)
    images = (f"Verdicts on {n} claims of papers, on CIFAR-10, SST and data with known probabilities, each counted "
              f"once: {sentence_of(counts)}.")
    readme = (ROOT/"README.md").read_text(encoding="utf-8")
    study = nbformat.read(gallery/"cifar10"/"evidence.ipynb", 4)
    texts = ["".join(out.data.get("text/markdown", "")) for cell in study.cells for out in cell.get("outputs", [])
             if "data" in out]
    headline, = [text for text in texts if text.startswith("For networks trained with cross-entropy")]
    assert headline in readme, headline
    assert small in readme, small
    assert images in readme, images
