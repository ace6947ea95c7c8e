"Gradients through a step of training: golden numbers, double backward on networks with batch norm, nothing left behind."
import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import rounding, vectors, within
from torch import nn
from torch.func import functional_call

from calibnb.train.batches import Batch
from calibnb.data import Split, Splits, load_data
from calibnb.meta import (
    SMOOTHINGS, GammaNet, LearnedL2, LearnedSmoothing, focal_logit_gradient, hypergradient, untouched_statistics
)
from calibnb.losses import focal_loss
from calibnb.meta import Cycle, MetaRecipe, MetaTrainer
from calibnb.models import make_model
from calibnb.train import Recipe
from calibnb.train import MetaProgress
from calibnb.runs import RunConfig, collect, get_run
from calibnb.losses import dece, sece
from calibnb.train import Evaluator, Trainer

CASES, DATA = vectors("meta")
CASE = {c["id"]: c for c in CASES}
HEAD = {k: torch.tensor(v, dtype=torch.int64 if k.startswith("y") else torch.float64) for k, v in DATA["head"].items()}
OUTER = {"ce": F.cross_entropy, "sece": lambda z, y: sece(z, y, bandwidth=.1), "ce+0.5sece": lambda z, y: F.cross_entropy(z, y) + .5*sece(z, y, bandwidth=.1)}


def array(values):
    return torch.tensor(values, dtype=torch.float64)


class Given(nn.Module):
    "A gamma for each sample, as the golden numbers have it."
    def __init__(self, gamma):
        super().__init__()
        self.gamma = nn.Parameter(array(gamma))

    def logit_gradient(self, logits, target, features):
        return focal_logit_gradient(logits, target, self.gamma)

    def head_gradient(self, head):
        return None


class HeadOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3).double()
        self.head.load_state_dict(dict(weight=HEAD["head_W"], bias=HEAD["head_b"]))

    def features(self, x):
        return x


class Layers(nn.Module):
    "The golden numbers' Sequential, its last layer as the head."
    def __init__(self, theta):
        super().__init__()
        theta = {k: array(v) for k, v in theta.items()}
        wide, dim = theta["0.weight"].shape
        norm = [nn.BatchNorm1d(wide)] if "1.weight" in theta else []
        self.body = nn.Sequential(nn.Linear(dim, wide), *norm, nn.Tanh()).double()
        last = str(2 + len(norm))
        self.head = nn.Linear(*theta[f"{last}.weight"].shape[::-1]).double()
        self.body.load_state_dict({k: v for k, v in theta.items() if not k.startswith(last)}, strict=False)
        self.head.load_state_dict({k[2:]: v for k, v in theta.items() if k.startswith(last)})

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


def head_batches():
    return (HEAD["x"], HEAD["y"]), (HEAD["x_val"], HEAD["y_val"])


def test_forward():
    case = CASE["gamma_net_forward"]
    net = GammaNet(4, 3, tau=case["tau"]).double()
    net.load_state_dict(dict(A=array(case["A"]), W=array(case["W"])))
    within(net(array(case["x"])).detach(), case["expected"]["gamma"], case)
    with torch.no_grad():  # the W that is made for these A gives 1 for every input
        net.W.copy_(array(case["expected"]["W_for_unit_gamma"]))
    assert (net(torch.randn(50, 4).double()) - 1).abs().max() < 1e-9


@pytest.mark.parametrize("case", [c for c in CASES if c["id"].startswith("hypergrad_head")], ids=lambda c: c["id"])
def test_head(case):
    params, want = case["params"], case["expected"]
    outer, lr, reduction = OUTER[params["outer"]], params["lr"], params["reduction"]
    (d_gamma,), value = hypergradient(HeadOnly(), Given(want["gamma"]), *head_batches(), outer, lr, reduction=reduction)
    within(d_gamma, want["dL_dgamma"], case)
    within(value, want["L_val"], case)
    net = GammaNet(4, 3, tau=params["tau"]).double()
    net.load_state_dict(dict(A=HEAD["A"], W=HEAD["W"]))
    (d_A, d_W), _ = hypergradient(HeadOnly(), net, *head_batches(), outer, lr, reduction=reduction)
    within(d_A, want["dL_dA"], case)
    within(d_W, want["dL_dW"], case)


def test_learned_l2_and_smoothing():
    case = CASE["hypergrad_learnable_l2"]
    model = HeadOnly()
    decay = LearnedL2(model.head).double()
    decay.load_state_dict(dict(weight=array(case["omega_w"]), bias=array(case["omega_b"])))
    (d_w, d_b), value = hypergradient(model, decay, *head_batches(), OUTER[case["params"]["outer"]], case["params"]["lr"])
    for got, name in (d_w, "d_omega_w"), (d_b, "d_omega_b"), (value, "L_val"):
        within(got, case["expected"][name], case)
    case = CASE["hypergrad_scalar_smoothing"]
    soft = LearnedSmoothing(3).double()
    soft.eps.data.fill_(case["params"]["eps"])
    (d_eps,), _ = hypergradient(HeadOnly(), soft, *head_batches(), OUTER[case["params"]["outer"]], case["params"]["lr"])
    within(d_eps, case["expected"]["d_eps"], case)


@pytest.mark.parametrize("name", ["hypergrad_full", "hypergrad_full_batchnorm"])
def test_full(name):
    case = CASE[name]
    params = case["params"]
    batches = ((array(case["x"]), torch.tensor(case["y"])), (array(case["x_val"]), torch.tensor(case["y_val"])))
    (d_gamma,), value = hypergradient(Layers(case["theta"]), Given(case["gamma"]), *batches, OUTER[params["outer"]], params["lr"], scope="full", reduction=params["reduction"])
    within(d_gamma, case["expected"]["dL_dgamma"], case)
    within(value, case["expected"]["L_val"], case)


def test_every_case_is_used():
    assert {c["id"].split(":")[0] for c in CASES} == {"gamma_net_forward", "hypergrad_head", "hypergrad_learnable_l2", "hypergrad_scalar_smoothing", "hypergrad_full", "hypergrad_full_batchnorm"}


def by_double_backward(model, inner, loss, batch, other, outer, lr, scope, reduction):
    (x, y), (x_val, y_val) = batch, other
    with untouched_statistics(model):
        weights = dict(model.named_parameters())
        features = model.features(x)
        values = loss(model.head(features), y, features.detach())
        moving = {k: w for k, w in weights.items() if scope == "full" or k.startswith("head")}
        grads = torch.autograd.grad(values.mean() if reduction == "mean" else values.sum(), list(moving.values()), create_graph=True)
        moved = weights | {k: w - lr*g for (k, w), g in zip(moving.items(), grads)}
        value = outer(functional_call(model, moved, (x_val,)), y_val)
    return torch.autograd.grad(value, list(inner.parameters())), value


@pytest.mark.parametrize("outer", ["sece", "dece"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scope", ["head", "full"])
@pytest.mark.parametrize("net", ["mlp", "small_cnn"])
def test_as_double_backward(net, scope, reduction, outer):
    "An MLP and a CNN, both with batch norm, in training mode; their state is as it was, and no gradient is left."
    torch.manual_seed(1)
    model = make_model("small_cnn", 4, (2, 6, 6), width=3).double()
    if net == "mlp":
        model.body = nn.Sequential(nn.Flatten(), nn.Linear(72, 12), nn.BatchNorm1d(12), nn.Tanh())
        model = model.double()
    batch, other = [(torch.randn(n, 2, 6, 6).double(), torch.randint(4, (n,))) for n in (16, 24)]
    inner = GammaNet(12, 4, gamma0=1.5, init="random", tau=.3).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    outer = dict(sece=lambda z, y: sece(z, y, bandwidth=.1), dece=dece)[outer]
    loss = lambda z, y, h: focal_loss(z, y, inner(h), reduction="none")
    lr = .3 if reduction == "mean" else .02
    want, want_value = by_double_backward(model, inner, loss, batch, other, outer, lr, scope, reduction)
    got, value = hypergradient(model, inner, batch, other, outer, lr, scope=scope, reduction=reduction)
    assert abs(value - want_value) < 1e-12
    for a, b in zip(got, want):
        assert (a - b).norm() <= 1e-8*b.norm() and b.norm() > 0
    assert all(p.grad is None for p in model.parameters()) and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("scope", ["head", "full"])
def test_dropout_is_that_of_the_step(scope):
    "The pass along v draws the masks that the training batch had."
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(.5)), nn.Linear(20, 3)

        def features(self, x):
            return self.body(x)

        def forward(self, x):
            return self.head(self.features(x))
    torch.manual_seed(2)
    model, inner = Dropping().double(), GammaNet(20, 3, init="random", tau=.3).double()
    batch, other = [(torch.randn(n, 3).double(), torch.randint(3, (n,))) for n in (16, 24)]
    found = []
    for f in by_double_backward, hypergradient:
        torch.manual_seed(5)
        if f is hypergradient:
            found.append(f(model, inner, batch, other, F.cross_entropy, .3, scope=scope)[0])
        else:
            found.append(f(model, inner, lambda z, y, h: focal_loss(z, y, inner(h), reduction="none"), batch, other, F.cross_entropy, .3, scope, "mean")[0])
    for a, b in zip(*found):
        assert (a - b).norm() <= 1e-8*b.norm() and b.norm() > 0


@pytest.mark.parametrize("dim, heads, gamma0", [(512, 10, 1.), (512, 100, .7), (64, 32, 3.), (8, 2, 1.)])
def test_every_input_begins_with_gamma0(dim, heads, gamma0):
    net = GammaNet(dim, heads, gamma0=gamma0)
    gamma = net(torch.cat([torch.randn(500, dim), 10*torch.randn(500, dim), torch.zeros(1, dim)])).detach()
    assert net.exact and (gamma - gamma0).abs().max() < rounding(heads, torch.float32, gamma0)
    assert gamma.std() < rounding(1, torch.float32, gamma0)


@pytest.mark.parametrize("options, message", [(dict(tau=0.), "tau: 0.0, want a positive number"), (dict(gamma0=0.), "gamma0"), (dict(init="xavier"), "init: 'xavier' is not known"),
                                              (dict(positivity="square"), "positivity: 'square' is not known"), (dict(gamma_max=-1.), "gamma_max")])
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        GammaNet(8, 2, **options)


MARGINS = [0., 1., 20., 90., 200., 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0., .01, .5, 1., 3., 10.])
def test_the_logit_gradient_is_that_of_focal_loss_at_every_margin(gamma, dtype):
    "Finite, with its derivative in gamma; beside autograd of the loss in float64."
    z = torch.tensor([[m, 0., -1.] for m in MARGINS] + [[-m, 0., .5] for m in MARGINS], dtype=dtype)
    y, exponent = torch.zeros(len(z), dtype=torch.long), torch.full((len(z),), gamma, dtype=dtype, requires_grad=True)
    got = focal_logit_gradient(z, y, exponent)
    slope, = torch.autograd.grad(got.sum(), exponent)
    exact = z.double().requires_grad_()
    want, = torch.autograd.grad(focal_loss(exact, y, gamma, reduction="sum"), exact)
    assert got.isfinite().all() and slope.isfinite().all()
    assert torch.allclose(got.double(), want, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-6 if dtype == torch.float32 else 1e-12)
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
    assert (labels >= 0).all() and torch.allclose(labels.sum(1), torch.ones(5), atol=1e-4) and (labels.diagonal() >= .5).all()


# training with a loss that learns

def squares(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    return Split(torch.randn(n, 1, 8, 8, generator=draw) + y[:, None, None, None], y)


def problem():
    return Splits("squares", 3, squares(64), squares(20, 1), squares(21, 2), squares(32, 3))


def stepper(meta, splits, model="small_cnn", **recipe):
    torch.manual_seed(0)
    net = make_model(model, 3, splits.in_shape, seed=0, **(dict(width=4) if model == "small_cnn" else dict(hidden=[8])))
    trainer = MetaTrainer(net, meta, Recipe(**dict(epochs=3, batch_size=16) | recipe), "cpu")
    trainer.recorders = []
    trainer._begin(splits, name_task=False)
    net.train()
    return net, trainer.stepper


LEARNED = [MetaRecipe(), MetaRecipe(scope="full"), MetaRecipe(scope="full", jvp_by="difference"), MetaRecipe(outer="dece", ce_weight=1., cal_weight=.5), MetaRecipe.bohdal(),
           MetaRecipe(learn="smoothing"), MetaRecipe(learn="smoothing", learn_args=dict(kind="vector"), scope="full"), MetaRecipe(learn_args=dict(heads=40)), MetaRecipe(learn_args=dict(init="scaled"))]


@pytest.mark.parametrize("meta", LEARNED, ids=lambda m: f"{m.learn}-{m.outer}-{m.scope}-{m.jvp_by}")
def test_nothing_of_the_other_data_reaches_the_network(meta):
    "Its labels permuted, its inputs replaced: the network's gradient and batch norm keep their bits, and are those of a plain step."
    splits, found = problem(), []
    batch = Batch(splits.train.x[:16], splits.train.y[:16], None, 1., 16, 1)
    permuted = replace(splits, meta_val=Split(squares(32, 9).x, splits.meta_val.y.flip(0)))
    for data in splits, permuted:
        net, step = stepper(meta, data)
        step(batch, .1)
        found.append(([p.grad.clone() for p in net.parameters()], [b.clone() for b in net.buffers()]))
        assert step.watched[0] > 0, "nothing reaches the loss"
    assert all(torch.equal(a, b) for one, two in zip(*found) for a, b in zip(one, two))
    plain = make_model("small_cnn", 3, splits.in_shape, seed=0, width=4).train()
    z = plain(batch.x)
    gamma = 1. if meta.learn == "gamma" else 0.
    if meta.learn_args.get("init") != "scaled" and meta.learn_args.get("heads") != 40:
        focal_loss(z, batch.y, gamma).backward()
        assert all(torch.allclose(a.grad, b, atol=1e-5) for a, b in zip(plain.parameters(), found[0][0]))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), found[0][1]))


def test_the_leak_is_there_only_by_its_name():
    "With it, the labels of the other data change the network's gradient, by the derivative of the outer loss through the virtual step."
    splits = problem()
    batch = Batch(splits.train.x[:16], splits.train.y[:16], None, 1., 16, 1)
    for scope in "head", "full":
        found = []
        for meta in MetaRecipe.bohdal(scope=scope), MetaRecipe.bohdal_with_leak(scope=scope):
            net, step = stepper(meta, splits, clip=None)
            with torch.no_grad():
                for p in step.inner.parameters():
                    p.add_(.05)
            before, (x, y) = {k: p.detach().clone().requires_grad_() for k, p in net.named_parameters()}, (batch.x, batch.y)
            inner = step.inner
            omega = [p.detach().clone() for p in inner.parameters()]
            place = step.others.state_dict()
            step(batch, .1)
            found.append({k: p.grad.clone() for k, p in net.named_parameters()})
        step.others.load_state_dict(place)
        x_other, y_other = step.others.next("cpu")
        with untouched_statistics(net):
            loss = F.cross_entropy(functional_call(net, before, (x,)), y) + sum((w*before[k].square()).sum() for w, k in zip(omega, ("head.weight", "head.bias")))
            moving = {k: p for k, p in before.items() if scope == "full" or k.startswith("head")}
            grads = torch.autograd.grad(loss, list(moving.values()), create_graph=True)
            moved = before | {k: p - .1*g for (k, p), g in zip(moving.items(), grads)}
            value = F.cross_entropy(functional_call(net, moved, (x_other,)), y_other) + .5*dece(functional_call(net, moved, (x_other,)), y_other)
            want = torch.autograd.grad(value, list(before.values()))
        for k, w in zip(before, want):
            assert torch.allclose(found[1][k] - found[0][k], w, atol=1e-5), k
        assert max(w.abs().max() for w in want) > 1e-3
    assert MetaRecipe.bohdal_with_leak().with_leak and not any(m.with_leak for m in (MetaRecipe(), MetaRecipe.meta_regularization(), MetaRecipe.bohdal()))


class Kept:
    "A tensor that a graph has saved, as long as it has it."
    now = peak = 0

    def __init__(self, tensor):
        self.tensor, self.bytes = tensor, tensor.nbytes
        Kept.now += self.bytes
        Kept.peak = max(Kept.peak, Kept.now)

    def __del__(self):
        Kept.now -= self.bytes


@pytest.mark.parametrize("scope", ["head", "full"])
def test_less_is_kept_than_for_double_backward(scope):
    "Bytes that graphs hold at once, on a network of convolutions."
    torch.manual_seed(0)
    model, inner, peaks = make_model("small_cnn", 4, (3, 16, 16), width=8), GammaNet(32, 4), []
    batch, other = [(torch.randn(16, 3, 16, 16), torch.randint(4, (16,))) for _ in range(2)]
    for f in hypergradient, partial(by_double_backward, loss=lambda z, y, h: focal_loss(z, y, inner(h), reduction="none"), reduction="mean"):
        Kept.now = Kept.peak = 0
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            f(model, inner, batch=batch, other=other, outer=F.cross_entropy, lr=.1, scope=scope)
        peaks.append(Kept.peak)
    assert 0 < peaks[0] < .8*peaks[1], peaks


def test_a_difference_is_near_in_float32():
    "On a deep network that has been trained a little, where a long step would leave what is straight."
    torch.manual_seed(0)
    model = make_model("resnet18", 4, (3, 16, 16), seed=0)
    draw = lambda: (torch.randn(16, 3, 16, 16) + torch.arange(16)[:, None, None, None] % 4/4, torch.arange(16) % 4)
    optimizer = torch.optim.SGD(model.parameters(), .05)
    for _ in range(6):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    batch, other, inner = draw(), draw(), GammaNet(512, 4)
    near, exact = (hypergradient(model, inner, batch, other, F.cross_entropy, .1, scope="full", jvp_by=by)[0] for by in ("difference", "forward"))
    for a, b in zip(near, exact):
        assert (a - b).norm() < .02*b.norm()


class Dropping(nn.Module):
    "A network that draws, without a module for it."
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh()), nn.Linear(12, 3)

    def features(self, x):
        return F.dropout(self.body(x), .4, self.training)

    def forward(self, x):
        return self.head(self.features(x))


STEPS = [MetaRecipe(learn_args=dict(init="random", tau=.5)), MetaRecipe(learn_args=dict(init="random", tau=.5), scope="full"), MetaRecipe(scope="full", jvp_by="difference", outer="dece"),
         MetaRecipe.bohdal(), MetaRecipe.bohdal(scope="full"), MetaRecipe(learn="smoothing", learn_args=dict(kind="non_uniform"), scope="full"), MetaRecipe(learn="smoothing", ce_weight=1.)]


@pytest.mark.parametrize("scale_by_batch", [False, True])
@pytest.mark.parametrize("net", ["small_cnn", "dropping"])
@pytest.mark.parametrize("meta", STEPS, ids=lambda m: f"{m.learn}-{m.outer}-{m.scope}-{m.jvp_by}")
def test_a_step_of_the_trainer_is_what_it_says(meta, net, scale_by_batch):
    "Its gradient of the loss's parameters is `hypergradient`, the network's that of the whole inner loss, by autograd; what it reports is that loss and the outer one."
    splits, lr = problem(), .01 if scale_by_batch else .1
    torch.manual_seed(0)
    model = Dropping() if net == "dropping" else make_model("small_cnn", 3, splits.in_shape, seed=0, width=4)
    trainer = MetaTrainer(model, meta, Recipe(epochs=1, batch_size=16, momentum=.9, clip=1e9, scale_by_batch=scale_by_batch), "cpu")
    trainer.recorders = []
    trainer._begin(splits, name_task=False)
    step = trainer.stepper
    with torch.no_grad():
        for p in step.inner.parameters():
            p.add_(.02*torch.rand(p.shape) + (.05 if meta.learn != "gamma" else 0.))
    model.train()
    x, y = splits.train.x[:16], splits.train.y[:16]
    place, inner, twin = step.others.state_dict(), copy.deepcopy(step.inner), copy.deepcopy(model)
    other = step.others.next("cpu")
    step.others.load_state_dict(place)
    reduction = "sum" if scale_by_batch else "mean"
    torch.manual_seed(7)
    want, outer_value = hypergradient(twin, inner, (x, y), other, meta.outer_loss, lr, scope=meta.scope, reduction=reduction, jvp_by=meta.jvp_by)
    torch.manual_seed(7)
    reported, n = step(Batch(x, y, None, 1., 16, 1), lr)
    for p, w in zip(step.inner.parameters(), want):
        assert torch.allclose(p.grad, w, rtol=2e-2 if meta.jvp_by == "difference" else 1e-3, atol=1e-6*w.abs().max().item()) and w.norm() > 0
    assert step.watched[2] == 1 and step.watched[1].item() == pytest.approx(outer_value.item(), rel=1e-4)
    torch.manual_seed(7)
    h = twin.features(x)
    z = twin.head(h)
    if meta.learn == "gamma":
        each = focal_loss(z, y, inner(h).detach(), reduction="none")
    elif meta.learn == "smoothing":
        each = -(inner(y, 3).detach()*F.log_softmax(z, 1)).sum(1)
    else:
        each = F.cross_entropy(z, y, reduction="none")
    penalty = sum((w.detach()*p.square()).sum() for w, p in ((inner.weight, twin.head.weight), (inner.bias, twin.head.bias))) if meta.learn == "l2" else 0.
    (each.sum() + penalty if scale_by_batch else each.mean() + penalty).backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-5)
    assert n == 16 and reported.item() == pytest.approx((each.sum() + penalty*(1 if scale_by_batch else 16)).item(), rel=1e-4)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("meta", [MetaRecipe(lr=1e-3), MetaRecipe.bohdal(scope="full")], ids=lambda m: m.learn)
def test_interrupted_and_taken_up_it_ends_in_the_same_bits(tmp_path, monkeypatch, meta):
    "Weights, the loss's parameters, both optimisers, the order of both data, the history."
    splits, original = problem(), Cycle.next
    def fit(stop_after=10**9, **kwargs):
        count = []
        def counting(self, device):
            count.append(1)
            if len(count) > stop_after:
                raise Interrupted
            return original(self, device)
        monkeypatch.setattr(Cycle, "next", counting)
        net = make_model("small_cnn", 3, splits.in_shape, seed=0, width=4)
        trainer = MetaTrainer(net, meta, Recipe(epochs=4, batch_size=16, keep="val_nll"), "cpu")
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


def test_what_bilevel_training_cannot_do():
    splits, net = problem(), make_model("mlp", 3, (1, 8, 8))
    for recipe in dict(accumulate=2), dict(mixup=1.), dict(precision="fp16"), dict(compile=True):
        with pytest.raises(ValueError, match="which bilevel training cannot do"):
            MetaTrainer(net, recipe=Recipe(**recipe))
    with pytest.raises(ValueError, match="squares has no meta_val"):
        MetaTrainer(net, recipe=Recipe(epochs=1), device="cpu").fit(replace(splits, meta_val=None))
    with pytest.raises(ValueError, match="has no `features` and linear `head`"):
        MetaTrainer(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="TreeLSTM trains on more labels than samples"):
        MetaTrainer(make_model("tree_lstm", 2, (9, 5)))
    with pytest.raises(ValueError, match="want a MetaRecipe"):
        MetaTrainer(net, Recipe())
    with pytest.raises(ValueError, match="nothing is trained yet"):
        MetaTrainer(net).gamma(splits.test)
    with pytest.raises(ValueError, match="want a Split"):
        trained(net, splits).gamma(splits.test.x)
    with pytest.raises(ValueError, match="meta_val of squares has 1 samples"):
        trained(net, replace(splits, meta_val=splits.meta_val[:1]))
    with pytest.raises(ValueError, match=r"Dropping\(x\) is not head\(features\(x\)\)"):
        wrong = Dropping()
        wrong.forward = lambda x: .05*wrong.head(wrong.features(x))
        trained(wrong, splits)
    with pytest.raises(ValueError, match="has no bias"):
        wrong = Dropping()
        wrong.head = nn.Linear(12, 3, bias=False)
        MetaTrainer(wrong)
    with pytest.raises(ValueError, match="train: labels are torch.float32"):
        trained(net, replace(splits, train=Split(splits.train.x, splits.train.y.float())))
    with pytest.raises(FloatingPointError, match=r"lower lr .now 1e.20.* or what the loss learns ran away: lower lr of the MetaRecipe"):
        trained(net, splits, lr=1e20)
    for recorder, message in ("gradient_norms", "a loss that learns has no gradient of its own"), ("gamma_stats", "l2 is learned, which has no gamma"):
        with pytest.raises(ValueError, match=message):
            MetaTrainer(net, MetaRecipe.bohdal(), Recipe(epochs=1), "cpu").fit(splits, [recorder])
    with pytest.raises(ValueError, match="Trainer has no loss that learns"):
        Trainer(net, F.cross_entropy, Recipe(epochs=1), "cpu").fit(splits, ["meta_progress"])


def trained(net, splits, meta=MetaRecipe(), **recipe):
    trainer = MetaTrainer(net, meta, Recipe(**dict(epochs=1, batch_size=16) | recipe), "cpu")
    trainer.fit(splits)
    return trainer


@pytest.mark.parametrize("options, message", [
    (dict(outer_args=dict(bandwith=.1)), "did you mean 'bandwidth'"), (dict(outer_args=dict(bandwidth=-1)), "bandwidth: -1"), (dict(outer_args=dict(t_a=float("inf"))), "want a finite number"),
    (dict(outer_args=dict(accuracy="foo")), "accuracy: 'foo', want"), (dict(outer="dece", outer_args=dict(n_bins=0)), "n_bins: 0"), (dict(learn_args=dict(tau=-1)), "tau: -1"), (dict(learn_args=dict(heads=1)), "heads: 1, want at least 2"),
    (dict(learn_args=dict(init="foo")), "init: 'foo' is not known"), (dict(learn="smoothing", learn_args=dict(kind="foo")), "kind: 'foo' is not known"), (dict(cal_weight=0), "leaves no outer loss"),
    (dict(learn_args=dict(positivity="relu", init="scaled")), "only an absolute value can be scaled"), (dict(learn="l2", learn_args=dict(heads=3)), "'heads' is not known")])
def test_a_wrong_meta_recipe(options, message):
    with pytest.raises(ValueError, match=message):
        MetaRecipe(**options)


def test_equal_settings_are_equal():
    given = MetaRecipe(outer_args=dict(bandwidth=.01), learn_args=dict(tau=.01, gamma0=1))
    assert given == MetaRecipe() == MetaRecipe.model_validate_json(given.model_dump_json()) and given.model_dump_json() == MetaRecipe().model_dump_json()


def test_frozen_weights_stay(tmp_path):
    net = make_model("small_cnn", 3, (1, 8, 8), width=4)
    net.body[0].weight.requires_grad_(False)
    before = net.body[0].weight.clone()
    trained(net, problem(), MetaRecipe(scope="full"))
    assert torch.equal(net.body[0].weight, before)


def test_what_was_learned_is_of_the_epoch_that_was_kept(tmp_path, monkeypatch):
    scores = iter([3., 1., 2., 4., 5.])
    monkeypatch.setattr("calibnb.train.KeptEpoch._score", lambda self, preds: next(scores))
    net, splits = make_model("mlp", 3, (1, 8, 8), hidden=[8]), problem()
    trainer = MetaTrainer(net, MetaRecipe(lr=1e-2), Recipe(epochs=5, batch_size=16, keep="val_nll"), "cpu")
    history = trainer.fit(splits, ["gamma_stats"])
    assert trainer.kept.epoch == 2 and trainer.gamma(splits.train).mean().item() == pytest.approx(history["gamma_mean"][1], rel=1e-5)
    assert abs(history["gamma_mean"][1] - history["gamma_mean"][4]) > 1e-3


def test_other_data_for_the_loss_are_another_training(tmp_path):
    splits, net = problem(), make_model("mlp", 3, (1, 8, 8), hidden=[8])
    MetaTrainer(net, recipe=Recipe(epochs=2, batch_size=16), device="cpu").fit(splits, checkpoint=tmp_path/"c.pt")
    with pytest.raises(ValueError, match="was made with another meta_val"):
        MetaTrainer(net, recipe=Recipe(epochs=2, batch_size=16), device="cpu").fit(replace(splits, meta_val=squares(32, 8)), checkpoint=tmp_path/"c.pt")


def test_a_run_with_a_loss_that_learns(tmp_path):
    "By name, from JSON, taken up, and its exponents in the history."
    setting = RunConfig(data_args=dict(n_meta=100), model_args=dict(hidden=[16]), meta=MetaRecipe(lr=1e-3), recipe=Recipe.quick(3), recorders=["nll_breakdown"])
    run = get_run(RunConfig.model_validate_json(setting.model_dump_json()), tmp_path)
    assert run.learned_loss()(Evaluator(run.model(), device="cpu").features(load_data("digits", n_meta=100).train)).mean().item() == pytest.approx(run.history["gamma_mean"][-1], rel=1e-4)
    assert "gamma-sece" in repr(run) and set(collect(tmp_path).loss) == {"gamma-sece"}
    assert run.config == setting and run.history["gamma_std"][-1] > 0 and (run.history["hypergradient"] > 0).all()
    assert sorted(run.rows) == ["meta_val", "test", "train", "val"] and len(run.rows["meta_val"]) == 100
    with pytest.raises(ValueError, match="beside meta, which brings the loss that learns; leave them out"):
        RunConfig(loss_args=dict(reduction="sum"), meta=MetaRecipe())
    with pytest.raises(ValueError, match="mixup is 0.2, which bilevel"):
        RunConfig(meta=MetaRecipe(), recipe=Recipe(mixup=.2))
    with pytest.raises(ValueError, match="loss: 'focal' beside meta"):
        RunConfig(loss="focal", meta=MetaRecipe())
    with pytest.raises(ValueError, match="digits has no meta_val"):
        get_run(RunConfig(meta=MetaRecipe(), recipe=Recipe.quick(1)), tmp_path)
