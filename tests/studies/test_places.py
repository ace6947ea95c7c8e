"Every figure and table that a row of nbs/places.csv names is drawn by its notebook, and its command can be run."

import csv
import re
import shlex
import sys
from itertools import groupby

import nbformat
import pytest
from conftest import ROOT

from calibnb.cli.command import parser
from calibnb.notebooks.execute import Notebook, list_experiments
from calibnb.studies.papers import figure_index, paper_numbers, paper_tables, read_rows
from calibnb.sweep.spec import expand
from calibnb.sweep.typed import typed_spec

sys.path.insert(0, str(ROOT/"docs"))
import places  # noqa: E402

PANELS = ["x", "y", "methods", "paper_data", "network", "epochs"]
COLUMNS = ["paper", "place", "panel", "shows", "kind", "notebook", "name", "data", *PANELS, "command", "note", "quick",
           "full"]
LINES = read_rows("places.csv")
ROWS = figure_index()
DRAWN = [row for row in ROWS if row["notebook"]]
COMMANDS = {row["command"]: row for row in DRAWN}


def name_of(row):
    return f"{row['paper']}, {row['place']}, {row['name'] or 'not drawn'}"


def test_the_file_is_whole():
    with open(ROOT/"nbs"/"places.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == COLUMNS and {len(line) for line in lines} == {len(COLUMNS)}
    assert not [cell for line in lines for cell in line if cell != cell.strip()]


def test_rows_of_a_paper_stand_together_and_none_is_there_twice():
    papers = [paper for paper, _ in groupby(row["paper"] for row in ROWS)]
    assert len(papers) == 5 and len(set(papers)) == 5
    named = [(row["paper"], row["place"], row["panel"], row["notebook"], row["kind"], row["name"]) for row in LINES]
    assert len(named) == len(set(named))


def test_every_panel_of_a_figure_is_there():
    "Each panel has its axes, methods, data, network and epochs, the same in each row; a table has none."
    panels = {}
    for line in LINES:
        facts = tuple(line[column] for column in PANELS)
        assert all(facts) or not any(facts), line["place"]
        drawn = "Fig." in line["place"] or line["place"].startswith(("Supplement", "Appendix"))
        assert bool(facts[0]) == drawn, line["place"]
        if facts[0]:
            assert panels.setdefault((line["paper"], line["place"], line["panel"]), facts) == facts, line["place"]
    counts = {paper: sum(key[0] == paper for key in panels) for paper in dict.fromkeys(key[0] for key in panels)}
    assert counts == {"Mukhoti 2020": 9, "loss study": 1, "Wang 2021": 17, "Lin 2025": 31, "meta-regularization": 11}


def test_what_is_not_known_is_said_only_where_the_paper_is_silent():
    "A figure of a paper that we know has axes; a note never says that we do not know what the paper prints."
    assert not [line["place"] for line in LINES if "not known" in line["note"]]
    silent = {(line["paper"], line["place"]) for line in LINES if "not stated" in (line["x"], line["y"])}
    assert silent == {("Lin 2025", "Fig. 3")}


def test_places_of_numbers_are_there():
    "The place of each number has a row."
    places_of_rows = {(line["paper"], line["place"]) for line in LINES}
    assert set(map(tuple, paper_numbers()[["paper", "place"]].to_numpy())) <= places_of_rows


def test_every_table_says_how_much_of_it_is_there():
    "All is counted again; nothing is missing only where each setting has a number of each measure."
    def kinds(part, *columns):
        return len(part[list(columns)].drop_duplicates())
    counted = {place: (kinds(part, "data", "model"), kinds(part, "method", "metric"), len(part))
               for place, part in paper_numbers().groupby(["paper", "place"])}
    said = {(t.paper, t.place): (t.settings, t.measures, t.numbers) for t in paper_tables().itertuples(index=False)}
    assert {place: numbers for place, numbers in said.items() if numbers[-1]} == counted
    assert len(said) == 23 and len(paper_numbers()) == 1363
    for table in paper_tables().itertuples(index=False):
        assert bool(table.missing) == (str(table.numbers) != table.printed), table
        grid = table.numbers == table.settings*table.measures
        assert grid or table.paper == "meta-regularization" and table.place in ("Table 1", "Table 3"), table


def test_numbers_that_two_tables_print_are_equal():
    "Of one paper, data set, network, method and measure; one table is rounded to two digits."
    numbers = paper_numbers()
    numbers = numbers[numbers.place.str.startswith("Table")]
    for what, group in numbers.groupby(["paper", "data", "model", "method", "metric"]):
        assert group.value.round(2).nunique() == 1, what
        assert len(group) < 4, what


def test_numbers_are_printed_numbers():
    "A share is in per cent, and a mark and a coefficient belong to the tables that print them."
    for row in read_rows("papers.csv"):
        value = float(row["value"])
        assert not row["metric"].partition(" +")[0].endswith("%") or 0 <= value <= 100, row
        assert row["mark"] in ("", "underline", "▲", "▼") and (row["mark"] == "" or row["paper"] == "Wang 2021")
        assert bool(row["coefficient"]) == (row["paper"] == "Wang 2021" and row["method"] != "CE"), row


def test_how_sure_a_number_is():
    "Test samples and trainings, as far as they are stated; what is missing of the standard deviations is said."
    numbers = paper_numbers()
    stated = {data: set(of_data.n_test.dropna()) for data, of_data in numbers.groupby("data")}
    ten_thousand = dict.fromkeys(["CIFAR-10", "CIFAR-100", "Tiny-ImageNet"], {10_000})
    assert {data: n for data, n in stated.items() if n} == ten_thousand | {"SST": {1_821}}
    tables = numbers[numbers.place.str.startswith("Table")]
    runs = {paper: set(of_paper.runs) for paper, of_paper in tables.dropna(subset="runs").groupby("paper")}
    assert runs == {"Lin 2025": {3}, "meta-regularization": {5}, "Wang 2021": {5}}
    assert not (numbers.sd < 0).any() and (numbers.sd.notna().groupby(numbers.paper).sum() > 0).to_dict() == {
        "Lin 2025": False, "Mukhoti 2020": False, "Wang 2021": True, "meta-regularization": True}
    assert numbers.sd.notna().sum() == 204 + 24 + 32 + 32


def test_no_number_is_there_twice():
    what = ["paper", "place", "data", "model", "method", "metric"]
    assert not paper_numbers().duplicated(what).any()


@pytest.mark.parametrize("row", [row for row in ROWS if not row["notebook"]], ids=name_of)
def test_what_is_not_drawn_has_no_command(row):
    assert row["place"] and row["kind"] in ("figure", "table", "section") and not row["name"] + row["command"]


def drawing_cells(path, kind, name):
    "The cells that draw it, or head it."
    call = rf"experiment\.{kind}\([^\n]*,\s*'{re.escape(name)}'[,)]"
    want = rf"^#+ {re.escape(name)}$" if kind == "section" else call
    cells = nbformat.read(path, 4).cells
    return [c for c in cells if (c.cell_type == "markdown") == (kind == "section") and re.search(want, c.source, re.M)]


OUTPUT = dict(figure="image/png", table="text/html")


@pytest.mark.parametrize("row", DRAWN, ids=name_of)
def test_the_notebook_draws_it(row):
    "In its source, and in the copy that was executed with the quick setting."
    assert row["kind"] in ("figure", "table", "section") and row["shows"] and row["data"] and row["command"]
    found = drawing_cells(list_experiments()[row["notebook"]], row["kind"], row["name"])
    executed = drawing_cells(ROOT/"runs"/"gallery"/f"{row['notebook']}.ipynb", row["kind"], row["name"])
    assert [len(found), len(executed)] == [1, 1], f"{row['notebook']} has no {row['kind']} {row['name']!r}, or several"
    if row["kind"] != "section":
        mime, copy = OUTPUT[row["kind"]], nbformat.read(ROOT/"runs"/"gallery"/f"{row['notebook']}.ipynb", as_version=4)
        outputs = [output for cell in copy.cells for output in cell.get("outputs", [])]  # a cover stands at the top
        shown = [output for output in outputs if output.get("metadata", {}).get(mime, {}).get("name") == row["name"]]
        assert shown and mime in shown[0].data, f"{row['name']} left nothing in the gallery"


def runs_of(command):
    "Names of experiments with their parameters; None for the trainings of a sweep's file. ValueError if one is wrong."
    for part in command.split(" && "):
        program, *words = shlex.split(part)
        args = parser().parse_args(words)
        given = dict(args.parameters)
        assert program == "calibnb" and words[0] in ("run", "sweep")
        if words[0] == "run":
            yield from ((name, given) for name in args.experiments)
        elif args.what.endswith(".yaml"):
            assert expand(typed_spec(str(ROOT/args.what), given, args.grid))
        else:
            yield from ((args.what, given | job.config[1]) for job in expand(typed_spec(args.what, given, args.grid)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_run_as_printed(command):
    "It names the notebook of its row, whose parameters are checked, and which is not quick, if it is no report."
    runs = list(runs_of(command))
    assert COMMANDS[command]["notebook"] in {name for name, _ in runs}
    for name, given in runs:
        notebook = Notebook(name)
        settings = notebook.plan(given)
        assert name == "report" or settings["quick"] is False
        assert given.keys() <= notebook.parameters.keys()


PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT/"runs"/"gallery").glob("*_*.md"))}


def parts_of(page):
    return page.split("\n\n")


def without_run(page):
    "Return the pictures and tables of a page without a paragraph above them that says what is shown."
    wrong, said = [], False
    for part in parts_of(page):
        if part.startswith(("**", "## ")):
            said = False
        said = said or part.startswith(("*Quick run:* ", "*Nothing is trained.*", "*The paper's numbers alone.*"))
        if part.startswith(("[![", "<table>")) and not said:
            wrong.append(part[:60])
    return wrong


def repeated(page):
    "Return the pictures, tables and commands that a page shows more than once."
    shown = [part for part in parts_of(page) if part.startswith(("[![", "<table>", "```sh"))]
    return [part[:60] for i, part in enumerate(shown) if part in shown[:i]]


def dead_links(page):
    "Return the links to headings that a page does not have."
    anchors = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
               for heading in re.findall("^## (.+)$", page, re.M)}
    return sorted(set(re.findall(r"\((#[^)]*)\)", page)) - anchors)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_is_shown_and_shows_it_once(name):
    page = PAGES[name]
    assert len(PAGES) == 5 and page.count("*Full run:* ") > 2
    assert (without_run(page), repeated(page), dead_links(page)) == ([], [], [])
    captions = [part for part in parts_of(page) if part.startswith("*In the paper:*")]
    assert not [part for part in captions if "not stated" in part or "not listed" in part or "Γ" in part]


def test_what_a_figure_shows_of_the_quick_run_is_said_alike():
    "The same figure shows the same part of the run at every place; remarks on the full run need a command."
    quick = {}
    for line in LINES:
        key = line["notebook"], line["kind"], line["name"]
        assert quick.setdefault(key, line["quick"]) == line["quick"], key
        assert line["command"] or not line["full"], line["place"]


def test_the_page_says_what_the_file_says():
    text = (ROOT/"runs"/"README.md").read_text(encoding="utf-8")
    assert "\n".join(places.page(ROOT)) in text, "run `make sync`"
    assert (text.count(places.BEGIN), text.count(places.END)) == (1, 1)
