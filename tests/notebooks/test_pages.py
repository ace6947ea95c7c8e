"Names that other people chose, on pages and on a terminal: they are shown as they are, and run nothing."
import re
from html.parser import HTMLParser
from unicodedata import category

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, strategies
from nbconvert.filters import markdown2html

from calibnb import cli
from calibnb.core.text import escaped_style, html_text, markdown_text, printable

from conftest import EXPERIMENTS, ROOT

RUNS = "document.title='it ran'"
HOSTILE = [
    f"<script>{RUNS}</script>", f"<img src=x onerror={RUNS}>", f"[a](javascript:{RUNS})", f"![a](javascript:{RUNS})",
    f"[a]: javascript:{RUNS}", f"<javascript:{RUNS}>", f"`a` </code><script>{RUNS}</script>", "**bold** _it_ ~~no~~",
    f"$\\href{{javascript:{RUNS}}}{{x}}$", "a|b", "\\<script\\>", "&lt;script&gt;", "http://example.org/a",
    "www.example.org", "name\n\n# heading\n- item", "\u202egnp.exe", "\ud800", "test_set_1.npz",
    "# heading", "\x1b[31mred\x07",
]


class Seen(HTMLParser):
    "The tags, attributes and text of a page."
    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs): self.tags.append((tag, attrs))
    def handle_data(self, data): self.text += data


def words(text):
    return " ".join(text.split())


def with_hostile(test):
    for text in HOSTILE:
        test = example(text=text)(test)
    return given(text=strategies.text(strategies.sampled_from("<>[]()&`*_~$\\|!#:/\n.a1 '\"\x1b-+="), min_size=1))(test)


@with_hostile
def test_markdown_shows_a_name_as_it_is(text):
    seen = Seen(markdown2html(f"> x {markdown_text(text)} x"))
    assert [tag for tag, _ in seen.tags] == ["blockquote", "p"]
    assert words(seen.text) == words(f"x {printable(text)} x")


@with_hostile
def test_so_do_html_and_a_table(text):
    seen = Seen(f"<p title=\"{html_text(text)}\">{html_text(text)}</p>")
    assert seen.tags == [("p", [("title", printable(text))])] and seen.text == printable(text)
    name = pd.Index([text], dtype=object, name=text)  # text of pyarrow, pandas' choice where there is one, is Unicode
    table = escaped_style(pd.DataFrame([[text]], index=name, columns=name, dtype=object)).to_html()
    assert {tag for tag, _ in Seen(table).tags} <= {"style", "table", "thead", "tbody", "tr", "th", "td", "br"}


@given(text=strategies.text())
def test_no_control_character_is_printable(text):
    assert not [c for c in printable(text) if category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"]



NAMES = ["\x1b[31mred", "a\x1b]0;title\x07", "b\bover", "c\u202egnp"]
SHOWN = ["run {}", "{}", "audit {}.npz --logits --no-report", "audit a.npz --logits --title {}"]


@pytest.mark.parametrize("line, name", [(SHOWN[0], name) for name in NAMES] + [(line, NAMES[1]) for line in SHOWN[1:]])
def test_control_codes_do_not_reach_the_terminal(tmp_path, monkeypatch, capfd, name, line):
    monkeypatch.chdir(tmp_path)
    logits = 3*np.random.default_rng(0).normal(size=(30, 2))
    for file in name, "a":
        np.savez(f"{file}.npz", logits=logits, target=(logits[:, 1] + logits[::-1, 0] > logits[:, 0]).astype(int))
    options = ["--no-report"] if "--title" in line else []
    try:
        cli.main([word.format(name) for word in line.split()] + options)
    except SystemExit as e:
        assert e.code == 2
    out, err = capfd.readouterr()
    assert printable(name) in out + err and printable(out) == out and printable(err) == err


def test_notebooks_show_values_by_the_function_that_escapes_them():
    "Markdown of an f-string, or HTML of a pandas Styler, would take what a name holds for its own."
    rooms = [p for p in (ROOT/"calibnb").rglob("*.py") if p.name not in ("text.py", "experiment.py")]
    texts = {p.name: p.read_text() for p in [*EXPERIMENTS.glob("*.ipynb"), *rooms]}
    assert not [name for name, text in texts.items() if "Markdown(f" in text or "HTML(f" in text]
    styled = [name for name, text in texts.items() if re.search(r"\.style\.(?!description_width)", text)]
    assert styled == []
