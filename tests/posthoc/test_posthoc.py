"Calibrators: golden numbers, what they promise, and what they refuse."
import io
import json
import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from close import close
from conftest import on_processes, tensors, vectors, within
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.evaluate import evaluate
from calibnb.posthoc import score_maps, temperature
from calibnb.posthoc import (
    BBQ, Calibrator, Composed, Dirichlet, HistogramBinning, Isotonic, MatrixScaling, Platt, TemperatureScaling,
    VectorScaling, calibrated_logits, held_out_logits, list_calibrators, make_calibrator, oracle_ece
)
from calibnb.posthoc.smooth_maps import beta_map, spline_map
from calibnb.posthoc.venn_abers import venn_abers_map
from calibnb.posthoc.temperature import ece_by_temperature, temperature_lists

ALL, DATA = vectors("posthoc")
CASES = {case["id"]: case for case in ALL}
SET = tensors(DATA["posthoc"])
Z, Y, TEST = SET["logits"], SET["labels"], SET["test_logits"]
SEARCH = {"0.01..10 step 0.01": "pool", "0.1..10 step 0.1": "grid"}


def confidence(calibrator, logits):
    "What the predictions of the network get."
    return calibrator.transform(logits).gather(1, logits.argmax(1)[:, None])[:, 0]


def test_every_case_is_used():
    used = {"vector_scaling", "isotonic:top_label", "bbq:given_bin_numbers", "dirichlet:odir", "matrix_scaling:odir",
            "optimal_ece", "temperature:nll:continuous", *(f"platt:{t}_targets" for t in ("platt", "hard")),
            *(f"temperature:{c}:{s}" for c in ("nll", "ece") for s in SEARCH),
            *(f"histogram_binning:equal_{s}:{n}" for s in ("width", "mass") for n in (5, 15))}
    assert CASES.keys() == used


@pytest.mark.parametrize("criterion", ["nll", "ece"])
@pytest.mark.parametrize("steps", SEARCH)
def test_temperature_from_a_list(criterion, steps):
    case = CASES[f"temperature:{criterion}:{steps}"]
    T = TemperatureScaling(criterion, SEARCH[steps]).fit(Z, Y).temperature_
    within(T, case["expected"]["T"], case)
    value = F.cross_entropy(Z/T, Y) if criterion == "nll" else metrics.ece((Z/T).softmax(1), Y)
    within(value, case["expected"]["value"], case)


def test_temperature_continuous():
    case = CASES["temperature:nll:continuous"]
    T = TemperatureScaling().fit(Z, Y).temperature_
    within(T, case["expected"]["T"], case)
    within(F.cross_entropy(Z/T, Y), case["expected"]["value"], case)


def test_oracle():
    case = CASES["optimal_ece"]
    best = oracle_ece(Z, Y)
    within(best.ece, case["expected"]["ece"], case)
    within(best.temperature, case["expected"]["T"], case)


@pytest.mark.parametrize("name, calibrator", [
    ("vector_scaling", VectorScaling()), ("matrix_scaling:odir", MatrixScaling(.05, .02)),
    ("dirichlet:odir", Dirichlet(.05, .02))])
def test_linear_map(name, calibrator):
    case = CASES[name]
    probs, want = calibrator.fit(Z, Y).transform(TEST), case["expected"]
    within(probs, want["test_probs"], case)
    nll = F.nll_loss(calibrator.transform(Z).log(), Y)
    if "nll" in want:
        within(nll, want["nll"], case)
    if "objective" in want:
        W, b, lam, mu = calibrator.weight_, calibrator.bias_, calibrator.lam, calibrator.mu
        off = W[~torch.eye(len(b), dtype=torch.bool)]
        within(nll + lam*off.square().mean() + mu*b.square().mean(), want["objective"], case)


@pytest.mark.parametrize("targets", ["platt", "hard"])
def test_platt(targets):
    case = CASES[f"platt:{targets}_targets"]
    calibrator = Platt(targets).fit(Z, Y)
    within(calibrator._scores(Z, Z.argmax(1)), case["scores"], case)
    within(calibrator.maps_[0]["slope"], case["expected"]["a"], case)
    within(calibrator.maps_[0]["intercept"], case["expected"]["b"], case)
    within(confidence(calibrator, TEST), case["expected"]["test"], case)


def test_isotonic():
    case = CASES["isotonic:top_label"]
    within(confidence(Isotonic(smooth=False).fit(Z, Y), TEST), case["expected"]["test"], case)


@pytest.mark.parametrize("scheme", ["width", "mass"])
@pytest.mark.parametrize("n_bins", [5, 15])
def test_histogram_binning(scheme, n_bins):
    case = CASES[f"histogram_binning:equal_{scheme}:{n_bins}"]
    calibrator = HistogramBinning(n_bins, scheme, smooth=False).fit(Z, Y)
    fitted, want = calibrator.maps_[0], case["expected"]
    within(fitted["edges"], want["edges"], case)
    assert fitted["count"].tolist() == want["count"]
    within(fitted["values"], want["value_midpoint_if_empty"], case)
    within(confidence(calibrator, TEST), want["test"], case)


def test_bbq():
    case = CASES["bbq:given_bin_numbers"]
    calibrator = BBQ(case["bin_numbers"]).fit(Z, Y)
    scores = calibrator.maps_[0]["log_scores"]
    within(scores, case["expected"]["log_scores"], case)
    within(scores.softmax(0), case["expected"]["weights"], case)
    within(confidence(calibrator, TEST), case["expected"]["test"], case)


def overconfident(N=2000, K=5, scale=2.5, seed=0, dtype=torch.float32):
    "Logits that are `scale` times too large."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*scale*torch.randn(N, K, generator=draw)
    return logits.to(dtype), torch.multinomial((logits/scale).softmax(1), 1, generator=draw)[:, 0]


def quiet(calibrator, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return calibrator.fit(*data)


# temperatures

@pytest.mark.parametrize("search", ["pool", "grid"])
@pytest.mark.parametrize("kind", [
    "plain", "float32", "tied", "lattice", "large", "two classes", "one sample", "many classes"])
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
    exact = given.double()
    pool = temperature_lists[search].tolist()
    nll = [F.cross_entropy(exact/T, target).item() for T in pool]
    ece = torch.stack([metrics.ece((exact/T).softmax(1), target) for T in pool])
    for criterion, best in ("nll", int(np.argmin(nll))), ("ece", int((ece <= ece.min() + 1e-12).nonzero()[0])):
        T = quiet(TemperatureScaling(criterion, search), given, target).temperature_
        assert T == pool[best] or (criterion == "ece" and abs(ece[pool.index(T)] - ece[best]) < 1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(2, 6), N=st.integers(1, 40), scale=st.floats(.01, 300),
       search=st.sampled_from(["continuous", "pool", "grid"]), adversarial=st.booleans())
def test_temperature_is_positive_never_worse_and_keeps_the_prediction(seed, K, N, scale, search, adversarial):
    draw = torch.Generator().manual_seed(seed)
    logits = scale*torch.randn(N, K, generator=draw, dtype=torch.float64)
    target = torch.randint(K, (N,), generator=draw)
    if adversarial:
        target = logits.argmin(1)
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
    assert math.isclose(T, min(100., max(.01, 2.5*scale)), rel_tol=.1)


def test_temperature_of_float32_logits_is_right_to_four_digits():
    "Against a bounded search by SciPy in float64, on more rows than the search starts from."
    from scipy.optimize import minimize_scalar
    logits, target = overconfident(N=20_000, K=20)
    def nll(log_t):
        return F.cross_entropy(logits.double()/math.exp(log_t), target).item()
    found = minimize_scalar(nll, bounds=(-1, 3), method="bounded", options=dict(xatol=1e-9))
    assert abs(TemperatureScaling().fit(logits, target).temperature_ - math.exp(found.x)) < 1e-4


def bounds_hold(logits, target, temperatures):
    low, high = temperature._ece_bounds(logits, target, temperatures, 15)
    exact = ece_by_temperature(logits, target, temperatures)
    return (low <= exact + 1e-12).all() and (exact <= high + 1e-12).all()


@pytest.mark.parametrize("kind", ["random", "lattice"])
def test_screening_bounds_hold(kind):
    logits, target = overconfident(N=500, K=10)
    logits = logits.round() if kind == "lattice" else logits
    assert bounds_hold(logits, target, temperature_lists["pool"])


def test_oracle_is_a_lower_bound_for_the_same_list():
    logits, target = overconfident()
    val, test = (logits[:1000], target[:1000]), (logits[1000:], target[1000:])
    best = oracle_ece(*test)
    for calibrator in TemperatureScaling("ece"), TemperatureScaling("nll", "pool"):
        assert best.ece <= metrics.ece(calibrator.fit(*val).transform(test[0]), test[1]) + 1e-9
    assert best.ece <= metrics.ece(test[0].softmax(1), test[1]) + 1e-9
    assert type(TemperatureScaling.reference().criterion) is str and TemperatureScaling.reference().search == "grid"


# degenerate validation sets: a sensible result or a clear error, never a silent T = 1

def degenerate():
    logits, target = overconfident(N=60, K=3)
    pred = logits.argmax(1)
    return {"all right": (logits, pred), "all wrong": (logits, (pred + 1) % 3),
            "adversarial": (logits, logits.argmin(1)), "one class": (logits, torch.zeros_like(target)),
            "one sample": (logits[:1], target[:1]), "two alike": (logits[:1].repeat(2, 1), target[:2])}


@pytest.mark.parametrize("name", list_calibrators())
@pytest.mark.parametrize("kind", list(degenerate()))
def test_degenerate_sets(name, kind):
    logits, target = degenerate()[kind]
    calibrator = quiet(make_calibrator(name), logits, target)
    probs = calibrator.transform(logits)
    assert probs.isfinite().all() and (probs >= 0).all() and (probs.sum(1) - 1).abs().max() < 1e-5
    conf = confidence(calibrator, logits)
    if kind == "all right":
        assert conf.mean() > .9
    if kind == "all wrong" and getattr(calibrator, "mode", "") == "top":  # the predictions of the network
        assert probs.gather(1, logits.argmax(1)[:, None]).mean() < .5
    if name == "temperature":
        assert calibrator.temperature_ != 1


def test_bounds_are_announced():
    cases = degenerate()
    flat = torch.tensor([[2., 0.]]*4), torch.zeros(4, dtype=torch.int64)  # in float32 long before the bound
    with pytest.warns(UserWarning, match="temperature: 0.01, the least there is"):
        assert TemperatureScaling().fit(*cases["all right"]).temperature_ == .01
        assert TemperatureScaling().fit(*flat).temperature_ == .01
    with pytest.warns(UserWarning, match="temperature: 100, the largest there is"):
        assert TemperatureScaling().fit(*cases["adversarial"]).temperature_ == 100
    with pytest.warns(UserWarning, match="temperature: 10, the largest there is"):
        assert TemperatureScaling(search="pool").fit(*cases["adversarial"]).temperature_ == 10


@pytest.mark.parametrize("criterion", ["nll", "ece"])
def test_constant_logits_are_refused(criterion):
    message = "logits: equal for all classes in every row, so no temperature changes anything"
    with pytest.raises(ValueError, match=message):
        TemperatureScaling(criterion).fit(torch.ones(5, 3)*torch.arange(5.)[:, None], torch.arange(5) % 3)


@pytest.mark.parametrize("scheme", ["width", "mass"])
@pytest.mark.parametrize("mode", ["top", "each"])
def test_histogram_binning_has_no_error_on_its_own_data(scheme, mode):
    logits, target = overconfident()
    calibrator = HistogramBinning(10, scheme, mode=mode, smooth=False).fit(logits, target)
    for k, fitted in enumerate(calibrator.maps_):
        scores = logits.double().softmax(1)
        if mode == "top":
            s, hit = scores.amax(1), logits.argmax(1) == target
        else:
            s, hit = scores[:, k].contiguous(), target == k
        value, ids = calibrator._apply(fitted, s), torch.bucketize(s, fitted["edges"][1:-1])
        gap = torch.bincount(ids, weights=hit.double() - value)
        assert gap.abs().max() < 1e-9


def test_empty_bins():
    logits = torch.tensor([[3., 0.], [3., 0.], [0., 3.]])
    target, new = torch.tensor([0, 1, 1]), torch.tensor([[.5, 0.]])
    conf = new.softmax(1).amax(1).double()
    for empty, want in ("midpoint", .65), ("identity", conf.item()), ("zero", 0.):
        value = HistogramBinning(10, empty=empty).fit(logits, target).transform(new)[0, 0].item()
        assert math.isclose(value, want, abs_tol=1e-6)


@pytest.mark.parametrize("right, pred", [(4, 0), (2, 1)])
def test_a_low_confidence_stays_the_largest_probability_if_it_can(right, pred):
    "Of .4 in three classes it can: the other classes stay below. Of .2 it cannot, and the rest is shared as it stood."
    logits = torch.tensor([[2., 1., 0.]]).repeat(10, 1)
    calibrator = HistogramBinning(smooth=False).fit(logits, torch.tensor([0]*right + [1]*(10 - right)))
    probs, log_probs = calibrator.transform(logits)[0], calibrator._log_probs(logits[:1].double())[0]
    want = [.4, .4, .2] if right == 4 else [.2, *(.8*torch.tensor([1., 0.]).softmax(0)).tolist()]
    torch.testing.assert_close(probs, torch.tensor(want), rtol=0, atol=1e-6)
    torch.testing.assert_close(log_probs.exp().float(), probs)
    assert (calibrator.predict(logits)[0], probs.argmax()) == (pred, pred)


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_linear_maps_never_raise_the_nll_they_were_fitted_on(name):
    for seed in range(3):
        logits, target = overconfident(N=200, K=4, seed=seed)
        def nll_after(calibrator):
            probs = calibrator.fit(logits, target).transform(logits.double())
            return F.nll_loss(probs.log(), target)
        of_temperature = nll_after(TemperatureScaling())
        assert nll_after(make_calibrator(name)) <= of_temperature + 1e-7
        assert of_temperature <= F.cross_entropy(logits, target) + 1e-7


@pytest.mark.parametrize("name", list_calibrators())
def test_calibrators_are_idempotent(name):
    "What is calibrated needs no temperature, and on average its confidence is its accuracy."
    logits, target = overconfident(N=5000)
    options = dict(smooth=False) if name == "isotonic" else {}  # the textbook form is a projection
    calibrator = make_calibrator(name, **options).fit(logits, target)
    probs, hit = calibrator.transform(logits.double()), calibrator.predict(logits) == target
    assert abs(probs.amax(1).mean() - hit.double().mean()) < .01
    if "mode" not in calibrator.get_params():
        tol = 1e-3 if name in ("temperature", "vector") else .02  # a penalty pulls
        assert abs(TemperatureScaling().fit(probs.log(), target).temperature_ - 1) < tol
    if name == "isotonic":
        pred = logits.argmax(1)  # a confidence of 0 is not the largest probability
        top, hit = probs.gather(1, pred[:, None]), pred == target
        binary = torch.cat([top, 1 - top], 1).clamp(1e-9, 1 - 1e-9).log()  # its result, fitted again
        sure = top[:, 0] > .5
        again = make_calibrator(name, **options).fit(binary[sure], (~hit[sure]).long())
        assert (confidence(again, binary[sure]) - top[sure, 0]).abs().max() < 1e-6


# manners

@pytest.mark.parametrize("name", list_calibrators())
def test_scikit_manners(name):
    calibrator = make_calibrator(name)
    logits, target = overconfident(N=400, K=3)
    for use in calibrator.transform, calibrator.predict:
        with pytest.raises(NotFittedError, match="call .fit"):
            use(logits)
    with pytest.raises(NotFittedError):
        calibrator.save("nowhere")
    assert calibrator.fit(logits, target) is calibrator
    assert clone(calibrator).get_params() == calibrator.get_params()
    assert not hasattr(clone(calibrator), "n_classes_")
    assert [k for k in vars(calibrator) if k.endswith("_")] and calibrator.n_classes_ == 3
    probs = calibrator.transform(logits)
    assert probs.dtype == torch.float32 and calibrator.transform(logits.double()).dtype == torch.float64
    of_arrays = make_calibrator(name).fit(logits.numpy(), target.numpy()).transform(logits.numpy())
    assert isinstance(of_arrays, np.ndarray) and close(of_arrays, probs, 3*len(logits), size=1.)
    image = logits.reshape(20, 20, 3).permute(0, 2, 1)
    assert close(calibrator.transform(image), probs.reshape(20, 20, 3).permute(0, 2, 1), 3, size=1.)
    with pytest.raises(ValueError, match="logits: 4 classes, want 3"):
        calibrator.transform(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="logits: row 1 holds nan"):
        calibrator.transform(torch.tensor([[0., 0., 0.], [0., math.nan, 0.]]))
    with pytest.raises(ValueError, match="logits: empty"):
        calibrator.fit(logits[:0], target[:0])


@pytest.mark.parametrize("options, message", [
    (dict(criterion="mse"), "criterion: 'mse' is not known"), (dict(search="line"), "search: 'line' is not known"),
    (dict(criterion="ece", search="continuous"), 'search: "continuous"'),
    (dict(criterion="ece", n_bins=0), "n_bins: 0")])
def test_wrong_temperature_options(options, message):
    with pytest.raises(ValueError, match=message):
        TemperatureScaling(**options).fit(*overconfident(N=20))


@pytest.mark.parametrize("calibrator, message", [
    (HistogramBinning(0), "n_bins: 0"), (HistogramBinning(scheme="x"), "scheme: 'x'"),
    (HistogramBinning(empty="x"), "empty: 'x'"), (HistogramBinning(mode="x"), "mode: 'x'"),
    (Isotonic("x"), "mode: 'x'"), (Platt("x"), "targets: 'x'"), (BBQ([0]), "n_bins: 0"),
    (MatrixScaling(-1.), "lam: -1"), (Dirichlet(mu=math.inf), "mu: inf")])
def test_wrong_options(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(*overconfident(N=20))


def test_unknown_calibrator_or_option():
    with pytest.raises(ValueError, match="did you mean 'isotonic'"):
        make_calibrator("isotonik")
    with pytest.raises(ValueError, match="calibrator histogram option: 'bins' is not known; did you mean 'n_bins'"):
        make_calibrator("histogram", bins=3)


def test_what_a_calibrator_must_give_is_said():
    class Empty(Calibrator):
        pass
    with pytest.raises(NotImplementedError, match=r"Empty: want _fit\(logits, target\)"):
        Empty().fit(*overconfident(N=20))
    Empty._fit = lambda self, logits, target: None
    with pytest.raises(NotImplementedError, match=r"Empty: want _logits\(z\), or both _probs\(z\) and _log_probs"):
        Empty().fit(*overconfident(N=20))


# files

def same_again(folder):
    "Load every calibrator, compare what it gives with what was kept; how many there are."
    logits, files = np.load(folder/"logits.npy"), list(folder.glob("*.safetensors"))
    for p in files:
        assert Calibrator.load(p).transform(logits).tobytes() == np.load(p.with_suffix(".npy")).tobytes(), p
    return len(files)


@pytest.mark.parametrize("mode", ["top", "each"])
def test_a_new_process_gives_the_same_bits(tmp_path, mode):
    logits, target = overconfident(N=500, K=4)
    np.save(tmp_path/"logits.npy", logits.numpy())
    for name in list_calibrators():
        calibrator = make_calibrator(name)
        if mode == "each" and "mode" not in calibrator.get_params():
            continue
        calibrator = calibrator.set_params(mode=mode) if "mode" in calibrator.get_params() else calibrator
        calibrator.fit(logits, target).save(tmp_path/f"{name}.safetensors")
        np.save(tmp_path/f"{name}.npy", calibrator.transform(logits.numpy()))
    assert on_processes(1, same_again, tmp_path) == [len(list_calibrators()) if mode == "top" else 7]


class Bomb:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


def test_a_pickle_is_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Bomb(), "bomb.pt")
    (tmp_path/"bomb.pkl").write_bytes(pickle.dumps(Bomb()))
    for name in "bomb.pt", "bomb.pkl":
        with pytest.raises(ValueError, match="is not a safetensors file"):
            Calibrator.load(name)
    assert not (tmp_path/"exploded").exists()
    pickle.load(io.BytesIO(pickle.dumps(Bomb())))  # the bomb is live
    assert (tmp_path/"exploded").exists()


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file
    calibrator = TemperatureScaling().fit(*overconfident())
    calibrator.save(tmp_path/"good.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path/"other.safetensors")
    with pytest.raises(ValueError, match="holds no calibrator"):
        Calibrator.load(tmp_path/"other.safetensors")
    with pytest.raises(FileNotFoundError):
        Calibrator.load(tmp_path/"absent.safetensors")


def written(path, head, parts=None):
    "A file in the format of `Calibrator.save`, whatever its contents."
    from safetensors.torch import save_file
    save_file(parts or {}, path, metadata=dict(format="calibnb-calibrator/1", head=head))
    return path


@pytest.mark.parametrize("change, message", [
    (dict(calibrator="os.system"), "calibrator: 'os.system' is not known"),
    (dict(options=dict(n=1)), "option: 'n' is not known"),
    (dict(options=[]), "is damaged"),
    (dict(numbers={}), "is damaged"),
    (dict(numbers=dict(temperature_="x", n_classes_=5)), "is damaged"),
    (dict(numbers=dict(temperature_=-1., n_classes_=5)), "gives no probabilities")])
def test_a_changed_head_is_refused(tmp_path, change, message):
    head = dict(calibrator="temperature", options={}, numbers=dict(temperature_=2., n_classes_=5)) | change
    with pytest.raises(ValueError, match=message):
        Calibrator.load(written(tmp_path/"bent.safetensors", json.dumps(head)))


def test_a_file_of_the_time_when_all_rows_were_mixed_is_told(tmp_path):
    head = dict(calibrator="temperature", options={}, numbers=dict(temperature_=2., n_classes_=5, eps_=.25))
    with pytest.warns(UserWarning, match="got a file of an older version, .* fit it again") as caught:
        calibrator = Calibrator.load(written(tmp_path/"old.safetensors", json.dumps(head)))
    assert caught[0].filename == __file__
    calibrator.save(tmp_path/"new.safetensors")
    assert Calibrator.load(tmp_path/"new.safetensors").eps_ == .25


def head_of(name):
    return json.dumps(dict(calibrator=name, options={}, numbers=dict(n_classes_=5)))


@pytest.mark.parametrize("head, parts", [
    ("[]", {}), ("{", {}), (head_of("vector"), dict(weight_=torch.ones(4), bias_=torch.ones(5))),
    (head_of("isotonic"), {"maps_.0": torch.ones(4)})], ids=["a list", "half a head", "another size", "half a name"])
def test_a_damaged_file_is_refused(tmp_path, head, parts):
    with pytest.raises(ValueError, match="bent.safetensors is damaged"):
        Calibrator.load(written(tmp_path/"bent.safetensors", head, parts))


# corners that only one line of code looks after

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


def test_when_all_classes_are_ruled_out_they_are_equally_likely():
    "Class 2 was always the label, and its probability small; a row where all are as small is left with nothing."
    logits = torch.tensor([[4., 4., 0.]]*5 + [[0., 0., 4.]]*5)
    calibrator = HistogramBinning(2, mode="each", empty="zero").fit(logits, torch.tensor([2]*5 + [0, 1, 0, 1, 0]))
    for fitted in calibrator.maps_:
        fitted["values"][:] = 0
    assert close(calibrator.transform(logits), torch.full((10, 3), 1/3))


def test_platt_tells_confidences_apart_that_round_to_one():
    logits = torch.stack([torch.linspace(40, 400, 200, dtype=torch.float64), torch.zeros(200, dtype=torch.float64)], 1)
    assert (logits.softmax(1)[:, 0] == 1).all()
    target = (torch.arange(200) % 4 == 0).long()*(torch.arange(200) < 100)
    conf = confidence(Platt().fit(logits, target), logits)
    assert (conf.diff() > 0).all() and conf[0] < .8 < .97 < conf[-1]
    each = Platt(mode="each").fit(logits, target).transform(logits)
    assert (each[:, 0].diff() > 0).all() and each.isfinite().all()


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_linear_maps_do_not_mind_the_size_of_the_logits(name, scale):
    logits, target = overconfident(N=1500, K=4)
    shifted = logits + torch.tensor([3., 0., 0., 0.])
    want = make_calibrator(name).fit(shifted.double(), target).nll(shifted.double(), target).mean()
    got = make_calibrator(name).fit(scale*shifted, target).nll(scale*shifted, target).mean()
    assert math.isclose(got, want, abs_tol=2e-3)


def test_bbq_of_a_saturated_network():
    "Confidences that round to 1 for most samples, and tie there."
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        logits = torch.zeros(300, 3, dtype=torch.float64)
        logits[:, 0] = (30 + 6*torch.randn(300, generator=draw)).bfloat16().double()
        target = (torch.rand(300, generator=draw) > .83).long()
        calibrator = BBQ().fit(logits, target)
        assert not calibrator.maps_[0]["values"].isnan().any()
        assert abs(confidence(calibrator, logits).mean() - .83) < .06


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("K", [2, 10, 20_000])
def test_screening_bounds_hold_in_every_precision_and_for_many_classes(dtype, K):
    draw = torch.Generator().manual_seed(0)
    if K > 100:  # a logit near 6 stands out of many zeros
        logits = torch.zeros(12, K)
        logits[:, 0] = 6 + 2*torch.randn(12, generator=draw)
    else:
        logits = 4*torch.randn(200, K, generator=draw)
    target = torch.randint(2, (len(logits),), generator=draw)
    assert bounds_hold(logits.to(dtype), target, temperature_lists["pool"][::9])


def test_logits_at_the_end_of_float32():
    logits, target = torch.tensor([[3e38, -3e38], [-3e38, 3e38], [3e38, -3e38]]), torch.tensor([0, 1, 1])
    with pytest.warns(UserWarning, match="temperature: 100, the largest"):
        assert TemperatureScaling().fit(logits, target).temperature_ == 100


def test_the_nll_does_not_underflow():
    logits, target = overconfident(N=200, K=3, dtype=torch.float64)
    logits[0], target[0] = torch.tensor([5000., 0., 0.], dtype=torch.float64), 1
    for name in "temperature", "vector":
        calibrator = make_calibrator(name).fit(logits[1:], target[1:])
        assert calibrator.transform(logits)[0, 1] == 0 and 100 < calibrator.nll(logits, target)[0] < math.inf
        p_y = calibrator.transform(logits[1:]).gather(1, target[1:, None])[:, 0]
        assert torch.allclose(calibrator.nll(logits[1:], target[1:]), -p_y.log())


def test_numpy_options_are_saved(tmp_path):
    data = overconfident(N=50)
    for calibrator in HistogramBinning(np.int64(10)), MatrixScaling(np.float32(.5)), BBQ(range(1, 5)):
        calibrator.fit(*data).save(tmp_path/"c.safetensors")
        loaded = Calibrator.load(tmp_path/"c.safetensors")
        assert torch.equal(loaded.transform(data[0]), calibrator.transform(data[0]))  # bits: saved and loaded
    with pytest.raises(ValueError, match="bin_numbers: empty"):
        BBQ([]).fit(*data)
    class Own(TemperatureScaling):
        pass
    with pytest.raises(ValueError, match="Own is not one of ours"):
        Own().fit(*data).save(tmp_path/"own.safetensors")


def test_a_score_on_an_edge_belongs_below_it():
    score, hit = torch.tensor([.2, .2, .3, 1., 0.], dtype=torch.float64), torch.tensor([True, True, False, True, True])
    found = score_maps.histogram_map(score, hit, 5)
    assert found["count"].tolist() == [3, 1, 0, 0, 1]
    assert score_maps.step(found, score).tolist() == [1., 1., 0., 1., 1.]
    tied = score_maps.histogram_map(torch.full((10,), .5, dtype=torch.float64), torch.arange(10) < 4, 3, "mass")
    assert tied["edges"].tolist() == [0., .5, 1.] and tied["count"].tolist() == [10, 0] and tied["values"][0] == .4


# what can occur is never impossible

@pytest.mark.parametrize("mode", ["top", "each"])
@pytest.mark.parametrize("name", list_calibrators())
def test_no_label_costs_infinity(name, mode):
    "Validation without an error, then a test set with many, logits far apart: every NLL is finite."
    logits, _ = overconfident(N=300, K=4)
    options = dict(mode=mode) if "mode" in make_calibrator(name).get_params() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a temperature at its bound, and of separable classes
        calibrator = make_calibrator(name, **options).fit(logits, logits.argmax(1))
    far = 50*overconfident(N=300, K=4, seed=1)[0].double()
    for k in range(4):
        assert calibrator.nll(far, torch.full((300,), k)).isfinite().all()


def test_smoothing_is_laplaces_rule():
    "Five of five right: 6/7, and 5/5 in the textbook form, for the histogram and at the top of the isotonic function."
    logits = torch.tensor([[3., 0.]]*5 + [[1., 0.]]*4, dtype=torch.float64)
    target = torch.tensor([0]*5 + [0, 0, 1, 1])
    for kind in HistogramBinning, Isotonic:
        for smooth, want in (True, 6/7), (False, 1.):
            conf = confidence(kind(smooth=smooth).fit(logits, target), logits)
            assert conf[0].item() == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_ensemble_temperature_is_at_its_minimum(seed):
    "No small change of temperature or weights lowers the NLL, which is never above that of the temperature alone."
    logits, target = overconfident(N=3000, K=4, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    target = torch.where(torch.rand(3000, generator=draw) < .1, torch.randint(4, (3000,), generator=draw), target)
    T, weights = temperature.ensemble_temperature(logits, target)

    def nll(t, w):
        log_p = temperature.mixture_log_probs(logits.double(), t, (w/w.sum()).log())
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


def test_a_composition_is_its_parts():
    logits, target = overconfident(N=800, K=4)
    both = make_calibrator("vector+platt").fit(logits, target)
    first = VectorScaling().fit(logits, target)
    then = Platt().fit(held_out_logits(VectorScaling(), logits, target), target)
    assert torch.equal(both.predict(logits), both.transform(logits).argmax(1))
    assert torch.allclose(both.transform(logits.double()), then.transform(first._logits(logits.double())))


def test_held_out_logits_are_of_fits_that_saw_no_label():
    "One label changed changes the logits of the other parts only."
    logits, target = overconfident(N=200, K=4)
    got = held_out_logits(VectorScaling(), logits, target)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    parts = order.tensor_split(5)
    for part in parts:
        rest = torch.isin(order, part, invert=True)
        alone = VectorScaling().fit(logits[order[rest]], target[order[rest]])
        assert torch.allclose(got[part].softmax(1), alone.transform(logits[part].double()), atol=1e-12)
    changed = target.clone()
    changed[0] = (target[0] + 1) % 4
    same = (held_out_logits(VectorScaling(), logits, changed) == got).all(1)
    own_part = next(part for part in parts if 0 in part)
    assert same.nonzero()[:, 0].tolist() == sorted(own_part.tolist())


def test_the_second_part_does_not_trust_what_the_first_learned_by_heart():
    "Labels that no logit tells: on its own samples matrix scaling looks right, and new samples pay for it."
    draw = torch.Generator().manual_seed(1)
    logits, target = torch.randn(800, 20, generator=draw), torch.randint(20, (800,), generator=draw)
    new = torch.randn(20_000, 20, generator=draw)
    both = Composed("matrix", "platt").fit(logits, target)
    by_heart = Platt().fit(calibrated_logits(both.first_, logits), target)
    scaled = calibrated_logits(both.first_, new)
    careless, careful = (confidence(second, scaled).mean() for second in (by_heart, both.then_))
    assert careful < .055 < .06 < careless  # one in twenty is right


@pytest.mark.parametrize("name, message", [
    ("platt+isotonic", "first: 'platt' is not known"), ("temperature+vector", "then: 'vector' is not known"),
    ("temperature+", "then: '' is not known")])
def test_wrong_compositions(name, message):
    with pytest.raises(ValueError, match=message):
        make_calibrator(name)
    with pytest.raises(ValueError, match=message):
        Composed(*name.split("+")).fit(*overconfident(N=20))


FINDERS = {"nll_temperature": temperature.nll_temperature, "nll_temperature_in": temperature.nll_temperature_in,
           "ece_temperature_in": temperature.ece_temperature_in,
           "ece_by_temperature": lambda z, y: temperature.ece_by_temperature(z, y, torch.ones(1))}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("find", FINDERS.values(), ids=FINDERS)
def test_no_temperature_of_numbers_that_are_none(find, bad):
    for logits in torch.full((4, 3), bad), torch.eye(4, 3).masked_fill(torch.eye(4, 3) > 0, bad):
        with pytest.raises(ValueError, match="logits: row 0 holds nan or inf, want finite numbers"):
            find(logits, torch.tensor([0, 1, 2, 0]))


def test_bounds_and_temperatures_are_looked_at():
    for bounds in (2., 3.), (0., 10.), (-1., 10.), (.1, math.inf), (.1, math.nan), (10., .1):
        with pytest.raises(ValueError, match="bounds: .* want 0 < least <= 1 <= largest"):
            temperature.nll_temperature(*overconfident(N=20), bounds)
    for bad in 0., -1., math.nan, math.inf:
        with pytest.raises(ValueError, match="temperatures: .* at place 1, want positive numbers"):
            ece_by_temperature(*overconfident(N=20), torch.tensor([1., bad]))
    with pytest.raises(ValueError, match="n_bins: 0"):
        ece_by_temperature(*overconfident(N=20), torch.ones(1), 0)


ANY_NUMBER = [score_maps.platt_map, score_maps.isotonic_map, beta_map, spline_map, venn_abers_map]
MAPS = [score_maps.histogram_map, score_maps.bbq_map, *ANY_NUMBER]


@pytest.mark.parametrize("fit", MAPS)
def test_no_map_of_scores_that_are_none(fit):
    score, hit = torch.tensor([.2, .4, math.nan, .9], dtype=torch.float64), torch.tensor([True, False, True, True])
    with pytest.raises(ValueError, match=r"(score|odds): nan at row 2, want (numbers in \[0, 1\]|finite numbers)"):
        fit(score, hit)
    bad = [math.inf] if fit in ANY_NUMBER else [1.2, -.1, math.inf]
    for value in bad:
        with pytest.raises(ValueError, match=f"(score|odds): {value} at row 2, want "):
            fit(torch.where(score.isnan(), value, score), hit)


def test_what_is_no_number_has_no_value():
    score, hit = torch.tensor([.2, .4, .9], dtype=torch.float64), torch.tensor([True, False, True])
    at = torch.tensor([.3, math.nan], dtype=torch.float64)
    made = {score_maps.step: score_maps.histogram_map, score_maps.line: score_maps.isotonic_map,
            score_maps.logistic: score_maps.platt_map}
    for apply, fit in made.items():
        assert apply(fit(score, hit), at).isnan().tolist() == [False, True]


# fits of linear maps

def objective_of(calibrator, logits, target):
    "NLL plus penalty, in float64 by autograd, and the largest derivative, for inputs of size 1."
    x = calibrator._inputs(logits.double())
    weight, bias = (v.clone().requires_grad_() for v in (calibrator.weight_, calibrator.bias_))
    value = F.cross_entropy(calibrator._map(x, weight, bias), target)
    if weight.ndim == 2:
        off = weight[~torch.eye(len(bias), dtype=torch.bool)]
        value = value + calibrator.lam*off.square().mean() + calibrator.mu*bias.square().mean()
    d_weight, d_bias = torch.autograd.grad(value, (weight, bias))
    return value.item(), max(d_weight.abs().max().item()/x.std().item(), d_bias.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "sure", "rare", "shifted", "thinned"])
@pytest.mark.parametrize("make", [VectorScaling, lambda: MatrixScaling(.01, .01), lambda: Dirichlet(.01, .01)],
                         ids=["vector", "matrix", "dirichlet"])
def test_the_fit_of_a_linear_map_is_at_its_minimum(make, kind, dtype, monkeypatch):
    logits, target = overconfident(N=3000, K=6)
    if kind == "sure":
        logits = 10*logits
    if kind == "shifted":
        logits = logits + torch.tensor([0., 10., -20., 0., 5., 40.])
    if kind == "rare":
        target = torch.where((target == 0) & (torch.arange(3000) > 60), 1, target)
    if kind == "thinned":
        monkeypatch.setattr("calibnb.posthoc.scaling._FEW", 400)
    calibrator = make().fit(logits.to(dtype), target)
    assert objective_of(calibrator, logits, target)[1] < (1e-5 if dtype == torch.float64 else 5e-5)


def test_a_class_that_never_occurs_gets_no_probability():
    logits, target = overconfident(N=3000, K=5)
    calibrator = VectorScaling().fit(logits, target.clamp_min(1))
    assert calibrator.transform(logits)[:, 0].mean() < 1e-6


def test_separable_classes_are_told_apart():
    logits, _ = overconfident(N=3000, K=5)
    assert quiet(VectorScaling(), logits, logits.argmax(1)).nll(logits, logits.argmax(1)).mean() < 1e-6


def test_more_parameters_than_samples():
    "The search ends early, and far below the best temperature."
    logits, target = overconfident(N=200, K=150)
    nll = quiet(VectorScaling(), logits, target).nll(logits, target).mean()
    assert nll < TemperatureScaling().fit(logits, target).nll(logits, target).mean() - .1


# what evaluation asks for

@pytest.mark.parametrize("name", [*list_calibrators(), "vector+platt", "ets+isotonic"])
def test_all_that_is_known_of_a_row_in_one_pass(name):
    logits, target = overconfident(N=400, K=4, dtype=torch.float64)
    calibrator = make_calibrator(name).fit(logits, target)
    probs, pred, nll = calibrator._scored(logits, target)
    assert torch.allclose(probs, calibrator.transform(logits), rtol=1e-12, atol=1e-14)
    assert torch.equal(pred, calibrator.predict(logits))
    assert torch.allclose(nll, calibrator.nll(logits, target), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("first", ["temperature", "ets", "vector", "matrix", "dirichlet"])
def test_a_composition_takes_a_first_part_that_is_fitted(first, tmp_path):
    logits, target = overconfident(N=600, K=4)
    fitted = make_calibrator(first).fit(logits, target)
    want = make_calibrator(f"{first}+platt").fit(logits, target)
    held_out = held_out_logits(fitted, logits, target)
    got = type(want).on(fitted, "platt", held_out, target)
    assert got.first_ is fitted and got.get_params() == want.get_params()
    assert torch.equal(got.transform(logits), want.transform(logits))  # bits: the same fit twice
    got.save(tmp_path/"c.safetensors")
    loaded = Calibrator.load(tmp_path/"c.safetensors")
    assert torch.equal(loaded.transform(logits), got.transform(logits))  # bits: saved and loaded


def test_a_composition_refuses_a_first_part_that_will_not_do():
    data = overconfident(N=60)
    composed = type(make_calibrator("temperature+platt"))
    with pytest.raises(ValueError, match="first: 'platt' is not known"):
        composed.on(Platt().fit(*data), "isotonic", *data)
    with pytest.raises(ValueError, match="then: 'vector' is not known"):
        composed.on(TemperatureScaling().fit(*data), "vector", *data)
    with pytest.raises(NotFittedError, match="call .fit"):
        composed.on(TemperatureScaling(), "platt", *data)


@pytest.mark.parametrize("name", list_calibrators())
def test_logits_that_overflow_are_refused(name):
    "Their differences are infinite: temperatures gave nan, structured scaling did not end."
    logits = torch.tensor([[1.7e308, -1.7e308], [0., 1.]], dtype=torch.float64).repeat(10, 1)
    with pytest.raises(ValueError, match=r"logits: got 1.7e\+308 at row 0, expected numbers between"):
        make_calibrator(name).fit(logits, torch.tensor([0, 1]*10))


FAR = [[1., 1., 0., 0.], [1., 1. - 1e-9, 0., -1.], [1., .999, -1., -1.], [1., -2., 0., .5]]


@pytest.mark.parametrize("scale", [1., 1e4, 1e8, 1e15, 1e100, 1e290])
@pytest.mark.parametrize("name", ["histogram", "isotonic", "platt", "beta", "spline", "bbq", "venn_abers"])
def test_confidences_below_those_of_others_sum_to_one_for_logits_of_any_size(name, scale):
    "What a low confidence leaves goes to the other classes, however far apart their logits are."
    logits = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.arange(300) % 4  # right by chance, so that every confidence is low
    probs = make_calibrator(name).fit(3*logits, target).transform(scale*torch.tensor(FAR, dtype=torch.float64))
    assert ((probs.sum(1) - 1).abs() < 1e-9).all(), probs


@pytest.mark.parametrize("load", ["from calibnb.posthoc import Calibrator; Calibrator.load(path/'c.safetensors')",
                                  "from calibnb.evaluate import Evaluation; Evaluation.load(path)"])
def test_a_new_process_loads_what_was_saved(tmp_path, load):
    "It knows the names of all calibrators, whatever it has imported."
    draw = torch.Generator().manual_seed(0)
    preds = Predictions(torch.randn(60, 3, generator=draw), torch.arange(60) % 3)
    make_calibrator("matrix").fit(preds.logits, preds.target).save(tmp_path/"c.safetensors")
    evaluate(preds, calibrators=["matrix"], n_boot=5, draws=2).save(tmp_path)
    script = f"from pathlib import Path; path = Path({str(tmp_path)!r}); {load}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
