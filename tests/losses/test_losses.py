"Properties of the losses, beyond the golden numbers."
import inspect
import itertools
import math
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from close import close
from conftest import rounding
from hypothesis import given, settings
from hypothesis import strategies as st
from standins import WrittenKernels, launch_table

from calibnb import losses, metrics
from calibnb.data import load_data
from calibnb.losses import surrogates, fast_weights as weights
from calibnb.core import first_argmax
from calibnb.losses import make_loss
from calibnb.losses.weights import LogProbs
from calibnb.models import make_model
from calibnb.train import Recipe, Trainer

NAMES = losses.list_losses()
ANALYTIC = [  # weights with an analytic derivative
    ("focal", {}), ("flsd", dict(thresholds=(.2, .6), gammas=(5., 3., 1.))), ("inverse_focal", {}),
    ("dual_focal", {}), ("dual_focal", dict(second="runner_up")), ("dual_focal", dict(detach_second=True)),
    ("bsce", {}), ("bsce", dict(beta=1.)), ("bsce", dict(beta=float("inf"))),
]
BATCHWISE = {name for name in NAMES if make_loss(name).has_batch_penalty}  # a sample's value depends on the others
DRAWN = {"consistency"}                                # each call draws new noise
DETERMINED = [name for name in NAMES if name not in DRAWN]
UNDETACHED = [name for name in DETERMINED if not name.endswith("_gra")]  # their gradients are not of their values
WEIGHTED = ["focal", "flsd", "inverse_focal", "dual_focal", "bsce"]
EXTREMES = {n: [dict(gamma=g) for g in (0., .3, 10.)] if "gamma" in losses.loss_options(n) else [{}] for n in NAMES}


def batch(N=7, K=5, seed=0, scale=2.):
    draw = torch.Generator().manual_seed(seed)
    return scale*torch.randn(N, K, generator=draw, dtype=torch.float64), torch.randint(K, (N,), generator=draw)


@pytest.mark.parametrize("name", UNDETACHED)
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


def masked_batch(K=5, dtype=torch.float64):
    "Logits in which class 3 of the even samples is masked, and labels of other classes."
    logits, target = batch(N=8, K=K)
    target = target.where(target != 3, 0)
    return logits.to(dtype).masked_fill((torch.arange(8) % 2 == 0)[:, None] & (torch.arange(K) == 3), -math.inf), target


MASKED = [*((name, {}) for name in NAMES), *(case for case in ANALYTIC if case[0] != "dual_focal"),
          ("label_smoothing", dict(mode="off_target")),
          ("bsce", dict(beta=3.)), ("bsce", dict(form="sum")), ("lp_norm", dict(p=2.)),
          ("consistency", dict(perturbed="logits", noise="uniform"))]


@pytest.mark.parametrize("name, options", MASKED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masked_class_counts_as_absent(name, options, dtype):
    "A logit of -inf gives the loss and the gradient of the logits without this column."
    logits, target = masked_batch(dtype=dtype)
    loss = make_loss(name, **options, reduction="none")
    value, grad = value_and_grad(loss, logits, target)
    assert value.isfinite().all() and grad.isfinite().all()
    assert (grad[::2, 3] == 0).all()
    if name in DRAWN | BATCHWISE: return
    kept = [0, 1, 2, 4]
    want, by_kept = value_and_grad(loss, logits[::2, kept], (target - (target > 3).long())[::2])
    torch.testing.assert_close(value[::2], want)
    torch.testing.assert_close(grad[::2][:, kept], by_kept)


def value_and_grad(loss, logits, target):
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, target)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


@pytest.mark.parametrize("name", NAMES)
def test_masked_label_has_infinite_loss(name):
    logits, target = masked_batch(dtype=torch.float32)
    target[0] = 3
    value, grad = value_and_grad(make_loss(name, reduction="none"), logits, target)
    assert value[0] == math.inf or name == "brier", value  # the Brier score is at most 2
    assert value[1:].isfinite().all() and not grad.isnan().any()
    weighted = make_loss(name, weight=[1., 1., 1., 0., 1.])(logits, target)
    assert weighted.isfinite()


def test_masked_classes_of_soft_targets():
    logits, t = torch.tensor([[0., 1., -math.inf]], requires_grad=True), torch.tensor([[.5, .5, 0.]])
    value = losses.soft_target_loss(logits, t)
    torch.testing.assert_close(value.item(), .8132616875)
    torch.testing.assert_close(*torch.autograd.grad(value, logits), torch.tensor([[-.2310585786, .2310585786, 0.]]))
    assert losses.soft_target_loss(logits, [[.5, .25, .25]]) == math.inf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:inverse_focal_loss")
def test_finite_at_the_extremes(name):
    corners = [[1., -1., 0.], [-1., 1., 0.], [1., 1., -1.], [0., 0., 0.], [1., 1., 1.]]
    target = torch.arange(3).repeat_interleave(5)
    for options, (dtype, size) in itertools.product(EXTREMES[name], [(torch.float64, 1e4), (torch.float32, 80.)]):
        logits = (size*torch.tensor(corners*3, dtype=dtype)).requires_grad_()
        value = make_loss(name, **options, reduction="none")(logits, target)
        grad, = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all() and grad.isfinite().all(), (options, dtype)


def value_and_gradient(name, logits, target):
    "Return the summed loss and its gradient, converted to float64."
    logits = logits.clone().requires_grad_()
    value = make_loss(name, reduction="sum")(logits, target)
    return value.double().detach(), torch.autograd.grad(value, logits)[0].double()


def moved_by_ulps(name, logits, target, ulps):
    "Return the largest changes of value and gradient in float64 for logits changed by last places of float32."
    draw, step = torch.Generator().manual_seed(1), ulps*torch.finfo(torch.float32).eps
    exact = value_and_gradient(name, logits.double(), target)
    signs = [2*torch.randint(2, logits.shape, generator=draw) - 1 for _ in range(4)]
    moved = [value_and_gradient(name, logits.double()*(1 + step*sign), target) for sign in signs]
    return [max((there[i] - exact[i]).abs().max() for there in moved) for i in range(2)]


@pytest.mark.parametrize("scale", [1., 20.])
@pytest.mark.parametrize("name", [n for n in DETERMINED if n not in ("sece", "dece")])  # too steep for float32
def test_float32_has_only_rounding_errors(name, scale):
    "The error is at most a dozen roundings of the logits, of the sum and of the largest derivative."
    logits, target = batch(200, 10, scale=scale)
    logits = logits.float()
    single, double = value_and_gradient(name, logits, target), value_and_gradient(name, logits.double(), target)
    for got, want, moved in zip(single, double, moved_by_ulps(name, logits, target, 12)):
        assert (got - want).abs().max() <= moved + rounding(12, torch.float32, want.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_float32(name):
    logits, target = batch()
    out = make_loss(name)(logits.bfloat16(), target)
    assert out.dtype == torch.float32
    if name not in DRAWN:
        torch.testing.assert_close(out, make_loss(name)(logits.bfloat16().float(), target))


@pytest.mark.parametrize("name", DETERMINED)
def test_autocast_changes_nothing(name):
    logits, target = batch(64)
    logits = logits.float().requires_grad_()
    outside = make_loss(name)(logits, target)
    with torch.autocast("cpu", torch.bfloat16):
        inside = make_loss(name)(logits, target)
        gradient, = torch.autograd.grad(inside, logits)
    torch.testing.assert_close(inside, outside, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, torch.autograd.grad(outside, logits)[0], rtol=1e-5, atol=1e-7)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 9), K=st.integers(2, 6))
@pytest.mark.parametrize("name", DETERMINED)
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
    if name not in ("lp_norm", "acls", "logit_norm"):  # they penalise the size of the logits
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


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 9), K=st.integers(2, 6), gamma=st.floats(0, 10),
       scale=st.sampled_from([1., 10., 1000.]), detach=st.booleans())
@pytest.mark.parametrize("name, options", ANALYTIC, ids=str)
def test_analytic_derivatives_equal_autograd(name, options, seed, N, K, gamma, scale, detach):
    logits, target = batch(N, K, seed, scale)
    logits[0] = logits[0].round()  # ties, now and then
    gammas = torch.full((N,), gamma, dtype=torch.float64, requires_grad=True)
    weight = partial(getattr(weights, f"{name}_weight"), **options, **({} if name == "flsd" else dict(gamma=gammas)))
    logits.requires_grad_()
    found = []
    for compute in weights.weighted_ce, weights._plain:
        values = compute(logits, target, weight, detach)
        grads = torch.autograd.grad(values.sum(), (logits, gammas), allow_unused=True, materialize_grads=True)
        found.append((values.detach(), *grads))
    for fast, plain in zip(*found):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-12*max(1., plain.abs().max().item()))


@pytest.mark.parametrize("name", UNDETACHED)
def test_second_derivatives(name):
    logits, target = batch(4, 3)
    loss = make_loss(name, reduction="sum")
    assert torch.autograd.gradgradcheck(lambda z: loss(z, target), (logits.requires_grad_(),), atol=1e-4)


def test_backward_twice_gives_the_same():
    logits, target = batch()
    for name in WEIGHTED:
        value = make_loss(name)(logits.requires_grad_(), target)
        first, second = (torch.autograd.grad(value, logits, retain_graph=True)[0] for _ in range(2))
        torch.testing.assert_close(first, second)


def check_compiled(name, logits, target, counted=False, **options):
    "On a GPU it is as many kernels as RESULTS.md lists, if it lists a number and they are `counted`."
    logits, loss = logits.detach().requires_grad_(), make_loss(name, **options)
    want = launch_table().get(name, [None])[-1] if counted else None
    kernels = WrittenKernels() if want and find_spec("triton") else None
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=kernels or "aot_eager")
    found = [torch.autograd.grad(f(logits, target), logits)[0] for f in (compiled, loss)]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)
    if kernels:
        assert sum(kernels.numbers) == want and max(kernels.numbers) <= 4


@pytest.mark.parametrize("name", ["focal", "mmce", "adafocal"])
def test_compiles_in_one_piece_to_the_same_numbers(name):
    "A weight with fast derivatives, an error of the whole batch, a state; the others in `make slow`."
    check_compiled(name, *batch(128, 10))


def test_more_losses_of_one_kind_are_compiled_than_torch_makes_versions_of_a_function():
    logits, target = batch()
    modules = [make_loss(name) for name in ("ce", "brier", "entropy")]
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=1):
        for loss in [*modules, losses.cross_entropy_loss, losses.brier_loss]:
            torch.testing.assert_close(torch.compile(loss, backend="eager")(logits, target), loss(logits, target))
    torch.compiler.reset()


def test_a_subclass_may_override_forward():
    class Twice(losses.LossModule, fn=losses.focal_loss):
        def forward(self, logits, target):
            return 2*super().forward(logits, target)
    assert close(Twice(2.)(*batch()), 2*losses.FocalLoss(2.)(*batch()), 7)
    assert losses.FocalLoss.forward.__doc__ == losses.LossModule.forward.__doc__


@pytest.mark.parametrize("name", DETERMINED)
def test_transforms_of_torch_func(name):
    logits, target = batch()
    loss = make_loss(name, reduction="sum")
    z = logits.clone().requires_grad_()
    want, = torch.autograd.grad(loss(z, target), z)
    torch.testing.assert_close(torch.func.grad(lambda q: loss(q, target))(logits), want)
    if name not in BATCHWISE:
        each = torch.func.vmap(torch.func.grad(lambda q, y: loss(q[None], y[None])))(logits, target)
        torch.testing.assert_close(each, want)
    none = make_loss(name, reduction="none")
    def jacobian(vectorize):
        return torch.autograd.functional.jacobian(lambda q: none(q, target), logits, vectorize=vectorize)
    torch.testing.assert_close(jacobian(vectorize=True), jacobian(vectorize=False))


@pytest.mark.parametrize("name", NAMES)
def test_unreduced_values_may_be_changed_in_place(name):
    logits, target = batch()
    values = make_loss(name, reduction="none")(logits.requires_grad_(), target)
    values.mul_(2.)
    assert torch.autograd.grad(values.sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize("fn", [losses.focal_loss, losses.inverse_focal_loss, losses.dual_focal_loss, losses.bsce_loss])
def test_gamma_of_another_precision(fn):
    logits, target = batch()
    gamma = torch.full((7,), 2., dtype=torch.float64, requires_grad=True)
    value = fn(logits.float().requires_grad_(), target, gamma)
    value.backward()
    assert value.dtype == torch.float32 and gamma.grad.dtype == torch.float64


@pytest.mark.parametrize("width", [.001, .01, .02, .1, .4, 5.])
def test_mmce_is_the_sum_over_all_pairs_with_ties_and_any_width(width):
    logits, target = batch(120, scale=3.)
    logits[60:90] = logits[:30]  # equal confidences
    logits[90:100] = 0.
    def pairs(z, weighted):
        probs = z.softmax(1)
        top = first_argmax(probs)
        conf, hit = probs.gather(1, top[:, None])[:, 0], (top == target).double()
        e = hit - conf
        if weighted:
            e = e*torch.where(hit > 0, 1/hit.sum(), 1/(1 - hit).sum())
        total = (e[:, None]*e*torch.exp(-(conf[:, None] - conf).abs()/width)).sum()
        return (total + 1e-10).sqrt() if weighted else total/len(e)**2
    for weighted, fn in (False, surrogates.mmce), (True, surrogates.mmce_weighted):
        z = logits.clone().requires_grad_()
        value, want = fn(z, target, width), pairs(z, weighted)
        torch.testing.assert_close(value, want, rtol=1e-10, atol=1e-12)
        slope, want_slope = (torch.autograd.grad(v, z)[0] for v in (value, want))
        torch.testing.assert_close(slope, want_slope, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("width", [.01, .4])
def test_pairs_of_float32_confidences_are_summed_in_float64(width):
    "Only the final derivative is rounded."
    draw, found, N = torch.Generator().manual_seed(0), [], 1000
    conf, hit = torch.rand(N, generator=draw), torch.randint(2, (N,), generator=draw).double()
    for pair_sum, c in (surrogates._pair_sum, conf.clone()), (surrogates._pair_sum_plain, conf.double()):
        value = pair_sum(c.requires_grad_(), hit, torch.ones_like(hit), width)
        found.append((value.detach(), torch.autograd.grad(value, c)[0].double()))
    (value, slope), (want, exact) = found
    assert abs(value - want) <= rounding(N, size=want)
    summed = rounding(N, size=exact.abs().max().item())
    torch.testing.assert_close(slope, exact, rtol=rounding(1, torch.float32), atol=summed)


def test_masked_classes_and_large_norms():
    logits, target = batch()
    masked = logits.clone()
    masked[:, 4] = -float("inf")
    for name in ["ce", "focal", "flsd", "inverse_focal", "bsce", "brier", "entropy"]:
        z = masked.clone().requires_grad_()
        value = make_loss(name)(z, target % 4)
        assert value.isfinite() and torch.autograd.grad(value, z)[0].isfinite().all()
        torch.testing.assert_close(value, make_loss(name)(logits[:, :4], target % 4))
    z = torch.full((2, 3), 80., requires_grad=True)
    value = losses.lp_norm_loss(z, torch.tensor([0, 1]), p=30.)
    assert value.isfinite() and torch.autograd.grad(value, z)[0].isfinite().all()
    origin = torch.zeros(2, 3, requires_grad=True)
    value = losses.lp_norm_loss(origin, torch.tensor([0, 1]), p=3.)
    assert torch.autograd.grad(value, origin)[0].isfinite().all()


def test_consistency_of_features_is_the_mean_probability_under_noise():
    "Of two classes the noise on the difference of the logits is normal, so the mean is an integral over it."
    head = torch.tensor([[1., -2., .5], [.5, 1., 0.]], dtype=torch.float64)
    logits, label = torch.tensor([[.7, -.4]], dtype=torch.float64), torch.tensor([0])
    x, weight = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(60))
    noisy = logits[0, 0] - logits[0, 1] + .3*(head[0] - head[1]).norm()*x
    mean = (weight*noisy.sigmoid()).sum()/weight.sum()
    found = losses.consistency_loss(logits.expand(2000, 2), label.expand(2000), 1., .3, 50, perturbed="features",
                                    head=head, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, (1 - mean)*F.cross_entropy(logits, label), rtol=2e-3, atol=0)


def test_a_trainer_gives_the_loss_its_last_layer():
    splits = load_data("digits", n_train=100)
    loss = make_loss("consistency", perturbed="features")
    trainer = Trainer(make_model("mlp", 10, splits.in_shape), loss, Recipe.quick(epochs=1))
    trainer.fit(splits)
    logits, target = batch(K=10)
    torch.manual_seed(1)
    found = loss(logits, target)
    torch.manual_seed(1)
    want = losses.consistency_loss(logits, target, perturbed="features", head=trainer.model.head.weight)
    assert close(found, want, 1000) and not list(loss.parameters())


def test_consistency_of_a_tie():
    "The first maximum is the prediction."
    tie = torch.zeros(1, 2)
    assert losses.consistency_loss(tie, torch.tensor([0]), scale=0.) == 0
    torch.testing.assert_close(losses.consistency_loss(tie, torch.tensor([1]), scale=0.), torch.tensor(2.).log())


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
    ("focal", dict(gamma=-1),
     "gamma: -1.0, want a finite number >= 0; for a weight that grows with p use inverse_focal_loss"),
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
    ("consistency", dict(scale=float("nan")), "scale: nan"),
    ("consistency", dict(perturbed="images"), "perturbed: 'images', want \"logits\" or \"features\""),
    ("entropy", dict(alpha=float("inf")), "alpha: inf"),
    ("lp_norm", dict(alpha=-1.), "alpha: -1.0"),
    ("mmce", dict(lam=float("nan")), "lam: nan"),
    ("focal", dict(detach_weight="x"), "detach_weight: 'x'"),
    ("mbls", dict(margin=-1.), "margin: -1.0, want a finite number >= 0"),
    ("mbls", dict(alpha=float("nan")), "alpha: nan, want a finite weight >= 0"),
    ("acls", dict(margin=float("inf")), "margin: inf"),
    ("acls", dict(top=-1.), "top: -1.0"),
    ("acls", dict(others=-1.), "others: -1.0"),
    ("max_sup", dict(alpha=-.1), "alpha: -0.1"),
    ("logit_norm", dict(temperature=0.), "temperature: 0.0, want a positive number"),
    ("mdca", dict(lam=-1.), "lam: -1.0"),
    ("mdca", dict(gamma=-1.), "gamma: -1.0"),
    ("dca", dict(lam=-1.), "lam: -1.0"),
    ("adafocal", dict(n_bins=0), "n_bins: 0, want a whole number"),
    ("adafocal", dict(rate=-1.), "rate: -1.0, want a positive"),
    ("adafocal", dict(switch=0.), "switch: 0.0"),
    ("adafocal", dict(gamma=-3.), "gamma: -3.0, want a number from gamma_min -2.0"),
    ("adafocal", dict(gamma_max=float("inf")), "gamma: 1.0, want a number from gamma_min"),
]


@pytest.mark.parametrize("name, options, message", BAD, ids=[f"{n}-{next(iter(o))}" for n, o, _ in BAD])
def test_bad_options_are_refused_by_the_first_batch(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_loss(name, **options)(*batch())


FLAGS = [(fn, "detach_weight") for fn in (losses.weighted_cross_entropy, losses.focal_loss, losses.flsd_loss,
                                          losses.inverse_focal_loss, losses.dual_focal_loss, losses.bsce_loss)]
FLAGS += [(losses.mmce_loss, "sqrt"), (losses.mmce_weighted_loss, "compat"), (losses.sece_loss, "self_term"),
          (losses.sece_loss, "normalise"), (losses.sece_loss, "detach_kernel")]


@pytest.mark.parametrize("fn, flag", FLAGS, ids=[f"{fn.__name__}-{flag}" for fn, flag in FLAGS])
def test_flags_are_true_or_false(fn, flag):
    logits, target = batch()
    def found(value):
        z = logits.clone().requires_grad_()
        options = dict(weight=weights.focal_weight) if fn is losses.weighted_cross_entropy else {}
        value = fn(z, target, **options, **{flag: value})
        return value.detach(), *torch.autograd.grad(value, z)
    for value in True, False:
        torch.testing.assert_close(found(np.bool_(value)), found(value), rtol=0, atol=0)
    assert not torch.equal(found(True)[1], found(False)[1])
    for value in 1, 0, 1., "no", None:
        with pytest.raises(ValueError, match=f"{flag}: {value!r}, want True"):
            found(value)


@pytest.mark.filterwarnings("ignore:inverse_focal_loss. gamma 5")
def test_inverse_focal_warns_where_its_gradient_reverses():
    with pytest.warns(UserWarning, match="3.59"):
        make_loss("inverse_focal", gamma=4)(*batch())
    logits = torch.tensor([[-1., 0.]], dtype=torch.float64, requires_grad=True)  # p_y = .27
    for gamma, sign in (3., -1), (5., 1):
        grad, = torch.autograd.grad(losses.inverse_focal_loss(logits, torch.tensor([0]), gamma), logits)
        assert grad[0, 0].sign() == sign


BAD_GAMMAS = {
    "0-d": torch.tensor(-1.), "one of many": torch.tensor([1., 2., -.5, 1., 1., 1., 1.]),
    "inf": torch.full((7,), float("inf")), "nan": torch.tensor([1., 2., float("nan"), 1., 1., 1., 1.]),
    "shape": torch.ones(3),
}


@pytest.mark.parametrize("gamma", BAD_GAMMAS.values(), ids=BAD_GAMMAS)
def test_bad_gamma_tensors(gamma):
    with pytest.raises(ValueError, match="gamma: "):
        losses.focal_loss(*batch(), gamma)


ONE_SIDED = {
    "one sample, right": ([[2., 0., -1.]], [0]), "one sample, wrong": ([[2., 0., -1.]], [2]),
    "two classes": ([[1., 0.], [0., 3.], [-1., 1.]], [0, 1, 0]), "a tie": ([[1., 1.], [0., 0.]], [0, 1]),
    "all right": ([[2., 0., 0.], [0., 1., 0.]], [0, 1]), "all wrong": ([[2., 0., 0.], [0., 1., 0.]], [1, 2]),
    "classes that never occur": ([[0., 0., 0., 0., 2.], [1., 0., 0., 0., 0.]], [0, 0]),
}


@pytest.mark.parametrize("name", NAMES)
def test_small_and_one_sided_batches(name):
    loss = make_loss(name, reduction="none")
    for case, (rows, labels) in ONE_SIDED.items():
        logits, target = torch.tensor(rows, dtype=torch.float64, requires_grad=True), torch.tensor(labels)
        values = loss(logits, target)
        grad, = torch.autograd.grad(values.sum(), logits)
        assert values.shape == target.shape and values.isfinite().all() and grad.isfinite().all(), case


def test_the_first_maximum_is_the_prediction():
    "With two equal logits the label 0 is right and the label 1 is not."
    logits = torch.zeros(1, 2, dtype=torch.float64)
    for surrogate in (surrogates.mmce, partial(surrogates.sece, accuracy="hard")):
        right, wrong = (surrogate(logits, torch.tensor([label])) for label in (0, 1))
        assert right > 0 and wrong > 0 and first_argmax(logits).item() == 0
    assert surrogates.mmce_weighted(torch.zeros(2, 2), torch.tensor([0, 0])) == 0  # all right
    assert surrogates.mmce_weighted(torch.zeros(2, 2), torch.tensor([0, 1])) > 0
    torch.testing.assert_close(first_argmax(torch.tensor([[1., 3., 3.], [2., 2., 2.]])), torch.tensor([1, 0]))


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 10), N=st.integers(1, 30), K=st.integers(2, 6))
def test_special_cases_coincide(seed, gamma, N, K):
    logits, target = batch(N, K, seed)
    ce = F.cross_entropy(logits, target, reduction="none")
    none = dict(reduction="none")
    for loss in (losses.focal_loss, losses.inverse_focal_loss, losses.dual_focal_loss, losses.label_smoothing_loss,
                 losses.lp_norm_loss, losses.entropy_regularized_loss):
        torch.testing.assert_close(loss(logits, target, 0., **none), ce, rtol=1e-12, atol=1e-12)
    assert torch.equal(losses.focal_loss(logits, target, 0., **none), ce)  # bits: the factor is left out
    focal = losses.focal_loss(logits, target, gamma, **none)
    torch.testing.assert_close(losses.bsce_loss(logits, target, gamma, beta=1., **none), 2**gamma*focal)
    smoothed = losses.label_smoothing_loss(logits, target, .1, **none)
    torch.testing.assert_close(smoothed, .9*ce - .1*logits.log_softmax(1).mean(1))
    elsewhere = losses.label_smoothing_loss(logits, target, .1*(K - 1)/K, mode="off_target", **none)
    torch.testing.assert_close(elsewhere, smoothed)
    brier = (logits.softmax(1) - F.one_hot(target, K)).square().sum(1)
    torch.testing.assert_close(losses.bsce_loss(logits, target, **none), brier*ce)
    torch.testing.assert_close(losses.bsce_loss(logits, target, form="sum", **none), brier*ce)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 8), N=st.integers(1, 20), K=st.integers(2, 6))
def test_norms_of_gradients_are_powers_of_the_brier_score(seed, gamma, N, K):
    "For BSCE-GRA with beta 2 the norm is BS^((gamma+1)/2), for CE BS^(1/2), for focal g(p_y) BS^(1/2)."
    logits, target = batch(N, K, seed)
    probs, logits = logits.softmax(1), logits.requires_grad_()
    brier, p_y = (probs - F.one_hot(target, K)).square().sum(1), probs.gather(1, target[:, None])[:, 0]
    def norm(name, **options):
        value = make_loss(name, reduction="sum", **options)(logits, target)
        return torch.autograd.grad(value, logits)[0].norm(dim=1)
    torch.testing.assert_close(norm("ce"), brier.sqrt())
    torch.testing.assert_close(norm("bsce_gra", gamma=gamma), brier.pow((gamma + 1)/2))
    factor = losses.focal_gradient_factor(p_y, gamma).abs()
    torch.testing.assert_close(norm("focal", gamma=gamma), factor*brier.sqrt())


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 8), K=st.integers(2, 8), scale=st.sampled_from([.5, 3., 20.]))
def test_focal_loss_bounds_cross_entropy_minus_entropy(seed, gamma, K, scale):
    "L_f(q, p) >= CE(q, p) - gamma H(p) for any q: gamma >= 1 in [Mukhoti 2020, App. A], the rest in `loss_geometry`."
    draw = torch.Generator().manual_seed(seed)
    log_p = (scale*torch.randn(K, generator=draw, dtype=torch.float64)).log_softmax(0)
    q = torch.rand(K, generator=draw, dtype=torch.float64)
    q = q/q.sum() if seed % 2 else F.one_hot(q.argmax(), K).double()
    each = torch.stack([losses.focal_loss(log_p[None], torch.tensor([k]), gamma) for k in range(K)])
    assert (q*each).sum() >= -(q*log_p).sum() + gamma*(log_p.exp()*log_p).sum() - 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_limits_of_the_surrogates(seed):
    logits, target = batch(200, 4, seed, scale=3.)
    probs = logits.softmax(1)
    conf, hit = probs.amax(1), (first_argmax(probs) == target).double()
    place, margin = conf*15, -probs.topk(2, 1)[0].diff(dim=1)[:, 0]
    off_edges = ((place - place.round()).abs() > 1e-2) & (margin > 1e-3)
    z, y, p = logits[off_edges], target[off_edges], probs[off_edges]
    torch.testing.assert_close(surrogates.dece(z, y, t_a=1e6, t_b=1e-6), metrics.ece(p, y), rtol=0, atol=1e-4)
    wide = surrogates.sece(logits, target, bandwidth=1e4, accuracy="hard")
    torch.testing.assert_close(wide, (hit.mean() - conf).abs().mean(), rtol=0, atol=1e-6)
    narrow = surrogates.sece(logits, target, bandwidth=1e-9, accuracy="hard")
    torch.testing.assert_close(narrow, (hit - conf).abs().mean())
    torch.testing.assert_close(surrogates.sece(logits, target, .05, accuracy="hard"), metrics.sece(probs, target, .05))
    rows = torch.randperm(200, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(surrogates.sece(logits[rows], target[rows]), surrogates.sece(logits, target))


def test_no_gradient_reaches_gamma_through_a_detached_weight():
    logits, target = batch()
    gamma = torch.full((7,), 2., dtype=torch.float64, requires_grad=True)
    loss = losses.focal_loss(logits.requires_grad_(), target, gamma, detach_weight=True)
    assert torch.autograd.grad(loss, gamma, allow_unused=True) == (None,)


LABELS = torch.arange(7) % 5
UNNAMED = {
    "soft targets": lambda z: losses.soft_target_loss(z, torch.full((7, 5), .2, dtype=torch.float64)),
    "mixup": lambda z: losses.mixup_loss(z, LABELS, torch.arange(7) % 3, .3),
    "root of MMCE": lambda z: surrogates.mmce(z, LABELS, sqrt=True),
    "SECE, leave-one-out": lambda z: surrogates.sece(z, LABELS, .1, self_term=False, t_a=5.),
    "SECE, as printed": lambda z: surrogates.sece(z, LABELS, .1, normalise=False, t_a=5., chunk=3),
}


@pytest.mark.parametrize("call", UNNAMED.values(), ids=UNNAMED)
def test_gradcheck_of_functions_without_a_name(call):
    assert torch.autograd.gradcheck(call, (batch()[0].requires_grad_(),))


BAD_INPUT = {
    "label too large": (torch.zeros(2, 3), torch.tensor([0, 3]), r"target: label 3 at row 1, want 0..2"),
    "label negative": (torch.zeros(2, 3), torch.tensor([-100, 0]), "target: label -100 at row 0"),
    "one-hot labels": (torch.zeros(2, 3), torch.eye(3)[:2], "target: dtype float32"),
    "too many labels": (torch.zeros(2, 3), torch.zeros(3).long(), r"target: shape \(3,\), want \(2,\)"),
    "one class": (torch.zeros(2, 1), torch.zeros(2).long(), "K >= 2"),
    "no labels": (torch.zeros(2, 3), None, "target: None, want class ids"),
    "no samples": (torch.zeros(0, 3), torch.zeros(0).long(), "logits: empty"),
    "whole numbers": (torch.zeros(2, 3).long(), torch.zeros(2).long(), "logits: dtype int64"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused(case):
    logits, target, message = BAD_INPUT[case]
    for name in NAMES if case == "label too large" else ["ce"]:
        with pytest.raises(ValueError, match=message):
            make_loss(name)(logits, target)
    if case in ("one class", "no samples", "whole numbers"):
        with pytest.raises(ValueError, match=message):
            losses.soft_target_loss(logits, logits)


@pytest.mark.parametrize("surrogate, options", [
    (surrogates.dece, dict(t_b=0.)), (surrogates.dece, dict(t_a=-1.)),
    (surrogates.sece, dict(bandwidth=float("nan"))),
    (surrogates.mmce, dict(width=0.)), (surrogates.dece, dict(n_bins=2.5)), (surrogates.dece, dict(n_bins=True)),
    (surrogates.dece, dict(n_bins="3")), (surrogates.dece, dict(n_bins=0))])
def test_bad_widths_are_refused(surrogate, options):
    with pytest.raises(ValueError, match="want "):
        surrogate(*batch(), **options)


def test_a_learnable_gamma_is_a_parameter_of_the_module():
    logits, target = batch()
    loss = losses.FocalLoss(gamma=torch.nn.Parameter(torch.tensor(2., dtype=torch.float64)))
    assert [name for name, _ in loss.named_parameters()] == ["gamma"] and "gamma" in loss.state_dict()
    loss(logits, target).backward()
    assert loss.gamma.grad.isfinite()
    each = losses.FocalLoss(gamma=torch.linspace(0, 3, 7))
    want = losses.focal_loss(logits, target, np.linspace(0, 3, 7))
    torch.testing.assert_close(each(logits, target), want, rtol=1e-6, atol=1e-6)


def test_numpy_numbers_are_numbers():
    logits, target = batch()
    want = make_loss("focal", gamma=2.)(logits, target)
    for gamma in np.int64(2), np.float32(2):
        torch.testing.assert_close(make_loss("focal", gamma=gamma)(logits, target), want)


@pytest.mark.parametrize("beta", [20., 80., 200., 1000.])
def test_a_large_beta_does_not_underflow(beta):
    for z in [[2., 0., 0., 0.]], [[6., 0., 0.]]:
        single, double = torch.tensor(z), torch.tensor(z, dtype=torch.float64)
        want = losses.bsce_loss(double, torch.tensor([0]), beta=float("inf"))
        for logits in single, double:
            value = losses.bsce_loss(logits.requires_grad_(), torch.tensor([0]), beta=beta)
            assert torch.autograd.grad(value, logits)[0].isfinite().all()
            torch.testing.assert_close(value.double(), want, rtol=.1, atol=0)


def test_an_unknown_option_names_the_loss_and_its_options():
    with pytest.raises(TypeError, match="FocalLoss: .*label_smoothing.* takes gamma, detach_weight, weight, ign"):
        losses.FocalLoss(label_smoothing=.1)


def test_modules_know_their_options():
    plain, gra = (list(inspect.signature(kind).parameters) for kind in (losses.BSCELoss, losses.BSCEGRALoss))
    assert plain == ["gamma", "beta", "form", "detach_weight", "weight", "ignore_index", "reduction"]
    assert gra == ["gamma", "beta", "form", "weight", "ignore_index", "reduction"]
    with pytest.raises(TypeError, match="gama"):
        losses.FocalLoss(gama=2.)
    assert losses.BSCELoss(2., beta=float("inf"))(*batch()).isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_has_a_batch_penalty_if_a_sample_has_another_value_in_a_batch(name):
    logits, target = batch()
    loss = make_loss(name, reduction="none")
    if name in DRAWN:
        assert not loss.has_batch_penalty
        return
    alone = torch.cat([loss(logits[[i]], target[[i]]) for i in range(len(target))])
    assert loss.has_batch_penalty != torch.allclose(alone, loss(logits, target))


def test_the_base_of_the_modules_is_no_loss():
    with pytest.raises(NotImplementedError, match=r"class MyLoss\(LossModule, fn=my_loss\)"):
        losses.LossModule()(*batch())


def test_a_module_trains_like_cross_entropy():
    layer = torch.nn.Linear(4, 3)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    grads = [torch.autograd.grad(criterion(layer(x), y), layer.weight)[0]
             for criterion in (torch.nn.CrossEntropyLoss(), losses.FocalLoss(gamma=0.))]
    torch.testing.assert_close(*grads)


# weights of classes and ignored labels, as in F.cross_entropy

BY_CLASS = torch.tensor([1., .5, 3., 0., 2.], dtype=torch.float64)
SAMPLE_OPTIONS = {"weights": dict(weight=BY_CLASS), "ignored": dict(ignore_index=-100),
                  "a class ignored": dict(ignore_index=2), "both": dict(weight=BY_CLASS, ignore_index=-100)}


def partly_ignored(index, N=24):
    logits, target = batch(N)
    if index is not None:
        target = target.where(torch.arange(N) % 3 > 0, index)
    return logits, target


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", SAMPLE_OPTIONS.values(), ids=SAMPLE_OPTIONS)
def test_cross_entropy_and_smoothed_labels_equal_torch(options, reduction):
    logits, target = partly_ignored(options.get("ignore_index"))
    shape = (2, 3, 4)
    image = logits.reshape(*shape, 5).movedim(-1, 1), target.reshape(shape)
    for z, y in (logits, target), image:
        z.requires_grad_()
        for eps, loss in (0., losses.cross_entropy_loss), (.1, partial(losses.label_smoothing_loss, eps=.1)):
            got = loss(z, y, **options, reduction=reduction)
            want = F.cross_entropy(z, y, **options, reduction=reduction, label_smoothing=eps)
            torch.testing.assert_close(got, want)
            grads = [torch.autograd.grad(value.sum(), z)[0] for value in (got, want)]
            torch.testing.assert_close(*grads)
    soft = image[0].detach().softmax(1)
    got = losses.soft_target_loss(image[0], soft, weight=BY_CLASS, reduction=reduction)
    torch.testing.assert_close(got, F.cross_entropy(image[0], soft, BY_CLASS, reduction=reduction))


@pytest.mark.parametrize("name", [n for n in DETERMINED if n != "label_smoothing"])
def test_samples_weigh_as_their_class_and_0_if_ignored(name):
    logits, target = partly_ignored(-100, 12)
    valid = target != -100
    z, y = logits[valid], target[valid]
    shares = BY_CLASS[y]
    each = make_loss(name, reduction="none")(z, y)
    def found(reduction, rows, labels):
        rows = rows.clone().requires_grad_()
        value = make_loss(name, reduction=reduction, weight=BY_CLASS.tolist(), ignore_index=-100)(rows, labels)
        return value.detach(), torch.autograd.grad(value.sum(), rows)[0]
    value, gradient = found("mean", logits, target)
    torch.testing.assert_close(value, (each*shares).sum()/shares.sum())
    assert (gradient[~valid] == 0).all() and gradient[valid & (target != 3)].abs().sum() > 0
    torch.testing.assert_close(found("sum", logits, target)[0], (each*shares).sum())
    values, _ = found("none", logits, target)
    assert (values[~valid] == 0).all()
    torch.testing.assert_close(values[valid], each*shares)
    strange = logits.clone()
    strange[~valid] = 1e4  # an ignored row may hold any numbers
    torch.testing.assert_close(found("mean", strange, target)[0], value)
    if name not in BATCHWISE and not name.endswith("_gra"):
        loss = make_loss(name, weight=BY_CLASS, ignore_index=-100)
        rows = logits.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda q: loss(q, target), (rows,), fast_mode=True)


@pytest.mark.parametrize("name", [n for n in DETERMINED if n != "label_smoothing"])
def test_an_ignored_row_may_hold_anything(name):
    "As in torch's cross-entropy, its gradient is 0 and other gradients are as without it."
    logits, target = partly_ignored(-100)
    valid, loss = target != -100, make_loss(name, ignore_index=-100)
    def found(rows):
        rows = rows.clone().requires_grad_()
        value = loss(rows, target)
        return value.detach(), torch.autograd.grad(value, rows)[0]
    want = found(logits)
    for entry in float("nan"), float("inf"), -float("inf"):
        torch.testing.assert_close(found(logits.masked_fill((~valid)[:, None], entry)), want)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_ignored_samples(name):
    logits, target = batch()[0].requires_grad_(), torch.full((7,), -100)
    options = dict(ignore_index=-100)
    assert F.cross_entropy(logits, target).isnan() and make_loss(name, **options)(logits, target).isnan()
    total = make_loss(name, **options, reduction="sum")(logits, target)
    assert total == 0 and (torch.autograd.grad(total, logits)[0] == 0).all()
    assert (make_loss(name, **options, reduction="none")(logits, target) == 0).all()


@pytest.mark.parametrize("name", ["ce", "focal", "dual_focal", "bsce_gra", "brier", "label_smoothing"])
def test_sample_options_compile_and_transform(name):
    "Compiled: one loss here, the others in `make slow`."
    logits, target = partly_ignored(-100)
    loss = make_loss(name, weight=BY_CLASS, ignore_index=-100, reduction="sum")
    want, = torch.autograd.grad(loss(logits.requires_grad_(), target), logits)
    if name == "focal":
        check_compiled(name, logits, target, weight=BY_CLASS, ignore_index=-100)
    each = torch.func.vmap(torch.func.grad(lambda q, y: loss(q[None], y[None])))(logits.detach(), target)
    torch.testing.assert_close(each, want)


def test_weights_of_another_precision_and_in_a_module():
    logits, target = batch()
    want = losses.focal_loss(logits, target, weight=BY_CLASS)
    for weight in BY_CLASS.float(), BY_CLASS.tolist(), BY_CLASS.numpy():
        torch.testing.assert_close(losses.focal_loss(logits, target, weight=weight), want)
        torch.testing.assert_close(make_loss("focal", weight=weight)(logits, target), want)
    single = losses.focal_loss(logits.bfloat16(), target, weight=BY_CLASS)
    assert single.dtype == torch.float32
    loss = make_loss("focal", weight=BY_CLASS.tolist())
    assert loss.state_dict().keys() == {"weight"} and loss.float().weight.dtype == torch.float32
    assert make_loss("focal").state_dict() == {} and "weight" not in make_loss("focal").options


BAD_SAMPLE_OPTIONS = [
    (dict(weight=[1., 2.]), r"weight: shape \(2,\), want \(5,\), a number for each class"),
    (dict(weight=[1., 2., -1., 1., 1.]), "weight: -1, want a finite number >= 0"),
    (dict(weight=[1., 2., float("nan"), 1., 1.]), "weight: nan, want a finite number >= 0"),
    (dict(weight=2.), r"weight: shape \(\), want \("),
    (dict(ignore_index=1.5), "ignore_index: 1.5, want "),
    (dict(ignore_index=True), "ignore_index: True, want "),
    (dict(ignore_index=-1), "target: label -100 at row 0, want 0..4"),
]


@pytest.mark.parametrize("options, message", BAD_SAMPLE_OPTIONS, ids=[m for _, m in BAD_SAMPLE_OPTIONS])
@pytest.mark.parametrize("name", ["ce", "focal", "lp_norm", "mmce"])
def test_bad_sample_options_are_refused(name, options, message):
    logits, target = partly_ignored(-100 if options.get("ignore_index") == -1 else None)
    with pytest.raises(ValueError, match=message):
        make_loss(name, **options)(logits, target)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_the_largest_logits_are_not_nan(name):
    "The difference of two logits overflows: the loss may be infinite, and no gradient is nan."
    loss = make_loss(name)
    for dtype in torch.float32, torch.float64:
        big = .95*torch.finfo(dtype).max
        rows = [[big, -big, 0.], [0., 1., 2.], [-big, 1., big], [1., 2., 0.], [big, big, -big], [-big, -big, -big]]
        logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
        for target in torch.tensor([[0, 1, 2, 0, 2, 1], [1, 1, 0, 0, 0, 1]]):
            value = loss(logits, target)
            gradient, = torch.autograd.grad(value, logits)
            assert not value.isnan() and not gradient.isnan().any(), dtype


def test_a_weight_that_autograd_differentiates_gives_no_nan_either():
    big = .95*torch.finfo(torch.float32).max
    logits = torch.tensor([[big, -big, 0.], [0., 1., 2.]], requires_grad=True)
    loss = weights.weighted_ce(logits, torch.tensor([1, 1]), lambda lp: lp.d_y.square() + .1, reduction="sum")
    gradient, = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all() and gradient[1].any()
