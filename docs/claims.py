"""Fill in the studies that test each claim of `nbs/claims.csv`, or compare the claims with facts about the papers.

`make sync` calls this without an argument: the column `studies` lists the studies whose code names a claim's id. With
the path of a folder, print each difference from its `claims.csv`, which has the claims as the papers state them, and
exit with 1 if there is a difference:

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
REASONS = (  # claims, columns, and why they differ from the facts
    ("mukhoti 1", "claim strength", "Section 3 says that the training NLL broadly decreases"),
    ("mukhoti 1 3", "direction", "Section 3 says that they rise after epoch 150, not that they are above those before"),
    ("mukhoti 1-5", "protocol", "Section 3 trains one network with CE for Fig. 1"),
    ("mukhoti 1 4 5 8 18 25 27 28 40-43", "place", "ours names every section and figure that states or shows it"),
    ("mukhoti 6 35", "own_numbers", "the reason is algebra"),
    ("mukhoti 7", "scope", "Section 3 names no condition on the data"),
    ("mukhoti 8", "scope", "the claim is on CE, and the figure has FL, too"),
    ("mukhoti 11", "own_numbers", "equal minimisers are an exception from always"),
    ("mukhoti 16", "strength own_numbers", "marginal is the size of the difference, no hedge"),
    ("mukhoti 18", "scope", "Fig. 2 has three exponents"),
    ("mukhoti 19-32 40-44", "protocol", "Section 4 and Appendix B try coefficients and keep the best of them"),
    ("mukhoti 19-31 41-43", "numbers", "ours prints the row of the table, or its range, not a part of it"),
    ("mukhoti 20 21 23 24 27 28 30 32 40 42 43", "own_numbers", "ours names every exception, with numbers"),
    ("mukhoti 25 27", "strength", "Section 1 states it flatly"),
    ("mukhoti 26", "claim", "the direction is on ECE after TS alone; on SST there is no advantage before it"),
    ("mukhoti 30", "claim direction", "Section 4 says what is near to 1: mostly between 0.9 and 1.1"),
    ("mukhoti 30", "strength", "the text refers back to the hedged property of FL"),
    ("mukhoti 34", "claim", "algebra for T > 1 alone; slightly is no algebra and has no number"),
    ("mukhoti 34", "own_numbers", "Table 1 has temperatures below 1, which the sentence leaves out"),
    ("mukhoti 37-39", "scope protocol strength own_numbers",
     "Section 4 and Appendix B state it flatly, without pairs, data or measure"),
    ("mukhoti 40", "claim direction", "Table 1 shows where the ECE is highest and lowest, and T below 1"),
    ("mukhoti 42", "claim direction", "mostly is nine of ten pairs before TS, and six of ten after it"),
    ("wang 1 2 4 5 8 9 11 12 15 18 41", "own_numbers",
     "counted from Tables 1 and 2, with t from the printed mean and sd"),
    ("wang 1 2 5-8 11 12 16 18 41", "numbers", "lists every number of Tables 1 and 2 that the claim compares"),
    ("wang 2 3 15 16 36", "protocol", "a sweep, of which no coefficient is chosen"),
    ("wang 2 11 12 15 16 18 20 29 38-43 49", "place", "the text prints these numbers there or says it there, too"),
    ("wang 2 13 27 33", "strength", "a flat sentence: that numbers or a figure are missing is no hedge"),
    ("wang 3 5 11 19 20 25 29 31 32 40-42", "scope", "Sections 4 and 5.2 name data and stage so, or not at all"),
    ("wang 11", "claim direction", "Sections 1 and 4 hold the regularised networks against those of CE"),
    ("wang 11", "protocol", "the diagrams are those of one run, by the caption of Fig. 2"),
    ("wang 12", "claim direction", "Section 7 and the abstract state both halves, before and after"),
    ("wang 12 15 25", "strength", "a part of the sentence is hedged"),
    ("wang 17-19 21-23 27 28 30-33", "protocol", "the text does not state the repetitions or sizes of this figure"),
    ("wang 26", "protocol", "mean and range, by the caption of Fig. 4"),
    ("wang 28", "strength", "Section 5.1 states it; that the figure is missing is no hedge"),
    ("wang 37-46", "protocol", "Fig. 6 is a sweep, of which no coefficient is chosen"),
    ("wang 41 42", "claim direction", "Section 5.2 compares CE with focal and inverse focal loss there"),
    ("wang 42", "own_numbers", "says what is not printed, or not compared"),
    ("wang 46", "own_numbers", "the text misnames the panel for this claim, too"),
    ("wang 48", "scope", "Section 3 does not restrict gamma"),
    ("wang 51", "claim direction", "Section 2 says two things: few confidences, and high ones that suffer"),
    ("wang 51", "own_numbers", "HB has one value for each bin, and Section 2 has no number"),
    ("lossstudy 3", "claim direction", "Section 3.2 says not effective to mitigate: a small gain is none"),
    ("lossstudy 4", "direction", "Section 3.2 does not say over what it fluctuates; steps have no trend"),
    ("lossstudy 4", "protocol", "Section 3.2 does not say over what it fluctuates"),
    ("lossstudy 7", "strength scope", "Section 3.1 states it flatly and cites nothing"),
    ("lossstudy 8", "place scope protocol", "Section 3.2 concludes it from Theorem 1 and shows no logits"),
    ("lossstudy 9 10", "place", "the section of the theorem"),
    ("lossstudy 10", "own_numbers", "Section 2.3 prints focal loss without its sign"),
    ("lossstudy 11", "place scope protocol", "Section 3.2 concludes it from Theorem 2 and shows no entropies"),
    ("lossstudy 12", "direction", "Section 2.3 says better generalisation, which an equal error is not"),
    ("lin 1-10 20-27 54", "protocol",
     "the pair is chosen for BSCE-GRA only, and 15 bins and T are not for every measure"),
    ("lin 1 2 4-10 22-26", "numbers", "the tables print them"),
    ("lin 3-6 16 32 33 44", "place", "the text refers to these tables, figures and sections, too"),
    ("lin 4-9 21 23-27 44 54", "own_numbers", "counted from Tables 1 to 5"),
    ("lin 11-19", "protocol", "Sections 5.1 and 5.2 do not state the repetitions of Figs. 4 and 5"),
    ("lin 15", "claim direction", "Section 5.1 compares with focal loss; CE is a curve of the figure"),
    ("lin 15 28 38 48 52", "own_numbers", "says what is not printed, or does not fit"),
    ("lin 29", "numbers", "Section 4.3 prints three correlations"),
    ("lin 29", "own_numbers", "says what the three correlations are"),
    ("lin 29", "scope", "the paragraph after the correlations concludes it for real data"),
    ("lin 33 42", "strength", "Section 4 says can"),
    ("lin 38", "claim direction", "Section 4.3 names the two classes"),
    ("lin 41 49", "scope", "the text has this condition"),
    ("lin 44 48-50 52 53", "protocol", "says what Sections 13 to 16 leave open"),
    ("lin 45", "strength", "Section 16 only points to Table 7"),
    ("lin 46", "strength", "Section 17 only points to Table 8"),
    ("lin 49", "claim", "Table 6 has the lowest ECE at 4; that it depends strongly, no sentence says"),
    ("lin 49", "own_numbers", "the range of Table 6"),
    ("lin 49", "strength", "Section 14 only points to Table 6"),
    ("lin 51", "strength", "Section 14 states it; that numbers are missing is no hedge"),
    ("lin 52", "strength", "Section 13 says tends to, and frequently"),
    ("lin 54", "place scope numbers", "Table 2 has a case, too"),
    ("lin 54", "claim", "Section 5 tunes T once, by the ECE"),
    ("metareg 1-8 18-22 28 30 31", "numbers", "all numbers of the direction"),
    ("metareg 1-7 9 20 21 27 30-32", "protocol", "Section 5 states the split for meta-learning"),
    ("metareg 1-3 5-8 18-22 27-31", "own_numbers", "counts over all cells of the direction, with the exceptions"),
    ("metareg 2 3 7", "scope", "Table 1 has no such row for Tiny-ImageNet"),
    ("metareg 6", "strength", "basically is said of the agreement with another paper"),
    ("metareg 7", "place", "the abstract says it, too"),
    ("metareg 8", "place", "the numbers are those of Table 1"),
    ("metareg 10", "place", "the text compares with the curves of Fig. 3"),
    ("metareg 10-14 40", "protocol", "curves over the epochs have no selected network"),
    ("metareg 14", "place", "Section 4.1 and the panels of gamma say it, too"),
    ("metareg 15 16", "protocol", "the settings of Fig. 5"),
    ("metareg 16", "scope", "the supplement has CIFAR-100, too"),
    ("metareg 17", "place", "the abstract and Section 6 say it, too"),
    ("metareg 17", "scope", "each figure has its data and bins"),
    ("metareg 17", "protocol", "the settings of Figs. 4 and 5"),
    ("metareg 18 19", "protocol", "Table 2 does not name the outer loss"),
    ("metareg 20", "claim direction", "Section 5.1 speaks of ECE and MCE, not of gaps; its first half is garbled"),
    ("metareg 21", "place", "FLγ is in Table 2, the others in Table 1"),
    ("metareg 22", "protocol", "the paper does not state the settings of the others"),
    ("metareg 24", "protocol", "Section 6 argues, without times"),
    ("metareg 25", "strength", "Section 4.1 states it; that no numbers are printed is no hedge"),
    ("metareg 25", "protocol", "says what Section 4.1 leaves out"),
    ("metareg 26", "strength", "Section 5 states it; that no numbers are printed is no hedge"),
    ("metareg 26", "scope protocol", "says what Section 5 leaves out"),
    ("metareg 30", "scope", "on CIFAR-100 Table 1 has it the other way"),
    ("metareg 33", "scope", "Section 3.2 does not state the condition"),
    ("metareg 33", "own_numbers", "why it holds"),
    ("metareg 36 37", "own_numbers", "why it does not hold"),
    ("metareg 38", "own_numbers", "where it does not hold"),
    ("metareg 40", "claim direction", "the abstract says it of the optimisation, Section 5.1 of the ECE"),
    ("metareg 40", "own_numbers", "Section 7 says baselines, and Fig. 3 shows the ECE"),
    ("metareg 40", "place", "Sections 5.1 and 7 say it, too"),
    ("metareg 40", "scope", "only Fig. 3 names data"),
)


def explained():
    "Return the reasons of `REASONS`: (id, column) -> why."
    found = {}
    for claims, columns, why in REASONS:
        paper, *numbers = claims.split()
        for number in numbers:
            first, _, last = number.partition("-")
            for n in range(int(first), int(last or first) + 1):
                found |= {(f"{paper}-{n:02}", column): why for column in columns.split()}
    return found


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


def differences(ours, facts):
    "Return a line for each difference between the claims and the facts."
    known = explained()
    lines = [f"{key}: missing in nbs/claims.csv" for key in facts.keys() - ours.keys()]
    lines += [f"{key}: missing in the facts" for key in ours.keys() - facts.keys()]
    for key in ours.keys() & facts.keys():
        for name, theirs in SAME.items():
            here, there = ours[key][name], facts[key][theirs]
            if here != there and (key, name) not in known:
                lines.append(f"{key}, {name}: {here!r} in nbs/claims.csv, {there!r} in the facts")
    return sorted(lines)


def main(facts=None):
    path = ROOT/"nbs"/"claims.csv"
    rows = read(path)
    if facts is not None:
        found = differences(rows, read(Path(facts)/"claims.csv"))
        print(*found, f"{len(found)} differences, {len(explained())} explained", sep="\n")
        sys.exit(1 if found else 0)
    made = with_studies(rows, ids_of_studies())
    if made != rows:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, next(iter(rows.values())).keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(made.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
