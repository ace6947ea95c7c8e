"Another prevalence: golden numbers, forms of input, refusals, the prior in a calibrator's file, `apply`."
import numpy as np
import pytest
import torch
from conftest import vectors, within

from calibnb import cli
from calibnb.posthoc import Calibrator, Composed, adjust_prior, estimate_prior, make_calibrator

CASES, DATA = vectors("prior")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_estimates(case):
    data = DATA[case["data"]]
    labelled = dict(probs_val=data["val"], target_val=data["labels"])
    more = {k: case[k] for k in ("from_prior", "confusion") if k in case} | (labelled if "confusion" in case else {})
    found = estimate_prior(data["probs"], method=case["method"], **more)
    for name, want in case["expected"].items():
        within(getattr(found, name), want, case)
    assert found.n == len(data["probs"]) and (found.iterations is None) == (case["method"] == "bbse")


def by_hand(row, source, target):
    odds = [p*t/s for p, s, t in zip(row, source, target)]
    return [o/sum(odds) for o in odds]


def test_adjusted_by_hand_in_every_form():
    probs, source, target = torch.tensor(DATA["three"]["probs"], dtype=torch.float64), [.2, .3, .5], [.7, 0., .3]
    want = torch.tensor([by_hand(row, source, target) for row in probs.tolist()], dtype=torch.float64)
    torch.testing.assert_close(adjust_prior(probs, source, target), want)
    assert isinstance(adjust_prior(probs.numpy(), source, target), np.ndarray)
    half = adjust_prior(probs.half(), np.array(source), torch.tensor(target))
    assert half.dtype == torch.float32 and torch.allclose(half.double(), want, atol=1e-3)
    images = probs.T.reshape(1, 3, 6, 5)
    torch.testing.assert_close(adjust_prior(images, source, target), want.T.reshape(1, 3, 6, 5))
    p = torch.tensor(DATA["two"]["probs"], dtype=torch.float64)
    want = torch.tensor([by_hand(row, [.6, .4], [.98, .02]) for row in p.tolist()], dtype=torch.float64)
    for form in (slice(None), slice(1, 2), 1):  # two columns, one column, a vector
        torch.testing.assert_close(adjust_prior(p[:, form], .4, .02), want[:, form])
        torch.testing.assert_close(adjust_prior(p[:, form], [.6, .4], [.98, .02]), want[:, form])
        torch.testing.assert_close(estimate_prior(p[:, form], .4).low, estimate_prior(p, [.6, .4]).low)


def test_one_class_and_many():
    "All samples of one class leave it an interval below 1; a class more than there are samples is no error."
    probs = torch.tensor([[.9, .06, .04]], dtype=torch.float64).expand(40, 3)
    found = estimate_prior(probs, [1/3]*3)
    assert found.prior[0] > .999 and found.high[0] == 1 and .8 < found.low[0] < .99
    assert adjust_prior(probs[:1], [1/3]*3, found.smoothed())[0, 2] > 1e-4 and found.smoothed().sum() == approx(1)
    assert found.low[1:].tolist() == [0, 0] and .01 < found.high[2] < found.high[1] < .2
    draw = torch.Generator().manual_seed(0)
    wide = torch.rand(30, 40, generator=draw, dtype=torch.float64).mul(9).softmax(1)
    found = estimate_prior(wide, torch.full((40,), 1/40))
    assert (found.low <= found.prior).all() and (found.prior <= found.high).all() and found.prior.sum() == approx(1)


def approx(x): return pytest.approx(x, abs=1e-9)


P = [[.2, .3, .5], [.6, .4, 0.]]
LABELLED = dict(method="bbse", probs_val=P*3, target_val=[0, 1, 2, 0, 1, 2])
REFUSED = [
    (adjust_prior, (P, [.5, .5, 0], [.2, .3, .5]), {}, "from_prior: 0 for class 2, want a number above 0"),
    (adjust_prior, (P, [.2, .3, .5], [.7, -.1, .4]), {}, "to_prior: -0.1 for class 1, want a number of at"),
    (adjust_prior, (P, [.2, .3, .5], [np.nan, .5, .5]), {}, "to_prior: nan for class 0"),
    (adjust_prior, (P, [20, 30, 50], [.2, .3, .5]), {}, "from_prior: a sum of 100, want 1; divide counts by"),
    (adjust_prior, (P, [.5, .5], [.2, .3, .5]), {}, r"from_prior: shape \(2,\), want 3 class probabilities$"),
    (adjust_prior, (P, .5, [.2, .3, .5]), {}, r"from_prior: shape \(\), want 3 class probabilities"),
    (adjust_prior, ([.1, .2], .5, 2), {}, r"to_prior: 2, want P\(y = 1\) in \[0, 1\]"),
    (adjust_prior, ([.1, .2], 0., .5), {}, "from_prior: 0 for class 1, want a number above 0"),
    (adjust_prior, (P, [.2, .3, .5], [0, 0, 1]), {}, "to_prior: sample 1 has probability 0 for every class with a pri"),
    (adjust_prior, ([[2., -1.]], .5, .1), {}, "probs: 2 at row 0, column 0, want numbers in .0, 1.; logits need .soft"),
    (estimate_prior, (P,), {}, "from_prior: None, want the prior of the calibration set"),
    (estimate_prior, (P, [1, 0, 0]), {}, "from_prior: 0 for class 1"),
    (estimate_prior, (P,), dict(method="bbse"), "probs_val: None, want labelled samples of the source"),
    (estimate_prior, (P,), dict(method="bbze"), "method: 'bbze' is not known; did you mean 'bbse'"),
    (estimate_prior, (P,), LABELLED, "probs_val: singular confusion matrix .condition number .*merge classes"),
    (estimate_prior, (P,), LABELLED | dict(target_val=[0, 1, 2, 0, 1, 1]), "target_val: 1 samples of class 2, want"),
    (estimate_prior, ([.1, .2],), LABELLED, "probs_val: 3 classes, want 2 as in probs"),
    (estimate_prior, (P[:1],), LABELLED, "probs: 1 sample, want at least 2"),
    (estimate_prior, (P, [.2, .3, .5]), dict(level=95), "level: 95, want a number between 0 and 1"),
]


@pytest.mark.parametrize("call, args, options, message", REFUSED)
def test_bad_input_is_refused(call, args, options, message):
    with pytest.raises(ValueError, match=message):
        call(*args, **options)


DRAW = torch.Generator().manual_seed(0)
LOGITS = 2*torch.randn(200, 3, generator=DRAW)
TARGET = torch.multinomial((.7*LOGITS).softmax(1), 1, generator=DRAW)[:, 0]
SHARES = (TARGET.bincount(minlength=3).double()/200).tolist()


def test_a_calibrator_and_its_file_know_the_class_frequencies(tmp_path):
    def again(calibrator):
        calibrator.save(tmp_path/"c.safetensors")
        return Calibrator.load(tmp_path/"c.safetensors").prior_
    fitted = make_calibrator("temperature").fit(LOGITS, TARGET)
    assert fitted.prior_ == again(fitted)
    assert fitted.prior_ == approx(SHARES)
    doubled = make_calibrator("temperature").fit(LOGITS, TARGET, 1. + (TARGET == 0))
    a, b, c = SHARES
    assert again(doubled) == approx([2*a/(1 + a), b/(1 + a), c/(1 + a)])
    ones = (TARGET == 0).long()
    assert again(make_calibrator("platt").fit(LOGITS[:, 0], ones)) == approx([1 - a, a])
    assert again(Composed.on(fitted, "platt", LOGITS, TARGET)) == approx(SHARES)
    several = fitted.fit(LOGITS, torch.nn.functional.one_hot(TARGET, 3), kind="multilabel")
    assert several.prior_ == ()
    assert again(several) == ()


@pytest.fixture
def files(tmp_path, monkeypatch):
    "Calibrators and new predictions; the columns of `turned.csv` are in another order."
    monkeypatch.chdir(tmp_path)
    named = make_calibrator("vector").fit(LOGITS, TARGET, classes=("ant", "bee", "cow"))
    named.save("named.safetensors")
    make_calibrator("temperature").fit(LOGITS[:, 0], (TARGET == 0).long()).save("binary.safetensors")
    hots = torch.nn.functional.one_hot(TARGET, 3)
    make_calibrator("temperature").fit(LOGITS, hots, kind="multilabel").save("multilabel.safetensors")
    lines = [",".join(f"{v:.9g}" for v in row) for row in LOGITS[:50, [2, 0, 1]].tolist()]
    (tmp_path/"turned.csv").write_text("\n".join(["cow,ant,bee", *lines]) + "\n")
    np.savez("z.npz", logits=LOGITS[:50].numpy())
    np.savez("z1.npz", logits=LOGITS[:50, 0].numpy())
    return named


def test_apply_at_another_prevalence(files, tmp_path, capsys):
    def applied(line):
        assert cli.main(f"apply {line} --logits --out o.npz".split()) == 0, capsys.readouterr().err
        return dict(np.load("o.npz")), capsys.readouterr().out
    want = adjust_prior(files.transform(LOGITS[:50]), SHARES, [.9, .07, .03])
    found, _ = applied("named.safetensors turned.csv --prevalence .9,.07,.03")
    assert np.allclose(found["probs"][:, [1, 2, 0]], want, atol=1e-6)
    assert [[1, 2, 0][k] for k in want.argmax(1)] == found["prediction"].tolist()
    raw = files.transform(LOGITS[:50])
    estimate = estimate_prior(raw, SHARES)
    found, out = applied("named.safetensors turned.csv --estimate-prevalence")
    assert np.allclose(found["probs"][:, [1, 2, 0]], adjust_prior(raw, SHARES, estimate.smoothed()), atol=1e-6)
    ends = (100*torch.stack([estimate.prior, estimate.low, estimate.high], 1)).tolist()
    for name, (prior, low, high) in zip(("ant", "bee", "cow"), ends):
        assert f"  {name}   {prior:.2f} % ({low:.2f} to {high:.2f} %)\n" in out
    raw = Calibrator.load("binary.safetensors").transform(LOGITS[:50, 0])
    found, _ = applied("binary.safetensors z1.npz --prevalence .02 --from-prevalence .4")
    want = adjust_prior(raw, .4, .02)
    assert np.allclose(found["probs"][:, 0], want, atol=1e-6) and found["prediction"].tolist() == (want > .5).tolist()
    found, _ = applied("named.safetensors z.npz --prevalence .9,.07,.03 --from-prevalence .2,.3,.5")
    want = adjust_prior(files.transform(LOGITS[:50]), [.2, .3, .5], [.9, .07, .03])
    assert np.allclose(found["probs"], want, atol=1e-6)


@pytest.mark.parametrize("line, message", [
    ("named.safetensors z.npz --prevalence .02", "--prevalence: shape (), want 3 class probabilities"),
    ("named.safetensors z.npz --prevalence 90,7,3", "--prevalence: a sum of 100, want 1; divide counts"),
    ("binary.safetensors z1.npz --prevalence 0", "--prevalence: 0, so every sample would have one class for certain"),
    ("binary.safetensors z1.npz --prevalence 0,1", "--prevalence: 0,1, so every sample would have one class"),
    ("binary.safetensors z1.npz --prevalence 2", "--prevalence: 2, want P(y = 1) in [0, 1]"),
    ("binary.safetensors z1.npz --prevalence .1 --from-prevalence 0", "--from-prevalence: 0 for class 1, want"),
    ("binary.safetensors z1.npz --from-prevalence .1", "--from-prevalence: given without --prevalence or --estimate"),
    ("multilabel.safetensors z.npz --prevalence .02", "--prevalence: multilabel.safetensors is multilabel, want"),
    ("binary.safetensors z1.npz --prevalence rare", "argument --prevalence: 'rare', want a number, or numb"),
    ("binary.safetensors z1.npz --prevalence .1 --estimate-prevalence", "not allowed with argument --prevalence"),
])
def test_apply_refuses_in_one_line(files, tmp_path, capsys, line, message):
    try:
        code = cli.main(f"apply {line} --logits --out o.npz".split())
    except SystemExit as e:
        code = e.code
    err = capsys.readouterr().err
    assert code == 2 and message in err and err.count("\n") == 1 and not (tmp_path/"o.npz").exists()


@pytest.mark.parametrize("p, source, target, found", [
    ([1., 0.], [1., 1e-44], [.5, .5], [1., 0.]),             # the weight 5e43 is infinite in float32
    ([1., 1e-44, 0.], [.3, .699, .001], [0., .001, .999], [0., 1., 0.]),  # 1e-44 times .0014 is 0 in float32
])
def test_tiny_numbers_in_float32_have_a_posterior(p, source, target, found):
    adjusted = adjust_prior(torch.tensor([p], dtype=torch.float32), source, target)
    assert adjusted.dtype == torch.float32 and adjusted.tolist() == [found]
