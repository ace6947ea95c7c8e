"""List the cited sources at the end of each notebook; `make sync` calls this after cleaning.

A key is the first author's surname and the year, as in [Guo 2017] or [Mukhoti 2020, Fig. 1; Lin 2025, Eq. 6]. The file
`nbs/sources.csv` has the source of each key.
"""
import csv
import json
import re
import sys
from pathlib import Path

CELL = "sources"  # the cell's id
CITATION = re.compile(r"\[([^\[\]\n]*(?:(?:19|20)\d\d[a-z]?|Meta-regularization|Loss study)[^\[\]\n]*)\]")
LIKE_A_KEY = re.compile(r"^[A-ZŁ][\wł'’-]+ (?:et al\.? |and [A-Z]\w+ )?(?:19|20)\d\d[a-z]?\b")


def known_sources(root):
    "Return key -> source."
    with open(Path(root)/"nbs"/"sources.csv", encoding="utf-8", newline="") as file:
        return {row["key"]: row["source"] for row in csv.DictReader(file)}


def cited(text, known):
    "Return the keys that a text cites, in the order of `known`; raise ValueError for an unknown key."
    found = set()
    for citation in CITATION.findall(text):
        for part in citation.split(";"):
            part = part.strip()
            key = next((key for key in known if re.match(rf"{re.escape(key)}(?!\w)", part)), None)
            if key is None and LIKE_A_KEY.match(part):
                raise ValueError(f"[{part}] is cited, but nbs/sources.csv does not have it")
            found.add(key)
    return [key for key in known if key in found]


def with_sources(notebook, known):
    "Return the notebook with its list of sources before the export cell; without a list if no source is cited."
    cells = [cell for cell in notebook["cells"] if cell["id"] != CELL]
    keys = cited("\n".join("".join(cell["source"]) for cell in cells), known)
    lines = ["**Sources**\n", "\n", *(f"- [{key}] {known[key]}.\n" for key in keys)]
    lines[-1] = lines[-1].rstrip("\n")
    listing = dict(cell_type="markdown", id=CELL, metadata={}, source=lines)
    end = len(cells) - ends_in_export(cells)
    return notebook | dict(cells=[*cells[:end], *([listing] if keys else []), *cells[end:]])


def ends_in_export(cells):
    "Return True if the last cell is the hidden cell that exports the notebook."
    return bool(cells) and "nbdev_export()" in "".join(cells[-1]["source"])


def main(root="."):
    known = known_sources(root)
    for path in sorted(Path(root, "nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        try:
            notebook = with_sources(json.loads(text), known)
        except ValueError as e:
            sys.exit(f"{path}: {e}")
        made = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        if made != text:
            path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
