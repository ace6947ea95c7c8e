"The study of real runs, on a made-up table: its numbers and claims follow from the files of the table alone."
import csv

import numpy as np
import pytest
from conftest import assert_complete, run_forked
from reading import finding, percent, table

from calibnb.evaluate import Resamples, resampled_measures
from calibnb.notebooks import UNDECIDED
from calibnb.runs.kept import read_kept

IMAGES = "cifar10_cpu"


@pytest.fixture(scope="module")
def study(root):
    return run_forked("evidence", dict(table="made_up", n_boot=50), root=root)


@pytest.fixture(scope="module")
def kept(study):
    return read_kept(study/"files"/"table")


def rows(kept, loss, calibrator=""):
    return [made for about, made in kept.samples[IMAGES] if (about["loss"], about["calibrator"]) == (loss, calibrator)]


def claims(study):
    with open(study/"tables"/"claims.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study, 4, 8)
    said = (study/"notebook.ipynb").read_text()
    assert "MADE-UP NUMBERS" in said


def test_the_table_of_measures_is_that_of_the_files(study, kept):
    header, *lines = table(study, f"measures_{IMAGES}")
    shown = {line[0]: dict(zip(header, line)) for line in lines}
    for name, calibrator in {"CE": "", "CE + TS": "temperature"}.items():
        found = [100*float((~made.hit).double().mean()) for made in rows(kept, "ce", calibrator)]
        assert shown[name]["error %"] == percent(found) and shown[name]["seeds"] == "5"
    assert shown["MMCE, chosen"]["seeds"] == "3"


def test_a_margin_is_that_of_the_files(study, kept):
    resamples = Resamples(500, 50)
    ce, fl = ([100*resampled_measures(made, resamples)["ece"] for made in rows(kept, loss)] for loss in ("ce", "focal"))
    effect = finding(study, "B, C: CIFAR-10: focal loss has a lower ECE than CE").effect
    d = np.array(ce) - np.array(fl)  # (S, 1 + B)
    assert effect.value == pytest.approx(d[:, 0].mean()) and effect.value > 0
    se = np.sqrt(d[:, 0].var(ddof=1)/5 + d[:, 1:].mean(0).var(ddof=1))
    assert effect.seen == pytest.approx(2.8*se)


def test_people_are_asked_without_the_chance_of_their_votes(study, kept):
    "A temperature brings CE nearer to the shares; the root mean square of the distance is lower than with that chance."
    votes = kept.votes[IMAGES].double()
    def distance(made):
        share = votes.gather(1, made.pred[:, None])[:, 0]/votes.sum(1)
        return 100*(share - made.conf).square().mean().sqrt().item()
    header, *lines = table(study, "calibrators")
    shown = next(dict(zip(header, line)) for line in lines if line[:2] == ["distance to people", "CE"])
    for way, calibrator in {"as trained": "", "temperature": "temperature"}.items():
        raw = np.mean([distance(made) for made in rows(kept, "ce", calibrator)])
        assert .7*raw < float(shown[way].split()[0]) < raw


def test_three_seeds_decide_nothing_and_say_what_would(study):
    few = [row for row in claims(study) if row["seeds"] == "3.0"]
    assert few and all(row["verdict"] == "undecided: n = 3 seeds" and row["to decide"] for row in few)
    assert finding(study, "B, C: CIFAR-10: FLSD has a lower ECE").verdict == UNDECIDED


def test_what_has_no_runs_waits(study):
    waiting, = [row for row in claims(study) if "γ learned by CE" in row["claim"]]
    assert waiting["verdict"] == "no seed has all of FLγ-SECE, FLγ-CE yet" and not waiting["D"]


def test_every_claim_has_its_hours_and_machine(study):
    tested = [row for row in claims(study) if row["D"]]
    assert all(float(row["hours"]) > 0 and row["machine"] == "made up" for row in tested)
    assert {row["claim"].split(":")[0] for row in tested} == {"A", "B, C", "D", "E", "F"}
