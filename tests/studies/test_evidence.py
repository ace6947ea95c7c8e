"The study of real runs, on a made-up table: its numbers and claims follow from the files of the table alone."
import csv
import shutil

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_complete
from reading import calibration_part, finding, percent, rows, run_here, shown_rival, table

from calibnb.data import load_data
from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.metrics import truth_error
from calibnb.runs import RunConfig, choose_coefficient, get_runs
from calibnb.studies import OPEN
from calibnb.studies.compact import Compact
from calibnb.studies.evidence_table import FURTHER, EvidenceRuns
from calibnb.studies.study_table import read_study_table
from calibnb.train import Recipe

STUDY, SETTINGS = "evidence", dict(table="made_up", n_boot=50)
IMAGES = "cifar10_cpu"


@pytest.fixture(scope="module")
def kept(study):
    return read_study_table(study/"files"/"table")


def samples(kept, loss, calibrator=""):
    return [made for about, made in kept.samples[IMAGES] if (about["loss"], about["calibrator"]) == (loss, calibrator)]


def claims(study):
    with open(study/"tables"/"claims.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert "MADE-UP NUMBERS" in (study/"notebook.ipynb").read_text()


def test_the_table_of_measures_is_that_of_the_files(study, kept):
    shown = rows(study, f"measures_{IMAGES}")
    for name, calibrator in {"CE": "", "CE + TS": "temperature"}.items():
        found = [100*float((~made.hit).double().mean()) for made in samples(kept, "ce", calibrator)]
        assert shown[name]["error %"] == percent(found) and shown[name]["seeds"] == "5"
    assert shown["MMCE, chosen"]["seeds"] == "3"


def test_a_margin_is_that_of_the_files(study, kept):
    resamples = Resamples(500, 50)
    ce, fl = (np.array([100*resampled_measures(made, resamples)["ece"] for made in samples(kept, loss)])
              for loss in ("ce", "focal"))
    effect = finding(study, "MADE UP, B, C: CIFAR-10: focal loss has a lower ECE than CE").effect
    d = ce - fl  # (S, 1 + B)
    assert effect.value == pytest.approx(d[:, 0].mean()) and effect.value > 0
    mean = d[:, 1:].mean(0)
    within = (d[:, 1:] - mean).var(1, ddof=1).sum()/4  # of the resamples; the variance over seeds contains it already
    a, b = np.sqrt(d[:, 0].var(ddof=1)/5), np.sqrt(max(mean.var(ddof=1) - within/5, 0))
    draws = np.random.default_rng(0)
    null = a*draws.standard_t(4, 400_000) + b*draws.standard_normal(400_000)
    assert effect.p == pytest.approx((abs(null) > effect.value).mean(), rel=.2)


def test_people_are_asked_without_the_chance_of_their_votes(study, kept):
    "A temperature brings CE nearer to the shares; the root mean square of the distance is lower than with that chance."
    votes = kept.votes[IMAGES].double()
    def distance(made):
        share = votes.gather(1, made.pred[:, None])[:, 0]/votes.sum(1)
        return 100*(share - made.conf).square().mean().sqrt().item()
    header, *lines = table(study, "calibrators")
    shown = next(dict(zip(header, line)) for line in lines if line[:2] == ["distance to people", "CE"])
    for way, calibrator in {"as trained": "", "temperature": "temperature"}.items():
        raw = np.mean([distance(made) for made in samples(kept, "ce", calibrator)])
        assert .7*raw < float(shown[way].split()[0]) < raw


def test_focal_loss_on_sentences_is_worst_before_and_best_after_a_temperature(study, kept):
    "As the paper's table has it: of its nine parts the one that decides is that of the files."
    def mean(loss, calibrator, measure):
        made = [m for about, m in kept.samples["sst_cpu"] if (about["loss"], about["calibrator"]) == (loss, calibrator)]
        return 100*np.mean([measure(resampled_measures(m, Resamples(500, 2))) for m in made])
    def ece(loss, calibrator=""): return mean(loss, calibrator, lambda found: found["ece"][0])
    names = {"CE": "ce", "Brier": "brier", "MMCE-2": "mmce", "LS-0.05": "label_smoothing"}
    parts = {f"before: {name}": ece("focal") - ece(loss) for name, loss in names.items()}
    best = ece("focal", "temperature")
    parts |= {f"after: {name} + TS": ece(loss, "temperature") - best for name, loss in names.items()}
    parts["accuracy less confidence"] = mean("focal", "", lambda found: 1 - found["error"][0] - found["confidence"][0])
    found = finding(study, "MADE UP, E: SST: FL-3 has the highest ECE of five losses before")
    assert (found.id, found.data) == ("mukhoti-40", "SST") and "16.05 -> 1.78, T 0.5" in found.paper
    assert found.effect.value == pytest.approx(parts[shown_rival(found)])


def test_three_seeds_decide_nothing_and_say_what_would(study):
    few = [row for row in claims(study) if row["seeds"] == "3.0"]
    assert few and all(row["verdict"] == "open: n = 3 seeds" and row["to decide"] for row in few)
    assert finding(study, "MADE UP, B, C: CIFAR-10: FLSD has a lower ECE").verdict == OPEN


def test_what_has_no_runs_waits(study):
    waiting, = [row for row in claims(study) if "lower ECE than γ learned by CE" in row["claim"]]
    assert waiting["verdict"] == "no seed has all of FLγ-SECE, FLγ-CE yet" and not waiting["D"]


def test_every_claim_has_its_hours_and_machine(study):
    tested = [row for row in claims(study) if row["D"]]
    assert all(float(row["hours"]) > 0 and row["machine"] == "made up" for row in tested)
    parts = {f"MADE UP, {part}" for part in ("A", "B, C", "D", "E", "F", "G")}
    assert {row["claim"].split(":")[0] for row in tested} == parts


LOSSES = ("ce", {}), ("focal", dict(gamma=1.)), ("focal", dict(gamma=5.))


@pytest.fixture(scope="module")
def runs(root):
    "A few short trainings on ambiguous digits."
    return get_runs([RunConfig(experiment="ambiguous_digits", data="ambiguous_digits", loss=loss, loss_args=options,
                               model_args=dict(hidden=[16]), recipe=Recipe.quick(2, seed=s, batch_size=256))
                     for loss, options in LOSSES for s in (0, 1)], root)


@pytest.fixture(scope="module")
def collecting(root):
    return EvidenceRuns([str(root)])


def test_known_truth_is_kept_of_what_each_seed_chose(collecting, runs):
    rows = collecting.table().measures["ambiguous_digits"]
    before = {(about["loss"], about["seed"]): (about, found) for about, found in rows if not about["calibrator"]}
    assert set(before) == {(loss, s) for loss in ("ce", "focal") for s in (0, 1)} and len(rows) == 8
    for s in (0, 1):
        focal = [run for run in runs if run.config.seed == s and run.config.loss == "focal"]
        of_seed = {run.config.loss_args["gamma"]: run for run in focal}
        clusters = of_seed[1.].rows["val"]
        chosen = choose_coefficient({c: run.predictions("val") for c, run in of_seed.items()}, clusters=clusters)
        about, found = before["focal", s]
        assert about["coefficient"] == chosen
        made = Compact.of(Scored.of(of_seed[chosen].predictions("test")))  # rounded, as in the table
        truth = load_data("ambiguous_digits", seed=s).test.posterior.gather(1, made.pred[:, None])[:, 0]
        expected = calibration_part(made.conf.double().numpy(), truth.double().numpy())
        assert found["true_ce"][0]**2 == pytest.approx(expected, abs=1e-6)


def test_all_that_was_trained_is_kept_and_what_was_chosen_is_calibrated(collecting, runs):
    rows = [about for about, _ in collecting.of_images(collecting.finished("ambiguous_digits"))]
    assert sum(not about["calibrator"] for about in rows) == len(runs)
    ways = {about["calibrator"] for about in rows if about["loss"] == "focal" and "calibration" in about["chosen_by"]}
    assert ways == {"", "temperature", *FURTHER}


@pytest.fixture(scope="module")
def without_votes(study, root):
    "The table of the study, without the votes of people."
    return shutil.copytree(study/"files"/"table", root/"table", ignore=shutil.ignore_patterns("*.votes.npz"))


def test_votes_may_come_from_a_file(without_votes, kept, root, tmp_path):
    good, wrong = tmp_path/"probs.npy", tmp_path/"wrong.npy"
    def stored(**settings):
        return run_here(STUDY, "", settings | dict(table=str(without_votes)), root, until="stored")["stored"]
    np.save(good, kept.posterior(IMAGES).numpy())
    assert torch.allclose(stored(votes=str(good)).posterior(IMAGES), kept.posterior(IMAGES))
    assert not stored().votes and kept.votes.keys() == {IMAGES}
    np.save(wrong, kept.posterior(IMAGES).roll(1, 1).numpy())  # the classes in another order
    with pytest.raises(ValueError, match="is not CIFAR-10H in the order"):
        stored(votes=str(wrong))


# The numbers of seeds that would decide the claims take a third of the time.
NEEDS_NOTHING = """def decide(claims, keep, of=decide):
    keep(pd.DataFrame(dict(claim=[claim.text for claim in claims], needed='')), 'needs', index=False)
    return of(claims)"""


def test_without_votes_people_are_left_out(study, without_votes, root):
    "All other claims have the same margins."
    folder = run_here(STUDY, NEEDS_NOTHING, dict(table=str(without_votes), n_boot=50), root)["experiment"].folder
    def margins(folder): return {f.claim.replace("MADE UP, ", ""): f.ours for f in folder.result.findings}
    every = margins(study)
    rest = {claim: ours for claim, ours in every.items() if "people" not in claim}
    assert 0 < len(rest) < len(every) and margins(folder) == rest


def test_readme_says_what_the_table_of_the_gallery_holds(tmp_path):
    "Means over the seeds of CE before and after a temperature: ECE, and the squared distance to people in two parts."
    for part in "", ".votes", ".ce", ".ce.more":  # the files of the other losses take seconds to read
        shutil.copy(ROOT/"runs"/"gallery"/"cifar10"/f"{IMAGES}{part}.npz", tmp_path)
    kept = read_study_table(tmp_path)
    votes = kept.votes[IMAGES]
    def told(calibrator):
        found = []
        for made in samples(kept, "ce", calibrator):
            shares = votes.gather(1, made.pred[:, None])[:, 0]/votes.sum(1)
            error = truth_error(made.conf, shares, votes.sum(1), resamples=Resamples(len(made), 2))
            ece = resampled_measures(made, Resamples(len(made), 2))["ece"][0]
            found.append([ece, error.calibration, error.refinement])
        return np.transpose(found)
    def points(values): return 100*np.mean(np.sqrt(values))
    (ece, parts, _), (ece_after, parts_after, rest) = told(""), told("temperature")
    sentence = (
        f"For networks trained with cross-entropy, temperature scaling lowers the ECE from {100*np.mean(ece):.1f} to "
        f"{100*np.mean(ece_after):.1f} %, and the calibration error against people from {points(parts):.1f} to "
        f"{points(parts_after):.1f} points. The remaining distance to people, {points(rest):.1f} points, is mostly")
    gallery = (ROOT/"runs"/"gallery"/"cifar10"/"evidence.ipynb").read_text(encoding="utf-8")
    assert sentence in gallery, sentence
