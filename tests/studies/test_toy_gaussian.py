"The study of uncertainty weights on Gaussians: its table and margins are those of its trainings."
import numpy as np
import pytest
from conftest import assert_complete
from reading import assert_open, finding, margin, percent, plan, rows, run_here, trainings

from calibnb.data import load_data
from calibnb.losses.weights import LogProbs, bsce_weight, dual_focal_weight, focal_weight
from calibnb.studies import CONTRADICTED

STUDY, SETTINGS = "toy_gaussian", dict(n_seeds=2, epochs=2)
GAMMAS = .125, .25, .5, 1., 2., 3., 5.
GAMMAS_AND_BETAS = [(gamma, beta) for gamma in GAMMAS for beta in (1., 2., 3., 4.)]


def brier_weight(lp, gamma):
    return bsce_weight(lp, gamma, 2.)


def distance_to(truth, probs):
    return (truth - probs).norm(dim=1)


def distance_of_prediction(truth, probs):
    return (truth - probs).abs().gather(1, probs.argmax(1, keepdim=True))[:, 0]


def correlations(root, weight, error=distance_to, exponents=GAMMAS):
    "Return of each problem: (exponents, all samples or a half) of a weight with the true calibration error."
    found = []
    for run in trainings(root, STUDY)[:2]:
        preds = run.predictions("test")
        posterior = load_data("gaussians", seed=run.config.seed, **run.config.data_args).test.posterior
        c, lp = error(posterior, preds.probs).numpy(), LogProbs(preds.logits.double(), preds.target)
        parts = slice(None), slice(0, None, 2), slice(1, None, 2)
        found.append([[np.corrcoef(weight(lp, g).numpy()[part], c[part])[0, 1] for part in parts]
                      for g in exponents])
    return np.array(found)


def held_out(root, weight, *args):
    "Return of each problem the correlation on one half with the exponent of the other."
    halves = [found[:, 1:].T for found in correlations(root, weight, *args)]
    return np.array([(second[first.argmax()] + first[second.argmax()])/2 for first, second in halves])


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "paper", "ours", "identity")
    assert [config.seed for config in plan(STUDY, n_seeds=5)] == [0, 1, 2, 3, 4]


def test_the_table_is_of_the_trainings(root, study):
    found = rows(study, "correlations")
    assert [float(found[name]["paper's best"]) for name in ("focal", "dual focal", "Brier")] == [.55, .638, .664]
    for name, weight in {"focal": focal_weight, "dual focal": dual_focal_weight}.items():
        assert found[name]["best, c norm"] == percent(correlations(root, weight)[:, :, 0].max(1), digits=3)
        assert found[name]["held out, c norm"] == percent(held_out(root, weight), digits=3)


def test_margins_are_held_out(root, study):
    lead = held_out(root, dual_focal_weight) - held_out(root, focal_weight)
    found = finding(study, "dual focal tracks the error better than focal")
    assert found.kind == "ours" and found.effect.value == pytest.approx(lead.mean())
    assert found.effect.seeds == 2 and found.effect.n_test == 5000
    focal, dual = (held_out(root, weight).mean() for weight in (focal_weight, dual_focal_weight))
    squared = held_out(root, brier_weight).mean()
    assert margin(study, "all probabilities help") == pytest.approx(squared - focal)
    brier = held_out(root, lambda lp, powers: bsce_weight(lp, *powers), distance_to, GAMMAS_AND_BETAS).mean()
    assert margin(study, "Brier tracks the error better than focal") == pytest.approx(brier - focal)
    assert margin(study, "all three weights correlate") in map(pytest.approx, (focal, dual, brier))
    order = finding(study, "Brier tracks the true calibration error better than dual focal, and dual focal better")
    assert (order.id, order.data) == ("lin-28", "Gaussians") and "Numbers: 0.664, 0.638, 0.550" in order.paper


def test_a_weight_that_is_large_where_the_error_is_small_is_noticed(root, study):
    "In one problem, with the error of the predicted class."
    source, settings = "def bsce_weight(*args, of=bsce_weight): return -of(*args)", dict(n_seeds=1, distance="top")
    folder = run_here(STUDY, source, SETTINGS | settings, root)["experiment"].folder
    assert finding(folder, "the best Brier weight is at least").verdict == CONTRADICTED
    for start in ("all three weights correlate", "Brier tracks the error better than focal",
                  "all probabilities help"):
        assert margin(folder, start) < 0
    dual, focal, squared = (held_out(root, weight, distance_of_prediction)[0] for weight in (
        dual_focal_weight, focal_weight, lambda lp, gamma: -brier_weight(lp, gamma)))
    assert margin(folder, "dual focal tracks") == pytest.approx(dual - focal)
    assert margin(folder, "all probabilities help") == pytest.approx(squared - focal)
