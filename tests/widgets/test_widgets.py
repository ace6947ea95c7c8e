"Explorers: numbers, figures equal to figures drawn from scratch, and pages without a kernel."
import io
import re
import sys

import nbformat
import numpy as np
import pytest
import torch
from explored import EXPLORE, check_pictures
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.losses import focal_gradient_factor
from calibnb.train import Recipe
from calibnb.runs import RunConfig, get_run
from calibnb.widgets import loss_explorer, reliability_explorer, run_explorer, simplex_explorer
from calibnb.widgets.losses import _loss_and_gradient


@pytest.fixture(scope="module")
def preds():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3000, 4, generator=draw)*2
    return Predictions(2*logits, torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for loss, epochs in ("ce", 3), ("focal", 6):
        config = RunConfig(loss=loss, recipe=Recipe.quick(epochs), recorders=("calibration_errors",))
        get_run(config, root, progress=False)
    return root


def pixels(explorer):
    return np.asarray(Image.open(io.BytesIO(explorer.picture()[0]))).astype(int)


def percent(text, which):
    "The ECEs in a line like 'ECE 1.23 % (...) uncalibrated, 0.5 % (...) at'."
    return [float(part.split(" %")[0].split()[-1]) for part in text.split(": ")[1].split(" (")[:-1]][which]


def test_numbers_equal_the_metrics(preds):
    explorer = reliability_explorer(preds)
    for T, n_bins in (1., 15), (1.7, 7):
        probs = (preds.logits.double()/T).softmax(1)
        for scheme, measure in ("equal width", metrics.ece), ("equal mass", metrics.ada_ece):
            explorer.set(temperature=T, n_bins=n_bins, scheme=scheme, of=None)
            assert abs(percent(explorer.picture()[1], 1) - 100*measure(probs, preds.target, n_bins).item()) < .0051
        explorer.set(scheme="equal width")
        each = []
        for k in range(4):
            explorer.set(of=k)
            each.append(percent(explorer.picture()[1], 1))
        assert abs(np.mean(each) - 100*metrics.classwise_ece(probs, preds.target, n_bins).item()) < .0051


def test_one_column_begins_with_itself(preds):
    "It draws P(y = 1) against the frequency of y = 1, and the other class or the predictions on demand."
    p, y = preds.probs[:, 0], preds.target == 0
    column = Predictions.from_probs(p, y)
    explorer = reliability_explorer(column)
    axes = explorer.figure().axes[0]
    assert axes.child_axes[0].get_xlabel() == "P(y = 1)" and axes.get_ylabel() == "frequency of y = 1"
    assert abs(percent(explorer.picture()[1], 0) - 100*metrics.ece(p, y).item()) < .0051
    explorer.set(of=None)
    axes = explorer.figure().axes[0]
    assert axes.child_axes[0].get_xlabel() == "confidence" and axes.get_ylabel() == "accuracy"
    assert abs(percent(explorer.picture()[1], 0) - 100*metrics.ece(column.class_probs, y.long()).item()) < .0051
    explorer.set(of=0)
    assert explorer.figure().axes[0].child_axes[0].get_xlabel() == "P(y = 0)"
    odds = Predictions(2*p.logit(), torch.rand(len(p), generator=torch.Generator().manual_seed(0)) < p)
    assert abs(reliability_explorer(odds, odds).values["temperature"] - 2) < .2


def test_the_first_temperature_is_fitted_on_the_validation_set(preds):
    assert abs(reliability_explorer(preds, preds).values["temperature"] - 2) < .2
    assert reliability_explorer(preds).values["temperature"] == 1


MOVES = {  # an explorer -> moves of its controls, the last of which leads back to where it began
    reliability_explorer: [  # each control by itself: test_numbers_equal_the_metrics
        dict(temperature=2., n_bins=40),
        dict(scheme="equal mass", of=2),
        dict(of=None, n_bins=15, scheme="equal width", temperature=1.),
    ],
    loss_explorer: [
        dict(focal=1.5),
        dict(classes=10),
        dict(losses=("ce", "dual_focal")),
        dict(losses=("ce", "focal", "inverse_focal", "bsce_gra"), classes=2, focal=3.),
    ],
    simplex_explorer: [
        dict(turn=60),
        dict(weight="focal"),
        dict(least=.5),
        dict(turn=10, weight="BSCE", least=0.),
    ],
    run_explorer: [
        dict(epoch=1),
        dict(column="test_ece"),
        dict(n_bins=5),
        dict(epoch=6, column="train_loss", n_bins=15),
    ],
}


@pytest.mark.parametrize("make", MOVES)
def test_moves_show_the_figure_drawn_from_scratch(make, preds, runs):
    explorer = make(*{reliability_explorer: [preds], run_explorer: [runs]}.get(make, []))
    allowed = .004 if make is reliability_explorer else .0004  # only spines differ: they lie on top
    first = before = pixels(explorer)
    for move in MOVES[make]:
        explorer.set(**move)
        after = pixels(explorer)
        assert (after != before).any(), move
        canvas = FigureCanvasAgg(explorer.figure())
        canvas.draw()
        anew = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
        apart = (abs(after - anew).max(-1) > 60).mean()
        assert apart < allowed, (move, apart)
        before = after
    assert (after == first).all()   # nothing of a move stays


def test_a_shorter_run_is_read_at_its_end(runs):
    explorer = run_explorer(runs)
    explorer.set(epoch=6)
    text = explorer.picture()[1]
    assert "CE s0" in text and "(epoch 3)" in text and "FL" in text, text
    shown_as = {name: text for text, name in explorer.controls["chosen"].options}
    explorer.set(chosen=tuple(name for name in explorer.values["chosen"] if "CE" in shown_as[name]))
    top = explorer.figure().axes[0]
    at_epoch = next(line for line in top.lines if len(set(line.get_xdata())) == 1)
    assert top.get_xlim()[1] < 5 and at_epoch.get_xdata()[0] == 6   # beyond the axes, which stay as they are
    explorer.set(chosen=())
    assert "choose a run" in explorer.picture()[1]


def test_names_may_repeat(preds):
    explorer = reliability_explorer(preds, names=np.array(["a", "b", "a", "predicted class"]))
    captions = []
    for k in 0, 2, 3, None:
        explorer.set(of=k)
        captions.append(explorer.picture()[1].split("ECE", 1)[1])
    assert len(set(captions)) == 4


def test_a_cached_curve_is_small():
    values = _loss_and_gradient("ce", {}, torch.linspace(.1, .9, 5, dtype=torch.float64), 100)[1]
    assert values.untyped_storage().nbytes() == 5*8


def test_controls_without_effect_are_hidden(preds):
    explorer = loss_explorer(["ce", "focal"])

    def hidden():
        return {name for name, c in explorer.controls.items() if c.layout.display == "none"}

    assert "focal" not in hidden() and "bsce_gra" in hidden()
    explorer.set(losses=("bsce_gra",))
    assert "focal" in hidden() and "bsce_gra" not in hidden()


def test_gradient_factors():
    p = torch.linspace(.01, .99, 50, dtype=torch.float64)
    (ce, slope), (_, pull) = _loss_and_gradient("ce", {}, p, 2), _loss_and_gradient("focal", dict(gamma=2.), p, 2)
    assert torch.allclose(ce, -p.log()) and torch.allclose(pull/slope, focal_gradient_factor(p, 2.))
    loss, pull = _loss_and_gradient("focal_gra", dict(gamma=2.), p, 5)
    assert torch.allclose(pull/_loss_and_gradient("ce", {}, p, 5)[1], (1 - p)**2)


@pytest.mark.parametrize("make, message", [
    (lambda preds, runs: reliability_explorer(preds, names=["a"]), "names: 1, want 4"),
    (lambda preds, runs: reliability_explorer(preds, n_bins=0), "n_bins: 0"),
    (lambda preds, runs: loss_explorer(["mmce"]), "loss: 'mmce'"),
    (lambda preds, runs: simplex_explorer("mmce"), "weight: 'mmce'"),
    (lambda preds, runs: simplex_explorer(steps=10), "steps: 10"),
    (lambda preds, runs: run_explorer("/nowhere"), "root: no finished training"),
    (lambda preds, runs: run_explorer(runs, "los"), "column: 'los'"),
])
def test_bad_input_is_refused(make, message, preds, runs):
    with pytest.raises(ValueError, match=message):
        make(preds, runs)


@pytest.mark.parametrize("move, message", [
    (dict(bins=3), "control: 'bins'"),
    (dict(temperature=0), "temperature: 0, want 0.1 to 10"),
    (dict(scheme="mass"), "scheme: 'mass', want .*equal mass"),
])
def test_a_wrong_move_is_refused(move, message, preds):
    with pytest.raises(ValueError, match=message):
        reliability_explorer(preds).set(**move)


def test_other_objects_and_a_missing_package_are_refused(preds, monkeypatch):
    with pytest.raises(TypeError, match=r"preds: ndarray, want calibnb.Predictions\(logits, target\)"):
        reliability_explorer(np.zeros((3, 2)))
    assert "figure()" in repr(reliability_explorer(preds))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r"pip install 'calibnb\[notebooks\]'"):
        reliability_explorer(preds)


@pytest.mark.parametrize("name", ["reliability", "losses"])
def test_pictures_replace_a_front_end(name, tmp_path, preds, monkeypatch):
    "The other notebooks in tests/slow/test_browser.py."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    check_pictures(name, tmp_path, preds)


def test_links_of_the_start_page_work():
    for path in EXPLORE.glob("*.ipynb"):
        text = "\n".join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert link.startswith("http") or (EXPLORE/link).exists(), (path.name, link)
    linked = "\n".join(c.source for c in nbformat.read(EXPLORE/"start.ipynb", 4).cells)
    assert all(f"({p.name})" in linked for p in EXPLORE.glob("*.ipynb") if p.stem != "start")
