"Properties of the losses, beyond the golden numbers."
import inspect
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from calibnb import losses, weights
from calibnb.losses import make_loss
from calibnb.weights import LogProbs

NAMES = losses.list_losses()
WRITTEN = [("focal", {}), ("flsd", dict(thresholds=(.2, .6), gammas=(5., 3., 1.))), ("inverse_focal", {}), ("dual_focal", {}),
           ("dual_focal", dict(second="runner_up")), ("dual_focal", dict(detach_second=True)), ("bsce", {}), ("bsce", dict(beta=1.)),
           ("bsce", dict(beta=float("inf")))]
BATCHWISE = {"mmce", "mmce_weighted", "dece", "sece"}  # a sample's value depends on the others
DRAWN = {"consistency"}                              # a fresh noise at every call
WEIGHTED = ["focal", "flsd", "inverse_focal", "dual_focal", "bsce"]
EXTREMES = [(n, dict(gamma=g)) for n in NAMES if "gamma" in losses.loss_options(n) for g in (0., .3, 1., 3., 10.)]
EXTREMES += [(n, {}) for n in NAMES if "gamma" not in losses.loss_options(n)]


def batch(N=7, K=5, seed=0, scale=2.):
    draw = torch.Generator().manual_seed(seed)
    return scale*torch.randn(N, K, generator=draw, dtype=torch.float64), torch.randint(K, (N,), generator=draw)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("_gra") and n not in DRAWN])  # those have contracts of their own
def test_gradcheck(name):
    logits, target = batch()
    loss = make_loss(name, reduction="none")
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (logits.requires_grad_(),))


@pytest.mark.parametrize("name", WEIGHTED)
def test_detached_gradient_is_u_times_ce_gradient(name):
    logits, target = batch()
    logits.requires_grad_()
    u = make_loss(name, reduction="none")(logits, target)/F.cross_entropy(logits, target, reduction="none")
    fn = make_loss(name).fn
    grad, = torch.autograd.grad(fn(logits, target, detach_weight=True, reduction="sum"), logits)
    torch.testing.assert_close(grad, (u[:, None]*(logits.softmax(1) - F.one_hot(target, 5))).detach())


@pytest.mark.parametrize("dtype, size", [(torch.float64, 1e4), (torch.float32, 80.)])
@pytest.mark.parametrize("name, options", EXTREMES, ids=str)
@pytest.mark.filterwarnings("ignore:inverse_focal_loss")
def test_finite_at_the_extremes(name, options, dtype, size):
    corners = torch.tensor([[size, -size, 0.], [-size, size, 0.], [size, size, -size], [0., 0., 0.], [size, size, size]], dtype=dtype)
    for label in range(3):
        logits = corners.clone().requires_grad_()
        value = make_loss(name, **options, reduction="none")(logits, torch.full((5,), label))
        grad, = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all() and grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_float32(name):
    logits, target = batch()
    out = make_loss(name)(logits.bfloat16(), target)
    assert out.dtype == torch.float32
    if name not in DRAWN:
        torch.testing.assert_close(out, make_loss(name)(logits.bfloat16().float(), target))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 9), K=st.integers(2, 6))
@pytest.mark.parametrize("name", [n for n in NAMES if n not in DRAWN])
def test_invariances(name, seed, N, K):
    "The order of the batch, the names of the classes and a constant on a row of logits do not matter."
    logits, target = batch(N, K, seed)
    value = make_loss(name, reduction="none")(logits, target)
    draw = torch.Generator().manual_seed(seed)
    rows, classes = torch.randperm(N, generator=draw), torch.randperm(K, generator=draw)
    torch.testing.assert_close(make_loss(name, reduction="none")(logits[rows], target[rows]), value[rows])
    renamed = torch.empty_like(logits)
    renamed[:, classes] = logits
    torch.testing.assert_close(make_loss(name, reduction="none")(renamed, classes[target]), value)
    if name != "lp_norm":  # which is there to mind the size of the logits
        torch.testing.assert_close(make_loss(name, reduction="none")(logits + 7., target), value)


@pytest.mark.parametrize("name", NAMES)
def test_segmentation_shapes_and_reductions(name):
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(2, 4, 3, 5, generator=draw), torch.randint(4, (2, 3, 5), generator=draw)
    full = make_loss(name, reduction="none")(logits, target)
    assert full.shape == target.shape
    if name in DRAWN:
        return
    if name not in BATCHWISE:
        torch.testing.assert_close(full[1, 2, 4], make_loss(name)(logits[1:, :, 2, 4], target[1:, 2, 4]))
    torch.testing.assert_close(make_loss(name, reduction="sum")(logits, target), full.sum())
    torch.testing.assert_close(make_loss(name)(logits, target), full.mean())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 9), K=st.integers(2, 6), gamma=st.floats(0, 10), scale=st.sampled_from([1., 10., 1000.]),
       detach=st.booleans())
@pytest.mark.parametrize("name, options", WRITTEN, ids=str)
def test_the_derivative_written_down_is_that_of_the_formula(name, options, seed, N, K, gamma, scale, detach):
    logits, target = batch(N, K, seed, scale)
    logits[0] = logits[0].round()  # ties, now and then
    gammas = torch.full((N,), gamma, dtype=torch.float64, requires_grad=True)
    weight = partial(getattr(weights, f"{name}_weight"), **options, **({} if name == "flsd" else dict(gamma=gammas)))
    found = []
    for values in weights.weighted_ce(logits.requires_grad_(), target, weight, detach), weights._plain(logits, target, weight, detach):
        found.append((values.detach(), *torch.autograd.grad(values.sum(), (logits, gammas), allow_unused=True, materialize_grads=True)))
    for fast, plain in zip(*found):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in DRAWN and not n.endswith("_gra")])
def test_second_derivatives(name):
    logits, target = batch()
    loss = make_loss(name, reduction="sum")
    assert torch.autograd.gradgradcheck(lambda z: loss(z, target), (logits.requires_grad_(),), atol=1e-4)


def test_backward_twice_gives_the_same():
    logits, target = batch()
    for name in WEIGHTED:
        value = make_loss(name)(logits.requires_grad_(), target)
        first, second = (torch.autograd.grad(value, logits, retain_graph=True)[0] for _ in range(2))
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in DRAWN])
def test_compiles_in_one_piece_to_the_same_numbers(name):
    logits, target = batch()
    loss = make_loss(name)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(f(logits, target), logits)[0] for f in (compiled, loss) if logits.requires_grad_() is logits]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


def test_gradients_of_each_sample_by_torch_func():
    logits, target = batch()
    for name in WEIGHTED:
        loss, whole = make_loss(name), make_loss(name, reduction="sum")
        each = torch.stack([torch.func.grad(lambda z: loss(z[None], y[None]))(z) for z, y in zip(logits, target)])
        torch.testing.assert_close(each, torch.autograd.grad(whole(logits.requires_grad_(), target), logits)[0])
        logits = logits.detach()


def test_gamma_per_sample_and_its_gradient():
    logits, target = batch()
    gamma = torch.linspace(.5, 3, 7, dtype=torch.float64, requires_grad=True)
    value = losses.focal_loss(logits, target, gamma, reduction="none")
    for i in range(7):
        torch.testing.assert_close(value[i], losses.focal_loss(logits[i:i+1], target[i:i+1], gamma[i].item()))
    lp = LogProbs(logits, target)
    grad, = torch.autograd.grad(value.sum(), gamma)
    torch.testing.assert_close(grad, (-lp.log_p_y*(gamma*lp.log_1m_p_y).exp()*lp.log_1m_p_y).detach())


BAD = [
    ("focal", dict(gamma=-1), "gamma: -1.0, want a finite number >= 0; for u growing with p use inverse_focal_loss"),
    ("focal", dict(gamma="3"), "gamma: '3', want a finite number"),
    ("focal", dict(gamma=float("inf")), "gamma: inf"),
    ("focal", dict(gamma=float("nan")), "gamma: nan"),
    ("flsd", dict(gammas=(1., 2., 3.)), "gammas: 3 given, want 2"),
    ("flsd", dict(thresholds=(.5, .2), gammas=(1., 2., 3.)), "thresholds: .* want increasing"),
    ("dual_focal", dict(second="third"), "second: 'third'"),
    ("bsce", dict(beta=.5), "beta: 0.5"),
    ("bsce", dict(form="product"), "form: 'product'"),
    ("label_smoothing", dict(eps=1.), r"eps: 1.0, want a probability in \[0, 1\)"),
    ("label_smoothing", dict(mode="up"), "mode: 'up'"),
    ("ce", dict(reduction="avg"), "reduction: 'avg'"),
]


@pytest.mark.parametrize("name, options, message", BAD, ids=[f"{n}-{next(iter(o))}" for n, o, _ in BAD])
def test_bad_options_are_refused_when_the_loss_is_made(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_loss(name, **options)


@pytest.mark.filterwarnings("ignore:inverse_focal_loss. gamma 5")
def test_inverse_focal_warns_where_its_gradient_reverses():
    with pytest.warns(UserWarning, match="3.59"):
        make_loss("inverse_focal", gamma=4)
    logits = torch.tensor([[-1., 0.]], dtype=torch.float64, requires_grad=True)  # p_y = .27
    for gamma, sign in (3., -1), (5., 1):
        grad, = torch.autograd.grad(losses.inverse_focal_loss(logits, torch.tensor([0]), gamma), logits)
        assert grad[0, 0].sign() == sign


@pytest.mark.parametrize("gamma", [torch.tensor(-1.), torch.tensor([1., 2., -.5, 1., 1., 1., 1.]), torch.ones(3)], ids=["0-d", "one of many", "shape"])
def test_bad_gamma_tensors(gamma):
    with pytest.raises(ValueError, match="gamma: "):
        losses.focal_loss(*batch(), gamma)


def test_modules_know_their_options():
    assert list(inspect.signature(losses.BSCELoss).parameters) == ["gamma", "beta", "form", "detach_weight", "reduction"]
    assert list(inspect.signature(losses.BSCEGRALoss).parameters) == ["gamma", "beta", "form", "reduction"]
    with pytest.raises(TypeError, match="gama"):
        losses.FocalLoss(gama=2.)
    assert losses.BSCELoss(2., beta=float("inf"))(*batch()).isfinite()


def test_a_module_trains_like_cross_entropy():
    layer = torch.nn.Linear(4, 3)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    grads = [torch.autograd.grad(criterion(layer(x), y), layer.weight)[0]
             for criterion in (torch.nn.CrossEntropyLoss(), losses.FocalLoss(gamma=0.))]
    torch.testing.assert_close(*grads)
