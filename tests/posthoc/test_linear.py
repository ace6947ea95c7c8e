"Linear maps of logits: minima by autograd however the steps are found, promises, penalties, sizes, refusals."
import math

import pytest
import torch
import torch.nn.functional as F
from overconfident import overconfident, quiet, skewed

from calibnb.posthoc import (
    Dirichlet, MatrixScaling, StructuredMatrixScaling, StructuredVectorScaling, TemperatureScaling, VectorScaling,
    linear_newton, linear_objective, make_calibrator
)

KINDS = {"vector": VectorScaling, "matrix": lambda: MatrixScaling(.01, .01), "dirichlet": lambda: Dirichlet(.01, .01),
         "svs": StructuredVectorScaling, "sms": StructuredMatrixScaling}
STRUCTURED = {name: KINDS[name] for name in ("svs", "sms")}


def objective_of(calibrator, logits, target):
    "NLL plus the penalty of the papers, in float64 by autograd, and its largest derivative for inputs of size 1."
    (N, K), x, options = logits.shape, calibrator._inputs(logits.double()), calibrator.get_params()
    w, b = (v.clone().requires_grad_() for v in (calibrator.weight_, calibrator.bias_))
    W = w.diag() if w.ndim == 1 else w
    off = W[~torch.eye(K, dtype=torch.bool)]
    value = F.cross_entropy(x @ W.T + b, target)
    if "lam" in options:
        value = value + options["lam"]*off.square().mean() + options["mu"]*b.square().mean()
    if "intercept" in options:
        own = options["intercept"]*b.square().sum() + options["diagonal"]*(W.diagonal() - 1).square().sum()
        value = value + K/N*own + options.get("off_diagonal", 0.)*K*(K - 1)/N*off.square().sum()
    d_w, d_b = torch.autograd.grad(value, (w, b))
    return value.item(), max(d_w.abs().max().item()/x.std().item(), d_b.abs().max().item())


MINIMA = [*((name, kind) for name in KINDS for kind in ("plain", "sure", "shifted", "rare")),
          *((name, kind) for name in STRUCTURED for kind in ("large", "separable"))]  # the others have no minimum there
SOME = [(name, kind, torch.float64) for name, kind in MINIMA if kind in ("plain", "large")]
SOME += [("matrix", "shifted", torch.float64), ("matrix", "rare", torch.float64), ("sms", "separable", torch.float64),
         ("vector", "plain", torch.float32), ("sms", "sure", torch.float32)]


@pytest.mark.parametrize("name, kind, dtype", SOME)
def test_a_fit_is_at_its_minimum(name, kind, dtype, monkeypatch):
    "With the whole Hessian or products with it, in pieces, and with a Hessian of too few samples."
    logits, target = skewed()
    logits = {"sure": 10., "large": 3000.}.get(kind, 1.)*logits
    if kind == "shifted":
        logits = logits + torch.tensor([0., 10., -20., 0., 5., 40.])
    if kind == "separable":
        target = logits.argmax(1)
    if kind == "rare":
        target = torch.where((target == 0) & (torch.arange(3000) > 60), 1, target)
    most = {torch.float64: 1e-5, torch.float32: 5e-5}
    if name in STRUCTURED:
        most = {torch.float64: 1e-7, torch.float32: 2e-3}
    values = {}
    ways = dict(whole=(), products=(linear_newton, "_DENSE", 0), pieces=(linear_objective, "_CHUNK", 1000),
                few=(linear_newton, "_HESSIAN_SAMPLES", 20))
    for where, change in ways.items():
        with monkeypatch.context() as patch:
            if change:
                patch.setattr(*change)
            calibrator = KINDS[name]().fit(logits.to(dtype), target)
        values[where], slope = objective_of(calibrator, logits, target)
        assert slope < most[dtype], where
    tol = 1e-12 if dtype == torch.float64 and name in STRUCTURED else 1e-6
    assert max(values.values()) - min(values.values()) < tol


@pytest.mark.parametrize("name", STRUCTURED)
def test_without_a_penalty_float32_finds_the_same_map(name):
    "Near-collinear inputs, of which nothing but a penalty would tell one map from the next."
    logits, _ = skewed()
    target = torch.randint(6, (3000,), generator=torch.Generator().manual_seed(1))
    free = [0.]*(2 if name == "svs" else 3)
    values = [objective_of(KINDS[name](*free).fit(z, target), logits, target)[0] for z in (logits, logits.double())]
    assert abs(values[0] - values[1]) < 1e-6


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_linear_maps_never_raise_the_nll_of_their_fit(name):
    for seed in range(2):
        logits, target = overconfident(N=200, K=4, seed=seed)
        def nll_after(calibrator):
            return F.nll_loss(calibrator.fit(logits, target).transform(logits.double()).log(), target)
        of_temperature = nll_after(TemperatureScaling())
        assert nll_after(make_calibrator(name)) <= of_temperature + 1e-7
        assert of_temperature <= F.cross_entropy(logits, target) + 1e-7


@pytest.mark.parametrize("scale", [1e-3, 1e6])
@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
def test_linear_maps_do_not_depend_on_the_size_of_the_logits(name, scale):
    logits, target = overconfident(N=1500, K=4)
    shifted = logits + torch.tensor([3., 0., 0., 0.])
    want = make_calibrator(name).fit(shifted.double(), target).nll(shifted.double(), target).mean()
    got = make_calibrator(name).fit(scale*shifted, target).nll(scale*shifted, target).mean()
    assert math.isclose(got, want, abs_tol=2e-3)


def test_rare_and_separable_classes():
    logits, target = overconfident(N=3000, K=5)
    with pytest.warns(UserWarning, match="no sample of class 0 in the fit, so its offset is the mean of the others"):
        never = VectorScaling().fit(logits, target.clamp_min(1))
    assert never.transform(logits)[:, 0].mean() > .05 and abs(never.bias_[0]) < 1e-12
    separable = logits.argmax(1)
    assert quiet("vector", logits, separable).nll(logits, separable).mean() < 1e-6
    logits, target = overconfident(N=200, K=150)  # more parameters than samples
    nll = quiet("vector", logits, target).nll(logits, target).mean()
    assert nll < TemperatureScaling().fit(logits, target).nll(logits, target).mean() - .1


def test_fewer_samples_than_parameters_and_no_penalty_warn_and_are_no_worse_than_a_temperature():
    "Random labels that a matrix can learn by heart: no step may leap past them."
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(60, 50, generator=draw), torch.randint(50, (60,), generator=draw)
    with pytest.warns(UserWarning, match="no sample of 15 classes"), pytest.warns(match="no minimum found"):
        found = StructuredMatrixScaling(0., 0., 0.).fit(logits, target)
    assert found.nll(logits, target).mean() < TemperatureScaling().fit(logits, target).nll(logits, target).mean()


def test_classes_without_samples_need_few_products_with_the_hessian(monkeypatch):
    "With a preconditioner of the current probabilities, 42 products; with that of the first step, 9,579."
    products, times = [], linear_objective.Hessian.times
    monkeypatch.setattr(linear_objective.Hessian, "times", lambda self, V: products.append(V) or times(self, V))
    draw = torch.Generator().manual_seed(0)
    logits = 3*torch.randn(300, 300, generator=draw)
    target = torch.multinomial((logits/1.5).softmax(1), 1, generator=draw)[:, 0]
    quiet("vector", logits, target)
    assert len(products) < 200


@pytest.mark.parametrize("name", STRUCTURED)
def test_from_temperature_scaling_to_a_free_map(name):
    logits, target = skewed(400)
    def nll(strength):
        strengths = [strength]*(2 if name == "svs" else 3)
        return KINDS[name](*strengths).fit(logits.double(), target).nll(logits, target).mean().item()
    by_strength = [nll(s) for s in (0., .1, 1., 10., 1e7)]
    assert by_strength == sorted(by_strength)  # bits: the same numbers in order
    of_temperature = TemperatureScaling().fit(logits, target).nll(logits, target).mean().item()
    assert math.isclose(by_strength[-1], of_temperature, abs_tol=.01)  # the uniform has a share of 1/401
    free = make_calibrator("vector" if name == "svs" else "matrix").fit(logits, target).nll(logits, target).mean()
    assert by_strength[0] < free + .01


def test_few_samples_of_many_classes_stay_near_the_temperature():
    draw = torch.Generator().manual_seed(0)
    logits = 3*torch.randn(20_300, 50, generator=draw)
    target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    few, new = (logits[:300], target[:300]), (logits[300:], target[300:])
    nll = {name: quiet(name, *few).nll(*new).mean().item() for name in ("temperature", "vector", "svs", "sms")}
    assert max(nll["svs"], nll["sms"]) < nll["temperature"] + .05 < nll["vector"]


@pytest.mark.parametrize("calibrator, message", [
    (MatrixScaling(-1.), "lam: -1"), (Dirichlet(mu=math.inf), "mu: inf"),
    (StructuredVectorScaling(intercept=-1.), "intercept: -1.0, want a number of at least 0"),
    (StructuredMatrixScaling(diagonal=math.inf), "diagonal: inf"),
    (StructuredMatrixScaling(off_diagonal=math.nan), "off_diagonal: nan")])
def test_wrong_strengths(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(*overconfident(N=20))
