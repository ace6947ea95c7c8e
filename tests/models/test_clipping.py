"Feature clipping against a plain search, and in a trained network."
import math

import pytest
import torch
from conftest import vectors, within
from torch import nn

from calibnb.data import load_data
from calibnb.losses import make_loss
from calibnb.models import ClippedFeatures, clip_threshold, make_model
from calibnb.train import Evaluator, Recipe, Trainer


def test_golden_numbers():
    (case,), data = vectors("clipping")
    weight, bias, features = (torch.tensor(data[k], dtype=torch.float64) for k in ("weight", "bias", "features"))
    head, target = nn.Linear(3, 3).double(), torch.tensor(data["target"])
    head.load_state_dict(dict(weight=weight, bias=bias))
    net, want = nn.Identity(), case["expected"]
    net.features, net.head = nn.Identity(), head
    def nll(c): return nn.functional.cross_entropy(ClippedFeatures(net, c)(features), target).item()
    within([nll(math.inf if c is None else c) for c in want["thresholds"]], want["nll"], case)
    assert nll(clip_threshold(head, features, target)) <= want["least"] + 1e-5


def problem(seed, N=60, d=3, K=3, scale=3.):
    draw = torch.Generator().manual_seed(seed)
    head = nn.Linear(d, K).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(K, d, generator=draw))
        head.bias.copy_(torch.randn(K, generator=draw)/4)
    features = (scale*torch.randn(N, d, generator=draw)).relu().double()
    target = torch.where(torch.rand(N, generator=draw) < .6, head(features).argmax(1),
                         torch.randint(K, (N,), generator=draw))
    return head, features, target


def plain_nll(head, features, target, c):
    "Return the NLL by loops over samples and classes, in plain Python numbers."
    weight, bias, total = head.weight.tolist(), head.bias.tolist(), 0.
    for row, y in zip(features.tolist(), target.tolist()):
        z = [b + sum(w*min(x, c) for w, x in zip(ws, row)) for ws, b in zip(weight, bias)]
        total += max(z) + math.log(sum(math.exp(v - max(z)) for v in z)) - z[y]
    return total/len(target)


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_is_the_best_of_a_fine_grid(seed):
    head, features, target = problem(seed)
    c = clip_threshold(head, features, target)
    top = features.max().item()
    grid = [plain_nll(head, features, target, i*top/500) for i in range(501)]
    found, unclipped = plain_nll(head, features, target, c), plain_nll(head, features, target, math.inf)
    assert found <= min(*grid, unclipped) + 1e-4 and found <= unclipped


def test_many_samples_are_tried_in_part_and_the_minimum_is_of_all():
    head, features, target = problem(7, N=9000)
    c = clip_threshold(head, features, target)
    def nll(c): return nn.functional.cross_entropy(head(features.clamp_max(c)), target).item()
    grid = [nll(i*features.max().item()/300) for i in range(301)]
    assert nll(c) <= min(*grid, nll(math.inf)) + 1e-5


def test_the_state_has_the_threshold():
    clipped = ClippedFeatures(make_model("mlp", 3, (8,)), .25)
    again = ClippedFeatures(make_model("mlp", 3, (8,)), math.inf)
    again.load_state_dict(clipped.state_dict())
    assert again.threshold == .25 and torch.equal(again(torch.ones(2, 8)), clipped(torch.ones(2, 8)))


def test_negative_features_and_a_head_that_is_right():
    head, features, target = problem(0)
    c = clip_threshold(head, features - 2, target)
    assert c >= 0 and plain_nll(head, features - 2, target, c) <= plain_nll(head, features - 2, target, math.inf)
    assert clip_threshold(head, -1 - features, target) == math.inf
    sure = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        sure.weight.copy_(torch.eye(2))
    assert clip_threshold(sure, 5*torch.eye(2).double(), torch.tensor([0, 1])) == math.inf
    assert clip_threshold(sure, torch.zeros(1, 2).double(), torch.tensor([0])) == math.inf


def test_a_clipped_network_predicts_and_its_nll_on_validation_is_no_worse():
    splits = load_data("digits")
    net = make_model("mlp", 10, splits.in_shape, hidden=[32])
    trainer = Trainer(net, make_loss("ce"), Recipe.quick(8), "cpu")
    trainer.fit(splits)
    c = clip_threshold(net.head, trainer.features(splits.val), splits.val.y)
    clipped = Evaluator(ClippedFeatures(net, c), trainer.recipe, "cpu").predict(splits.val)
    plain = trainer.predict(splits.val)
    nll = [nn.functional.cross_entropy(p.logits.double(), p.target) for p in (clipped, plain)]
    assert nll[0] <= nll[1] and (c < math.inf) == (nll[0] < nll[1])


BAD = [((torch.zeros(3), torch.zeros(3).long()), r"features: float32, shape .3,., want .N, d."),
       ((torch.zeros(3, 2).long(), torch.zeros(3).long()), "features: int64"),
       ((torch.zeros(0, 2), torch.zeros(0).long()), "features: float32, shape .0, 2."),
       ((torch.zeros(3, 2), torch.zeros(2).long()), r"target: shape .2,., want .3,., one per row"),
       ((torch.full((3, 2), float("nan")), torch.zeros(3).long()), "features: nan or inf"),
       ((torch.zeros(3, 2), torch.tensor([0, -100, 1])), "target: label -100 at row 1, want 0..1"),
       ((torch.zeros(3, 2), torch.tensor([0, 1, 4])), "target: label 4 at row 2, want 0..1"),
       ((torch.zeros(3, 2), torch.full((3,), .5)), "target: dtype float32, want integer class ids"),
       ((torch.zeros(3, 2).double(), torch.zeros(3).long()), "float64, shape .3, 2., on cpu; want the dtype, width"),
       ((torch.zeros(3, 5), torch.zeros(3).long()), "float32, shape .3, 5., on cpu; want the dtype, width")]


@pytest.mark.parametrize("given, message", BAD, ids=[m for _, m in BAD])
def test_bad_features(given, message):
    with pytest.raises(ValueError, match=message):
        clip_threshold(nn.Linear(2, 2), *given)


def test_bad_networks_and_thresholds():
    with pytest.raises(ValueError, match="model: Linear has no 'features', want features and head"):
        ClippedFeatures(nn.Linear(2, 2), 1.)
    with pytest.raises(ValueError, match="threshold: nan, want a number"):
        ClippedFeatures(make_model("mlp", 2, (4,)), math.nan)


@pytest.mark.parametrize("threshold", [math.nan, -math.inf, -1, "1", True, None])
def test_bad_threshold(threshold):
    with pytest.raises(ValueError, match=f"threshold: {threshold!r}, want a number"):
        ClippedFeatures(make_model("mlp", 3, (8,)), threshold)
