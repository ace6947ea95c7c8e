"loss_comparison, run small: computed from its trainings, one test set for all sizes, and broken on purpose it turns."
import ast
import re

import nbformat
import numpy as np
import pytest
import torch
from conftest import EXPERIMENTS, assert_complete
from reading import (
    accuracy_percent, assert_open, eces, finding, margin, percent, plan, run_here, shown_rival, table, true_ce,
    with_loss)
from yours import forget

from calibnb.metrics import debiased_ece
from calibnb.notebooks import Notebook
from calibnb.notebooks.parameters import seeds_of
from calibnb.runs import choose_coefficient
from calibnb.studies.wang2021 import wang2021_grids

NEWER = {"mbls": "MbLS", "adafocal": "AdaFocal"}
STUDY, SETTINGS = "loss_comparison", dict(smoke=True, n_seeds=2, epochs=3, others=[*NEWER])
LEAST, MOST = 100, 300  # training samples
NETWORKS = {"MLP 128-128": [128, 128], "MLP 32": [32]}


def of(root, loss, hidden=(128, 128), n_train=MOST, **options):
    "Return the trainings of a loss on a network, by seed."
    return [r for r in with_loss(root, STUDY, loss, **options)
            if r.config.model_args["hidden"] == list(hidden) and r.config.data_args["n_train"] == n_train]


def rows_of(folder, name):
    "Network and loss -> column -> text."
    head, *rows = table(folder, name)
    columns = [c for c in head if c not in ("network", "loss", "metric")]
    return {tuple(row[:2]): dict(zip(columns, row[2:])) for row in rows if row[0] in NETWORKS}


def chosen(root, hidden, loss, option, values):
    "Return of each seed the training whose coefficient its validation samples prefer."
    of_value = {v: of(root, loss, hidden, **{option: v}) for v in values}
    picked = []
    for i in range(2):
        runs = {v: runs[i] for v, runs in of_value.items()}
        preds = {v: run.predictions("val") for v, run in runs.items()}
        picked.append(runs[choose_coefficient(preds, clusters=runs[values[0]].rows["val"])])
    return picked


def test_it_leaves_notebook_figures_tables_findings(study):
    assert_complete(study)
    assert_open(study, "paper", "ours")


def assert_in_the_table(row, runs):
    assert len(runs) == 2 and row["ECE %"].startswith(percent(eces(runs)))
    assert row["true calibration error %"].startswith(percent([true_ce(r) for r in runs]))


def test_the_table_is_of_the_trainings(root, study):
    rows = rows_of(study, "at_the_end")
    losses = {"CE": ("ce", {}), "L1-0.05": ("lp_norm", dict(alpha=.05)), "FL-3": ("focal", dict(gamma=3.))}
    for network, hidden in NETWORKS.items():
        for label, (loss, options) in losses.items():
            assert_in_the_table(rows[network, label], of(root, loss, hidden, **options))
        runs = chosen(root, hidden, "focal", "gamma", (1., 3.))
        assert_in_the_table(rows[network, "FL, chosen"], runs)
        said = rows_of(study, "chosen")[network, "FL"]["chosen"]
        assert said.endswith("({:g}, {:g}) of 1, 3".format(*(r.config.loss_args["gamma"] for r in runs)))


def test_newer_losses_have_a_row_on_the_first_network(root, study):
    rows, (first, second) = rows_of(study, "at_the_end"), NETWORKS
    assert [loss for network, loss in rows if network == first][-2:] == list(NEWER.values())
    assert not any((second, label) in rows for label in NEWER.values())
    for loss, label in NEWER.items():
        runs = of(root, loss)
        assert not of(root, loss, NETWORKS[second]) and not of(root, loss, n_train=LEAST)
        assert_in_the_table(rows[first, label], runs)
        sizes = [r.predictions("test").logits.abs().mean().item() for r in runs]
        assert rows[first, label]["mean |logit|"].startswith(percent(sizes))
    for begun, moved in zip(of(root, "focal", gamma=1.), of(root, "adafocal"), strict=True):
        assert begun.history["train_loss"][0] == moved.history["train_loss"][0]
        assert begun.history["train_loss"][-1] != moved.history["train_loss"][-1]


def test_numbers_over_the_coefficients_are_of_the_trainings(root, study):
    head, *rows = table(study, "coefficients")
    assert head == ["loss", "training samples", "ECE %", "accuracy %"] and len(rows) == 2*(2 + 2)
    found = {(loss, int(n)): numbers for loss, n, *numbers in rows}
    for n in LEAST, MOST:
        runs = of(root, "label_smoothing", n_train=n, eps=.05)
        assert found["LS-0.05", n] == [percent(eces(runs)), percent([accuracy_percent(r) for r in runs])]


def test_the_test_set_does_not_change_with_the_training_set(root, study):
    for loss, options in ("ce", {}), ("focal", dict(gamma=1.)):
        few, all_ = (of(root, loss, n_train=n, **options)[1] for n in (LEAST, MOST))
        assert [len(r.rows["train"]) for r in (few, all_)] == [LEAST, MOST]
        assert torch.equal(few.rows["train"], all_.rows["train"][:LEAST])
        for part in "val", "test":
            assert torch.equal(few.rows[part], all_.rows[part])
            assert torch.equal(few.predictions(part).target, all_.predictions(part).target)


def test_entropy_may_gain_the_smallest_effect_of_interest(root, study):
    claim = "entropy regularisation, its coefficient chosen, lowers"
    hidden = NETWORKS[shown_rival(finding(study, claim))]
    gains = eces(of(root, "ce", hidden)) - eces(chosen(root, hidden, "entropy", "alpha", (.1, .5)))
    assert margin(study, claim) == pytest.approx(.5 - gains.mean())


def test_a_coefficient_is_carried_over(root, study):
    "From the validation samples of the largest training set to the test samples of the smallest."
    runs = {(n, g): of(root, "focal", n_train=n, gamma=g) for n in (LEAST, MOST) for g in (1., 3.)}

    def ece_of_the_best(n, i):
        "ECE on the fewest samples, with the coefficient that n samples prefer."
        return eces(runs[LEAST, ranked({g: runs[n, g][i] for g in (1., 3.)})[0]])[i]
    costs = [ece_of_the_best(MOST, i) - ece_of_the_best(LEAST, i) for i in range(2)]
    assert margin(study, "FL: on 100 training samples, the best coefficient for 300") == pytest.approx(np.mean(costs))


def ranked(runs):
    "Return the coefficients of trainings, coefficient -> run, from the best to the worst of the validation samples."
    val = {c: run.predictions("val") for c, run in runs.items()}
    return sorted(val, key=lambda c: debiased_ece(val[c].probs, val[c].target))


def test_the_worst_coefficient_beside_the_best(root, study):
    found = finding(study, "the ECE depends on the coefficient")
    family, n = re.fullmatch(r"(LS|FL) with (\d+) training samples", shown_rival(found)).groups()
    loss, option, values = dict(LS=("label_smoothing", "eps", (.05, .2)), FL=("focal", "gamma", (1., 3.)))[family]
    of_value = {c: of(root, loss, n_train=int(n), **{option: c}) for c in values}
    orders = [ranked({c: runs[i] for c, runs in of_value.items()}) for i in range(2)]
    differences = [eces(of_value[worst])[i] - eces(of_value[best])[i] for i, (best, worst) in enumerate(orders)]
    assert found.effect.value == pytest.approx(np.mean(differences))


def test_margins_are_of_the_trainings(root, study):
    "Of the network that decides."
    def confidence(run): return 100*run.predictions("test").conf.mean().item()
    def size(run): return run.predictions("test").logits.abs().mean().item()
    for start, measure, loss, options in (
            ("focal loss makes the network less confident", confidence, "focal", dict(gamma=3.)),
            ("entropy regularisation makes the network less confident", confidence, "entropy", dict(alpha=.5))):
        def mean(hidden, loss, **options): return np.mean([measure(r) for r in of(root, loss, hidden, **options)])
        margins = {name: mean(h, "ce") - mean(h, loss, **options) for name, h in NETWORKS.items()}
        assert margin(study, start) == pytest.approx(margins[shown_rival(finding(study, start))])
    parts = {}
    for network, hidden in NETWORKS.items():
        ce, l1 = of(root, "ce", hidden), chosen(root, hidden, "lp_norm", "alpha", (.01, .05))
        for name, measure, sesoi in ("logits", size, .5), ("confidence", confidence, .5):
            parts[f"{name}, {network}"] = np.mean([measure(a) - measure(b) for a, b in zip(ce, l1)])/sesoi
    both = finding(study, "L1 with a chosen coefficient has a smaller mean |logit|")
    assert both.id == "lossstudy-08" and both.effect.value == pytest.approx(parts[shown_rival(both)], rel=1e-4)


def test_l1_is_not_asked_of_the_network_that_the_study_excepts(study):
    lower = finding(study, "L1 with a chosen coefficient has a lower ECE")
    assert lower.id == "lossstudy-05" and "except ResNet18" in lower.paper
    code = "\n".join(c.source for c in nbformat.read(EXPERIMENTS/f"{STUDY}.ipynb", 4).cells if c.cell_type == "code")
    assert "WITHOUT_L1 = {'ResNet-18'}" in code and "on_all('L1, chosen', 'CE', WITHOUT_L1)" in code


UNKNOWN = """from dataclasses import replace
def load_data(*args, of=load_data, **options):
    splits = of(*args, **options)
    return replace(splits, test=replace(splits.test, posterior=None))"""


def test_one_repetition_without_a_known_truth(root, study):
    "The trainings are those of the study."
    folder = run_here(STUDY, UNKNOWN, SETTINGS | dict(n_seeds=1), root)["experiment"].folder
    assert_open(folder, "paper", "ours", seeds=1)
    assert "true calibration error %" not in table(folder, "at_the_end")[0]


def test_a_position_is_that_in_the_grid_of_sizes():
    "With the grids of the paper's own setting, which differ from the grids of Fig. 1 a to c."
    cells = [c.source for c in nbformat.read(EXPERIMENTS/f"{STUDY}.ipynb", 4).cells if c.cell_type == "code"]
    names = Notebook(STUDY).plan(dict(quick=False, data="cifar10"))
    names["best"] = {("LS", 5_000): {0: .02, 1: .25}, ("L1", 5_000): {0: .02, 1: .1}, ("FL", 5_000): {0: 9., 1: 1.}}
    grids, = [cell for cell in cells if "grids_of_sizes = dict(grids)" in cell]
    names |= dict(seeds_of=seeds_of, wang2021_grids=wang2021_grids)
    exec(grids.split("families = dict(")[0], names)
    names |= dict(seeds=[0, 1], np=np)
    tree = ast.parse("\n".join(cells))
    position, = [node for node in tree.body if getattr(node, "name", "") == "position"]
    exec(ast.unparse(position), names)
    found = {family: names["position"](family, 5_000).tolist() for family in ("LS", "L1", "FL")}
    assert found == {"LS": [1, 24], "L1": [1, 9], "FL": [4, 0]}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    "A user's file with two losses, one of them called as a row of the table; nothing of it stays behind."
    path = tmp_path/"mine.py"
    path.write_text("""
from calibnb.losses import register_loss

@register_loss("mine")
def mine(logits, target, power:float=2.): return (1 - logits.softmax(1).gather(1, target[:, None])[:, 0])**power

@register_loss("CE")
def ce(logits, target): return mine(logits, target)
""")
    monkeypatch.setenv("CALIBNB_PLUGINS", str(path))
    yield path
    forget(path)


def test_the_settings_of_the_papers_can_be_planned(mine):
    "Other losses are planned beside those of the paper, a row each, unless they cannot have one."
    wang, study = (plan(STUDY, paper=paper, n_seeds=1) for paper in ("wang2021", "loss_study"))
    assert len(wang) == 3*(1 + 25 + (10 + 2) + 5), "Fig. 1 d has grids of its own, and .001 and .005 are in Fig. 1 b"
    assert len(plan(STUDY, data="cifar100", n_seeds=1)) == 3*(1 + 5 + 3 + 5)
    assert {(c.model, c.recipe.epochs, c.recipe.batch_size) for c in wang} == {("resnet32", 200, 512)}
    assert {c.loss_args["gamma"] for c in wang if c.loss == "focal"} == {1., 3., 5., 7., 9.}
    assert len(study) == 3*(1 + 3 + 2 + 3) and {c.model for c in study} == {"resnet18", "resnet50", "vgg16"}
    more = plan(STUDY, paper="loss_study", n_seeds=1, others=["mine", "adafocal", "mine"])
    assert len(more) == len(study) + 2*3 and [c.loss for c in more[-6:]] == ["mine", "adafocal"]*3
    with pytest.raises(ValueError, match="would make a second row CE; name other losses"):
        plan(STUDY, n_seeds=1, others=["CE"])
    with pytest.raises(ValueError, match="others: loss: 'mihne' is not known; did you mean 'mine'.* adafocal, mine"):
        plan(STUDY, others=["mihne"])
