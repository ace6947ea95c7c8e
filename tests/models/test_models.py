"Networks: as many parameters as published, in two parts, the same from the same seed."
import random
from importlib.util import find_spec
from urllib.error import URLError

import pytest
import torch

from calibnb.models import list_models, make_model, model_options
from calibnb.data import Split
from calibnb.data.trees import parse_tree, tree_tables
from calibnb.train import Evaluator

# millions of parameters for ten classes, as the papers (or the reference code for 32x32 images) state them
PUBLISHED = {"resnet18": 11.17, "resnet50": 23.52, "resnet32": .46, "resnet110": 1.73, "wide_resnet": 36.5,
             "densenet121": 6.96, "vgg16": 14.7}
EXACT = {"resnet18": 11_173_962, "resnet50": 23_520_842, "resnet32": 464_154, "resnet110": 1_727_962,
         "densenet121": 6_956_298}
NOT_FOR_SMALL_IMAGES = "mlp", "text_cnn", "tree_lstm", "vit_b_16", "torchvision_resnet50", "timm"
SMALL = {  # options that make the larger networks quick to try
    "wide_resnet": dict(depth=8, width=1),
    "densenet121": dict(blocks=[2, 2], growth=4),
    "resnet110": dict(blocks=[2, 2, 2]),
    "resnet50": dict(blocks=[1, 1, 1, 1]),
}


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name):
    n = count(make_model(name, 10, (3, 32, 32)))
    assert abs(n/1e6 - PUBLISHED[name]) <= .005*PUBLISHED[name] + .004
    assert n == EXACT.get(name, n)


def test_the_small_network_has_32_64_and_128_channels():
    convolutions, norms = 9*(3*32 + 32*64 + 64*128), 2*(32 + 64 + 128)
    assert count(make_model("small_cnn", 10, (3, 32, 32))) == convolutions + norms + 128*10 + 10


@pytest.mark.parametrize("name", [name for name in list_models() if name not in NOT_FOR_SMALL_IMAGES])
def test_features_and_head(name):
    "Of images whose size is no power of two."
    net = make_model(name, 7, (3, 40, 40), **SMALL.get(name, {}))
    x = torch.randn(4, 3, 40, 40)
    h = net.features(x)
    assert h.shape == (4, net.head.in_features) and net(x).shape == (4, 7)
    net(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    net.eval()
    assert torch.allclose(net(x), torch.cat([net(x[:1]), net(x[1:])]), atol=1e-4)


@pytest.mark.parametrize("name", ["small_resnet", "resnet18", "densenet121"])
def test_stages_halve_the_image(name):
    "Three halvings, one of them in small_resnet's stem, leave 4x4 of 32x32."
    net, seen = make_model(name, 10, (3, 32, 32)), []
    for m in net.modules():
        if isinstance(m, torch.nn.AdaptiveAvgPool2d):
            m.register_forward_hook(lambda m, args, out: seen.append(args[0].shape[-2:]))
    net.eval()(torch.zeros(1, 3, 32, 32))
    assert seen == [(4, 4)]


def test_networks_of_torchvision(tmp_path):
    "Weights come from a file, and only weights that fit."
    import torchvision
    assert count(make_model("torchvision_resnet50", 1000, (3, 224, 224))) == 25_557_032  # as published
    peer = torchvision.models.resnet18(weights=None)
    torch.save(peer.state_dict(), tmp_path/"r18.pt")
    ours = make_model("torchvision_resnet50", 5, (3, 64, 64), net="resnet18", weights=str(tmp_path/"r18.pt"))
    assert torch.equal(ours.body.conv1.weight, peer.conv1.weight) and ours(torch.zeros(2, 3, 64, 64)).shape == (2, 5)
    assert ours.features(torch.zeros(2, 3, 64, 64)).shape == (2, 512)
    with pytest.raises(ValueError, match="does not hold the weights of this network"):
        make_model("torchvision_resnet50", 5, (3, 64, 64), weights=str(tmp_path/"r18.pt"))


def test_weights_by_the_name_of_torchvision(monkeypatch):
    "Downloaded once, for the network of the name; a clear message where nothing can be downloaded."
    import torchvision
    peer = torchvision.models.resnet18(weights=None)
    asked = []
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url",
                        lambda url, *_, **__: asked.append(url) or peer.state_dict())
    options = dict(net="resnet18", weights="IMAGENET1K_V1")
    ours = make_model("torchvision_resnet50", 5, (3, 64, 64), **options)
    assert torch.equal(ours.body.conv1.weight, peer.conv1.weight)  # bits: loaded
    assert "resnet18" in asked[0] and len(asked) == 1

    def offline(*_, **__):
        raise URLError("no network")
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(ValueError, match="IMAGENET1K_V1 of resnet18 is not in the cache.*no network.*give the path"):
        make_model("torchvision_resnet50", 5, (3, 64, 64), **options)
    with pytest.raises(ValueError, match="'absent.pt' is neither a file nor one of 'IMAGENET1K_V1'"):
        make_model("torchvision_resnet50", 5, (3, 64, 64), net="resnet18", weights="absent.pt")


def test_networks_of_timm():
    if find_spec("timm") is None:
        with pytest.raises(ValueError, match="timm is not installed"): make_model("timm", 5, (3, 32, 32))
        return
    net = make_model("timm", 5, (1, 32, 32), net="resnet18")
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 5) and net.features(torch.zeros(2, 1, 32, 32)).shape == (2, 512)
    assert make_model("timm", 5, (3, 32, 32), net="vit_tiny_patch16_224", resize=224).head.in_features == 192
    with pytest.raises(ValueError, match="needs 224x224; resize=224"):
        make_model("timm", 5, (3, 32, 32), net="vit_tiny_patch16_224")
    with pytest.raises(ValueError, match="'resnet_18' is not a network of timm"):
        make_model("timm", 5, (3, 32, 32), net="resnet_18")


def test_small_images_are_enlarged():
    "The option `resize` enlarges images on the device of the network, which reads fewer of them at a time."
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    options = dict(net="resnet18", seed=0)
    large = make_model("torchvision_resnet50", 5, (3, 64, 64), **options).eval()
    small = make_model("torchvision_resnet50", 5, (3, 8, 8), resize=64, **options).eval()
    enlarged = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear")
    assert torch.equal(small(x), large(enlarged)) and not torch.equal(small(x), small(x.flip(0)))
    seen, split = [], Split(x, torch.tensor([0, 1, 2]))
    small.values_each = 2**23  # two of three images at a time
    small.body.conv1.register_forward_hook(lambda m, args, out: seen.append(args[0].shape))
    Evaluator(small, device="cpu").predict(split)
    assert seen == [(2, 3, 64, 64), (1, 3, 64, 64)]


@pytest.mark.parametrize("size, wanted", [(16, "at least 32 pixels"), (0, "at least 32"), (True, "int"), (64., "int")])
def test_bad_sizes(size, wanted):
    with pytest.raises(ValueError, match=f"resize: {size}, want {wanted}"):
        make_model("torchvision_resnet50", 5, (3, 8, 8), net="resnet18", resize=size)


def test_a_vision_transformer_refuses_other_sizes():
    with pytest.raises(ValueError, match="32x32 pixels, want 224x224 for vit_b_16; resize=224 enlarges the images"):
        make_model("vit_b_16", 5, (3, 32, 32))
    with pytest.raises(ValueError, match="a torchvision vit_b_16 needs images"):
        make_model("vit_b_16", 5, (10,), resize=224)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w')",)


def test_code_in_weights_is_not_executed(tmp_path):
    torch.save(Bomb(tmp_path/"exploded"), tmp_path/"bomb.pt")
    with pytest.raises(ValueError, match="does not hold the weights"):
        make_model("torchvision_resnet50", 5, (3, 64, 64), net="resnet18", weights=str(tmp_path/"bomb.pt"))
    assert not (tmp_path/"exploded").exists()


def test_a_text_network_reads_tokens_and_not_padding():
    net = make_model("text_cnn", 20, (64,), vocabulary=100).eval()
    text = torch.randint(1, 100, (3, 64))
    assert net(text).shape == (3, 20) and torch.equal(net(text.int()), net(text))
    assert sum(isinstance(m, (torch.nn.Conv1d, torch.nn.Linear)) for m in net.modules()) == 8
    net(text.masked_fill(torch.rand(3, 64) < .5, 0)).sum().backward()
    assert net.embedding.weight.grad[0].abs().max() == 0
    with pytest.raises(ValueError, match="reads token ids"):
        make_model("text_cnn", 20, (3, 32, 32))


def random_trees(n, draw, words=50):
    def grow(leaves):
        label = f"({draw.randrange(5)} "
        if leaves == 1:
            return f"{label}w{draw.randrange(words)})"
        left = draw.randrange(1, leaves)
        return f"{label}{grow(left)} {grow(leaves - left)})"
    return [parse_tree(grow(draw.randrange(1, 25))) for _ in range(n)]


CLASSES = [0, 0, -1, 1, 1]  # of the five labels of the treebank; -1: not a class


def node_by_node(net, tree, i):
    "Return the state of one node, composed from the states of its children."
    word, left, right, *_ = tree[i]
    if word:
        return net._leaves(torch.tensor([int(word[1:]) + 2]))
    return net._compose([node_by_node(net, tree, left), node_by_node(net, tree, right)])


def labelled_nodes(net, tree, label):
    "Yield logits and class of each node with a class; the class of the root is `label`."
    for i, node in enumerate(tree):
        known = label if i == len(tree) - 1 else CLASSES[node[4]]
        if known >= 0:
            yield net.head(node_by_node(net, tree, i)[0, :6]), known


def test_a_batch_of_trees_is_each_tree_node_by_node():
    "Single leaves, chains and bushes together; states of all nodes, and the gradient."
    chain = parse_tree("(0 (1 (1 (0 w1) (1 w2)) (1 w3)) (0 w4))")
    trees = [*random_trees(12, random.Random(0)), parse_tree("(1 w3)"), chain]
    x = torch.from_numpy(tree_tables(trees, lambda w: int(w[1:]) + 2, CLASSES, 60))
    net = make_model("tree_lstm", 2, (60, 5), vocabulary=60, dim=6, dropout=0.).double()
    slow = torch.cat([net.head(node_by_node(net, tree, len(tree) - 1)[:, :6]) for tree in trees])
    assert torch.allclose(net(x), slow, atol=1e-12)
    y = torch.tensor([[0, 0, 1, 1, 1][tree[-1][4]] for tree in trees])
    logits, target = net.supervised(x, y)
    nodes = [node for tree, label in zip(trees, y.tolist()) for node in labelled_nodes(net, tree, label)]
    slow_logits, slow_target = torch.stack([z for z, _ in nodes]), torch.tensor([label for _, label in nodes])
    assert len(logits) == len(nodes) and target.bincount().tolist() == slow_target.bincount().tolist()
    cross_entropy = torch.nn.functional.cross_entropy
    losses = cross_entropy(logits, target), cross_entropy(slow_logits, slow_target)
    grads = [torch.autograd.grad(loss, list(net.parameters())) for loss in losses]
    assert torch.allclose(*losses, atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*grads))


def test_a_tree_network_refuses_images():
    with pytest.raises(ValueError, match="reads tables of nodes"):
        make_model("tree_lstm", 2, (3, 32, 32))


def test_seeds_and_options():
    a, b, c = (make_model("resnet32", 10, (1, 8, 8), seed=s) for s in (0, 0, 1))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.head.weight, c.head.weight)
    assert model_options("resnet110")["blocks"] == (18, 18, 18) and model_options("resnet32")["shortcut"] == "pad"
    assert count(make_model("resnet32", 10, (3, 32, 32), shortcut="conv")) == 466_906
    assert count(make_model("small_resnet", 10, (3, 32, 32))) == 816_170


@pytest.mark.parametrize("name, shape, options, message", [
    ("resnet18", (16,), {}, "a resnet needs images"),
    ("small_resnet", (1, 4, 4), {}, "at least 8x8"),
    ("vgg16", (3, 16, 16), {}, "at least 32x32"),
    ("wide_resnet", (3, 32, 32), dict(depth=28), "depth: 28, want 6n \\+ 2"),
    ("resnet18", (3, 32, 32), dict(shortcut="x"), "shortcut: 'x' is not known"),
    ("resnet34", (3, 32, 32), {}, "model: 'resnet34' is not known"),
])
def test_wrong_options(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, 10, shape, **options)
