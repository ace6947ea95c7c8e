"Every claim of a study has an identity: its id in nbs/claims.csv, from which the paper's side comes, or it is ours."
import ast
import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest
from conftest import EXPERIMENTS, ROOT

from calibnb import cli
from calibnb.studies.claims import find_claim, paper_claims, read_verdicts

sys.path.insert(0, str(ROOT/"docs"))
import claims as build  # noqa: E402

ROWS = build.read(ROOT/"nbs"/"claims.csv")
VERDICTS = read_verdicts(ROOT/"runs"/"gallery")


def code_of(path):
    "Return the code of a notebook, without magics."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_the_rows_are_complete():
    kinds = [row["kind"] for row in ROWS.values()]
    assert (kinds.count("empirical"), kinds.count("identity")) == (167, 34)
    for key, row in ROWS.items():
        assert row["supported"] in ("yes", "partly", "no", "not printed"), key
        assert row["scope"] and row["direction"] and row["strength"] and row["claim"].endswith("."), key
        assert bool(row["open"]) + bool(row["studies"] or row["cannot"]) == 1, key
        assert not row["cannot"] or row["kind"] == "empirical", key


def test_every_paper_has_its_claims_in_its_order():
    assert [len(paper_claims(p)) for p in ("mukhoti", "wang", "loss", "lin", "meta")] == [44, 51, 12, 54, 40]
    assert sorted(row["id"] for row in paper_claims()) == sorted(ROWS)
    assert find_claim("lin-46")["place"] == "Section 17, Table 8"


def test_studies_that_ask_are_listed():
    "`make sync` fills the column in."
    assert build.with_studies(ROWS, build.ids_of_studies()) == ROWS
    none = {name: ids - {"wang-14"} for name, ids in build.ids_of_studies().items()}
    assert build.with_studies(ROWS, none)["wang-14"]["studies"] == ""


def without_identity(code):
    "Return the claims of a study that say they are a paper's and name no id, and ids that are not known."
    wrong = [name for name in build.CLAIM_ID.findall(code) if name not in ROWS]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Claim":
            kinds = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "kind")]
            given = [k.arg for k in node.keywords]
            literal = [k.value for k in kinds if isinstance(k, ast.Constant)]
            if literal not in (["ours"], ["identity"]) or "id" in given:
                wrong.append(ast.unparse(node)[:60])
    return wrong


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXPERIMENTS.glob("*.ipynb"))])
def test_every_claim_names_its_id_or_is_ours(name):
    assert without_identity(code_of(EXPERIMENTS/f"{name}.ipynb")) == []


METHODS = {  # in this order: a part that is found is taken out of the text
    "gamma-Net": r"FLγ[-\w]*|γ-Nets?|γ learned[\w ]*|learning γ", "IFL": r"inverse focal loss|IFL[-\w]*",
    "FLSD": "FLSD[-A-Z]*", "DFL": r"dual focal( loss)?|DFL[-\w]*", "GRA": "BSCE-GRA", "BSCE": "BSCE",
    "FL": r"focal loss|FL-\d|\bFL\b|focal", "LS": r"label smoothing|LS-[\d.]+|\bLS\b", "L1": r"\bL1\b",
    "ER": r"entropy regularisation|\bER\b", "MMCE": "MMCE", "Brier": "Brier|gBS", "mixup": "mixup",
    "CE": r"CE-[DS]ECE|\bCE\b"}
MEASURES = {  # what a text compares -> how the paper's claim may name it
    r"(?<!adaptive )(?<!classwise )(?<!optimal )\bECE\b": "ECE|calibrat|measure not stated",
    "adaptive ECE": "AdaECE|adaptive|ACE|metrics", "classwise ECE": "CW|classwise|metrics",
    r"\bMCE\b": "MCE|calibration errors|lower for every", r"\bNLL\b": "NLL|infimum",
    r"\berror\b": "error|accuracy|generalis", r"\bentropy\b(?! reg)": r"entropy|H\(",
    "temperatures? of": r"T\b|temperature", "norm of|weights are": "norm|weights",
    r"\blogits?\b": "logit|z\\||by learned epoch", "correlat": "correlat|spread|scatter|close|r clearly"}


def methods_in(text):
    "Return the methods that a text names, in the words of the papers."
    found = set()
    for name, pattern in METHODS.items():
        text, n = re.subn(pattern, " ", text)
        if n:
            found.add(name)
    return found


def sides(direction, after):
    "Return the methods on the lower and on the higher side of the first comparison that a direction spells out."
    clauses = re.split(r"[;,] ?(?=\w+ after|after)", direction)
    clause = next((c for c in clauses if ("after" in c) == after and re.search("[<>]|lowest|highest", c)), clauses[0])
    compared = re.match(r"(?:[^:<>]*: )?([^<>;]*)([<>])([^;]*)", clause)
    if compared:
        left, sign, right = compared.groups()
        lower, higher = (left, right) if sign == "<" else (right, left)
        return methods_in(lower), methods_in(higher)
    if "lowest" in clause or "highest" in clause:
        best = methods_in(direction.split(")")[0] + ")")
        return (best, set()) if "lowest" in clause else (set(), best)
    return set(), set()


def disagreements(text, row):
    "Return what a claim as it is asked compares otherwise than the paper's: measure, stage, or direction."
    paper, found = f"{row['claim']} {row['direction']}", []
    named = [names for measure, names in MEASURES.items() if re.search(measure, text)]
    if named and not any(re.search(names, paper) for names in named):
        found.append("measure")
    after = bool(re.search("(?<!before and )after (temperature scaling|TS|HB)", text))
    if after and not re.search(r"\bTS\b|\bHB\b|T\(|temperature|post-hoc", paper):
        found.append("stage")
    if re.search(r"(?<!before and )after TS$", row["direction"]) and not re.search("TS|temperature", text):
        found.append("stage")
    if after and row["direction"].endswith("before TS"):
        found.append("stage")
    lower, higher = sides(row["direction"], after)
    said = re.search(r"(.*?) (?:has|have) (?:a|the) (lower|higher|lowest|highest) ", text)
    if said:
        subject, ways = methods_in(said[1].split(": ")[-1]), (lower, higher)
        flipped = row["direction"].startswith("accuracy") and "error" in text
        theirs, other = ways if said[2].startswith("low") != flipped else ways[::-1]
        if subject & other and not subject & theirs:
            found.append("direction")
    return found


@pytest.mark.parametrize("id", VERDICTS)
def test_what_is_asked_agrees_with_what_the_paper_claims(id):
    for asked in VERDICTS[id]:
        assert asked["kind"] in ("paper", "identity") and asked["verdict"]
        assert disagreements(asked["claim"], ROWS[id]) == [], asked["claim"]


def test_how_claims_are_asked_agrees_with_what_the_papers_claim():
    "The column `asked`, from which studies take the text; a claim with the other direction is found."
    asked = {key: row["asked"] for key, row in ROWS.items() if row["asked"]}
    assert {key: found for key, text in asked.items() if (found := disagreements(text, ROWS[key]))} == {}
    assert disagreements(asked["mukhoti-25"].replace("lower", "higher"), ROWS["mukhoti-25"]) == ["direction"]


def test_what_is_asked_is_decided_in_the_gallery():
    "A claim that a study tests in its full setting alone has a reason why it cannot be tested here."
    asked = {key for key, row in ROWS.items() if row["studies"] and not row["cannot"]}
    assert asked == set(VERDICTS)


def test_the_list_has_all_empirical_claims():
    out = StringIO()
    with redirect_stdout(out):
        assert cli.main(["papers", "--claims"]) == 0
    said = out.getvalue()
    for key, row in ROWS.items():
        assert (f"\n{key} " in said or said.startswith(key)) == (row["kind"] == "empirical"), key
    assert [said.count(f"\n{'':13} {name}: ") for name in ("own numbers", "here")] == [167, 167]


PAGES = dict(mukhoti="mukhoti_2020", wang="wang_2021", loss="loss_study", lin="lin_2025", meta="meta_regularization")


@pytest.mark.parametrize("paper", PAGES)
def test_a_papers_page_has_a_row_for_each_claim(paper):
    "In the gallery, in the paper's order, with the support by the paper's numbers and a marker for each data set."
    page = (ROOT/"runs"/"gallery"/f"{PAGES[paper]}.md").read_text(encoding="utf-8")
    heads, _, *lines = [line[2:-2].split(" | ") for line in re.findall(r"^\|.*\|$", page.split("\n## ")[1], re.M)]
    sets = [head.replace(" ", "_") for head in heads[3:]]
    assert heads[:3] == ["id", "claim", "own numbers"] and len(heads) <= 8
    assert [line[0] for line in lines] == [row["id"] for row in paper_claims(paper)]
    for line in lines:
        row = ROWS[line[0]]
        assert len(line) == len(heads) and line[2] == row["supported"]
        asked = {v["data"] or "no_data" for v in VERDICTS.get(line[0], [])}
        assert {name for name, cell in zip(sets, line[3:]) if cell.strip()} == asked
        assert ("Not tested here" in line[1]) == (not asked)
        assert len(re.sub("<details>.*", "", line[1])) < 700
