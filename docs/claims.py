"""Fill in the studies that test each claim of `nbs/claims.csv`: those whose code names the claim's id."""
import csv
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLAIM_ID = re.compile(r"\b(?:mukhoti|wang|lossstudy|lin|metareg)-\d\d\b")


def read(path):
    "Return the rows of a CSV file: id -> row."
    with open(path, encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def ids_of_studies(root=ROOT):
    "Return the ids that the code of each study names: study -> ids."
    found = {}
    for path in sorted(Path(root, "nbs", "experiments").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        found[path.stem] = set(CLAIM_ID.findall(code))
    return found


def with_studies(rows, studies):
    "Return the rows with the studies that test each claim; a claim that a study tests is not open."
    def filled(row):
        testing = " ".join(name for name, ids in studies.items() if row["id"] in ids)
        return row | dict(studies=testing, open="" if testing else row["open"])
    return {key: filled(row) for key, row in rows.items()}


def main():
    path = ROOT/"nbs"/"claims.csv"
    rows = read(path)
    made = with_studies(rows, ids_of_studies())
    if made != rows:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, next(iter(rows.values())).keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(made.values())


if __name__ == "__main__":
    main()
