"One table for any model: what it measures, what it fits on, and what it marks."
import io
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from close import close
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.core.folds import random_order
from calibnb.core.probabilities import class_probs
from calibnb.evaluate import (
    UNCALIBRATED, Evaluation, Resamples, Scored, check_sets, evaluate, measure_all, resampled_measures)
from calibnb.evaluate.audit import CrossFits, warning_texts
from calibnb.evaluate.ranking import as_good_as_best
from calibnb.metrics.measure import COLUMNS
from calibnb.evaluate.diagnosis import miscalibration_test
from calibnb.posthoc import CALIBRATORS, list_calibrators, make_calibrator

def overconfident(N=1200, K=4, scale=2., seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2*scale*torch.randn(N, K, generator=draw)
    return Predictions(logits, torch.multinomial((logits/scale).softmax(1), 1, generator=draw)[:, 0])


def one_column(N=1500, seed=0, shift=1.):
    "Log-odds that are twice too large and shifted, of a class that is rare."
    draw = torch.Generator().manual_seed(seed)
    odds = 2*torch.randn(N, generator=draw, dtype=torch.float64) - 1
    y = torch.rand(N, generator=draw) < odds.sigmoid()
    return Predictions(2*odds + shift, y)


BINARY = dict(error=metrics.error_rate, nll=metrics.nll, brier=metrics.brier_score, ece=metrics.ece,
              ada_ece=metrics.ada_ece, smooth_ece=metrics.smooth_ece)
MULTICLASS = {name: metric for name, metric in BINARY.items() if name != "nll"} | dict(
    classwise_ece=metrics.classwise_ece)


@pytest.mark.parametrize("make", [overconfident, one_column])
def test_every_row_is_what_the_metrics_say(make):
    preds, val = make(), make(seed=1)
    table, target = evaluate(preds, val, n_boot=50, draws=5), preds.target
    usual = [name for name in list_calibrators() if CALIBRATORS[name].in_audits]
    assert list(table.rows)[:len(usual) + 1] == [UNCALIBRATED, *usual]
    for row in [UNCALIBRATED, *usual]:
        measures, probs = table.rows[row], preds.probs
        if row != UNCALIBRATED:
            probs = make_calibrator(row).fit(val.logits, val.target).transform(preds.logits.double())
        for name, metric in (BINARY if preds.binary else MULTICLASS).items():
            value = metric(probs, target, validate=False)
            assert math.isclose(measures[name].value, value, abs_tol=1e-6), (row, name)
        ece_50 = metrics.ece(probs, target, 50, validate=False)
        assert math.isclose(measures["ece_50"].value, ece_50, abs_tol=1e-9)
        if preds.binary:
            top = metrics.ece(class_probs(probs), target, validate=False)
            assert math.isclose(measures["top_label_ece"].value, top, abs_tol=1e-9)
        assert all(m.n == len(preds) for m in measures.values())
        assert measures["ece"].bins == 15 and measures["ece_50"].bins == 50
        assert all(m.interval[0] <= m.value <= m.interval[1] for m in measures.values() if m.interval)
        assert all((m.floor is not None) == ("ece" in name) for name, m in measures.items())
    assert preds.binary == ("ECE, adaptive ECE and smooth ECE compare P(y = 1)" in table.text())


@pytest.fixture(scope="module")
def found():
    preds = overconfident()
    return preds, evaluate(preds, overconfident(seed=1), n_boot=200, draws=10)


@pytest.mark.parametrize("name", ["histogram", "isotonic", "platt", "spline", "temperature+isotonic", "vector+platt"])
def test_one_prediction_in_the_table_in_metrics_by_name_and_in_the_next_audit(name):
    "A confidence that becomes smaller stays the largest of its row, so everybody sees the same prediction."
    preds, val = overconfident(seed=3), overconfident(seed=4)
    calibrator = make_calibrator(name).fit(val.logits, val.target)
    probs = calibrator.transform(preds.logits.double())
    written = Predictions.from_probs(probs, preds.target)
    scored = Scored.of(preds, calibrator, 997), Scored.of(written, None, 997)  # shares of hits lie on edges of 15 bins
    measures, again = (measure_all(each, n_boot=10, draws=2) for each in scored)
    assert (probs.argmax(1) == preds.pred).double().mean() > (.9 if name == "vector+platt" else .999)
    assert torch.equal(calibrator.predict(preds.logits.double()), probs.argmax(1))
    for metric in "error", "ece", "smooth_ece":
        assert measures[metric].value == pytest.approx(again[metric].value, abs=1e-9)
    assert measures["ece"].value == pytest.approx(metrics.ece(probs, preds.target, 997).item(), abs=1e-9)


def test_cross_fitting_judges_no_sample_by_a_calibrator_that_saw_it():
    preds = overconfident(N=400)
    table = evaluate(preds, calibrators=["isotonic", "vector"], folds=2, n_boot=20, draws=2, seed=3)
    halves = random_order(preds.logits, preds.target, 3).tensor_split(2)
    for name in "isotonic", "vector":
        for own, other in (halves, halves[::-1]):
            calibrator = make_calibrator(name).fit(preds.logits[other], preds.target[other])
            judged = Scored.of(preds[own], calibrator)
            want = judged.per_sample() | dict(pred=judged.pred, conf=judged.conf)
            found = table.scored[name].per_sample() | dict(pred=table.scored[name].pred, conf=table.scored[name].conf)
            assert all(close(found[number][own], values, 400) for number, values in want.items())
        everything = make_calibrator(name).fit(preds.logits, preds.target)
        repeated = table.fitted[name].transform(preds.logits)
        assert torch.equal(repeated, everything.transform(preds.logits))  # bits: the same fit twice
    assert "cross-fitted in 2 folds" in table.caption()


def test_recommendation_and_marks(found):
    _, table = found
    assert table.recommended == "temperature" and "overconfident" in table.advice() and "T = 2." in table.advice()
    assert UNCALIBRATED not in table.best["nll"] and UNCALIBRATED not in table.best["ece"]
    html = table._repr_html_()
    assert "temperature" in html and html.count("floor") >= 6*len(table.rows)
    for name, rows in table.best.items():  # a star only where nothing is as good
        assert len(rows) >= 1 and (len(rows) > 1 or " *" in table.text())
    frame = table.frame()
    assert len(frame) == len(table.rows)*len(table.rows[UNCALIBRATED]) and frame.loc[("temperature", "nll"), "best"]


def test_a_winner_is_marked_only_beyond_chance():
    "A clear case, and one where only noise tells the rows apart."
    clear = evaluate(overconfident(4000, scale=4.), calibrators=["temperature"], n_boot=100, draws=2)
    assert all(clear.best[name] == ["temperature"] for name in ("nll", "ece", "brier"))
    assert clear.text().count(" *") >= 5
    assert clear.best["error"] == [UNCALIBRATED, "temperature"]  # the same predictions
    fair = evaluate(overconfident(1000, scale=1., seed=2), calibrators=["temperature"], n_boot=100, draws=2)
    assert fair.recommended == UNCALIBRATED and "leave the probabilities as they are" in fair.advice()
    for name in "error", "ece", "ada_ece", "smooth_ece", "classwise_ece":
        assert set(fair.best[name]) == {UNCALIBRATED, "temperature"}
    for table in clear, fair:
        assert table.text().split("\n\n")[0].count(" *") == sum(len(rows) == 1 for rows in table.best.values())


def test_an_infinite_nll_is_said_and_never_recommended():
    preds = overconfident(300)
    textbook = dict(isotonic=make_calibrator("isotonic", smooth=False))
    table = evaluate(preds, overconfident(30, seed=5), calibrators=textbook, n_boot=50, draws=2)
    assert table.rows["isotonic"]["nll"].value is None and table.rows["isotonic"]["nll"].interval is None
    assert "∞" in table.text() and "∞" in table._repr_html_() and table.recommended == UNCALIBRATED
    written = pd.read_csv(io.StringIO(table.frame().to_csv()), index_col=[0, 1], dtype=str)
    assert float(written.value["isotonic", "nll"]) == math.inf and "isotonic,nll,inf," in table.frame().to_csv()
    assert written.value.notna().all()
    assert float(written.lo[UNCALIBRATED, "error"]) == table.rows[UNCALIBRATED]["error"].interval[0]
    assert "isotonic" not in table.best["nll"]


def test_probabilities_with_zeros():
    probs = torch.tensor([[1., 0.], [.5, .5], [.7, .3], [0., 1.]])
    with pytest.warns(UserWarning, match="1 of 4 labels have probability 0"):
        preds = Predictions.from_probs(probs, torch.tensor([0, 1, 0, 0]))
    assert torch.allclose(preds.probs, probs.double(), atol=1e-7)
    assert Scored.of(preds).nll[3] == math.inf  # as given; calibrators see a small probability
    assert close(preds.logits.softmax(1)[3, 0], preds.eps/(2 + preds.eps), terms=2) and 1/8 <= preds.eps < 1
    with pytest.warns(UserWarning, match="calibrators count each as 87.3 nats"):
        plain = Predictions.from_probs(probs, torch.tensor([0, 1, 0, 0]), eps=0.)
    assert Scored.of(plain).nll[3] == math.inf and plain.eps == 0  # as given, whatever calibrators see
    assert 80 < plain.logits.log_softmax(1)[3].neg()[0] < 90


@pytest.mark.parametrize("args, message", [
    (dict(n_bins=0), "n_bins: 0"),
    (dict(more_bins=[-1]), "n_bins: -1"),
    (dict(calibrators={UNCALIBRATED: make_calibrator("platt")}), "'uncalibrated' is the row of the network itself"),
])
def test_wrong_arguments(args, message):
    with pytest.raises(ValueError, match=message):
        evaluate(overconfident(40), **dict(n_boot=2, draws=1) | args)


def test_too_few_to_fit():
    with pytest.raises(ValueError, match="preds: 3 samples, too few"):
        evaluate(overconfident(3))
    for folds in None, 0:
        assert list(evaluate(overconfident(3), calibrators=(), folds=folds, n_boot=5, draws=1).rows) == [UNCALIBRATED]


def test_the_recommendation_does_not_depend_on_the_order_of_names():
    preds, names = overconfident(800), ["matrix", "vector", "temperature"]
    first, second = (evaluate(preds, calibrators=order, n_boot=50, draws=1) for order in (names, names[::-1]))
    assert list(first.rows) == list(second.rows)
    assert {first.recommended, second.recommended} == {"temperature"}


def equal_rows(seed, n=500, K=3, rows=7):
    "Rows that are equally good: logits with noise of the same size, drawn anew for each."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*torch.randn(n, K, generator=draw)
    target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    noisy = (logits + .7*torch.randn(n, K, generator=draw) for _ in range(rows))
    return {f"row {i}": Scored.of(Predictions(z, target)) for i, z in enumerate(noisy)}


def test_of_equal_rows_none_is_called_beaten(monkeypatch, tables=20, most=5):
    "In at most 5 of 20 tables by any measure: Holm's correction allows 5 %, and gives more once in 3,000 times."
    # intervals and p of a row's own error decide nothing here, and would take half of the time
    unneeded = dict(consistent_errors=torch.ones(1), table_interval=(0., 1.), norm_interval=(0., 1.), smooth_noise={})
    for name, unread in unneeded.items():
        monkeypatch.setattr(f"calibnb.evaluate.measures.{name}", lambda *args, unread=unread, **options: unread)
    beaten = {}
    for rows in map(equal_rows, range(tables)):
        best = as_good_as_best({name: measure_all(s, n_boot=2, draws=1) for name, s in rows.items()}, rows)
        for metric, names in best.items():
            beaten[metric] = beaten.get(metric, 0) + (len(names) < len(rows))
    assert set(beaten) == {*COLUMNS} - {"top_label_ece"}
    assert max(beaten.values()) <= most, beaten


def test_a_worse_row_is_beaten_though_the_intervals_overlap():
    "The same samples: what makes one hard for both cancels."
    preds = overconfident(4000, scale=1.)
    rows = {name: Scored.of(Predictions(s*preds.logits, preds.target)) for name, s in dict(fair=1., sharp=1.3).items()}
    measures = {name: measure_all(s, n_boot=100, draws=1) for name, s in rows.items()}
    fair, sharp = (measures[name]["nll"].interval for name in ("fair", "sharp"))
    assert sharp[0] < fair[1]
    best = as_good_as_best(measures, rows)
    assert [best[name] for name in ("nll", "ece", "smooth_ece")] == [["fair"]]*3
    assert set(best["error"]) == {"fair", "sharp"}


def test_an_infinite_nll_is_beaten():
    scored = equal_rows(0, rows=2)
    infinite, finite = (dict(nll=metrics.Measure.of(value, 500)) for value in (math.inf, 3.))
    assert as_good_as_best({"row 0": infinite, "row 1": finite}, scored) == dict(nll=["row 1"])
    assert as_good_as_best({"row 0": infinite, "row 1": infinite}, scored) == dict(nll=[])


def test_an_infinite_nll_needs_no_calibrator():
    "A label of probability 0, and no row with a finite NLL."
    with pytest.warns(UserWarning, match="probability"):
        preds = Predictions.from_probs(torch.eye(2, dtype=torch.float64).repeat(20, 1), [0, 1, 1, 1]*10)
    found = evaluate(preds, calibrators=[], n_boot=20, draws=20)
    assert found.recommended == UNCALIBRATED and found.best["nll"] == [] and "∞" in found.text()


@pytest.mark.parametrize("part, refused", [(0, False), (100, True), (300, True)])
def test_validation_samples_that_are_in_the_test_set_are_refused(part, refused):
    preds = overconfident(2000)
    test, val = preds[slice(0, 1000)], preds[slice(1000 - part, 1300 - part)]
    if not refused:
        return check_sets(test, val)
    with pytest.raises(ValueError, match="val: the same samples" if part == 300 else "val: 100 of its samples are in"):
        check_sets(test, val)


def test_what_is_doubtful_is_not_recommended():
    preds = overconfident(300, K=3)
    perfect = evaluate(Predictions(preds.logits, preds.pred), calibrators=["temperature"], n_boot=20, draws=2)
    assert perfect.doubtful == ["temperature"] and perfect.recommended == UNCALIBRATED
    assert "No calibrator could be fitted reliably; see the notes." in perfect.advice()
    assert any(note.startswith("temperature: 0.01, the least allowed") for note in perfect.notes)
    same_class = Predictions(preds.logits, torch.zeros_like(preds.target))
    one = evaluate(same_class, calibrators=["vector"], n_boot=20, draws=2)
    assert one.recommended == UNCALIBRATED
    assert "All labels belong to one class, so a calibrator learns only this class." in one.advice()


def test_calibrators_of_ones_own():
    preds = overconfident(400)
    mine = {
        "HB 5": make_calibrator("histogram", n_bins=5),
        "T by ECE": make_calibrator("temperature", criterion="ece"),
    }
    table = evaluate(preds, overconfident(400, seed=1), calibrators=mine, n_boot=20, draws=2)
    assert list(table.rows) == [UNCALIBRATED, *mine]
    assert len(table.fitted["HB 5"].maps_[0]["values"]) == 5 and not hasattr(mine["HB 5"], "n_classes_")
    assert "Use T by ECE with T = " in table.advice()
    assert list(evaluate(preds, calibrators="platt", n_boot=5, draws=1).rows) == [UNCALIBRATED, "platt"]
    with pytest.raises(TypeError, match="want names, or a dictionary"):
        evaluate(preds, calibrators=[mine["HB 5"]])
    with pytest.raises(TypeError, match="preds: a tuple, want Predictions"):
        evaluate((preds.logits, preds.target))


def test_changed_predictions_are_told():
    preds = overconfident(2000)
    shifted = Predictions(preds.logits + torch.tensor([4., 0., 0., 0.]), preds.target)
    table = evaluate(shifted, calibrators=["temperature", "vector"], n_boot=50, draws=2)
    assert table.recommended == "vector"
    assert "The calibrator changes " in table.advice() and "of the predictions; the error goes from" in table.advice()


def test_the_same_seed_gives_the_same_table():
    options = dict(calibrators=["temperature"], n_boot=20, draws=3, seed=4)
    first, second = (evaluate(overconfident(200), **options).frame() for _ in range(2))
    assert first.equals(second)


def forest(seed=2):
    "Probabilities of a random forest, many of them exactly 0, also for some labels; and the labels."
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier
    X, y = load_breast_cancer(return_X_y=True)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).numpy()
    train, audit = rows[:150], rows[150:]
    model = RandomForestClassifier(20, random_state=seed).fit(X[train], y[train])
    return torch.from_numpy(model.predict_proba(X[audit])), torch.from_numpy(y[audit])


def test_a_forest_is_not_judged_by_its_zeros():
    "A label with probability 0 must not decide every fit: no T of 3, and no advice to leave an infinite NLL alone."
    probs, target = forest()
    with pytest.warns(UserWarning, match="labels have probability 0, so the uncalibrated NLL is infinite"):
        preds = Predictions.from_probs(probs, target)
    assert 1/(2*len(target)) < preds.eps < .1
    names = ["temperature", "vector", "isotonic", "platt", "beta"]
    table = evaluate(preds, calibrators=names, n_boot=100, draws=10)
    assert table.recommended != UNCALIBRATED and table.fitted["temperature"].temperature_ < 2
    nll = {row: m["nll"].value for row, m in table.rows.items() if m["nll"].value is not None}
    assert nll[table.recommended] <= min(nll.values()) + .005
    assert all(table.rows[row]["nll"].value is not None for row in table.fitted)
    assert "calibrators replace each 0 by at most" in table.advice()


@pytest.mark.parametrize("K", [2, 10])
def test_a_few_zeros_do_not_do_the_work_of_a_temperature(K):
    "Four probabilities of exactly 1 among overconfident ones: the other rows stay as they are, and so does T."
    draw = torch.Generator().manual_seed(0)
    z = 6*torch.randn(1000, K, generator=draw, dtype=torch.float64)
    target, probs = torch.multinomial((z/3).softmax(1), 1, generator=draw)[:, 0], z.softmax(1)
    T = make_calibrator("temperature").fit(z, target).temperature_
    surest = ((probs.argmax(1) == target)*probs.amax(1)).topk(4).indices
    probs[surest] = torch.nn.functional.one_hot(target[surest], K).double()
    preds = Predictions.from_probs(probs, target)
    assert preds.eps == 1/2000 and T > 2.5
    torch.testing.assert_close(preds.logits[probs.amin(1) > 0].softmax(1), probs[probs.amin(1) > 0])
    table = evaluate(preds, calibrators=["temperature"], n_boot=20, draws=2)
    assert table.fitted["temperature"].temperature_ == pytest.approx(T, abs=.05)
    alone = torch.nn.functional.cross_entropy(preds.logits, target).item()
    note, = [c.text for c in table.checks if c.code == "CNB010"]
    assert "In 4 of 1,000 rows" in note and f"this replacement alone gives an NLL of {alone:.4f}" in note
    assert "partly by the replacement of zeros" in table.advice()


@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_rows_of_a_one_stay_as_sure_as_they_are_right():
    "Beside rows with many rounded zeros, the likeliest weight must not take the confidence of one-hot rows."
    draw = torch.Generator().manual_seed(0)
    z = 6*torch.randn(2000, 100, generator=draw, dtype=torch.float64)
    target = torch.multinomial((z/1.5).softmax(1), 1, generator=draw)[:, 0]
    probs = (z.softmax(1)*1000).round()
    probs /= probs.sum(1, keepdim=True)
    sure = probs.amax(1) == 1
    preds = Predictions.from_probs(probs, target)
    right, conf = preds.hit[sure].double().mean(), preds.logits.softmax(1).amax(1)[sure].mean()
    assert sure.sum() > 20 and abs(right - conf) < .05


@pytest.mark.filterwarnings("ignore:.*have probability 0")
@pytest.mark.parametrize("K", [3, 10])
def test_a_rounded_zero_stays_below_the_other_classes(K):
    "Probabilities rounded to two decimals: .00 remains the smallest of its row, whatever the temperature."
    draw = torch.Generator().manual_seed(0)
    z = 5*torch.randn(400, K, generator=draw, dtype=torch.float64)
    target = torch.multinomial((z/3).softmax(1), 1, generator=draw)[:, 0]
    probs = (z.softmax(1)*100).round()
    probs /= probs.sum(1, keepdim=True)
    zero, found = probs == 0, make_calibrator("temperature").fit_probs(probs, target).transform(probs)
    assert zero.any(1).sum() > 100
    assert (torch.where(zero, found, 0.).amax(1) < torch.where(zero, 1., found).amin(1)).all()


def test_metrics_see_probabilities_as_given():
    "What calibrators see has no zeros; what is measured as given has."
    probs = torch.tensor([[1., 0., 0.]]*30 + [[0., .4, .6]]*30, dtype=torch.float64)
    target = torch.tensor([0]*29 + [1] + [2]*18 + [1]*12)
    with pytest.warns(UserWarning, match="1 of 60 labels have probability 0"):
        preds = Predictions.from_probs(probs, target)
    measures = measure_all(Scored.of(preds), n_boot=10, draws=2)
    assert measures["ece"].value == pytest.approx(metrics.ece(probs, target).item(), abs=1e-12)
    assert measures["brier"].value == pytest.approx(metrics.brier_score(probs, target).item(), abs=1e-12)
    assert measures["nll"].value is None
    part = preds[torch.arange(10)]
    assert part.eps == preds.eps and torch.equal(part.probs, probs[:10])


def test_mixed_predictions_are_saved_whole(tmp_path):
    probs, target = forest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels with probability 0
        preds = Predictions.from_probs(probs, target, eps=.125)
    preds.save(tmp_path/"p.safetensors")
    back = Predictions.load(tmp_path/"p.safetensors")
    assert back.eps == .125 and torch.equal(back.probs, preds.probs)  # bits: saved and loaded
    assert torch.equal(back.logits, preds.logits)


def bent(N=4000, seed=0):
    "Confidences that no temperature mends: too high in the middle of their range only."
    draw = torch.Generator().manual_seed(seed)
    level = torch.randint(4, (N,), generator=draw)
    levels = torch.tensor([[.5, .7, .85, .97], [.5, .72, .74, .99]], dtype=torch.float64)
    conf, acc = levels[:, level]
    share = torch.tensor([.7, .2, .1], dtype=torch.float64)
    other = 1 + torch.multinomial(share, N, True, generator=draw)
    target = torch.where(torch.rand(N, generator=draw) < acc, 0, other)
    return Predictions(torch.cat([conf[:, None], (1 - conf)[:, None]*share], 1).log(), target)


def test_advice_says_what_is_left_and_what_mends_it():
    preds = bent(seed=1)
    alone = evaluate(preds, calibrators=["temperature"], n_boot=50, draws=20)
    assert not alone.choice.fits(alone.recommended)
    assert "The remaining ECE is" in alone.advice()
    assert alone.advice().endswith("No calibrator in the table removes this error.")
    priced = evaluate(preds, calibrators=["temperature", "temperature+isotonic"], n_boot=50, draws=20)
    assert priced.choice.fits(priced.recommended) and "The remaining ECE" not in priced.advice()
    assert priced.recommended == "temperature+isotonic"
    assert "Use temperature scaling followed by isotonic regression: the NLL goes from" in priced.advice()


def test_few_samples_that_decide_are_told():
    "Three samples cost the network 20 nats each; without them it would have the lower NLL."
    n = 1000
    pred = target = torch.zeros(n, dtype=torch.int64)
    probs = torch.tensor([[.9, .1]], dtype=torch.float64).expand(n, 2)
    given, calibrated = (torch.full((n,), nll, dtype=torch.float64) for nll in (.1, .105))
    given[:3] = 20.
    scored = {UNCALIBRATED: Scored.of_probs(probs, pred, target, given)}
    scored["platt"] = Scored.of_probs(probs, pred, target, calibrated)
    rows = {row: measure_all(s, n_boot=10, draws=2) for row, s in scored.items()}
    best = dict.fromkeys(rows[UNCALIBRATED], ["platt"])
    platt = make_calibrator("platt").fit(torch.tensor([2., 1., -1., -2.]), torch.tensor([1, 0, 1, 0]))
    table = Evaluation("", rows, best, scored, {"platt": platt}, [], [])
    assert table.choice.deciding_samples("platt", UNCALIBRATED) == 3
    assert table.choice.deciding_samples(UNCALIBRATED, "platt") is None
    told = "This choice rests on 3 samples: without them, the uncalibrated probabilities would have the lower NLL."
    assert told in table.advice()


def test_bbq_leaves_room_for_an_error():
    "Where every sample of the highest bin is right, the sum over histograms must not be rounded to 1 or above."
    for seed in 4, 8:
        draw = torch.Generator().manual_seed(seed)
        logits = torch.zeros(500, 10, dtype=torch.float64)
        logits[:, 0] = 60*torch.rand(500, generator=draw, dtype=torch.float64)
        target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
        bbq = make_calibrator("bbq").fit(logits, target)
        scored = Scored.of(Predictions(logits, torch.ones_like(target)), bbq)  # no prediction is right
        assert scored.nll.isfinite().all() and (scored.conf < 1).all()


@pytest.mark.parametrize("labels", [["no", "perhaps", "yes"], [-3, 7, 4000]])
def test_predictions_of_a_classifier_have_its_columns(labels):
    "Whatever the labels are, and in whatever order they come."
    draw = np.random.default_rng(0)
    X, ids = draw.normal(size=(90, 4)), np.arange(90) % 3
    y = np.asarray(labels)[ids]
    forest = RandomForestClassifier(10, random_state=0).fit(X[:60], y[:60])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels with probability 0
        got, want = (Predictions.of(forest, X[60:], y[60:].tolist()),
                     Predictions.from_probs(forest.predict_proba(X[60:]), ids[60:]))
    assert torch.equal(got.probs, want.probs) and torch.equal(got.target, want.target) and got.eps == want.eps > 0
    assert (np.asarray(labels)[got.pred.numpy()] == forest.predict(X[60:])).all()


def test_probabilities_of_one_column_are_measured_as_they_were_given():
    "On the edges of bins, where a logarithm and back would move them."
    p = torch.arange(16, dtype=torch.float64).repeat(20)/15
    y = torch.rand(320, generator=torch.Generator().manual_seed(0)) < p
    scored = Scored.of(Predictions.from_probs(p, y))
    for n_bins in 5, 10, 15:
        assert close(scored.ece(n_bins), metrics.ece(p, y, n_bins), len(p), size=1.) and scored.one.equal(p)


def test_what_the_top_label_cannot_see():
    "y is 1 in one of ten cases where .2 is said, and in seven where .8 is: eight of ten predictions are right."
    p = torch.tensor([.2, .8], dtype=torch.float64).repeat_interleave(500)
    y = torch.cat([torch.arange(500) % 10 < 1, torch.arange(500) % 10 < 7])
    table = evaluate(Predictions.from_probs(p, y), calibrators=["temperature", "vector"], n_boot=50, draws=5)
    given = table.rows[UNCALIBRATED]
    assert given["ece"].value == pytest.approx(.1) and given["top_label_ece"].value == pytest.approx(0, abs=1e-9)
    assert given["ece"].p < .01 and "P(y = 1) is too high by 10.0 points" in table.advice()
    assert "overconfident" not in table.advice()
    assert table.recommended == "vector" and table.rows["vector"]["ece"].value < .02  # no temperature moves a base rate
    both = evaluate(Predictions.from_probs(torch.stack([1 - p, p], 1), y.long()), calibrators=(), n_boot=50, draws=5)
    assert "no evidence of miscalibration" in both.advice()


@pytest.mark.parametrize("own", [False, True])
def test_calibrators_of_one_column_mend_a_base_rate(own):
    "Log-odds too large by 2: a function of P(y = 1) puts that right, one of the confidence could not."
    preds, val = one_column(3000, shift=3.), one_column(3000, seed=1, shift=3.)
    names = ["temperature", "histogram", "isotonic", "platt", "bbq", "beta", "spline", "venn_abers", "vector+isotonic"]
    table = evaluate(preds, val if own else None, names, n_boot=20, draws=2)
    ece = {row: measures["ece"].value for row, measures in table.rows.items()}
    assert ece[UNCALIBRATED] > .15 and ece["temperature"] > .1
    assert max(ece[row] for row in names[1:]) < ece[UNCALIBRATED]/5
    confidence = Scored.of(preds, make_calibrator("isotonic").fit(val.class_logits, val.target))
    assert confidence.ece() > .1
    assert table.rows["platt"]["error"].value < table.rows[UNCALIBRATED]["error"].value  # one half is elsewhere


def test_compositions_of_one_column():
    "Judged on parts: the second is fitted to log-odds that the first has given to samples it had not seen."
    preds = one_column(900)
    parts = random_order(preds.logits, preds.target).tensor_split(3)
    def others(values, i): return torch.cat([v for j, v in enumerate(values) if j != i])
    rests = [others(parts, i) for i in range(3)]
    first = [make_calibrator("temperature").fit(preds.logits[rest], preds.target[rest]) for rest in rests]
    held = [preds.logits[rows, 0].double()/c.temperature_ for c, rows in zip(first, parts)]
    want = torch.zeros(900, dtype=torch.float64)
    for i, rows in enumerate(parts):
        odds, y = others(held, i), others([preds.target[part] for part in parts], i)
        then = make_calibrator("isotonic").fit(odds, y)
        want[rows] = then.transform(preds.logits[rows, 0]/first[i].temperature_)
    found = CrossFits(preds, None, 3)
    found.fit("temperature", make_calibrator("temperature"))
    _, scored = found.fit("temperature+isotonic", make_calibrator("temperature+isotonic"), on="temperature")
    assert torch.allclose(scored.one, want, atol=1e-12)


@pytest.mark.parametrize("name", ["temperature", "isotonic", "vector+platt"])
def test_two_classes_and_one_column_are_judged_by_calibrators_of_either(name):
    one = one_column(400)
    two = Predictions(one.class_logits, one.target)
    of_one, of_two = (make_calibrator(name).fit(preds.logits, preds.target) for preds in (one, two))
    for calibrator in of_one, of_two:
        judged = Scored.of(one, calibrator), Scored.of(two, calibrator)
        assert judged[0].nll.equal(judged[1].nll) and judged[0].pred.equal(judged[1].pred)
        assert judged[0].binary and not judged[1].binary
    with pytest.raises(ValueError, match="logits: 4 columns, want 1, as in the fit"):
        Scored.of(overconfident(20), of_one)
    with pytest.raises(ValueError, match="logits: 1 columns, want 4, as in the fit"):
        Scored.of(one, make_calibrator(name).fit(overconfident(60).logits, overconfident(60).target))


def test_an_own_metric_is_given_the_column():
    seen = []
    metrics.register_metric("mean_of_column")(lambda probs, target: seen.append(probs.shape) or probs.mean())
    table = evaluate(one_column(60), calibrators=["temperature"], metrics=["mean_of_column"], n_boot=2, draws=1)
    assert {tuple(shape) for shape in seen} == {(60,)}
    assert table.rows[UNCALIBRATED]["mean_of_column"].value == pytest.approx(one_column(60).probs.mean().item())
    with pytest.raises(ValueError, match="'top_label_ece' is a column of every evaluation"):
        metrics.register_metric("top_label_ece")(lambda probs, target: 0.)


@st.composite
def columns(draw):
    "Probabilities that love 0, 1, one half and the edges of bins, and labels."
    n = draw(st.integers(1, 12))
    numbers = st.one_of(st.integers(0, 20).map(lambda k: k/20), st.floats(0, 1))
    flags = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return draw(st.lists(numbers, min_size=n, max_size=n)), flags


@given(columns(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([None, 0., .1]))
@settings(max_examples=40)
def test_one_column_and_its_two_are_the_same_predictions(problem, dtype, eps):
    "Class, confidence, likelihood and what calibrators see; only the question of calibration is another."
    p, y = torch.tensor(problem[0], dtype=dtype), torch.tensor(problem[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = Predictions.from_probs(p, y, eps)
        two = Predictions.from_probs(torch.stack([1 - p, p], 1), y.long(), eps)
    assert one.pred.equal(two.pred) and one.hit.equal(two.hit) and one.eps == pytest.approx(two.eps, rel=1e-4)
    tight = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=1e-9, atol=1e-9)
    if one.eps == two.eps:
        torch.testing.assert_close(one.class_logits.softmax(1), two.logits.softmax(1), **tight)
        possible = one.nll < 80  # rows keep no probability below 1e-38
        torch.testing.assert_close(one.nll[possible], two.nll[possible], **tight)
    torch.testing.assert_close(one.conf, two.conf, **tight)
    if one.given is not None:
        assert abs(Scored.of(one).ece() - metrics.ece(p, y)) < 2e-6  # float32: a confidence beside an edge moves to it
    for form in Predictions(one.logits, y), Predictions(one.logits[:, 0].numpy(), y.numpy()[:, None]):
        assert form.logits.equal(one.logits) and form.target.equal(one.target)
    assert one[[0]].binary and len(one[[0]]) == 1


def degenerate(kind, preds):
    "Predictions of which something is missing."
    logits, target = preds.logits, preds.target
    if kind == "constant":
        logits = torch.zeros_like(logits)
    if kind == "all correct":
        target = preds.pred
    if kind == "all wrong":
        target = (preds.pred + 1) % preds.num_classes
    if kind == "one class":
        target = torch.zeros_like(target)
    if kind == "few":
        logits, target = logits[:5], target[:5]
    if kind == "zeros and ones":
        return Predictions.from_probs(preds.probs.round() if preds.binary else preds.probs.double().round(), target)
    return Predictions(logits, target)


@pytest.mark.filterwarnings("ignore:.*have probability 0")
@pytest.mark.parametrize("make", [overconfident, one_column])
@pytest.mark.parametrize("kind", ["constant", "all correct", "all wrong", "one class", "few", "zeros and ones"])
def test_degenerate_sets_give_a_table(kind, make):
    preds = make(80)
    if kind == "zeros and ones" and not preds.binary:
        preds = Predictions(20*preds.logits, preds.target)
    names = ["temperature", "isotonic", "temperature+platt"]
    table = evaluate(degenerate(kind, preds), calibrators=names, n_boot=20, draws=2)
    assert table.text() and table._repr_html_() and table.recommended in table.rows
    if kind == "constant" and not preds.binary:
        assert "temperature" not in table.rows and any("the temperature has no effect" in n for n in table.notes)
    if kind == "all correct":
        assert any("the least allowed" in note for note in table.notes)


@pytest.mark.parametrize("n_bins", [1, 15])
def test_noise_floors(n_bins):
    "The floor is the mean error of labels drawn from the probabilities; with few bins, these differ much in a bin."
    preds = overconfident(500, K=3)
    found = [measure_all(Scored.of(preds, n_bins=n_bins), draws=150, n_boot=2) for _ in range(2)]
    N = 60
    draw = torch.Generator().manual_seed(7)
    labels = [torch.multinomial(preds.probs, 1, generator=draw)[:, 0] for _ in range(N)]
    for name in "ece", "ada_ece", "smooth_ece", "classwise_ece":
        bins = {} if name == "smooth_ece" else dict(n_bins=n_bins)
        drawn = torch.stack([getattr(metrics, name)(preds.probs, y, validate=False, **bins) for y in labels])
        assert abs(drawn.mean() - found[0][name].floor) < 4*drawn.std()/math.sqrt(N), name
        assert found[0][name].floor == found[1][name].floor


@pytest.mark.parametrize("make, n_sets, most", [(overconfident, 30, 4), (one_column, 30, 6)])
def test_calibrated_models_are_rarely_accused(make, n_sets, most):
    "Of 30 calibrated sets .75 are expected to be accused, of 30 binary ones 1.5: more once in 1,200 times."
    accused = 0
    for seed in range(n_sets):
        preds = make(300, seed=seed)
        calibrated = Predictions((preds.logits - int(preds.binary))/2, preds.target)
        scored = Scored.of(calibrated)
        accused += miscalibration_test(measure_all(scored, n_boot=1, draws=1)["ece"], scored)[1] < .05
    assert accused <= most


def test_calibrators_that_are_left_out_and_none_at_all():
    table = evaluate(overconfident(600, K=30), folds=2, n_boot=10, draws=1)
    assert "matrix" not in table.rows and any("930 parameters for 300 samples" in n for n in table.notes)
    table = evaluate(overconfident(300), calibrators=(), n_boot=20, draws=2)
    assert "No calibrator was fitted." in table.advice() and "*" not in table.text().split("\n\n")[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("columns", [2, 5])
def test_of_equal_calibrators_the_simplest_wins(columns):
    "On log-probabilities, matrix scaling and Dirichlet calibration are the same map."
    pair = ["matrix", "dirichlet"]
    for i in range(3):
        draw = torch.Generator().manual_seed(i)
        logits = 2*torch.randn(300, columns, generator=draw, dtype=torch.float64)
        target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
        preds = Predictions.from_probs(((.5, 2, 3)[i]*logits).softmax(1), target)
        found = evaluate(preds, calibrators=pair[::-1], draws=2, n_boot=50, more_bins=())
        simple, other = (found.rows[name]["nll"].value for name in pair)
        assert abs(simple - other) < 1e-6 and found.recommended == pair[0], (i, found.recommended)


def test_measures_of_a_study_are_those_of_the_metrics():
    "Of a set, as the public functions give them; the first value of a resampled measure is that of the whole set."
    draw = torch.Generator().manual_seed(0)
    logits = 3*torch.randn(400, 5, generator=draw, dtype=torch.float64)
    preds = Predictions(logits, torch.multinomial((logits/2).softmax(1), 1, generator=draw)[:, 0])
    found = resampled_measures(Scored.of(preds), Resamples(len(preds), 50))
    for name in "ece", "nll", "brier":
        want = dict(brier=metrics.brier_score).get(name, getattr(metrics, name, None))(preds.probs, preds.target)
        assert found[name][0] == pytest.approx(want.item(), rel=1e-9), name
    for name in "debiased_ece", "smooth_ece":
        assert found[name] == pytest.approx(getattr(metrics, name)(preds.probs, preds.target).item(), rel=2e-3), name


def test_notes_of_a_fit_do_not_depend_on_the_order_of_its_threads():
    caught = [SimpleNamespace(message=text, category=UserWarning) for text in ("temperature: b", "temperature: a")]
    assert warning_texts(caught, "temperature") == warning_texts(caught[::-1], "temperature") == ["a", "b"]
