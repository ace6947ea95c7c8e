"""The claims of the papers in `nbs/claims.csv`: fill in which studies ask them, or compare them with facts.

`make sync` calls this without an argument: the column `asked` lists the studies whose code names a claim's id. With the
path of a folder, print each difference from its `claims.csv`, which holds what the papers say, and exit with 1 if there
is one:

    python docs/claims.py path/to/facts
"""
import csv
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLAIM_ID = re.compile(r"\b(?:mukhoti|wang|lossstudy|lin|metareg)-\d\d\b")
SAME = {name: name for name in "paper place kind claim scope protocol strength numbers own_numbers".split()}
SAME |= {"direction": "quantity"}  # our column -> the column of the facts
EXPLAINED = {  # (id, column) -> why it differs from the facts
    ("lossstudy-12", "direction"): "Section 2.3 says better generalisation, which an equal error is not",
    ("wang-28", "strength"): "Section 5.1 states it; that the figure is missing is no hedge",
    ("lin-29", "numbers"): "Section 4.3 prints three correlations",
    ("lin-29", "own_numbers"): "says what the three correlations are",
    ("lin-29", "scope"): "the paragraph after the correlations concludes it for real data",
    ("lin-45", "strength"): "Section 16 only points to Table 7",
    ("lin-46", "strength"): "Section 17 only points to Table 8",
    ("lin-54", "place"): "Table 2 has a case, too", ("lin-54", "scope"): "Table 2 has a case, too",
    ("lin-54", "numbers"): "Table 2 has a case, too",
    ("lin-54", "claim"): "Section 5 tunes T once, by the ECE",
    ("metareg-10", "place"): "the text compares with the curves of Fig. 3",
}
EXPLAINED |= {(f"mukhoti-{n}", "protocol"): "Section 4 and Appendix B try coefficients and keep the best of them"
              for n in (*range(19, 33), *range(40, 45))}
EXPLAINED |= {(f"mukhoti-0{n}", "protocol"): "Section 3 trains one network with CE for Fig. 1" for n in range(1, 6)}
EXPLAINED |= {(f"mukhoti-{n}", "numbers"): "ours prints the row of the table, or its range, not a part of it"
              for n in (*range(19, 32), *range(41, 44))}
EXPLAINED |= {(f"mukhoti-{n}", "own_numbers"): "ours names every exception, with numbers"
              for n in (20, 21, 23, 24, 27, 28, 30, 32, 40, 42, 43)}
EXPLAINED |= {(f"mukhoti-{n}", "place"): "ours names every section and figure that states or shows it"
              for n in ("01", "04", "05", "08", 18, 25, 27, 28, *range(40, 44))}
EXPLAINED |= {(f"mukhoti-{n}", column): "Section 4 and Appendix B state it flatly, without pairs, data or measure"
              for n in (37, 38, 39) for column in ("scope", "protocol", "strength", "own_numbers")}
EXPLAINED |= {
    ("mukhoti-06", "own_numbers"): "the reason is algebra", ("mukhoti-35", "own_numbers"): "the reason is algebra",
    ("mukhoti-07", "scope"): "Section 3 names no condition on the data",
    ("mukhoti-08", "scope"): "the claim is on CE, and the figure has FL, too",
    ("mukhoti-11", "own_numbers"): "equal minimisers are an exception from always",
    ("mukhoti-16", "strength"): "marginal is the size of the difference, no hedge",
    ("mukhoti-16", "own_numbers"): "marginal is the size of the difference, no hedge",
    ("mukhoti-18", "scope"): "Fig. 2 has three exponents",
    ("mukhoti-25", "strength"): "Section 1 states it flatly", ("mukhoti-27", "strength"): "Section 1 states it flatly",
    ("mukhoti-30", "strength"): "the text refers back to the hedged property of FL",
    ("mukhoti-34", "own_numbers"): "Table 1 has temperatures below 1, which the sentence leaves out",
}
EXPLAINED |= {(f"wang-{n}", "protocol"): "Fig. 6 is a sweep, of which no coefficient is chosen" for n in range(37, 47)}
_WANG = {  # why -> column -> numbers of the claims
    "lists every number of Tables 1 and 2 that the claim compares": {
        "numbers": (1, 2, 5, 6, 7, 8, 11, 12, 16, 18, 41)},
    "counted from Tables 1 and 2, with t from the printed mean and sd": {
        "own_numbers": (1, 2, 4, 5, 8, 9, 11, 12, 15, 18, 41)},
    "the text misnames the panel for this claim, too": {"own_numbers": (46,)},
    "the text prints these numbers there or says it there, too": {
        "place": (2, 11, 12, 15, 16, 18, 20, 29, 38, 39, 40, 41, 42, 43, 49)},
    "Sections 4 and 5.2 name data and stage so, or not at all": {
        "scope": (3, 5, 11, 19, 20, 25, 29, 31, 32, 40, 41, 42)},
    "Section 3 does not restrict gamma": {"scope": (48,)},
    "a sweep, of which no coefficient is chosen": {"protocol": (2, 3, 15, 16, 36)},
    "the text does not state the repetitions or sizes of this figure": {
        "protocol": (17, 18, 19, 21, 22, 23, 27, 28, 30, 31, 32, 33)},
    "mean and range, by the caption of Fig. 4": {"protocol": (26,)},
    "a flat sentence: that numbers or a figure are missing is no hedge": {"strength": (2, 13, 27, 33)},
    "a part of the sentence is hedged": {"strength": (12, 15, 25)},
}
EXPLAINED |= {(f"wang-{n:02}", column): why for why, columns in _WANG.items()
              for column, numbers in columns.items() for n in numbers}
EXPLAINED |= {(f"lin-{n}", "protocol"): "Sections 5.1 and 5.2 do not state the repetitions of Figs. 4 and 5"
              for n in range(11, 20)}
EXPLAINED |= {(f"lin-{n:02}", column): why for column, why, found in (
    ("protocol", "the pair is chosen for BSCE-GRA only, and 15 bins and T are not for every measure",
     (*range(1, 11), *range(20, 28), 54)),
    ("protocol", "says what Sections 13 to 16 leave open", (44, 48, 49, 50, 52, 53)),
    ("numbers", "the tables print them", (1, 2, *range(4, 11), *range(22, 27))),
    ("own_numbers", "counted from Tables 1 to 5", (*range(4, 10), 21, *range(23, 28), 44, 54)),
    ("own_numbers", "says what is not printed, or does not fit", (15, 28, 38, 48, 52)),
    ("place", "the text refers to these tables, figures and sections, too", (3, 4, 5, 6, 16, 32, 33, 44)),
    ("scope", "the text has this condition", (41, 49)),
    ("strength", "Section 4 says can", (33, 42)), ("strength", "Section 14 only points to Table 6", (49,)),
    ("strength", "Section 14 states it; that numbers are missing is no hedge", (51,)),
    ("strength", "Section 13 says tends to, and frequently", (52,))) for n in found}
EXPLAINED |= {(f"metareg-{n}", "protocol"): "curves over the epochs have no selected network"
              for n in (*range(10, 15), 40)}
EXPLAINED |= {(f"lossstudy-{n:02d}", column): why for n, columns, why in [
    (4, "protocol", "Section 3.2 does not say over what it fluctuates"),
    (7, "strength scope", "Section 3.1 states it flatly and cites nothing"),
    (8, "place scope protocol", "Section 3.2 concludes it from Theorem 1 and shows no logits"),
    (9, "place", "the section of the theorem"), (10, "place", "the section of the theorem"),
    (10, "own_numbers", "Section 2.3 prints focal loss without its sign"),
    (11, "place scope protocol", "Section 3.2 concludes it from Theorem 2 and shows no entropies"),
] for column in columns.split()}
EXPLAINED |= {(f"metareg-{n:02d}", "protocol"): "Section 5 states the split for meta-learning"
              for n in (*range(1, 8), 9, 20, 21, 27, *range(30, 33))}
EXPLAINED |= {(f"metareg-{n:02d}", column): why for n, columns, why in [
    *((n, "numbers", "all numbers of the direction") for n in (*range(1, 9), *range(18, 23), 28, 30, 31)),
    *((n, "own_numbers", "counts over all cells of the direction, with the exceptions")
      for n in (1, 2, 3, 5, *range(6, 9), *range(18, 23), *range(27, 32))),
    *((n, "scope", "Table 1 has no such row for Tiny-ImageNet") for n in (2, 3, 7)),
    (6, "strength", "basically is said of the agreement with another paper"),
    (7, "place", "the abstract says it, too"), (8, "place", "the numbers are those of Table 1"),
    (14, "place", "Section 4.1 and the panels of gamma say it, too"),
    (15, "protocol", "the settings of Fig. 5"), (16, "protocol", "the settings of Fig. 5"),
    (16, "scope", "the supplement has CIFAR-100, too"),
    (17, "place", "the abstract and Section 6 say it, too"), (17, "scope", "each figure has its data and bins"),
    (17, "protocol", "the settings of Figs. 4 and 5"),
    (18, "protocol", "Table 2 does not name the outer loss"), (19, "protocol", "Table 2 does not name the outer loss"),
    (21, "place", "FLγ is in Table 2, the others in Table 1"),
    (22, "protocol", "the paper does not state the settings of the others"),
    (24, "protocol", "Section 6 argues, without times"),
    (25, "strength", "Section 4.1 states it; that no numbers are printed is no hedge"),
    (25, "protocol", "says what Section 4.1 leaves out"),
    (26, "strength", "Section 5 states it; that no numbers are printed is no hedge"),
    (26, "scope protocol", "says what Section 5 leaves out"),
    (30, "scope", "on CIFAR-100 Table 1 has it the other way"),
    (33, "scope", "Section 3.2 does not state the condition"), (33, "own_numbers", "why it holds"),
    (36, "own_numbers", "why it does not hold"), (37, "own_numbers", "why it does not hold"),
    (38, "own_numbers", "where it does not hold"),
    (40, "place", "Sections 5.1 and 7 say it, too"), (40, "scope", "only Fig. 3 names data"),
] for column in columns.split()}


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
    "Return the rows with the studies that ask each claim; a claim that a study asks is not open."
    def filled(row):
        asked = " ".join(name for name, ids in studies.items() if row["id"] in ids)
        return row | dict(asked=asked, open="" if asked else row["open"])
    return {key: filled(row) for key, row in rows.items()}


def differences(ours, facts):
    "Return a line for each difference of the claims from the facts."
    lines = [f"{key}: missing in nbs/claims.csv" for key in facts.keys() - ours.keys()]
    lines += [f"{key}: missing in the facts" for key in ours.keys() - facts.keys()]
    for key in ours.keys() & facts.keys():
        for name, theirs in SAME.items():
            here, there = ours[key][name], facts[key][theirs]
            if here != there and (key, name) not in EXPLAINED:
                lines.append(f"{key}, {name}: {here!r} in nbs/claims.csv, {there!r} in the facts")
    return sorted(lines)


def main(facts=None):
    path = ROOT/"nbs"/"claims.csv"
    rows = read(path)
    if facts is not None:
        found = differences(rows, read(Path(facts)/"claims.csv"))
        print(*found, f"{len(found)} differences, {len(EXPLAINED)} explained", sep="\n")
        sys.exit(1 if found else 0)
    made = with_studies(rows, ids_of_studies())
    if made != rows:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, next(iter(rows.values())).keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(made.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
