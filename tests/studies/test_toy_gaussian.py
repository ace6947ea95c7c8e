"The study of uncertainty weights on Gaussians: its table and margins are those of its trainings."
import numpy as np
import pytest
from conftest import assert_complete, run_forked
from reading import assert_undecided_by_two, finding, kinds, margin, plan, table, trainings, with_cell

from calibnb.data import load_data
from calibnb.losses.weights import LogProbs, dual_focal_weight, focal_weight
from calibnb.notebooks import CONTRADICTED, UNDECIDED

SMALL = dict(n_seeds=2)
GAMMAS = .125, .25, .5, 1., 2., 3., 5.


@pytest.fixture(scope="module")
def study(root):
    return run_forked("toy_gaussian", SMALL, root=root)


def problems(root):
    runs = [r for r in trainings(root, "toy_gaussian") if r.config.seed < 2]
    return sorted(runs, key=lambda r: r.config.seed)


def correlations(run, weight):
    "(exponents, all samples or a half) of a weight with the true calibration error."
    preds = run.predictions("test")
    posterior = load_data("gaussians", seed=run.config.seed, **run.config.data_args).test.posterior
    c, lp = (posterior - preds.probs).norm(dim=1).numpy(), LogProbs(preds.logits.double(), preds.target)
    parts = slice(None), slice(0, None, 2), slice(1, None, 2)
    return np.array([[np.corrcoef(weight(lp, g).numpy()[part], c[part])[0, 1] for part in parts] for g in GAMMAS])


def held_out(run, weight):
    "The exponent of one half, the correlation of the other."
    _, first, second = correlations(run, weight).T
    return (second[first.argmax()] + first[second.argmax()])/2


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert kinds(study) == {"paper", "ours", "identity"}
    assert_undecided_by_two(study)
    assert [config.seed for config in plan("toy_gaussian", n_seeds=5)] == [0, 1, 2, 3, 4]


def test_the_table_is_of_the_trainings(root, study):
    head, *rows = table(study, "correlations")
    rows = {row[0]: dict(zip(head[1:], row[1:])) for row in rows}
    assert [float(rows[name]["paper's best"]) for name in ("focal", "dual focal", "Brier")] == [.55, .638, .664]

    def text(values): return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    for name, weight in {"focal": focal_weight, "dual focal": dual_focal_weight}.items():
        assert rows[name]["best, c norm"] == text([correlations(r, weight)[:, 0].max() for r in problems(root)])
        assert rows[name]["held out, c norm"] == text([held_out(r, weight) for r in problems(root)])


def test_margins_are_held_out(root, study):
    lead = [held_out(r, dual_focal_weight) - held_out(r, focal_weight) for r in problems(root)]
    found = finding(study, "dual focal tracks the error better than focal")
    assert found.kind == "paper" and found.effect.value == pytest.approx(np.mean(lead))
    assert found.effect.seeds == 2 and found.effect.n_test == 5000


def test_a_weight_that_is_large_where_the_error_is_small_is_noticed(root, study, tmp_path):
    negative = "def bsce_weight(*args, of=bsce_weight): return -of(*args)"
    folder = run_forked(with_cell("toy_gaussian", tmp_path, negative), SMALL, root=root)
    assert finding(folder, "the best of Brier is at least").verdict == CONTRADICTED
    for start in "all three weights correlate", "Brier tracks the error better than focal", "looking at the whole":
        assert margin(folder, start) < 0
    assert margin(folder, "dual focal tracks") == margin(study, "dual focal tracks")
    assert margin(study, "all three weights correlate") > 0


def test_one_problem_and_another_distance(root, tmp_path):
    folder = run_forked(with_cell("toy_gaussian", tmp_path), dict(n_seeds=1, distance="top"), root=root)
    assert {f.verdict for f in folder.result.findings if f.kind != "identity"} == {UNDECIDED}
