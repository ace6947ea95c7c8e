"Searches for temperatures: exhaustive twins, promises, degenerate sets, bounds, refusals."
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from overconfident import overconfident, quiet, skewed

from calibnb import metrics
from calibnb.posthoc import (
    EnsembleTemperatureScaling, TemperatureScaling, listed_temperature, make_calibrator, oracle_ece, temperature
)
from calibnb.posthoc.ensemble_temperature import mixture_log_probs
from calibnb.posthoc.listed_temperature import ece_by_temperature, temperature_lists


KINDS = ["plain", "float32", "tied", "lattice", "large", "two classes", "one sample", "many classes"]


@pytest.mark.parametrize("kind, search", [("plain", "pool"), *((kind, "grid") for kind in KINDS)])
def test_a_list_is_searched_as_if_one_by_one(kind, search):
    "The first minimum over the list, by the plain metric in float64, for data where rounding and ties could mislead."
    K = {"many classes": 100, "two classes": 2}.get(kind, 4)
    logits, target = overconfident(N=300, K=K, dtype=torch.float64)
    if kind == "tied":
        logits, target = logits[:10].repeat(30, 1), target
    if kind == "lattice":
        logits = logits.round()
    if kind == "large":
        logits = logits*300
    if kind == "one sample":
        logits, target = logits[:1], target[:1]
    given = logits.float() if kind == "float32" else logits
    exact, pool = given.double(), temperature_lists[search].tolist()
    nll = [F.cross_entropy(exact/T, target).item() for T in pool]
    ece = torch.stack([metrics.ece((exact/T).softmax(1), target) for T in pool])
    for criterion, best in ("nll", int(np.argmin(nll))), ("ece", int((ece <= ece.min() + 1e-12).nonzero()[0])):
        T = quiet(TemperatureScaling(criterion, search), given, target).temperature_
        assert T == pool[best] or (criterion == "ece" and abs(ece[pool.index(T)] - ece[best]) < 1e-9)


def test_the_number_of_bins_counts():
    logits, target = overconfident(N=300, dtype=torch.float64)
    grid = temperature_lists["grid"].tolist()
    for n_bins in 3, 50:
        T = TemperatureScaling("ece", "grid", n_bins).fit(logits, target).temperature_
        every = [metrics.ece((logits/t).softmax(1), target, n_bins).item() for t in grid]
        oracle = oracle_ece(logits, target, n_bins, "grid")
        assert T == grid[int(np.argmin(every))]
        assert T == oracle.temperature
        assert oracle.ece == pytest.approx(min(every), abs=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), K=st.integers(2, 6), N=st.integers(1, 40), scale=st.floats(.01, 300),
       search=st.sampled_from(["continuous", "pool", "grid"]), adversarial=st.booleans())
def test_temperature_is_positive_never_worse_and_keeps_the_prediction(seed, K, N, scale, search, adversarial):
    draw = torch.Generator().manual_seed(seed)
    logits = scale*torch.randn(N, K, generator=draw, dtype=torch.float64)
    target = logits.argmin(1) if adversarial else torch.randint(K, (N,), generator=draw)
    calibrator = quiet(TemperatureScaling(search=search), logits, target)
    T = calibrator.temperature_
    assert T > 0
    assert F.cross_entropy(logits/T, target) <= F.cross_entropy(logits, target) + 1e-9
    probs = calibrator.transform(logits)
    assert torch.equal(calibrator.predict(logits), logits.argmax(1))
    assert (probs.gather(1, logits.argmax(1)[:, None])[:, 0] == probs.amax(1)).all()  # bits: one number of the row


@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
def test_temperature_where_probabilities_round_to_one(scale):
    "The slope is flat there; the search must find its way back."
    logits, target = overconfident(dtype=torch.float64)
    T = quiet(TemperatureScaling(), scale*logits, target).temperature_
    assert math.isclose(T, 2.5*scale, rel_tol=.1)


def test_temperature_of_float32_logits_is_right_to_four_digits():
    "Against a bounded search by SciPy in float64, on more rows than the search starts from."
    from scipy.optimize import minimize_scalar
    logits, target = overconfident(N=20_000, K=20)
    def nll(log_t):
        return F.cross_entropy(logits.double()/math.exp(log_t), target).item()
    found = minimize_scalar(nll, bounds=(-1, 3), method="bounded", options=dict(xatol=1e-9))
    assert abs(TemperatureScaling().fit(logits, target).temperature_ - math.exp(found.x)) < 1e-4


def test_oracle_is_a_lower_bound_for_the_same_list():
    logits, target = overconfident()
    val, test = (logits[:1000], target[:1000]), (logits[1000:], target[1000:])
    best = oracle_ece(*test)
    for calibrator in TemperatureScaling("ece"), TemperatureScaling("nll", "pool"):
        assert best.ece <= metrics.ece(calibrator.fit(*val).transform(test[0]), test[1]) + 1e-9
    assert best.ece <= metrics.ece(test[0].softmax(1), test[1]) + 1e-9
    assert type(TemperatureScaling.reference().criterion) is str and TemperatureScaling.reference().search == "grid"


def test_bounds_are_announced():
    logits, _ = overconfident(N=60, K=3)
    flat = torch.tensor([[2., 0.]]*4), torch.zeros(4, dtype=torch.int64)  # in float32 long before the bound
    with pytest.warns(UserWarning, match="temperature: 0.01, the least allowed"):
        assert TemperatureScaling().fit(logits, logits.argmax(1)).temperature_ == .01
        assert TemperatureScaling().fit(*flat).temperature_ == .01
    highest = temperature.temperature_bounds(logits)[1]
    with pytest.warns(UserWarning, match=f"temperature: {highest:g}, the largest allowed"):
        assert TemperatureScaling().fit(logits, logits.argmin(1)).temperature_ == pytest.approx(highest)
    with pytest.warns(UserWarning, match="temperature: 10, the largest allowed"):
        assert TemperatureScaling(search="pool").fit(logits, logits.argmin(1)).temperature_ == 10
    chance = torch.randint(6, (3000,), generator=torch.Generator().manual_seed(1))
    for name in "temperature", "ets", "hts":
        with pytest.warns(UserWarning, match="the largest allowed"):
            make_calibrator(name).fit(skewed()[0], chance)


def test_logits_at_the_end_of_float32():
    logits, target = torch.tensor([[3e38, -3e38], [-3e38, 3e38], [3e38, -3e38]]), torch.tensor([0, 1, 1])
    assert TemperatureScaling().fit(logits, target).temperature_ == pytest.approx(6e38/math.log(2))  # 2 of 3 are right


FINDERS = {"nll_temperature": temperature.nll_temperature, "nll_temperature_in": listed_temperature.nll_temperature_in,
           "ece_temperature_in": listed_temperature.ece_temperature_in,
           "ece_by_temperature": lambda z, y: ece_by_temperature(z, y, torch.ones(1))}


@pytest.mark.parametrize("find", FINDERS.values(), ids=FINDERS)
def test_nan_and_inf_have_no_temperature(find):
    for bad in math.nan, math.inf, -math.inf:
        for logits in torch.full((4, 3), bad), torch.eye(4, 3).masked_fill(torch.eye(4, 3) > 0, bad):
            if bad == -math.inf and logits.isfinite().any(): continue  # a masked class
            with pytest.raises(ValueError, match="logits: row 0 holds nan or inf, want finite numbers"):
                find(logits, torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize("name", ["temperature", "hts"])
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_scores_of_any_size_are_calibrated_like_logits(name, scale):
    "The bounds of T follow the spread of the scores; within .01 and 100 the NLL would stay near that of the input."
    logits, target = overconfident(N=2000)
    found = [make_calibrator(name).fit(z, target).transform(z) for z in (logits, scale*logits)]
    nll_of = [F.nll_loss(p.log(), target).item() for p in found]
    assert abs(nll_of[1] - nll_of[0]) < .01


def test_bounds_and_temperatures_are_checked():
    for bounds in (2., 3.), (0., 10.), (-1., 10.), (.1, math.inf), (.1, math.nan), (10., .1):
        with pytest.raises(ValueError, match="bounds: .* want 0 < least <= 1 <= largest"):
            temperature.nll_temperature(*overconfident(N=20), bounds)
    for bad in 0., -1., math.nan, math.inf:
        with pytest.raises(ValueError, match="temperatures: .* at index 1, want positive numbers"):
            ece_by_temperature(*overconfident(N=20), torch.tensor([1., bad]))
    with pytest.raises(ValueError, match="n_bins: 0"):
        ece_by_temperature(*overconfident(N=20), torch.ones(1), 0)
    for criterion in "nll", "ece":
        with pytest.raises(ValueError, match="logits: equal for all classes in every row, so the temp"):
            TemperatureScaling(criterion).fit(torch.ones(5, 3)*torch.arange(5.)[:, None], torch.arange(5) % 3)
    with pytest.raises(ValueError, match="logits: equal for all classes in every row, so the temp"):
        EnsembleTemperatureScaling().fit(torch.ones(5, 3)*torch.arange(5.)[:, None], torch.arange(5) % 3)


# mixtures, and a temperature for each sample

@pytest.mark.parametrize("seed", range(2))
def test_ensemble_temperature_is_at_its_minimum(seed):
    "No small change of temperature or weights lowers the NLL, which is never above that of the temperature alone."
    logits, target = overconfident(N=3000, K=4, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    target = torch.where(torch.rand(3000, generator=draw) < .1, torch.randint(4, (3000,), generator=draw), target)
    fitted = EnsembleTemperatureScaling().fit(logits, target)
    T, weights = fitted.temperature_, fitted.weights_

    def nll(t, w):
        log_p = mixture_log_probs(logits.double(), t, (w/w.sum()).log())
        return F.nll_loss(log_p, target).item()

    best = nll(T, weights)
    alone = TemperatureScaling().fit(logits, target).temperature_
    assert best <= F.cross_entropy(logits.double()/alone, target).item()
    for change in .98, 1.02:
        assert nll(T*change, weights) > best
        for k in range(3):
            other = weights.clone()
            other[k] *= change
            assert nll(T, other) > best - 1e-8
    assert weights[2] > .03


@pytest.mark.parametrize("kind", ["plain", "sure", "large", "separable", "even", "few", "apart"])
def test_entropy_temperature_is_never_worse_than_one_temperature(kind):
    logits, target = skewed(20_000 if kind == "apart" else 3000)
    if kind in ("sure", "large"):
        logits = {"sure": 10, "large": 1e5}[kind]*logits
    if kind == "separable":
        target = logits.argmax(1)
    if kind == "even":
        logits = 3*torch.eye(6)[logits.argmax(1)]
    if kind == "few":
        logits, target = logits[:3], target[:3]
    if kind == "apart":  # errors that the part which is searched first does not have
        target = logits.argmax(1)
        target[1:81:2] = (target[1:81:2] + 1) % 6
    both = [quiet(name, logits, target) for name in ("hts", "temperature")]
    nll = [c.nll(logits, target).mean() for c in both]
    assert nll[0] <= nll[1] + 1e-9 and (kind != "apart" or nll[0] < nll[1] - 1e-4)
    assert torch.equal(both[0].predict(logits), logits.argmax(1))
    assert kind != "even" or both[0].weight_ == 0
