"""Write the index of the papers' figures and tables into runs/README.md; `make sync` calls this.

The rows come from `nbs/places.csv`, trainings and hours from `nbs/plans.csv`, and the counts of each table's numbers
from `nbs/tables.csv`; `72_studies/04_papers` explains these files.
"""
import csv
import re
import sys
from pathlib import Path

from calibnb.studies.papers import figure_index, panel_text, remarks

BEGIN, END = "<!-- begin: made from nbs/places.csv by `make sync` -->", "<!-- end -->"
HEAD = ("place", "what it shows", "in the paper", "notebook", "figure, table or section", "data", "as printed", "note")


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(head, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"
    return [line(head), line(["---"]*len(head)), *map(line, rows)]


def hours(text):
    if not text:
        return "–"
    return f"{float(text):,.0f}" if float(text) >= .5 else "< 1"


def numbers(tables):
    "Return a list with the number of entries of each table in `nbs/papers.csv`."
    def line(table):
        count = f"{table['numbers']} numbers" if int(table["numbers"]) else "no number"
        return f"- {table['place']}: {count}" + (f"; missing: {table['missing']}" if table["missing"] else ", all")
    return ["Printed by the paper, and in `nbs/papers.csv`:", "", *map(line, tables), ""] if tables else []


def of_paper(paper, rows, plans, tables):
    "Return the section of a paper: its rows, their distinct commands, and the counts of its tables' numbers."
    commands = list(dict.fromkeys(row["command"] for row in rows if row["command"]))
    letter = {command: chr(ord("a") + i) for i, command in enumerate(commands)} | {"": "–"}
    def shown(row):
        ours = f"`{row['notebook']}`" if row["notebook"] else "not drawn yet"
        name = f"*{row['name']}*" if row["kind"] == "section" else f"`{row['name']}`"
        where = name if row["notebook"] else "–"
        printed = row["place"], row["shows"], panel_text(row)
        cells = [*printed, ours, where, row["data"], letter[row["command"]], remarks(row)]
        return [cell or "–" if i < 7 else cell for i, cell in enumerate(cells)]
    def cost(command):
        plan = plans.get(command, dict(runs="–", gpu_hours=""))
        return [letter[command], f"`{command}`", plan["runs"], hours(plan["gpu_hours"])]
    return [f"### {paper[0].upper()}{paper[1:]}", "", *table(HEAD, map(shown, rows)), "",
            *table(("as printed", "command", "trainings", "hours of one GPU"), map(cost, commands)), "",
            *numbers(tables)]


def page(root):
    "Return the lines between the marks `BEGIN` and `END`."
    rows = figure_index()
    plans = {row["command"]: row for row in read(Path(root)/"nbs"/"plans.csv")}
    tables = read(Path(root)/"nbs"/"tables.csv")
    def of(paper, rows):
        return [row for row in rows if row["paper"] == paper]
    papers = dict.fromkeys(row["paper"] for row in rows)
    return [line for p in papers for line in of_paper(p, of(p, rows), plans, of(p, tables))]


def main(root="."):
    path = Path(root)/"runs"/"README.md"
    text = path.read_text(encoding="utf-8")
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    made, found = between.subn(lambda _: "\n".join(["", *page(root), ""]), text)
    if found != 1:
        sys.exit(f"{path}: want one place between {BEGIN!r} and {END!r}")
    if made != text:
        path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
