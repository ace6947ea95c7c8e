"Binary and multilabel tasks, weights and ignored labels: golden numbers, copies, other libraries, bad input."
import inspect
import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from close import close
from conftest import rounding, vectors, within
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, zero_one_loss
from torchmetrics.functional.classification import binary_calibration_error

from calibnb import metrics
from calibnb.metrics import streaming

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import netcal.metrics

CASES, DATA = vectors("binary")
CASES = {case["id"]: case for case in CASES}
P, Y = torch.tensor(DATA["probs"], dtype=torch.float64), torch.tensor(DATA["labels"])
WEIGHTS = torch.tensor(DATA["weights"], dtype=torch.float64)
COLUMNS, TAGS = torch.tensor(DATA["columns"], dtype=torch.float64).T, torch.tensor(DATA["tags"]).T
INPUTS = {"plain": (P, Y, {}), "weighted": (P, Y, dict(sample_weight=WEIGHTS)),
          "ignored": (P, torch.tensor(DATA["ignored"]), dict(ignore_index=-1)),
          "multilabel": (COLUMNS, TAGS, dict(task="multilabel"))}
SCORES = ["error_rate", "mean_confidence", "nll", "brier_score", "entropy"]
BINNED = {"ece": metrics.ece, "ece_left": partial(metrics.ece, closed="left"),
          "ece_l2": partial(metrics.ece, norm="l2"), "mce": metrics.mce, "average_ce": metrics.average_ce,
          "debiased_ece": metrics.debiased_ece, "ada_ece": partial(metrics.ada_ece, ties="split"),
          "ace": partial(metrics.ace, ties="split"), "classwise_ece": metrics.classwise_ece}
LOGITS = {"from_logits": partial(metrics.ece_from_logits, norm="l1")}
METRICS = {name: getattr(metrics, name) for name in SCORES} | BINNED | LOGITS | {
    "smooth_ece": partial(metrics.smooth_ece, sigma=.1), "smooth_ece, fixed": metrics.smooth_ece,
    "sece": metrics.sece, "kde_ece": metrics.kde_ece, "triweight": partial(metrics.kde_ece, kernel="triweight")}


def takes(metric, option):
    return option in inspect.signature(metric).parameters


WEIGHED = {name: m for name, m in METRICS.items() if takes(m, "sample_weight")}


def test_options_of_each_metric():
    counts = {"debiased_ece", "ada_ece", "ace", "sece", "kde_ece", "triweight"}  # samples, so weights say nothing
    assert METRICS.keys() - WEIGHED.keys() == counts
    assert all(takes(m, "task") for m in METRICS.values())
    assert [name for name, m in METRICS.items() if not takes(m, "ignore_index")] == ["mean_confidence"]
    for name in counts:
        with pytest.raises(TypeError, match="sample_weight"):
            METRICS[name](P, Y, sample_weight=WEIGHTS)


def called(metric, case, *args):
    probs, target, options = INPUTS[case]
    if metric is metrics.mean_confidence:
        if case == "ignored":
            return metric(probs[target >= 0])
        return metric(probs, **options)
    return metric(probs, target, *args, **options)


@pytest.mark.parametrize("case", INPUTS)
def test_golden_scores(case):
    for name in SCORES:
        within(called(getattr(metrics, name), case), CASES[case]["expected"][name], CASES[case])


@pytest.mark.parametrize("n_bins", [1, 4, 10])
@pytest.mark.parametrize("case", INPUTS)
def test_golden_binned_errors(case, n_bins):
    want = CASES[case]["expected"][str(n_bins)]
    want = want | dict(classwise_ece=want["ece"])  # the same for a binary task
    tried = [name for name in BINNED if case != "weighted" or name in WEIGHED]
    for name in tried:
        within(called(BINNED[name], case, n_bins), want[name], CASES[case])
    assert len(tried) == (6 if case == "weighted" else 9)


@pytest.mark.parametrize("case", INPUTS)
def test_golden_smooth_error(case):
    tolerant = {**CASES[case], "atol": 2e-5}  # the trapezoid rule at 256 points of a curve as wide as .1
    within(called(partial(metrics.smooth_ece, sigma=.1), case), tolerant["expected"]["smooth_ece"], tolerant)


FORMS = {"(N, 1)": (P[:, None], Y), "target (N, 1)": (P, Y[:, None]), "both (N, 1)": (P[:, None], Y[:, None]),
         "flags": (P, Y.bool()), "numpy": (P.numpy(), Y.numpy()), "numpy flags": (P.numpy(), Y.numpy().astype(bool)),
         "list": (P.tolist(), Y.tolist()), "pixels": (P.view(4, 1, 5, 2), Y.view(4, 5, 2)),
         "pixels with a column": (P.view(4, 1, 10), Y.view(4, 1, 10)), "float32": (P.float(), Y.to(torch.uint8))}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_binary_input(form):
    probs, target = FORMS[form]
    assert close(metrics.mean_confidence(probs), metrics.mean_confidence(P), len(P))
    for name in METRICS.keys() - {"mean_confidence", "from_logits"}:
        torch.testing.assert_close(METRICS[name](probs, target), METRICS[name](P, Y), rtol=0, atol=1e-12)


def test_one_column_and_two():
    "Scores are the same in both forms, but for half the Brier score; calibration errors ask other questions."
    two = torch.stack([1 - P, P], 1)
    for name in SCORES[1:] + ["error_rate"]:
        metric = getattr(metrics, name)
        one, both = (metric(p) if name == "mean_confidence" else metric(p, Y) for p in (P, two))
        assert math.isclose(one*(2 if name == "brier_score" else 1), both, rel_tol=1e-12), name
    conf, hit = two.amax(1), two.argmax(1) == Y
    assert math.isclose(metrics.ece(conf, hit, 10), metrics.ece(two, Y, 10), abs_tol=1e-12)
    assert abs(metrics.ece(P, Y, 10) - metrics.ece(two, Y, 10)) > .01
    assert math.isclose(metrics.classwise_ece(two, Y, reduction="none")[1], metrics.ece(P, Y), abs_tol=1e-12)


@pytest.mark.parametrize("case", INPUTS)
def test_log_odds_of_one_column(case):
    probs, target, options = INPUTS[case]
    for dtype in torch.float32, torch.float64:
        logits = (3*probs - 1).to(dtype)
        for n_bins in 7, [5, 15]:
            got = metrics.ece_from_logits(logits, target, n_bins, **options)
            want = metrics.ece(logits.sigmoid(), target, n_bins, **options)
            torch.testing.assert_close(got, want, rtol=0, atol=rounding(1, dtype))
    with pytest.raises(ValueError, match="logits: row 0 holds nan or inf"):
        metrics.ece_from_logits(logits/0, target, **options)
    with pytest.raises(ValueError, match="logits: dtype int64, want floating point"):
        metrics.ece_from_logits(logits.long(), target, **options)


@st.composite
def problems(draw):
    "One column that loves the edges, labels, and whole weights, not all of them 0."
    n = draw(st.integers(1, 12))
    probs = draw(st.lists(st.one_of(st.integers(0, 20).map(lambda k: k/20), st.floats(0, 1)), min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    return torch.tensor(probs, dtype=torch.float64), torch.tensor(labels), torch.tensor(weights)


def both_ways(metric, probs, target, weights, **options):
    "Return the metric with weights, and with copies of the samples."
    copies = probs.repeat_interleave(weights, 0), target.repeat_interleave(weights, 0)
    if metric is metrics.mean_confidence:
        return metric(probs, sample_weight=weights), metric(copies[0])
    return metric(probs, target, sample_weight=weights, **options), metric(*copies, **options)


@pytest.mark.filterwarnings("ignore:nll")
@settings(max_examples=25)
@given(problems())
def test_a_weight_is_a_number_of_copies(problem):
    for name, metric in WEIGHED.items():
        tight = dict(rtol=1e-12, atol=1e-6 if "fixed" in name else 1e-12, equal_nan=True)
        torch.testing.assert_close(*both_ways(metric, *problem), **tight)
    probs, target, weights = problem
    table, copied = (metrics.reliability_bins(*args, 5) for args in (
        (probs, target), (probs.repeat_interleave(weights), target.repeat_interleave(weights))))
    heavy = metrics.reliability_bins(probs, target, 5, sample_weight=weights)
    assert torch.equal(heavy.mass, copied.count.double())  # bits: sums of whole numbers
    assert (heavy.count <= table.count).all()
    torch.testing.assert_close(heavy.acc, copied.acc, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_of_classes_and_of_columns(name):
    draw = torch.Generator().manual_seed(0)
    probs, target = torch.randn(30, 4, generator=draw).double().softmax(1), torch.randint(4, (30,), generator=draw)
    weights = torch.randint(4, (30,), generator=draw)
    scores = probs.log() if name == "from_logits" else probs
    close = dict(rtol=0, atol=1e-6 if "fixed" in name else 1e-12)
    torch.testing.assert_close(*both_ways(WEIGHED[name], scores, target, weights), **close)
    if name != "mean_confidence":
        tags = torch.randint(2, (30, 4), generator=draw)
        torch.testing.assert_close(*both_ways(WEIGHED[name], scores, tags, weights, task="multilabel"), **close)
        shares = WEIGHED[name](scores, target, sample_weight=weights.double()/1000)  # only their ratios matter
        torch.testing.assert_close(shares, WEIGHED[name](scores, target, sample_weight=weights), **close)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "mean_confidence"])
def test_an_ignored_label_is_an_absent_sample(name):
    draw = torch.Generator().manual_seed(0)
    metric, ignored = METRICS[name], torch.tensor(DATA["ignored"])
    scores = P.logit() if name == "from_logits" else P
    assert metric(scores, ignored, ignore_index=-1) == metric(scores[ignored >= 0], ignored[ignored >= 0])
    assert metric(scores, Y, ignore_index=0) == metric(scores[Y > 0], Y[Y > 0])
    probs, target = torch.randn(2, 4, 8, generator=draw).softmax(1), torch.randint(4, (2, 8), generator=draw)
    scores = probs.log() if name == "from_logits" else probs
    rows = scores.movedim(1, -1).reshape(-1, 4)
    for label, place in (-100, -100), (255, 255), (2, 2):
        some = target.masked_fill(target == 2, place)
        valid = target.flatten() != 2
        assert metric(scores, some, ignore_index=label) == metric(rows[valid], target.flatten()[valid])


def test_columns_are_averaged():
    tags = TAGS.clone()
    tags[::3, 1] = -1
    want = [metrics.ece(COLUMNS[:, k][tags[:, k] >= 0], TAGS[:, k][tags[:, k] >= 0]) for k in range(3)]
    assert math.isclose(metrics.ece(COLUMNS, tags, task="multilabel", ignore_index=-1), np.mean(want), abs_tol=1e-12)
    for name in ("ece", "mce", "ada_ece", "smooth_ece", "nll", "brier_score", "error_rate", "classwise_ece", "ace"):
        metric = getattr(metrics, name)
        want = np.mean([metric(p, y) for p, y in zip(COLUMNS.T, TAGS.T)])
        assert math.isclose(metric(COLUMNS, TAGS, task="multilabel"), want, rel_tol=1e-12)
    several = metrics.ece(COLUMNS, TAGS, [5, 10], task="multilabel")
    each = [metrics.ece(COLUMNS, TAGS, M, task="multilabel") for M in (5, 10)]
    assert close(several, each, COLUMNS.numel(), size=1.)
    each = metrics.classwise_ece(COLUMNS, TAGS, task="multilabel", reduction="none")
    want = torch.stack([metrics.ece(p, y) for p, y in zip(COLUMNS.T, TAGS.T)])
    torch.testing.assert_close(each, want, rtol=1e-12, atol=0)
    pixels = COLUMNS.view(4, 5, 3).movedim(2, 1), TAGS.view(4, 5, 3).movedim(2, 1)
    assert math.isclose(metrics.ece(*pixels, task="multilabel"), metrics.ece(COLUMNS, TAGS, task="multilabel"))


BAD = {
    "a negative weight": ((P, Y, dict(sample_weight=-WEIGHTS)), "sample_weight: -[0-9] at row"),
    "a weight that is no number": ((P, Y, dict(sample_weight=WEIGHTS/0)), "sample_weight: (nan|inf) at row"),
    "weights whose sum overflows": ((P, Y, dict(sample_weight=[1.7e308]*40)), "sample_weight: a sum of inf"),
    "weights that underflow": ((P, Y, dict(sample_weight=[1e-320]*40)), "sample_weight: a sum of .*e-319"),
    "weights of other samples": ((P, Y, dict(sample_weight=WEIGHTS[1:])), r"shape \(39,\), want \(40,\), one for each"),
    "no weight at all": ((P, Y, dict(sample_weight=0*WEIGHTS)), "target: no sample is left"),
    "everything ignored": ((P[:2], Y[:2]*0, dict(ignore_index=0)), "target: no sample is left"),
    "an index that is none": ((P, Y, dict(ignore_index="pad")), "ignore_index: 'pad', want a whole number"),
    "a flag for an index": ((P, Y, dict(ignore_index=True)), "ignore_index: True, want a whole number"),
    "another label": ((P, 2*Y, dict(ignore_index=-1)), "target: label 2 at row"),
    "nan where it is ignored": ((P/(Y > 0), Y, dict(ignore_index=0)), "probs: (nan|inf) at row"),
    "an unknown task": ((COLUMNS, TAGS, dict(task="multilable")), "task: 'multilable' is not known; did you mean"),
    "no tags": ((COLUMNS, None, dict(task="multilabel")), "target: None, want class ids"),
    "all tags ignored": ((COLUMNS, 0*TAGS - 1, dict(task="multilabel", ignore_index=-1)), "no sample is left"),
    "binary labels": ((COLUMNS, TAGS[:, 0], dict(task="multilabel")), r"shape \(20,\), want 0 or 1 for each of"),
    "a tag of 2": ((COLUMNS, TAGS*2, dict(task="multilabel")), "label 2 at row [0-9]+, column [0-9], want 0 or 1"),
    "no column": ((P, Y, dict(task="multilabel")), r"probs: shape \(40,\), want \(N, K\)"),
    "float tags": ((COLUMNS, TAGS.float(), dict(task="multilabel")), "target: float32, .* integers or booleans"),
    "columns of logits": ((COLUMNS*3, TAGS, dict(task="multilabel")), "probs: .* logits need .sigmoid"),
    "classes without task": ((COLUMNS, TAGS, {}), r"target: shape \(20, 3\), want \(20,\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    (probs, target, options), message = BAD[case]
    for metric in metrics.ece, metrics.nll, partial(metrics.bootstrap_ci, metrics.nll, n_boot=2):
        with pytest.raises(ValueError, match=message):
            metric(probs, target, **options)


def test_labels_or_counts_are_needed():
    with pytest.raises(ValueError, match="target: None, want class ids, to leave out samples of class -1"):
        metrics.entropy(P, ignore_index=-1)
    with pytest.raises(ValueError, match="sample_weight: bins of scheme 'mass' count samples"):
        metrics.reliability_bins(P, Y, scheme="mass", sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="a bin of weighted .* no noise estimate; leave sample_weight out"):
        _ = metrics.reliability_bins(P, Y, sample_weight=WEIGHTS).noise


@pytest.mark.filterwarnings("ignore:bootstrap_ci")
def test_intervals_of_one_column():
    draw = torch.Generator().manual_seed(0)
    p = torch.rand(3000, generator=draw, dtype=torch.float64)
    fair, off = ((torch.rand(3000, generator=draw, dtype=torch.float64) < q).long() for q in (p, p**2))
    for scheme in ("width", "mass", "classwise", "smooth"):
        assert metrics.ece_ci(p, fair, scheme=scheme)[0] == 0
        lo, hi = metrics.ece_ci(p, off, scheme=scheme)
        assert lo < 1/6 < hi and lo > .1  # the mean of p - p² is 1/6
        ignored = torch.where(p < .5, -1, off)
        left = metrics.ece_ci(p[p >= .5], off[p >= .5], scheme=scheme)
        assert close(metrics.ece_ci(p, ignored, scheme=scheme, ignore_index=-1), left, len(p), size=1.)
    lo, hi = metrics.debiased_ece_ci(p, off)
    assert lo < math.sqrt(1/30) < hi  # of (p - p²)²
    assert math.isclose(metrics.noise_floor(p), metrics.ece(p, fair), abs_tol=.01)
    lo, hi = metrics.bootstrap_ci(metrics.brier_score, p, off)
    assert lo < 1/3 - 2/4 + 1/3 < hi  # E(p - y)² = E p² - 2 p p² + p²


def test_the_bootstrap_draws_weights_with_their_samples():
    draw = torch.Generator().manual_seed(0)
    weights = 1 + (torch.rand(40, generator=draw, dtype=torch.float64) < .5)*9
    lo, hi = metrics.bootstrap_ci(metrics.error_rate, P, Y, sample_weight=weights, n_boot=400)
    assert lo < metrics.error_rate(P, Y, sample_weight=weights) < hi
    assert (lo, hi) != metrics.bootstrap_ci(metrics.error_rate, P, Y, n_boot=400)
    seen = []
    many = P.repeat(20), Y.repeat(20)  # so many misses that no resample has unseen ones
    metrics.bootstrap_ci(lambda p, y: float(seen.append((p.shape, y.shape)) or 0), *many, n_boot=2, ignore_index=0)
    assert seen == [((20*int(Y.sum()),),)*2]*2  # as it was given


# other implementations

def random_data(seed, N=2000):
    "Float32 probabilities of class 1, none so near an edge of 10 or 15 bins that rounding decides its bin."
    draw = torch.Generator().manual_seed(seed)
    p = (3*torch.randn(N, generator=draw)).sigmoid()
    y = (torch.rand(N, generator=draw) < p**1.5).long()
    edges = p.double()[:, None]*torch.tensor([10, 15])
    far = ((edges - edges.round()).abs() > 100*rounding(1, torch.float32)).all(1)
    return p[far], y[far]


@pytest.mark.parametrize("n_bins", [10, 15])
def test_binned_errors_agree_with_torchmetrics_and_netcal(n_bins, seed=0):
    p, y = random_data(seed)
    ignored = torch.where(torch.arange(len(y)) % 7 == 0, -1, y)
    for norm in "l1", "l2", "max":
        for target, ignore_index in (y, None), (ignored, -1), (y, 0):
            want = binary_calibration_error(p, target, n_bins, norm, ignore_index).item()
            ours = metrics.ece(p, target, n_bins, norm=norm, ignore_index=ignore_index)
            assert math.isclose(ours, want, abs_tol=rounding(len(p), torch.float32))
    for name, peer in ("ece", "ECE"), ("mce", "MCE"), ("average_ce", "ACE"):
        want = getattr(netcal.metrics, peer)(n_bins).measure(p.double().numpy(), y.numpy())
        assert math.isclose(getattr(metrics, name)(p, y, n_bins), want, abs_tol=1e-6)


def test_scores_agree_with_scikit_learn(seed=0):
    p, y = random_data(seed)
    weights = torch.rand(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    both = np.stack([1 - p.double(), p.double()], 1)
    for w in None, weights.numpy():
        close = partial(math.isclose, rel_tol=1e-9)
        assert close(metrics.brier_score(p, y, sample_weight=w), brier_score_loss(y, p.double(), sample_weight=w))
        assert close(metrics.nll(p, y, sample_weight=w), log_loss(y, both, sample_weight=w))
        assert close(metrics.error_rate(p, y, sample_weight=w), zero_one_loss(y, p > .5, sample_weight=w))


@pytest.mark.parametrize("strategy, scheme", [("uniform", "width"), ("quantile", "mass")])
def test_the_table_is_the_calibration_curve_of_scikit_learn(strategy, scheme):
    p, y = random_data(0)
    p, y = p[:1500], y[:1500]
    often, mean = calibration_curve(y.numpy(), p.double().numpy(), n_bins=10, strategy=strategy)
    table = metrics.reliability_bins(p, y, 10, scheme=scheme)
    full = table.count > 0
    np.testing.assert_allclose(table.acc[full], often, atol=1e-12 if scheme == "width" else .02)  # its quantiles
    np.testing.assert_allclose(table.conf[full], mean, atol=1e-12 if scheme == "width" else .02)  # lie elsewhere


# over batches

KINDS = dict(ece=streaming.ECE, mce=streaming.MCE, classwise_ece=partial(streaming.ClasswiseECE, 1), nll=streaming.NLL,
             brier_score=streaming.BrierScore, error_rate=streaming.ErrorRate)


@pytest.mark.parametrize("name", KINDS)
def test_binary_batches(name):
    metric, whole = KINDS[name](), getattr(metrics, name)(P, Y)
    for p, y in zip(P.split(7), Y.split(7)):
        metric(p[:, None], y.bool())
    with pytest.raises(ValueError, match="probs: several columns, but earlier batches had one column"):
        metric(torch.stack([1 - P, P], 1), Y)
    torch.testing.assert_close(metric.compute(), whole, rtol=0, atol=1e-12)
    metric = KINDS[name](ignore_index=0)
    assert metric(P[:2], 0*Y[:2]).isnan() and metric.compute().isnan() and metric.n == 0
    metric.update(P, Y)
    torch.testing.assert_close(metric.compute(), getattr(metrics, name)(P[Y > 0], Y[Y > 0]))


def test_bootstrap_of_columns_by_hand():
    "Rows are drawn with all of their labels; a label that is ignored goes, the rest of its row stays."
    draw = torch.Generator().manual_seed(0)
    probs = torch.rand(60, 3, generator=draw, dtype=torch.float64)
    tags = (torch.rand(60, 3, generator=draw) < probs).long()
    weight = torch.randint(0, 4, (60,), generator=draw)
    some = torch.where(torch.rand(60, 3, generator=draw) < .2, -1, tags)

    def by_hand(tags, weight):
        counted = [i for i in range(60) if weight[i] > 0]
        values = []
        for rows in metrics.intervals.resamples(len(counted), 40, 3):
            columns = []
            for k in range(3):
                drawn = [(counted[r], tags[counted[r], k].item()) for r in rows.tolist() if tags[counted[r], k] >= 0]
                total = sum(weight[i].item() for i, _ in drawn)
                columns.append(sum(weight[i].item()*(probs[i, k].item() - y)**2 for i, y in drawn)/total)
            values.append(sum(columns)/3)
        return metrics.intervals.percentiles(torch.tensor(values, dtype=torch.float64), .9)

    ones = torch.ones(60, dtype=torch.int64)
    for labels, weights, options in ((tags, ones, {}), (tags, weight, dict(sample_weight=weight)),
                                     (some, ones, dict(ignore_index=-1)),
                                     (some, weight, dict(sample_weight=weight, ignore_index=-1))):
        got = metrics.bootstrap_ci(metrics.brier_score, probs, labels, n_boot=40, seed=3, level=.9, task="multilabel",
                                   **options)
        np.testing.assert_allclose(got, by_hand(labels, weights), rtol=1e-12)


def test_bootstrap_of_columns():
    "Any function gets the rows of both; a single column is binary; images are rows of pixels."
    options = dict(n_boot=30, task="multilabel")
    given = metrics.bootstrap_ci(lambda probs, target: (probs - target).square().mean(), COLUMNS, TAGS, **options)
    np.testing.assert_allclose(given, metrics.bootstrap_ci(metrics.brier_score, COLUMNS, TAGS, **options), rtol=1e-12)
    probs, tags = COLUMNS[:, :1].repeat(20, 1), TAGS[:, :1].repeat(20, 1)  # many misses: none unseen
    one = metrics.bootstrap_ci(metrics.nll, probs, tags, **options)
    assert one == pytest.approx(metrics.bootstrap_ci(metrics.nll, probs[:, 0], tags[:, 0], n_boot=30), rel=1e-12)
    N, K = COLUMNS.shape
    pixels = COLUMNS.view(N//2, 2, K).movedim(1, 2), TAGS.view(N//2, 2, K).movedim(1, 2)
    flat = metrics.bootstrap_ci(metrics.nll, COLUMNS, TAGS, **options)
    assert close(metrics.bootstrap_ci(metrics.nll, *pixels, **options), flat, COLUMNS.numel())
    weight = WEIGHTS.new_ones(N//2, 2)
    assert metrics.bootstrap_ci(metrics.nll, *pixels, sample_weight=weight, **options) == pytest.approx(flat)
    alone = torch.where(torch.arange(N)[:, None] > 0, -1, TAGS)  # most resamples have no label of a column
    lo, hi = metrics.bootstrap_ci(metrics.nll, COLUMNS, alone, ignore_index=-1, n_boot=60, task="multilabel")
    want = metrics.nll(COLUMNS[:1], TAGS[:1], task="multilabel")
    assert close(lo, want, N*K) and close(hi, want, N*K)
    alone[:, 1:] = TAGS[:, 1:]  # of the first column
    lo, hi = metrics.bootstrap_ci(metrics.nll, COLUMNS, alone, ignore_index=-1, n_boot=60, task="multilabel")
    assert lo < metrics.nll(COLUMNS, alone, task="multilabel", ignore_index=-1) < hi
