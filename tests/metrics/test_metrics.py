"Metrics against plain Python, at the edges, and with bad input."
import inspect
import math
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from close import close
from conftest import rounding
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calibnb.metrics import bins, errors, intervals, smoothing
from calibnb import metrics
from calibnb.core import Predictions

NAMES = ["error_rate", "nll", "brier_score", "entropy", "ece", "mce", "average_ce", "ada_ece", "classwise_ece",
         "debiased_ece", "ace", "reliability_bins", "smooth_ece", "sece", "kde_ece"]
FUNCTIONS = {name: getattr(metrics, name) for name in NAMES}
FUNCTIONS["triweight"] = lambda p, y, **options: metrics.kde_ece(p, y, kernel="triweight", **options)
BINNED = ["ece", "mce", "ada_ece", "classwise_ece", "average_ce", "debiased_ece", "ace"]


def slow_ece(conf, hit, M, closed="right"):
    "Return ECE, MCE and the number of placed samples, one sample at a time."
    def inside(c, m):
        lo, hi = m/M, (m + 1)/M
        if closed == "right":
            return lo < c <= hi or m == 0 and c == 0
        return lo <= c < hi or m == M - 1 and c == 1
    bins = [[(c, a) for c, a in zip(conf, hit) if inside(c, m)] for m in range(M)]
    gaps = [abs(sum(a for _, a in b)/len(b) - sum(c for c, _ in b)/len(b)) if b else 0. for b in bins]
    return sum(len(b)/len(conf)*g for b, g in zip(bins, gaps)), max(gaps), sum(map(len, bins))


def slow_smooth_ece(conf, hit, sigma, points=2000):
    "Return the smooth ECE from every sample and mirror image at every point."
    t = (np.arange(points) + .5)/points
    images = np.concatenate([[2*k + c, 2*k - c] for c in [np.asarray(conf)] for k in range(-8, 9)])
    errors = np.tile(np.asarray(hit) - np.asarray(conf), (34, 1))
    bells = np.exp(-((t[:, None, None] - images)/sigma)**2/2)/(sigma*math.sqrt(2*math.pi))
    return np.abs((bells*errors).sum((1, 2))/len(conf)).mean()


def slow_regression(conf, hit, log_kernel, self_term):
    "Return the weighted mean of the hits around each sample, one pair at a time."
    out = []
    for i, c in enumerate(conf):
        pairs = [(log_kernel(c, d), h) for j, (d, h) in enumerate(zip(conf, hit)) if self_term or j != i]
        top = max(w for w, _ in pairs)
        out.append(sum(math.exp(w - top)*h for w, h in pairs)/sum(math.exp(w - top) for w, _ in pairs))
    return out


def slow_ada_ece(conf, hit, M):
    "Return the ECE of equal-mass bins: sort, split, and sum each part."
    order = sorted(range(len(conf)), key=lambda i: conf[i])
    parts = [part for part in np.array_split(order, M) if len(part)]
    return sum(abs(sum(hit[i] - conf[i] for i in part)) for part in parts)/len(conf)


@st.composite
def problems(draw):
    "Draw probabilities at the edges: exact 0 and 1, ties, values on bin edges, few samples, absent classes."
    N, K = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    weight = st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 1000))
    rows = draw(st.lists(st.lists(weight, min_size=K, max_size=K).filter(any), min_size=N, max_size=N))
    probs = torch.tensor(rows, dtype=torch.float64)
    return probs/probs.sum(1, keepdim=True), torch.tensor(draw(st.lists(st.integers(0, K - 1), min_size=N, max_size=N)))


@settings(max_examples=30)
@given(problems(), st.integers(1, 20), st.sampled_from(sorted(bins.BIN_RULES)))
def test_each_rule_puts_every_sample_into_one_bin_whose_edges_enclose_it(problem, M, scheme):
    "A new entry of BIN_RULES is tried here without a line of its own."
    probs, target = problem
    conf, pred = probs.max(1)
    table = metrics.reliability_bins(probs, target, M, scheme=scheme)
    full = table.count > 0
    assert table.count.sum() == len(probs)
    assert close((table.acc*table.count)[full].sum(), (pred == target).sum().double(), terms=2*M + len(probs))
    assert close((table.conf*table.count)[full].sum(), conf.sum(), terms=2*M + len(probs))
    assert ((table.lo <= table.conf + 1e-9) & (table.conf <= table.hi + 1e-9))[full].all()


@settings(max_examples=60)
@given(problems(), st.integers(1, 20), st.sampled_from(["right", "left"]))
def test_against_slow_twins(problem, M, closed):
    probs, target = problem
    conf, hit = probs.numpy().max(1), (probs.numpy().argmax(1) == target.numpy()).astype(float)
    want, worst, placed = slow_ece(conf, hit, M, closed)
    assert placed == len(conf)
    assert math.isclose(metrics.ece(probs, target, M, closed=closed), want, abs_tol=1e-12)
    assert math.isclose(metrics.mce(probs, target, M, closed=closed), worst, abs_tol=1e-12)
    assert math.isclose(metrics.ada_ece(probs, target, M, ties="split"), slow_ada_ece(conf, hit, M), abs_tol=1e-12)
    each = [slow_ece(probs[:, k].numpy(), (target == k).double().numpy(), M)[0] for k in range(probs.shape[1])]
    ours = metrics.classwise_ece(probs, target, M, reduction="none")
    torch.testing.assert_close(ours, torch.tensor(each, dtype=torch.float64), rtol=0, atol=1e-12)


def around_edges(M, dtype):
    "Return the edges k/M in a dtype; and the edges with the numbers next to each, above and below."
    edges = torch.arange(M + 1, dtype=torch.float64).div(M).to(dtype)
    above, below = (edges.nextafter(torch.tensor(beyond, dtype=dtype)) for beyond in (2., -1.))
    return edges, torch.cat([edges, above, below]).clamp(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("M", [3, 7, 10, 15, 49, 100, 1000])
def test_confidences_beside_an_edge_belong_to_it(M, dtype):
    "0.07 is the edge 7/100, although 0.07*100 is a little more than 7; votes move by a bit when rows are normalised."
    _, conf = around_edges(M, dtype)
    edge = (conf.double()*M).round().long()
    assert bins.bin_ids(conf, M).equal((edge - 1).clamp(0, M - 1).int())
    assert bins.bin_ids(conf, M, "left").equal(edge.clamp(0, M - 1).int())
    far = (torch.arange(1, M).double()/M + 3*bins.edge_tolerance(conf)).to(dtype)
    assert bins.bin_ids(far, M).tolist() == [*range(1, M)]


@pytest.mark.parametrize("end", [0., 1.])
def test_errors_at_both_ends_count_in_full(end):
    "Top-label confidences are never 0, so the kernel itself is called."
    means = smoothing.cosine_means([(torch.tensor([end, .5]), torch.tensor([.3, 0.]))])
    assert math.isclose(smoothing.smooth_error_norm(means, .05), .15, abs_tol=1e-6)


def test_the_upper_end_of_an_interval_lies_above_the_estimate():
    zero, M = torch.zeros(15, dtype=torch.float64), torch.full((15,), 1/15, dtype=torch.float64)
    lo, hi = intervals.gap_interval(zero, zero + .7, torch.full((15,), 50), M)
    assert lo == 0 and .005 < hi < .05


def test_sums_are_float64():
    "Summed in float32 the ECE would be off in the fourth digit."
    probs = torch.tensor([[.9, .1]]).repeat(100_000, 1)
    gap = abs(1 - probs[0, 0].double())
    assert math.isclose(metrics.ece(probs, torch.zeros(100_000, dtype=torch.int64)), gap, abs_tol=1e-12)


@settings(max_examples=12)
@given(problems(), st.sampled_from([.02, .1, .5, 2.]))
def test_without_bins_against_slow_twins(problem, width):
    probs, target = problem
    conf, hit = probs.numpy().max(1), (probs.numpy().argmax(1) == target.numpy()).astype(float)
    assert math.isclose(metrics.smooth_ece(probs, target, sigma=width), slow_smooth_ece(conf, hit, width), abs_tol=2e-4)
    fixed = metrics.smooth_ece(probs, target).item()
    if fixed > 1e-3:  # the same grid
        assert math.isclose(metrics.smooth_ece(probs, target, sigma=fixed), fixed, abs_tol=1e-6)
    def gauss(c, d):
        return -((c - d)/width)**2/2
    for self_term in (True, False) if len(conf) > 1 else (True,):
        want = np.abs(np.array(slow_regression(conf, hit, gauss, self_term)) - conf).mean()
        assert math.isclose(metrics.sece(probs, target, width, self_term=self_term), want, abs_tol=1e-12)
    inside = np.clip(conf, 1e-7, 1 - 1e-7)
    def beta(c, d):
        kernel = torch.distributions.Beta(torch.tensor(d/width + 1), torch.tensor((1 - d)/width + 1))
        return kernel.log_prob(torch.tensor(c)).item()
    if len(conf) > 1:
        want = np.abs(np.array(slow_regression(inside, hit, beta, False)) - conf).mean()
        assert math.isclose(metrics.kde_ece(probs, target, width), want, abs_tol=1e-8)
    else:
        assert metrics.kde_ece(probs, target, width).isnan()


@settings(max_examples=30)
@given(problems())
def test_one_pass_over_many_bins_and_grouped_ties(problem):
    probs, target = problem
    sweep = [1, 3, 10, 100]
    for metric in metrics.ece, metrics.mce:
        assert metric(probs, target, sweep).tolist() == [metric(probs, target, M).item() for M in sweep]
    rows = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    grouped = partial(metrics.ada_ece, n_bins=4, ties="group")
    assert math.isclose(grouped(probs, target), grouped(probs[rows], target[rows]), abs_tol=1e-12)
    table = metrics.reliability_bins(probs, target, 4, scheme="mass", ties="group")
    assert table.count.sum() == len(target) and (table.hi[:-1] < table.lo[1:]).all()


@settings(max_examples=15)
@given(problems(), st.integers(0, 10**6))
def test_order_of_samples_and_names_of_classes_do_not_matter(problem, seed):
    probs, target = problem
    draw = torch.Generator().manual_seed(seed)
    rows, classes = torch.randperm(len(target), generator=draw), torch.randperm(probs.shape[1], generator=draw)
    unequal = probs.sort(1)[0].diff(dim=1)[:, -1].min() > 0  # a tie at the top goes to the first class
    for name, metric in FUNCTIONS.items():
        if name in ("reliability_bins", "ada_ece", "ace"):  # equal confidences are split in the order they come
            continue
        near_0 = math.sqrt(rounding(len(target))) if name == "debiased_ece" else 1e-9  # a root of what cancels
        close = dict(rtol=1e-9, atol=near_0, equal_nan=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = metric(probs, target)
            torch.testing.assert_close(metric(probs[rows], target[rows]), value, **close)
            if unequal:
                back = classes.argsort()
                torch.testing.assert_close(metric(probs[:, classes], back[target]), value, **close)


@settings(max_examples=30)
@given(problems())
def test_ties_go_to_the_first_class(problem):
    probs, target = problem
    want = (probs.numpy().argmax(1) != target.numpy()).mean()
    assert math.isclose(metrics.error_rate(probs, target), want, abs_tol=1e-12)
    edges = 7*probs.amax(1)
    near_edge = ((edges - edges.round()).abs() < 7*rounding(probs.shape[1])) & (edges < 6.5)
    assume(not near_edge.any())  # there the last bit of a confidence decides its bin
    logits = torch.where(probs > 0, probs, 1e-300).log()
    from_logits = metrics.ece_from_logits(logits, target, 7)
    assert math.isclose(from_logits, metrics.ece(logits.softmax(1), target, 7), abs_tol=1e-12)


def test_debiasing_and_the_noise_floor():
    "The plug-in error of calibrated predictions is as large as the floor; the debiased error is less."
    draw, plain, less, floor = torch.Generator().manual_seed(0), [], [], []
    for i in range(80):  # a quotient of means, of a standard error of .028
        p = torch.rand(500, generator=draw, dtype=torch.float64)*.5 + .5
        probs = torch.stack([p, 1 - p], 1)
        target = (torch.rand(500, generator=draw, dtype=torch.float64) > p).long()
        plain.append(metrics.ece(probs, target))
        less.append(metrics.debiased_ece(probs, target) - metrics.ece(probs, target, norm="l2"))
        floor.append(metrics.noise_floor(probs, draws=20, seed=i))
    assert max(less) <= 1e-12 and abs(np.mean(plain)/np.mean(floor) - 1) < .1


def test_a_noise_floor_takes_no_labels():
    probs = torch.tensor([[.9, .1], [.2, .8]])
    for labels in torch.tensor([0, 1]), np.array([0, 1]), [0, 1]:
        with pytest.raises(ValueError, match="^target: noise_floor takes no target, .*; call noise_floor\\(probs\\)"):
            metrics.noise_floor(probs, labels)
    with pytest.raises(ValueError, match="^n_bins: "):
        metrics.noise_floor(probs, 0)
    assert metrics.noise_floor(probs, np.int64(3)) > 0


@settings(max_examples=30)
@given(problems(), st.integers(1, 12), st.integers(1, 4))
def test_bounds_and_refinement(problem, M, factor):
    probs, target = problem
    coarse, fine = metrics.ece(probs, target, M), metrics.ece(probs, target, M*factor)
    assert 0 <= coarse <= metrics.mce(probs, target, M) + 1e-12 <= 1 + 2e-12
    assert coarse <= fine + 1e-12
    gap = abs(1 - metrics.error_rate(probs, target) - metrics.mean_confidence(probs))
    assert math.isclose(metrics.ece(probs, target, 1), gap, abs_tol=1e-12)
    rows = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    assert math.isclose(metrics.ece(probs[rows], target[rows], M), coarse, abs_tol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forms_of_input(name):
    "Arrays, lists, float32, half precision and images; each metric once, since they share their checks."
    draw = torch.Generator().manual_seed(0)
    probs = torch.randn(12, 4, generator=draw, dtype=torch.float64).softmax(1)
    target = torch.randint(4, (12,), generator=draw)
    forms = dict(numpy=(probs.numpy(), target.numpy()), float32=(probs.float(), target.int()),
                 half=(probs.half(), target), list=(probs.tolist(), target.tolist()),
                 segmentation=(probs.reshape(3, 4, 4).movedim(2, 1), target.reshape(3, 4)))
    want = FUNCTIONS[name](probs, target)
    for form, args in forms.items():
        got = FUNCTIONS[name](*args)
        if name == "reliability_bins":
            assert torch.equal(got.count, want.count) or form == "half"
        else:
            assert got.dtype == torch.float64 and got.ndim == 0
            torch.testing.assert_close(got, want, rtol=0, atol=2e-2 if form == "half" else 1e-6)


GOOD = torch.tensor([[.5, .5], [.2, .8]]), torch.tensor([0, 1])
BAD = {
    "not summing to 1": ((torch.tensor([[.7, .7], [.5, .5]]), GOOD[1]), "probs: row 0 sums to 1.400.*softmax"),
    "logits": ((torch.tensor([[3., -1.], [.5, .5]]), GOOD[1]),
               r"probs: 3 at row 0, column 0, want numbers in \[0, 1\]; logits need .softmax"),
    "nan": ((torch.tensor([[float("nan"), 1.], [.5, .5]]), GOOD[1]), "probs: nan at row 0.*without a probability"),
    "NA of pandas": ((GOOD[0], pd.Series([0, pd.NA])), "target: no value in row 1; leave out"),
    "nullable labels": ((GOOD[0], pd.Series([0, pd.NA], dtype="Int64")), "target: no label in row 1; leave out"),
    "too far off for rounding": ((torch.tensor([[.48, .5], [.5, .5]]), GOOD[1]),
                                 "probs: row 0 sums to .*keepdims=True"),
    "inf": ((torch.tensor([[.5, .5], [0., float("inf")]]), GOOD[1]), "probs: inf at row 1"),
    "label too large": ((GOOD[0], torch.tensor([0, 2])),
                        r"target: label 2 at row 1, want 0..1 \(probs has 2 columns\)"),
    "label negative": ((GOOD[0], torch.tensor([-1, 0])), "target: label -1 at row 0"),
    "float labels": ((GOOD[0], torch.tensor([0., 1.])), "target: dtype float32, want integer class ids"),
    "one-hot labels": ((GOOD[0], torch.tensor([[0, 1], [1, 0]])),
                       r"target: shape \(2, 2\), want \(2,\).*one-hot labels need .argmax"),
    "too few labels": ((GOOD[0], torch.tensor([0])), r"target: shape \(1,\), want \(2,\)"),
    "empty": ((torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), "probs: empty"),
    "one column, another label": ((torch.ones(2, 1), torch.tensor([0, 2])),
                                       r"target: label 2 at row 1, want 0..1 \(probs has one column, of class 1\)"),
    "one column, float labels": ((torch.tensor([.5, .5]), torch.tensor([0., 1.])),
                                 "target: dtype float32, want integer class ids; labels 0 and 1 need .long"),
    "one column of logits": ((torch.tensor([.5, 1.5]), GOOD[1]), r"probs: 1.5 at row 1, .* logits need .sigmoid"),
    "one column, too few labels": ((torch.tensor([.5, .5]), torch.tensor([0])), r"target: shape \(1,\), want \(2,\)"),
    "an empty column": ((torch.zeros(0), torch.zeros(0).long()), "probs: empty"),
    "no column": ((torch.ones(2, 0), GOOD[1]), "K >= 1"),
    "a number": ((torch.tensor(.5), torch.tensor(1)), r"probs: shape \(\), want \(N, K\)"),
    "integers": ((torch.tensor([[0, 1], [1, 0]]), GOOD[1]), "probs: dtype int64, want floating point"),
    "swapped": ((GOOD[1], GOOD[0]), "probs: dtype int64, want floating point; are target and probs swapped"),
    "nothing": ((None, GOOD[1]), "probs: object values, want a tensor, array or list of numbers"),
    "strings": ((GOOD[0], ["cat", "dog"]), "target: .* values, want a tensor, array or list of numbers"),
    "a record": ((Predictions(GOOD[0].log(), GOOD[1]), GOOD[1]),
                 "probs: Predictions, want a tensor, array or list of numbers; give .probs"),
    "ragged": (([[.5, .5], [1.]], GOOD[1]), "probs: a ragged list"),
}


@pytest.mark.parametrize("digits", [2, 3])
def test_rounded_rows_are_normalised_with_a_note(digits):
    exact = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    probs, target = exact.mul(10**digits).round()/10**digits, torch.arange(200) % 5
    with pytest.warns(UserWarning, match=f"probs: rounded to {digits} decimals, so .* of 200 rows do not sum to 1"):
        got = metrics.nll(probs, target)
    torch.testing.assert_close(got, metrics.nll(probs/probs.sum(1, keepdims=True), target), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    args, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        metrics.ece(*args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_metric_checks_its_input(name):
    for case in "not summing to 1", "label too large":
        args, message = BAD[case]
        with pytest.raises(ValueError, match=message):
            FUNCTIONS[name](*args)
    if name != "entropy":
        with pytest.raises(ValueError, match="target: None"):
            FUNCTIONS[name](GOOD[0], None)


@pytest.mark.parametrize("n_bins", [0, -3, 2.5, True, None])
def test_bad_bins(n_bins):
    for name in BINNED if n_bins == 0 else ["ece"]:
        with pytest.raises(ValueError, match="n_bins: .* want a whole number"):
            FUNCTIONS[name](*GOOD, n_bins)


def test_numbers_of_bins():
    assert close(metrics.ece(*GOOD, np.int64(3)), metrics.ece(*GOOD, 3), len(GOOD[0]))
    assert close(metrics.ece(*GOOD, 2**20), metrics.ece(*GOOD, 2**19), len(GOOD[0]))
    with pytest.raises(ValueError, match="n_bins: 2097152, want a whole number of .* at least 1 and at most 1048576"):
        metrics.ece(*GOOD, 2**21)


def test_narrow_widths_and_thin_bins():
    probs, target = torch.tensor([[.7, .3]]*4, dtype=torch.float64), torch.ones(4, dtype=torch.int64)
    for sigma in 1e-4, 3e-4, 1e-3, .01:
        assert math.isclose(metrics.smooth_ece(probs, target, sigma=sigma), .7, abs_tol=1e-4)
    for sigma in 0., 1e-5, float("nan"), "wide":
        with pytest.raises(ValueError, match="sigma: "):
            metrics.smooth_ece(probs, target, sigma=sigma)
    alone = metrics.debiased_ece_ci(probs[:1], target[:1])  # a sample alone in its bin shows no spread
    assert all(math.isnan(end) for end in alone)


def test_bootstrap_of_any_function():
    lo, hi = metrics.bootstrap_ci(lambda p, y: float((p.argmax(1) == y).double().mean()), *GOOD, n_boot=20)
    assert 0 <= lo <= hi <= 1
    with pytest.raises(ValueError, match="metric: values of shape"):
        metrics.bootstrap_ci(lambda p, y: p, *GOOD, n_boot=2)
    probs = torch.tensor([[1., 0.], [.5, .5], [.5, .5], [.5, .5]])
    assert metrics.bootstrap_ci(metrics.nll, probs, torch.tensor([1, 0, 0, 0]))[1] == math.inf


def test_arrays_of_any_kind():
    probs, target = GOOD
    for kind in ">f4", "longdouble":
        of_arrays = metrics.ece(probs.numpy().astype(kind), target.numpy().astype("uint16"))
        assert close(of_arrays, metrics.ece(probs, target), len(probs))
    backwards = probs.numpy()[::-1], target.numpy()[::-1]
    assert close(metrics.ece(*backwards), metrics.ece(probs, target), len(probs))


def test_mce_of_bins_with_enough_samples():
    probs, target = torch.tensor([[.9, .1], [.9, .1], [.6, .4]], dtype=torch.float64), torch.tensor([0, 0, 1])
    assert math.isclose(metrics.mce(probs, target, 10), .6)
    assert math.isclose(metrics.mce(probs, target, 10, min_count=2), .1)
    assert metrics.mce(probs, target, 10, min_count=3).isnan()


def calibration_problem(n, strength, draw):
    "Draw two-class confidences in (1/2, 1), right with a probability nearer to 1/2 by `strength`."
    conf = .5 + .5*torch.rand(n, generator=draw, dtype=torch.float64).pow(1/3)
    true = .5 + (conf - .5)*(1 - strength)
    target = (torch.rand(n, generator=draw, dtype=torch.float64) > true).long()
    return torch.stack([conf, 1 - conf], 1), target, true


def true_errors(probs, true, N):
    "Return binned errors of many samples, with the probabilities of being right in place of labels."
    conf = probs[:, 0]
    ids, gap = bins.bin_ids(conf, 15), true - conf
    sums, counts = torch.bincount(ids, weights=gap, minlength=15), torch.bincount(ids, minlength=15).clamp_min(1)
    width = sums.abs().sum()/N
    smooth = smoothing.smooth_error_norm(smoothing.cosine_means([(conf, gap)]))
    debiased = ((sums/counts).square()*counts).sum().div(N).sqrt()
    # of classwise, the two columns mirror each other
    return dict(width=width, mass=gap.abs().mean(), classwise=width, smooth=smooth, debiased=debiased)


@pytest.mark.parametrize("strength", [0., .15, .5])
def test_intervals_of_binned_errors_cover(strength, repetitions=40, least=33):
    "95 % intervals contain the true error, of each kind, in 33 of 40 repetitions: fewer once in 1,400 times."
    draw, many = torch.Generator().manual_seed(1), 300_000
    probs, _, true = calibration_problem(many, strength, draw)
    truth = true_errors(probs, true, many)
    inside, margin = dict.fromkeys(truth, 0), 2e-3  # the truth itself is a Monte Carlo number
    for i in range(repetitions):
        probs, target, _ = calibration_problem(600, strength, draw)
        found = {kind: metrics.ece_ci(probs, target, scheme=kind, seed=i) for kind in truth if kind != "debiased"}
        found["debiased"] = metrics.debiased_ece_ci(probs, target)
        for kind, (lo, hi) in found.items():
            inside[kind] += lo - margin <= truth[kind] <= hi + margin
    assert min(inside.values()) >= least, inside


@pytest.mark.parametrize("end", [0., 1.])
def test_the_smooth_interval_at_an_end(end):
    "With all samples at one end it is the interval of a proportion."
    probs, n = torch.tensor([[1., 0.]], dtype=torch.float64).repeat(400, 1), 40
    lo, hi = metrics.ece_ci(probs, (torch.arange(400) < n).long(), scheme="smooth")
    assert math.isclose((hi - lo)/2, 1.96*math.sqrt(.1/400), rel_tol=.15)  # errors of 1 in a tenth of the samples
    found = smoothing.smooth_noise(torch.full((400,), end), torch.arange(400) < 100)
    noise = (found["weight"]*found["noise"].abs()).sum(1).mean()
    wrong = {0.: .25, 1.: .75}[end]  # the share of samples with an error of 1
    assert math.isclose(noise, math.sqrt(2/math.pi)*math.sqrt(wrong/400), rel_tol=.15)


RAISED_BY_NOISE = {
    "ece": "ece_ci", "ada_ece": r"ece_ci\(scheme='mass'\)", "classwise_ece": r"ece_ci\(scheme='classwise'\)",
    "smooth_ece": r"ece_ci\(scheme='smooth'\)", "debiased_ece": "debiased_ece_ci", "marginal_ce": "marginal_ce_ci",
    "overconfidence_error": "one_sided_ci", "underconfidence_error": r"one_sided_ci\(direction='under'\)",
    "ks_error": "ks_error_ci", "top_k_ece": "top_k_ece_ci", "skce": "skce_ci",
    **dict.fromkeys(("mce", "average_ce", "ace", "sece", "kde_ece", "canonical_ce"), "consistency_test")}


@pytest.mark.parametrize("name, instead", RAISED_BY_NOISE.items())
def test_the_bootstrap_of_an_error_that_noise_raises_warns(name, instead):
    metric = getattr(metrics, name)
    for asked in (metric, partial(partial(metric), validate=False)):
        with pytest.warns(UserWarning, match=f"interval of {name} lies too high .* {instead}") as seen:
            metrics.bootstrap_ci(asked, *GOOD, n_boot=2)
        assert seen[0].filename == __file__  # the caller's


def test_warnings_of_the_bootstrap():
    "A multilabel task has no other interval than its columns', and a mean needs no warning."
    columns, tags = torch.tensor([[.2, .7], [.6, .9], [.4, .1]]), torch.tensor([[0, 1], [1, 1], [1, 0]])
    with pytest.warns(UserWarning, match="lies too high .* take each column alone, without task='multilabel'") as seen:
        metrics.bootstrap_ci(metrics.ece, columns, tags, n_boot=2, task="multilabel")
    assert "ece_ci" not in str(seen[0].message)
    floored = metrics.bootstrap_ci(partial(metrics.nll, eps=.1), *GOOD, n_boot=2)
    assert close(floored, metrics.bootstrap_ci(metrics.nll, *GOOD, n_boot=2, eps=.1), len(GOOD[0]))


def test_flags_are_true_or_false():
    probs, target = torch.tensor([[.6, .4], [.61, .39], [.2, .8]]), torch.tensor([0, 1, 1])
    without, with_self = (metrics.sece(probs, target, self_term=value) for value in (False, True))
    assert close(metrics.sece(probs, target, self_term=np.False_), without, 9)
    assert close(metrics.sece(probs, target, self_term=np.True_), with_self, 9)
    assert not close(without, with_self, 9)
    for value in 1, 0, "no", None:
        with pytest.raises(ValueError, match=f"self_term: {value!r}, want True or False"):
            metrics.sece(*GOOD, self_term=value)


def test_bootstrap_covers():
    "The 95 % interval of the error rate covers the truth in 33 of 40 repetitions: fewer once in 1,400 times."
    draw, inside = torch.Generator().manual_seed(0), 0
    for i in range(40):
        p = torch.rand(400, generator=draw, dtype=torch.float64)*.4 + .6
        target = (torch.rand(400, generator=draw, dtype=torch.float64) > p).long()
        lo, hi = metrics.bootstrap_ci(metrics.error_rate, torch.stack([p, 1 - p], 1), target, n_boot=80, seed=i)
        inside += lo <= .2 <= hi and hi - lo < .1  # four standard errors are .08
    assert inside >= 33


@pytest.mark.parametrize("K", [1, 3])
def test_ace_does_not_depend_on_the_order_of_ties(K):
    draw = torch.Generator().manual_seed(0)
    probs = torch.randint(1, 4, (60, K), generator=draw).double()  # many ties
    probs, target = (probs/probs.sum(1, keepdim=True) if K > 1 else probs/4), torch.randint(2, (60,), generator=draw)
    order = torch.randperm(60, generator=draw)
    for n_bins in 7, 15, 80:
        value, again = (metrics.ace(probs[rows], target[rows], n_bins) for rows in (slice(None), order))
        assert math.isclose(value, again, rel_tol=1e-12)
    apart = probs + 1e-9*torch.arange(60)[:, None]*torch.tensor([1., -1., 0.])[:K]  # without ties: the plain formula
    p, places = apart.sort(0)
    parts = zip((target[places] == torch.arange(K) + (K == 1)).double().tensor_split(7), p.tensor_split(7))
    plain = torch.stack([(h - q).mean(0).abs() for h, q in parts]).mean()
    assert math.isclose(metrics.ace(apart, target, 7), plain, rel_tol=1e-12)


@pytest.mark.parametrize("name", ["sece", "kde_ece", "canonical_ce"])
def test_metrics_of_all_pairs_warn_of_many_samples(name, monkeypatch):
    monkeypatch.setattr(errors, "_LARGE_N", 10)
    probs, target = torch.full((30, 2), .5), torch.zeros(30, dtype=torch.int64)
    with pytest.warns(UserWarning, match=f"{name}: 30 samples, .* 9 times as long .* use smooth_ece"):
        getattr(metrics, name)(probs, target)
    getattr(metrics, name)(probs[:10], target[:10])  # silent
    metrics.kde_ece(probs, target, kernel="triweight")


METRICS_OF_LOGITS = {
    "ece_from_logits": metrics.ece_from_logits, "nll of Predictions": lambda z, y: Predictions(z, y).nll.mean(),
    "energy": lambda z, y: metrics.energy_score(z).mean(),
    "ood": lambda z, y: metrics.ood_auroc(z[:40], z[40:] - 1., score="max_logit")}


@pytest.mark.parametrize("name", METRICS_OF_LOGITS)
def test_metrics_of_logits_with_masked_classes(name):
    "A logit of -inf is the limit of a very low logit; a row without another logit is refused."
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(80, 4, generator=draw), torch.randint(3, (80,), generator=draw)
    masked, low = (logits.index_fill(1, torch.tensor([3]), v) for v in (-math.inf, -1e5))
    metric = METRICS_OF_LOGITS[name]
    torch.testing.assert_close(metric(masked, target), metric(low, target))
    masked[1] = -math.inf
    with pytest.raises(ValueError, match="row 1 holds nan or inf, want finite numbers; did training diverge"):
        metric(masked, target)


def test_the_interval_of_a_distance_from_the_truth_contains_it():
    "Of a calibrated model, whose calibration error is 0, and of one whose confidences are .1 too high."
    truth = torch.linspace(.5, .9, 400, dtype=torch.float64)
    assert metrics.truth_error(truth, truth).interval == (0., 0.)
    found = metrics.truth_error(truth + .1, truth)
    assert found.interval[0] <= .01 + 1e-9 and found.interval[1] >= .01 - 1e-9


def test_defaults_are_those_of_the_field():
    "Fifteen bins wherever the papers take fifteen, and values are checked."
    defaults = {name: inspect.signature(getattr(metrics, name)).parameters
                for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    bins = {name: given["n_bins"].default for name, given in defaults.items() if "n_bins" in given}
    assert {name for name, M in bins.items() if M != 15} == {"top_label_sums", "truth_error", "resampled_truth_error"}
    checked = {name: given["validate"].default for name, given in defaults.items() if "validate" in given}
    assert len(checked) > 40 and all(checked.values())
