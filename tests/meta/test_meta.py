"Gradients through a training step: golden numbers, double backward through batch norm, and nothing left behind."
import copy
from dataclasses import replace
from functools import partial
from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from conftest import rounding, vectors, within
from torch import nn
from torch.func import functional_call

from calibnb.data import Split, Splits, load_data
from calibnb.losses import dece, focal_loss, sece
from calibnb.meta import (
    POSITIVITY, SMOOTHINGS, EndlessBatches, GammaNet, LearnedL2, LearnedSmoothing, MetaRecipe, MetaTrainer,
    focal_logit_gradient, frozen_batchnorm_stats, hypergradient
)
from calibnb.models import make_model
from calibnb.runs import RunConfig, collect, get_run
from calibnb.train import Evaluator, MetaProgress, Recipe, Trainer
from calibnb.train.batches import Batch


def array(values):
    return torch.tensor(values, dtype=torch.float64)


CASES, DATA = vectors("meta")
CASE = {c["id"]: c for c in CASES}
HEAD = {k: torch.tensor(v) if k.startswith("y") else array(v) for k, v in DATA["head"].items()}
narrow_sece = partial(sece, bandwidth=.1)
OUTER = {"ce": F.cross_entropy, "sece": narrow_sece,
         "ce+0.5sece": lambda z, y: F.cross_entropy(z, y) + .5*narrow_sece(z, y)}


class Given(nn.Module):
    "A gamma for each sample, as in the golden numbers."
    def __init__(self, gamma):
        super().__init__()
        self.gamma = nn.Parameter(array(gamma))

    def logit_gradient(self, logits, target, features):
        return focal_logit_gradient(logits, target, self.gamma)

    def head_gradient(self, head):
        return None


class Network(nn.Module):
    "A body that gives features, and a head."
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def golden_network(theta):
    "The Sequential of the golden numbers, its last layer as the head."
    theta = {k: array(v) for k, v in theta.items()}
    wide, dim = theta["0.weight"].shape
    norm = [nn.BatchNorm1d(wide)] if "1.weight" in theta else []
    last = str(2 + len(norm))
    body = nn.Sequential(nn.Linear(dim, wide), *norm, nn.Tanh()).double()
    head = nn.Linear(*theta[f"{last}.weight"].shape[::-1]).double()
    body.load_state_dict({k: v for k, v in theta.items() if not k.startswith(last)}, strict=False)
    head.load_state_dict({k[2:]: v for k, v in theta.items() if k.startswith(last)})
    return Network(body, head)


def head_only():
    "The head of the golden numbers; inputs are its features."
    head = nn.Linear(4, 3).double()
    head.load_state_dict(dict(weight=HEAD["head_W"], bias=HEAD["head_b"]))
    return Network(nn.Identity(), head)


HEAD_BATCHES = (HEAD["x"], HEAD["y"]), (HEAD["x_val"], HEAD["y_val"])


def test_gamma_net_gives_the_golden_exponents():
    case = CASE["gamma_net_forward"]
    net = GammaNet(4, 3, tau=case["tau"]).double()
    net.load_state_dict(dict(A=array(case["A"]), W=array(case["W"])))
    within(net(array(case["x"])).detach(), case["expected"]["gamma"], case)
    with torch.no_grad():  # the W that is made for these A gives 1 for every input
        net.W.copy_(array(case["expected"]["W_for_unit_gamma"]))
    assert (net(torch.randn(50, 4).double()) - 1).abs().max() < 1e-9


@pytest.mark.parametrize("case", [c for c in CASES if c["id"].startswith("hypergrad_head")], ids=lambda c: c["id"])
def test_the_golden_hypergradient_through_the_head(case):
    params, want = case["params"], case["expected"]
    step = dict(outer=OUTER[params["outer"]], lr=params["lr"], reduction=params["reduction"])
    (d_gamma,), value = hypergradient(head_only(), Given(want["gamma"]), *HEAD_BATCHES, **step)
    within(d_gamma, want["dL_dgamma"], case)
    within(value, want["L_val"], case)
    net = GammaNet(4, 3, tau=params["tau"]).double()
    net.load_state_dict(dict(A=HEAD["A"], W=HEAD["W"]))
    (d_A, d_W), _ = hypergradient(head_only(), net, *HEAD_BATCHES, **step)
    within(d_A, want["dL_dA"], case)
    within(d_W, want["dL_dW"], case)


def test_the_golden_hypergradient_of_a_learned_l2():
    case, model = CASE["hypergrad_learnable_l2"], head_only()
    params = case["params"]
    decay = LearnedL2(model.head).double()
    decay.load_state_dict(dict(weight=array(case["omega_w"]), bias=array(case["omega_b"])))
    (d_w, d_b), value = hypergradient(model, decay, *HEAD_BATCHES, OUTER[params["outer"]], params["lr"])
    within(d_w, case["expected"]["d_omega_w"], case)
    within(d_b, case["expected"]["d_omega_b"], case)
    within(value, case["expected"]["L_val"], case)


def test_the_golden_hypergradient_of_a_learned_smoothing():
    case, soft = CASE["hypergrad_scalar_smoothing"], LearnedSmoothing(3).double()
    params = case["params"]
    soft.eps.data.fill_(params["eps"])
    (d_eps,), _ = hypergradient(head_only(), soft, *HEAD_BATCHES, OUTER[params["outer"]], params["lr"])
    within(d_eps, case["expected"]["d_eps"], case)


@pytest.mark.parametrize("name", ["hypergrad_full", "hypergrad_full_batchnorm"])
def test_the_golden_hypergradient_through_the_whole_network(name):
    case = CASE[name]
    params, want = case["params"], case["expected"]
    batch = array(case["x"]), torch.tensor(case["y"])
    other = array(case["x_val"]), torch.tensor(case["y_val"])
    (d_gamma,), value = hypergradient(
        golden_network(case["theta"]), Given(case["gamma"]), batch, other, OUTER[params["outer"]], params["lr"],
        scope="full", reduction=params["reduction"])
    within(d_gamma, want["dL_dgamma"], case)
    within(value, want["L_val"], case)


def test_every_case_is_used():
    assert {c["id"].split(":")[0] for c in CASES} == {
        "gamma_net_forward", "hypergrad_head", "hypergrad_learnable_l2", "hypergrad_scalar_smoothing",
        "hypergrad_full", "hypergrad_full_batchnorm"
    }


# beside double backward

def focal_of(inner):
    "The losses of a batch with the exponents that `inner` gives: (logits, target, features) -> (B,)."
    return lambda z, y, h: focal_loss(z, y, inner(h), reduction="none")


def after_a_step(weights, loss, lr, scope):
    "Weights after a step of gradient descent, as a function of what the loss has learned."
    moving = {k: w for k, w in weights.items() if scope == "full" or k.startswith("head")}
    grads = torch.autograd.grad(loss, list(moving.values()), create_graph=True)
    return weights | {k: w - lr*g for (k, w), g in zip(moving.items(), grads)}


def by_double_backward(model, inner, loss, batch, other, outer, lr, scope, reduction):
    "What `hypergradient` returns, by autograd through the step."
    (x, y), (x_val, y_val) = batch, other
    with frozen_batchnorm_stats(model):
        features = model.features(x)
        values = loss(model.head(features), y, features.detach())
        total = values.mean() if reduction == "mean" else values.sum()
        moved = after_a_step(dict(model.named_parameters()), total, lr, scope)
        value = outer(functional_call(model, moved, (x_val,)), y_val)
    return torch.autograd.grad(value, list(inner.parameters())), value


def assert_near(got, want, rtol=1e-8):
    "Each gradient is near the other in norm, and not zero."
    for a, b in zip(got, want):
        assert (a - b).norm() <= rtol*b.norm() and b.norm() > 0


def two_batches(*shape, classes):
    "Sixteen samples to train on and 24 others, in float64."
    return [(torch.randn(n, *shape).double(), torch.randint(classes, (n,))) for n in (16, 24)]


@pytest.mark.parametrize("outer", ["sece", "dece"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scope", ["head", "full"])
@pytest.mark.parametrize("net, positivity", [("mlp", "abs"), *zip(cycle(["small_cnn", "mlp"]), POSITIVITY)])
def test_the_hypergradient_is_that_of_double_backward(net, positivity, scope, reduction, outer):
    """With an MLP and a CNN that have batch norm, in training mode; their state stays, and no gradient is left.

    And for every positive function; with min-max the exponent of a sample depends on the others of its batch.
    """
    torch.manual_seed(1)
    model = make_model("small_cnn", 4, (2, 6, 6), width=3).double()
    if net == "mlp":
        model.body = nn.Sequential(nn.Flatten(), nn.Linear(72, 12), nn.BatchNorm1d(12), nn.Tanh())
        model = model.double()
    batch, other = two_batches(2, 6, 6, classes=4)
    init = "random" if positivity in ("abs", "min_max") else "exact"
    inner = GammaNet(12, 4, gamma0=.7, init=init, positivity=positivity, tau=.3).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    outer = dict(sece=narrow_sece, dece=dece)[outer]
    lr = .3 if reduction == "mean" else .02
    want, want_value = by_double_backward(model, inner, focal_of(inner), batch, other, outer, lr, scope, reduction)
    got, value = hypergradient(model, inner, batch, other, outer, lr, scope=scope, reduction=reduction)
    assert abs(value - want_value) < 1e-12
    assert_near(got, want)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("scope", ["head", "full"])
def test_dropout_is_that_of_the_step(scope):
    "The pass along v draws the masks that the training batch had."
    torch.manual_seed(2)
    body = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(.5))
    model = Network(body, nn.Linear(20, 3)).double()
    inner = GammaNet(20, 3, init="random", tau=.3).double()
    batch, other = two_batches(3, classes=3)
    torch.manual_seed(5)
    want, _ = by_double_backward(model, inner, focal_of(inner), batch, other, F.cross_entropy, .3, scope, "mean")
    torch.manual_seed(5)
    got, _ = hypergradient(model, inner, batch, other, F.cross_entropy, .3, scope=scope)
    assert_near(got, want)


# what learns

@pytest.mark.parametrize("dim, heads, gamma0", [(512, 10, 1.), (512, 100, .7), (64, 32, 3.), (8, 2, 1.)])
def test_every_input_begins_with_gamma0(dim, heads, gamma0):
    net = GammaNet(dim, heads, gamma0=gamma0)
    gamma = net(torch.cat([torch.randn(500, dim), 10*torch.randn(500, dim), torch.zeros(1, dim)])).detach()
    assert net.exact and (gamma - gamma0).abs().max() < rounding(heads, torch.float32, gamma0)
    assert gamma.std() < rounding(1, torch.float32, gamma0)


@pytest.mark.parametrize("positivity, gamma0", [("abs", 1.), ("relu", .2), ("softplus", 3.), ("sigmoid", .9)])
def test_every_positive_function_begins_with_gamma0_and_learns(positivity, gamma0):
    "Beside the paper's absolute value, Table 3 has others; all start where they are told and have a gradient there."
    net = GammaNet(16, 4, gamma0=gamma0, positivity=positivity)
    gamma = net(torch.randn(50, 16))
    gradients = torch.autograd.grad(gamma.sum(), list(net.parameters()))
    assert (gamma - gamma0).abs().max() < 1e-5 and gradients[1].abs().min() > 0


def test_bounded_exponents_stay_in_their_range():
    "Whatever gamma-Net learns: a sigmoid below 1, min-max from 0 to 1 in each batch, and the same for equal samples."
    torch.manual_seed(3)
    x = 10*torch.randn(200, 16)
    low, high = GammaNet(16, 4, init="random", positivity="sigmoid", tau=1e-3)(x).detach().aminmax()
    assert 0 <= low < high <= 1
    net = GammaNet(16, 4, init="random", positivity="min_max")
    for batch in x[:100], x[100:]:
        values = net(batch)
        raw = (batch @ net.A).softmax(1) @ (net.A.T @ net.W)
        assert values.min() == 0 and values.max() == 1
        assert torch.allclose(values, (raw - raw.min())/(raw.max() - raw.min()), atol=1e-4)
    assert (net(x[:1].expand(5, -1)) == 0).all() and net(x[:1]).isfinite().all()


@pytest.mark.parametrize("options, message", [
    (dict(tau=0.), "tau: 0.0, want a positive number"),
    (dict(gamma0=0.), "gamma0"),
    (dict(init="xavier"), "init: 'xavier' is not known"),
    (dict(positivity="square"), "positivity: 'square' is not known"),
    (dict(gamma_max=-1.), "gamma_max"),
    (dict(positivity="sigmoid"), "gamma0: 1.0, want less than 1"),
    (dict(positivity="min_max"), "'exact', but gamma then goes from 0 to 1 in every batch"),
    (dict(heads=1), "heads: 1, want at least 2"),
    (dict(positivity="relu", init="scaled"), "only an absolute value can be scaled"),
])
def test_a_wrong_option_of_gamma_net_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        GammaNet(**dict(dim=8, heads=2) | options)


MARGINS = [0., 1., 20., 90., 200., 1e4]
TOLERANCE = {torch.float32: dict(rtol=1e-4, atol=1e-6), torch.float64: dict(rtol=1e-9, atol=1e-12)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0., .01, .5, 1., 3., 10.])
def test_the_logit_gradient_is_that_of_focal_loss_at_every_margin(gamma, dtype):
    "It is finite, as is its derivative in gamma, and agrees with autograd of the loss in float64."
    z = torch.tensor([[m, 0., -1.] for m in MARGINS] + [[-m, 0., .5] for m in MARGINS], dtype=dtype)
    y = torch.zeros(len(z), dtype=torch.long)
    exponent = torch.full((len(z),), gamma, dtype=dtype, requires_grad=True)
    got = focal_logit_gradient(z, y, exponent)
    slope, = torch.autograd.grad(got.sum(), exponent)
    exact = z.double().requires_grad_()
    want, = torch.autograd.grad(focal_loss(exact, y, gamma, reduction="sum"), exact)
    assert got.isfinite().all() and slope.isfinite().all()
    assert torch.allclose(got.double(), want, **TOLERANCE[dtype])
    if gamma:
        net, features = GammaNet(2, 2, gamma0=gamma).double(), torch.zeros(len(z), 2).double()
        want = focal_loss(exact, y, net(features).detach(), reduction="none")  # gamma0, but for its rounding to float32
        assert torch.allclose(net.losses(exact, y, features), want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", SMOOTHINGS)
def test_smoothed_labels_stay_labels(kind):
    soft = LearnedSmoothing(5, kind)
    for p in soft.parameters():
        p.data.copy_(torch.linspace(-1, 1, p.numel()).roll(p.numel()//3).reshape(p.shape))
    soft.clamp()
    labels = soft(torch.arange(5), 5)
    assert (labels >= 0).all() and torch.allclose(labels.sum(1), torch.ones(5), atol=1e-4)
    assert (labels.diagonal() >= .5).all()


# training with a loss that learns

def squares(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return Split(torch.randn(n, 1, 8, 8, generator=draw) + y[:, None, None, None], y)


def problem():
    return Splits("squares", 3, squares(64), squares(20, 1), squares(21, 2), squares(32, 3))


def small_cnn():
    return make_model("small_cnn", 3, (1, 8, 8), seed=0, width=4)


def small_mlp():
    return make_model("mlp", 3, (1, 8, 8), hidden=[8])


def begun(net, splits, meta, **recipe):
    "The stepper of a training that is about to begin."
    trainer = MetaTrainer(net, meta, Recipe(**dict(epochs=3, batch_size=16) | recipe), "cpu")
    trainer._begin(splits)
    net.train()
    return trainer.stepper


def first_batch(splits):
    return Batch(splits.train.x[:16], splits.train.y[:16], None, 1., 16, 1)


def next_other(step):
    "The batch that the stepper will take next from the other data."
    place = step.meta_batches.state_dict()
    other = step.meta_batches.next("cpu")
    step.meta_batches.load_state_dict(place)
    return other


def named(meta):
    return f"{meta.learn}-{meta.outer}-{meta.scope}-{meta.jvp_by}"


STEPS = [
    MetaRecipe(learn_args=dict(init="random", tau=.5)),
    MetaRecipe(learn_args=dict(init="random", tau=.5), scope="full"),
    MetaRecipe(scope="full", jvp_by="difference", outer="dece"),
    MetaRecipe.bohdal(),
    MetaRecipe.bohdal(scope="full"),
    MetaRecipe(learn="smoothing", learn_args=dict(kind="non_uniform"), scope="full"),
    MetaRecipe(learn="smoothing", ce_weight=1.),
]
MORE = [MetaRecipe(), MetaRecipe(scope="full"), MetaRecipe(outer="dece", ce_weight=1., cal_weight=.5),
        MetaRecipe(learn="smoothing", learn_args=dict(kind="vector"), scope="full"), MetaRecipe(learn="smoothing"),
        MetaRecipe(learn_args=dict(heads=40)), MetaRecipe(learn_args=dict(init="scaled"))]


@pytest.mark.parametrize("meta", STEPS + MORE, ids=named)
def test_nothing_of_the_other_data_reaches_the_network(meta):
    """Permuted labels and other inputs leave the bits of the network's gradient and of batch norm alone.

    They are those of a plain step.
    """
    splits, found = problem(), []
    batch = first_batch(splits)
    permuted = replace(splits, meta_val=Split(squares(32, 9).x, splits.meta_val.y.flip(0)))
    for data in splits, permuted:
        torch.manual_seed(0)
        net = small_cnn()
        step = begun(net, data, meta)
        step(batch, .1)
        found.append(([p.grad.clone() for p in net.parameters()], [b.clone() for b in net.buffers()]))
        assert step.totals[0] > 0, "nothing reaches the loss"
    assert all(torch.equal(a, b) for one, two in zip(*found) for a, b in zip(one, two))
    gradients, buffers = found[0]
    plain = small_cnn().train()
    z = plain(batch.x)
    if getattr(step.inner, "exact", True):
        focal_loss(z, batch.y, 1. if meta.learn == "gamma" else 0.).backward()
        assert all(torch.allclose(a.grad, b, atol=1e-5) for a, b in zip(plain.parameters(), gradients))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), buffers))


@pytest.mark.parametrize("scope", ["head", "full"])
def test_the_leak_changes_the_gradient_of_the_network(scope):
    "By the derivative of the outer loss through the virtual step; the labels of the other data are in it."
    splits, found = problem(), []
    batch = first_batch(splits)
    for meta in MetaRecipe.bohdal(scope=scope), MetaRecipe.bohdal_with_leak(scope=scope):
        torch.manual_seed(0)
        net = small_cnn()
        step = begun(net, splits, meta, clip=None)
        with torch.no_grad():
            for p in step.inner.parameters():
                p.add_(.05)
        before = {k: p.detach().clone().requires_grad_() for k, p in net.named_parameters()}
        omega = [p.detach().clone() for p in step.inner.parameters()]
        x_other, y_other = next_other(step)
        step(batch, .1)
        found.append({k: p.grad.clone() for k, p in net.named_parameters()})
    with frozen_batchnorm_stats(net):
        decay = sum((w*before[k].square()).sum() for w, k in zip(omega, ("head.weight", "head.bias")))
        loss = F.cross_entropy(functional_call(net, before, (batch.x,)), batch.y) + decay
        moved = after_a_step(before, loss, .1, scope)
        z = functional_call(net, moved, (x_other,))
        value = F.cross_entropy(z, y_other) + .5*dece(z, y_other)
        want = torch.autograd.grad(value, list(before.values()))
    for k, w in zip(before, want):
        assert torch.allclose(found[1][k] - found[0][k], w, atol=1e-5), k
    assert max(w.abs().max() for w in want) > 1e-3


class SavedTensor:
    "A tensor that a graph has saved, as long as the graph has it."
    now = peak = 0

    def __init__(self, tensor):
        self.tensor, self.bytes = tensor, tensor.nbytes
        SavedTensor.now += self.bytes
        SavedTensor.peak = max(SavedTensor.peak, SavedTensor.now)

    def __del__(self):
        SavedTensor.now -= self.bytes


@pytest.mark.parametrize("scope", ["head", "full"])
def test_less_memory_is_used_than_for_double_backward(scope):
    "Bytes that graphs hold at once, with a network of convolutions."
    torch.manual_seed(0)
    model, inner, peaks = make_model("small_cnn", 4, (3, 16, 16), width=8), GammaNet(32, 4), []
    batch, other = [(torch.randn(16, 3, 16, 16), torch.randint(4, (16,))) for _ in range(2)]
    for f in hypergradient, partial(by_double_backward, loss=focal_of(inner), reduction="mean"):
        SavedTensor.now = SavedTensor.peak = 0
        with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda saved: saved.tensor):
            f(model, inner, batch=batch, other=other, outer=F.cross_entropy, lr=.1, scope=scope)
        peaks.append(SavedTensor.peak)
    assert 0 < peaks[0] < .8*peaks[1], peaks


def test_a_difference_is_near_in_float32():
    "On a deep network that has been trained a little, where a long step would leave what is straight."
    torch.manual_seed(0)
    model = make_model("resnet18", 4, (3, 16, 16), seed=0)

    def draw():
        return torch.randn(8, 3, 16, 16) + torch.arange(8)[:, None, None, None] % 4/4, torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), .05)
    for _ in range(6):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    batch, other, inner = draw(), draw(), GammaNet(512, 4)
    near, exact = (hypergradient(model, inner, batch, other, F.cross_entropy, .1, scope="full", jvp_by=by)[0]
                   for by in ("difference", "forward"))
    for a, b in zip(near, exact):
        assert (a - b).norm() < .02*b.norm()


class Dropping(Network):
    "A network that draws without a module for it."
    def __init__(self):
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh()), nn.Linear(12, 3))

    def features(self, x):
        return F.dropout(self.body(x), .4, self.training)


def inner_losses(meta, inner, z, y, h):
    "The loss of each sample with what is learned held fixed, written out."
    if meta.learn == "gamma":
        return focal_loss(z, y, inner(h).detach(), reduction="none")
    if meta.learn == "smoothing":
        return -(inner(y, 3).detach()*F.log_softmax(z, 1)).sum(1)
    return F.cross_entropy(z, y, reduction="none")


def inner_penalty(meta, inner, head):
    "The weight decay of the head with what is learned held fixed, written out."
    if meta.learn != "l2":
        return 0.
    pairs = (inner.weight, head.weight), (inner.bias, head.bias)
    return sum((w.detach()*p.square()).sum() for w, p in pairs)


@pytest.mark.parametrize("scale_by_batch", [False, True])
@pytest.mark.parametrize("net", ["small_cnn", "dropping"])
@pytest.mark.parametrize("meta", STEPS, ids=named)
def test_a_step_of_the_trainer_is_what_it_says(meta, net, scale_by_batch):
    """The gradient of what is learned is `hypergradient`, the network's that of the whole inner loss, by autograd.

    The step reports that loss and the outer one.
    """
    splits, lr = problem(), .01 if scale_by_batch else .1
    torch.manual_seed(0)
    model = Dropping() if net == "dropping" else small_cnn()
    step = begun(model, splits, meta, epochs=1, momentum=.9, clip=1e9, scale_by_batch=scale_by_batch)
    with torch.no_grad():
        for p in step.inner.parameters():
            p.add_(.02*torch.rand(p.shape) + (.05 if meta.learn != "gamma" else 0.))
    batch, inner, twin = first_batch(splits), copy.deepcopy(step.inner), copy.deepcopy(model)
    x, y, other = batch.x, batch.y, next_other(step)
    how = dict(scope=meta.scope, reduction="sum" if scale_by_batch else "mean", jvp_by=meta.jvp_by)
    torch.manual_seed(7)
    want, outer_value = hypergradient(twin, inner, (x, y), other, meta.outer_loss, lr, **how)
    torch.manual_seed(7)
    reported, n = step(batch, lr)
    rtol = 2e-2 if meta.jvp_by == "difference" else 1e-3
    for p, w in zip(step.inner.parameters(), want):
        assert torch.allclose(p.grad, w, rtol=rtol, atol=1e-6*w.abs().max().item()) and w.norm() > 0
    assert step.totals[2] == 1 and step.totals[1].item() == pytest.approx(outer_value.item(), rel=1e-4)
    torch.manual_seed(7)
    h = twin.features(x)
    each, penalty = inner_losses(meta, inner, twin.head(h), y, h), inner_penalty(meta, inner, twin.head)
    (each.sum() + penalty if scale_by_batch else each.mean() + penalty).backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-5)
    want_reported = each.sum() + penalty*(1 if scale_by_batch else 16)
    assert n == 16 and reported.item() == pytest.approx(want_reported.item(), rel=1e-4)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("meta", [MetaRecipe(lr=1e-3), MetaRecipe.bohdal(scope="full")], ids=lambda m: m.learn)
def test_an_interrupted_training_ends_in_the_same_bits(tmp_path, monkeypatch, meta):
    "Weights, what the loss has learned, both optimisers, the order of both data, and the history."
    splits, original = problem(), EndlessBatches.next

    def fit(stop_after=10**9, **kwargs):
        count = []

        def counting(self, device):
            count.append(1)
            if len(count) > stop_after:
                raise Interrupted
            return original(self, device)
        monkeypatch.setattr(EndlessBatches, "next", counting)
        trainer = MetaTrainer(small_cnn(), meta, Recipe(epochs=4, batch_size=16, keep="val_nll"), "cpu")
        return trainer, trainer.fit(splits, [MetaProgress()], **kwargs)
    whole, history = fit()
    for stop in 6, 3:
        with pytest.raises(Interrupted):
            fit(stop, checkpoint=tmp_path/"c.pt", every_s=0)
    resumed, again = fit(checkpoint=tmp_path/"c.pt", every_s=0)
    assert again.rows == history.rows and len(history) == 4
    for a, b in (whole.model, resumed.model), (whole.stepper.inner, resumed.stepper.inner):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    with pytest.raises(ValueError, match="was made with another loss"):
        MetaTrainer(whole.model, MetaRecipe(lr=.5), whole.recipe, "cpu").fit(splits, [MetaProgress()], tmp_path/"c.pt")


# errors

def trained(net, splits, meta=MetaRecipe(), **recipe):
    trainer = MetaTrainer(net, meta, Recipe(**dict(epochs=1, batch_size=16) | recipe), "cpu")
    trainer.fit(splits)
    return trainer


class Shrunk(Dropping):
    def forward(self, x):
        return .05*super().forward(x)


def fitted(recorder):
    MetaTrainer(small_mlp(), MetaRecipe.bohdal(), Recipe(epochs=1), "cpu").fit(problem(), [recorder])


def with_data(**change):
    return lambda: trained(small_mlp(), replace(problem(), **change))


def with_recipe(**options):
    return lambda: MetaTrainer(small_mlp(), recipe=Recipe(**options))


def without_bias():
    return Network(nn.Identity(), nn.Linear(12, 3, bias=False))


REFUSED = {
    "accumulate": (with_recipe(accumulate=2), "which bilevel training does not support"),
    "mixup": (with_recipe(mixup=1.), "which bilevel training does not support"),
    "fp16": (with_recipe(precision="fp16"), "which bilevel training does not support"),
    "compile": (with_recipe(compile=True), "which bilevel training does not support"),
    "no MetaRecipe": (lambda: MetaTrainer(small_mlp(), Recipe()), "want a MetaRecipe"),
    "no head": (lambda: MetaTrainer(nn.Linear(3, 3)), "has no `features` and linear `head`"),
    "tree_lstm": (lambda: MetaTrainer(make_model("tree_lstm", 2, (9, 5))), "trains on more labels than samples"),
    "no bias": (lambda: MetaTrainer(without_bias()), "has no bias"),
    "another forward": (lambda: trained(Shrunk(), problem()), r"Shrunk\(x\) is not head\(features"),
    "no meta_val": (with_data(meta_val=None), "squares has no meta_val"),
    "one sample": (with_data(meta_val=problem().meta_val[:1]), "meta_val of squares has 1 samples"),
    "float labels": (with_data(train=Split(squares(64).x, squares(64).y.float())), "train: labels are torch.float"),
    "gamma before training": (lambda: MetaTrainer(small_mlp()).gamma(problem().test), "nothing is trained yet"),
    "gamma of a tensor": (lambda: trained(small_mlp(), problem()).gamma(problem().test.x), "want a Split"),
    "gradient norms": (lambda: fitted("gradient_norms"), "the learned loss of a MetaTrainer is not a function"),
    "gamma of an l2": (lambda: fitted("gamma_stats"), "the learned loss is l2, which has no gamma"),
    "no loss that learns": (lambda: Trainer(small_mlp(), F.cross_entropy, Recipe(epochs=1), "cpu")
                            .fit(problem(), ["meta_progress"]), "Trainer has no learned loss"),
}


@pytest.mark.parametrize("call, message", REFUSED.values(), ids=REFUSED)
def test_what_bilevel_training_cannot_do_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_loss_that_is_not_finite_names_both_learning_rates():
    message = r"lower lr .now 1e.20.* or the learned loss diverged: lower lr of the MetaRecipe"
    with pytest.raises(FloatingPointError, match=message):
        trained(small_mlp(), problem(), lr=1e20)


@pytest.mark.parametrize("options, message", [
    (dict(outer_args=dict(bandwith=.1)), "did you mean 'bandwidth'"),
    (dict(outer_args=dict(bandwidth=-1)), "bandwidth: -1"),
    (dict(outer_args=dict(t_a=float("inf"))), "want a finite number"),
    (dict(learn_args=dict(tau=-1)), "tau: -1"),
    (dict(learn="smoothing", learn_args=dict(kind="foo")), "kind: 'foo' is not known"),
    (dict(cal_weight=0), "leaves no outer loss"),
    (dict(learn="l2", learn_args=dict(heads=3)), "'heads' is not known"),
])
def test_a_wrong_meta_recipe_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MetaRecipe(**options)


# what a training leaves

def test_equal_settings_are_equal():
    given, default = MetaRecipe(outer_args=dict(bandwidth=.01), learn_args=dict(tau=.01, gamma0=1)), MetaRecipe()
    assert given == default and default == MetaRecipe.model_validate_json(given.model_dump_json())
    assert given.model_dump_json() == default.model_dump_json()


def test_frozen_weights_stay():
    net = make_model("small_cnn", 3, (1, 8, 8), width=4)
    net.body[0].weight.requires_grad_(False)
    before = net.body[0].weight.clone()
    trained(net, problem(), MetaRecipe(scope="full"))
    assert torch.equal(net.body[0].weight, before)


def test_what_was_learned_is_of_the_epoch_that_was_kept(monkeypatch):
    scores, splits = iter([3., 1., 2., 4., 5.]), problem()
    monkeypatch.setattr("calibnb.train.BestEpoch._score", lambda self, preds: next(scores))
    trainer = MetaTrainer(small_mlp(), MetaRecipe(lr=1e-2), Recipe(epochs=5, batch_size=16, keep="val_nll"), "cpu")
    history = trainer.fit(splits, ["gamma_stats", "test_gamma_stats"])
    gamma_mean = history["gamma_mean"]
    assert trainer.best.epoch == 2
    assert trainer.gamma(splits.train).mean().item() == pytest.approx(gamma_mean[1], rel=1e-5)
    assert trainer.gamma(splits.test).std(correction=0).item() == pytest.approx(history["test_gamma_std"][1], rel=1e-4)
    assert abs(gamma_mean[1] - gamma_mean[4]) > 1e-3


def test_other_data_for_the_loss_are_another_training(tmp_path):
    splits, net = problem(), small_mlp()

    def fit(data):
        recipe = Recipe(epochs=2, batch_size=16)
        MetaTrainer(net, recipe=recipe, device="cpu").fit(data, checkpoint=tmp_path/"c.pt")
    fit(splits)
    with pytest.raises(ValueError, match="was made with another meta_val"):
        fit(replace(splits, meta_val=squares(32, 8)))


def test_a_run_with_a_loss_that_learns(tmp_path):
    "By name, from JSON, with its exponents in the history."
    setting = RunConfig(
        data_args=dict(n_meta=100), model_args=dict(hidden=[16]), meta=MetaRecipe(lr=1e-3), recipe=Recipe.quick(3),
        recorders=["nll_breakdown"])
    run = get_run(RunConfig.model_validate_json(setting.model_dump_json()), tmp_path)
    features = Evaluator(run.model(), device="cpu").features(load_data("digits", n_meta=100).train)
    assert run.learned_loss()(features).mean().item() == pytest.approx(run.history["gamma_mean"][-1], rel=1e-4)
    assert "gamma-sece" in repr(run) and set(collect(tmp_path).loss) == {"gamma-sece"}
    assert run.config == setting and run.history["gamma_std"][-1] > 0 and (run.history["hypergradient"] > 0).all()
    assert sorted(run.rows) == ["meta_val", "test", "train", "val"] and len(run.rows["meta_val"]) == 100


@pytest.mark.parametrize("options, message", [
    (dict(loss_args=dict(reduction="sum")), "want none with meta, which has its own loss; leave loss_args out"),
    (dict(recipe=Recipe(mixup=.2)), "mixup is 0.2, which bilevel"),
    (dict(loss="focal"), "loss: 'focal', want none with meta"),
])
def test_a_setting_that_does_not_go_with_meta_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(meta=MetaRecipe(), **options)


def test_a_run_with_meta_needs_data_for_it(tmp_path):
    with pytest.raises(ValueError, match="data_args: n_meta is 0, but meta learns on held-out samples"):
        RunConfig(meta=MetaRecipe(), recipe=Recipe.quick(1))
    with pytest.raises(ValueError, match="digits has no meta_val"):
        MetaTrainer(make_model("mlp", 10, (64,)), MetaRecipe(), Recipe.quick(1), "cpu").fit(load_data("digits"))


def test_uneven_smoothing_takes_nothing_from_the_label_itself():
    soft = LearnedSmoothing(3, "non_uniform").double()
    with torch.no_grad():
        soft.eps.fill_(.3)
        soft.weights.copy_(torch.tensor([[9., 1., 1.], [1., 9., 3.], [1., 1., 9.]]))
    want = torch.tensor([[.7, .15, .15], [.075, .7, .225]], dtype=torch.float64)
    torch.testing.assert_close(soft(torch.tensor([0, 1]), 3), want, rtol=0, atol=1e-6)
