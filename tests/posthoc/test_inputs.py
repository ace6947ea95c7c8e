"What a calibrator was fitted on, logits or probabilities, is what it takes; what its file may hold."
import json
import math

import numpy as np
import pytest
import torch
from conftest import rounding
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from calibnb import cli
from calibnb.core import plugins
from calibnb.core.predictions import Predictions, log_probs
from calibnb.evaluate import evaluate
from calibnb.evaluate.measures import Scored
from calibnb.metrics.registered import registered_measures
from calibnb.posthoc import CALIBRATORS, Calibrator, list_calibrators, make_calibrator

DRAW = torch.Generator().manual_seed(0)
LOGITS = 3*torch.randn(200, 3, dtype=torch.float64, generator=DRAW)
TARGET = torch.multinomial((LOGITS/2).softmax(1), 1, generator=DRAW)[:, 0]
ZEROS = LOGITS.softmax(1).mul(20).round().div(20)
ZEROS = ZEROS/ZEROS.sum(1, keepdim=True)
FLAGS = (TARGET == 1).long()
HOTS = torch.nn.functional.one_hot(TARGET, 3)
DATA = {  # form -> probabilities, some of them exactly 0 or 1; labels; options of the fit
    "classes": (ZEROS, TARGET, {}),
    "binary": (ZEROS[:, 1], FLAGS, {}),
    "multilabel": (ZEROS, HOTS, dict(kind="multilabel")),
}


NAMES = [*list_calibrators(), "temperature+isotonic", "vector+platt", "mine_of_inputs"]


@pytest.fixture(scope="module", autouse=True)
def mine():
    "A calibrator as a plugin registers one."
    class Mine(Calibrator, name="mine_of_inputs"):
        fitted = "factor_",
        def _fit(self, logits, target): self.factor_ = logits.new_full((1,), .5)
        def _logits(self, z): return z*self.factor_.to(z)
    yield Mine
    del CALIBRATORS["mine_of_inputs"]
    for key in [key for key in plugins._origins if "mine_of_inputs" in key]:
        del plugins._origins[key]


def by_hand(calibrator, p):
    "What a calibrator makes of probabilities: of the logarithms of the mixture with its own eps."
    if calibrator.columns_:
        return torch.stack([by_hand(c, column) for c, column in zip(calibrator.columns_, p.unbind(1))], 1)
    z = log_probs(p, calibrator.eps_)
    probs = calibrator._log_probs_of_one(torch.cat([0*z, z], 1)) if z.shape[1] == 1 else calibrator._log_probs(z)
    return probs[:, 1].exp() if z.shape[1] == 1 else probs.exp()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", DATA)
@pytest.mark.parametrize("name", NAMES)
def test_probabilities_in_probabilities_out_for_any_number_of_rows(name, form, tmp_path):
    p, y, options = DATA[form]
    calibrator = make_calibrator(name).fit_probs(p, y, **options)
    calibrator.save(tmp_path/"c.safetensors")
    for each in calibrator, Calibrator.load(tmp_path/"c.safetensors"):
        want = by_hand(each, p)
        for rows in slice(1), slice(7), slice(None):
            for give in each.transform, each.predict_proba, each.transform_probs:
                assert torch.allclose(give(p[rows]), want[rows], rtol=1e-9, atol=1e-12)
        assert torch.equal(each.predict(p[:1]), each.predict(p)[:1])
        assert torch.allclose(each.nll(p[:1], y[:1]), each.nll(p, y)[:1], rtol=1e-9)
        if form != "binary":  # a single sample
            assert torch.allclose(each.transform(p[0]), want[0], rtol=1e-9, atol=1e-12)
            assert np.allclose(each.transform(p[0].numpy()), want[0])
            assert torch.equal(each.predict(p[0]), each.predict(p)[0])
        with pytest.raises(ValueError, match=r"logits: \w+ was fitted on probabilities; give transform_probs"):
            each.transform_logits(p)
        with pytest.raises(ValueError, match="probs: .* want numbers in .0, 1."):
            each.transform(100*(p - .5))


@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_what_says_outright_what_it_gives_is_held_to_it(tmp_path):
    "Logits stay the default, a new fit forgets the old one, and a file of an older version says neither."
    calibrator = make_calibrator("temperature").fit_probs(ZEROS, TARGET, eps=.01)._record("probs", .01, ("a", "b", "c"))
    calibrator.fit(LOGITS, HOTS, kind="multilabel")
    assert (calibrator.input_, calibrator.eps_, calibrator.class_names_) == ("logits", 0., ())
    calibrator.fit(LOGITS, TARGET)
    want, close = (LOGITS/calibrator.temperature_).softmax(1), dict(rtol=100*rounding(3), atol=0)
    for give in calibrator.transform, calibrator.transform_logits:
        assert torch.allclose(give(LOGITS), want, **close) and torch.allclose(give(LOGITS[0]), want[0], **close)
    with pytest.raises(ValueError, match="probs: TemperatureScaling was fitted on logits; give it the logits"):
        calibrator.transform_probs(ZEROS[:1])
    old = older(calibrator, tmp_path/"old.safetensors")
    assert old.input_ is None and torch.allclose(old.transform(LOGITS), want, **close)
    assert torch.allclose(old.transform_probs(LOGITS.softmax(1)), want, rtol=1e-9)


def older(calibrator, path):
    "The calibrator from a file that does not say what it was fitted on."
    def forget(head, tensors):
        head["numbers"] = {k: v for k, v in head["numbers"].items() if not k.endswith("input_")}
    calibrator.save(path)
    rewrite(path, forget)
    return Calibrator.load(path)


def rewrite(path, change):
    "Change the head and the tensors of a file."
    with safe_open(path, "pt") as f:
        metadata = f.metadata()
    head, tensors = json.loads(metadata["head"]), load_file(path)
    change(head, tensors)
    save_file({k: t.contiguous() for k, t in tensors.items()}, path, metadata | dict(head=json.dumps(head)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["classes", "binary"])
@pytest.mark.parametrize("cross", [False, True])
def test_what_an_evaluation_of_probabilities_fits_takes_probabilities(form, cross):
    p, y, _ = DATA[form]
    names, classes = ["temperature", "vector", "isotonic", "temperature+platt", "mine_of_inputs"], "abc"[:y.max() + 1]
    preds, val = (Predictions.from_probs(p[rows], y[rows], .02, classes) for rows in (slice(100, 200), slice(100)))
    other = Predictions.from_probs(p[100:], y[100:], eps=.1)  # mixed as the fit was, not as these are
    found = evaluate(preds, None if cross else val, names, metrics=["ks_error"], n_boot=2, draws=1)
    for row in names:
        calibrator = found.fitted[row]
        assert (calibrator.input_, calibrator.eps_, calibrator.class_names_) == ("probs", .02, preds.classes), row
        assert torch.allclose(calibrator.transform(p[:1]), by_hand(calibrator, p[:1]), rtol=1e-9)
        assert torch.allclose(Scored.of(other, calibrator).conf, Scored.of(preds, calibrator).conf, rtol=1e-6)
        want = registered_measures(["ks_error"], by_hand(calibrator, p[100:]), y[100:])["ks_error"].value
        assert cross or found.rows[row]["ks_error"].value == pytest.approx(want, rel=1e-9)
    with pytest.raises(ValueError, match="preds: got logits, expected probabilities"):
        Scored.of(Predictions(preds.logits, preds.target), calibrator)
    with pytest.raises(ValueError, match="val: got logits, but preds: probabilities; give both as the same"):
        evaluate(preds, Predictions(val.logits, val.target))


@pytest.mark.filterwarnings("ignore:.*have probability 0")
@pytest.mark.parametrize("p", [.025, 0.])
def test_apply_obeys_what_the_fit_was_on(p, tmp_path, monkeypatch, capsys):
    "A single row, of probabilities that could be logits; files of older versions take what the flag says."
    monkeypatch.chdir(tmp_path)
    preds = Predictions.from_probs(ZEROS[:, 1], FLAGS, eps=.05)
    of_probs = evaluate(preds, calibrators=["temperature"], n_boot=2, draws=1).fitted["temperature"]
    of_logits = make_calibrator("temperature").fit(LOGITS[:, 1] - LOGITS[:, [0, 2]].logsumexp(1), FLAGS)
    for name, calibrator in dict(probs=of_probs, logits=of_logits).items():
        older(calibrator, f"old_{name}.safetensors")
        calibrator.save(f"{name}.safetensors")
    p, T = torch.tensor([p], dtype=torch.float64), of_probs.temperature_
    np.savez("one.npz", probs=p.numpy(), logits=p.numpy())
    mixed = (log_probs(p, .05)/T).sigmoid()
    for name, flag, want in [
            ("probs", "--probs", mixed),
            ("old_probs", "--probs", mixed),
            ("old_probs", "--logits", (p/T).sigmoid()),
            ("logits", "--logits", (p/of_logits.temperature_).sigmoid()),
            ("old_logits", "--probs", (log_probs(p)/of_logits.temperature_).sigmoid()),
            ("probs", "--logits", "probs.safetensors was fitted on probabilities; give a file of probabilities, with"),
            ("logits", "--probs", "logits.safetensors was fitted on logits; give a file of logits, with --logits")]:
        rc = cli.main(["apply", f"{name}.safetensors", "one.npz", flag, "--out", "out.npz"])
        err = capsys.readouterr().err
        if isinstance(want, str):
            assert rc == 2 and f"{flag}: {want}" in err and err.count("\n") == 1 and not (tmp_path/"out.npz").exists()
        else:
            assert rc == 0 and np.load("out.npz")["probs"].item() == pytest.approx(want.item(), rel=1e-9), (name, flag)
            (tmp_path/"out.npz").unlink()


@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_apply_takes_independent_columns_of_probabilities(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    calibrator = make_calibrator("temperature").fit_probs(ZEROS, HOTS, kind="multilabel")
    calibrator.save("c.safetensors")
    np.savez("p.npz", probs=ZEROS[:5].numpy()*.9)  # rows need not sum to 1
    assert cli.main("apply c.safetensors p.npz --probs --out o.npz".split()) == 0, capsys.readouterr().err
    assert np.allclose(np.load("o.npz")["probs"], calibrator.transform(ZEROS[:5]*.9), rtol=1e-9)
    np.savez("p.npz", probs=ZEROS[:5, :2].numpy())
    assert cli.main("apply c.safetensors p.npz --probs --out x.npz".split()) == 2
    assert "probs: got 2 columns, expected 3" in capsys.readouterr().err


@pytest.mark.parametrize("value, kind", [(np.ones(2), "ndarray"), (None, "NoneType"), ([dict(x=1.)], "float"),
                                         ((torch.ones(1),), "tuple"), ([{"a.b": torch.ones(1)}], "list"), ([], "list")])
def test_what_a_file_cannot_hold_is_refused(value, kind, mine, tmp_path):
    calibrator = mine().fit(LOGITS, TARGET)
    calibrator.factor_ = value
    with pytest.raises(ValueError, match=f"factor_: got {kind}, expected a tensor, a number or a list of dictionaries"):
        calibrator.save(tmp_path/"c.safetensors")
    assert not list(tmp_path.iterdir())


def numbers(**change):
    return lambda head, tensors: head["numbers"].update(change)


def entry(name, function):
    return lambda head, tensors: tensors.update({name: function(tensors[name])})


def table(name, function):
    return entry(f"maps_.0.{name}", function)


def put(value, at=0):
    "One number replaced."
    return lambda t: t.flatten().index_fill(0, torch.tensor(at), value).view(t.shape)


DAMAGE = [  # calibrator, change of its file, reason; None: it is as good as before
    ("temperature", numbers(n_classes_=10**9), "n_classes_: got 1000000000"),
    ("temperature", numbers(n_classes_=10**400), "n_classes_: got 1000"),
    ("temperature", numbers(n_classes_=3.), "n_classes_: got 3.0"),
    ("temperature", numbers(n_classes_=100_000), None),
    ("temperature", numbers(temperature_=math.nan), "temperature_: got nan"),
    ("temperature", numbers(temperature_=1e308), "temperature_: got 1e.308"),
    ("temperature", numbers(temperature_="2"), ""),
    ("temperature", numbers(eps_=1.), "eps_: got 1.0"),
    ("temperature", numbers(input_="percent"), "input_: got 'percent'"),
    ("temperature", lambda head, tensors: head.update(classes=["a"]), "classes: got 1 names for 3 classes"),
    ("temperature", numbers(**{"column_0/"*2000 + "n_classes_": 1}), ""),
    ("vector", numbers(n_classes_=100_000), r"weight_: got shape \(3,\), expected \(100000,\)"),
    ("matrix", entry("weight_", put(1e308, 4)), "weight_: got 1e.308"),
    ("vector", entry("bias_", lambda t: t[:1]), r"bias_: got shape \(1,\), expected \(3,\)"),
    ("ets", entry("weights_", lambda t: t[:1]), r"weights_: got shape \(1,\), expected \(3,\)"),
    ("svs", entry("weight_", put(math.inf)), "weight_: got inf"),
    ("histogram", table("values", put(math.nan, 1)), "values: got nan"),
    ("histogram", table("values", put(1.5, 1)), "values: got numbers beyond"),
    ("histogram", table("edges", put(.9, 1)), "edges: got numbers that do not rise"),
    ("bbq", table("values", lambda t: t[:-1]), "values: got shape"),
    ("isotonic", table("y", put(1e308, 1)), "y: got 1e.308"),
    ("platt", table("slope", lambda t: t[None]), "slope: got shape"),
    ("spline", table("scale", put(math.nan)), "scale: got nan"),
    ("venn_abers", table("odds", put(-math.inf, 1)), "odds: got -inf"),
    ("temperature+platt", numbers(**{"first_/n_classes_": 7}), "n_classes_: got 7 of a part"),
    ("temperature+platt", numbers(**{"first_/temperature_": 1e308}), "temperature_: got 1e.308"),
]


@pytest.mark.parametrize("name, change, message", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line_before_it_is_tried(name, change, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_calibrator(name).fit(LOGITS, TARGET).save("c.safetensors")
    rewrite("c.safetensors", change)
    if message is None:
        assert Calibrator.load("c.safetensors").n_classes_ == 100_000
        return
    with pytest.raises(ValueError, match=f"path: c.safetensors is damaged .*{message}"):
        Calibrator.load("c.safetensors")
    np.savez("z.npz", logits=LOGITS.numpy())
    assert cli.main("apply c.safetensors z.npz --logits --out o.npz".split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "c.safetensors is damaged" in err and not (tmp_path/"o.npz").exists()
