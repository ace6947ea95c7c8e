"A calibrator outside the notebook: folded into a network, a module, compiled, exported, in ONNX, on the command line."
import copy
import json

import pytest
import torch
from deployment import deployment_errors
from overconfident import binary, overconfident, quiet
from torch import nn
from torchvision import models

from calibnb import cli
from calibnb.core import probabilities
from calibnb.models import make_model
from calibnb.posthoc import (
    Calibrator, Dirichlet, Isotonic, Platt, TemperatureScaling, VectorScaling, confidence_maps, entropy_temperature,
    list_calibrators, make_calibrator, score_maps
)

LIMIT = 1e-6
ALL = [*list_calibrators(), "temperature+isotonic"]
N = dict(dynamic_shapes=({0: torch.export.Dim("N")},))


def same(got, want, limit=LIMIT):
    torch.testing.assert_close(got, want, rtol=0, atol=limit)


def seen(K):
    "Logits and labels of a fit."
    odds, target = binary(400)
    return overconfident(400, K) if K > 1 else (odds.float(), target)


def fitted(name, K, **options):
    return quiet(make_calibrator(name, **options), *seen(K))


def unseen(K, rows=1000):
    "Logits of other samples: some far out, some ties, some with a close second class, some on the knots of the fit."
    z = 4*torch.randn(1000, K, generator=torch.Generator().manual_seed(9))
    z[1:5] *= 20
    z[5:7] = 0
    z[7:200] = z[7:200].clamp(-1, 1) + torch.eye(K)[0]*1.5
    z[7:200, -1] = z[7:200, 0] - .01
    z[200:600] = seen(K)[0].view(400, K)
    return z[:rows]


# the module

@pytest.fixture
def traced(monkeypatch):
    "What is computed inside a trace, without a trace."
    for room in score_maps, confidence_maps, entropy_temperature, probabilities:
        monkeypatch.setattr(room, "traced", lambda: True)


EACH = [(name, {}) for name in ALL] + [(name, dict(mode="each")) for name in ("histogram", "isotonic", "beta")]


@pytest.mark.parametrize("name, options", EACH)
@pytest.mark.parametrize("K", [1, 2, 10])
def test_no_branch_changes_a_probability(name, options, K, request):
    calibrator = fitted(name, K, **options)
    expected = {rows: calibrator.transform(unseen(K, rows)) for rows in (1, 12, 1000)}
    request.getfixturevalue("traced")
    for rows, probs in expected.items():
        same(calibrator.as_module()(unseen(K, rows)), probs)


@pytest.mark.parametrize("name, K", [("isotonic", 10), ("vector+platt", 2)])
def test_export(name, K):
    "A map of the confidence and a pipeline; the others are of the parts that `test_onnx` exports, or in `make slow`."
    errors = deployment_errors(fitted(name, K), unseen(K), ["module", "export"])
    assert errors["module"] == 0 and errors["export"] <= LIMIT, errors


def test_compile(name="isotonic", backend="eager"):
    calibrator = fitted(name, 10)
    compiled = torch.compile(calibrator.as_module(), backend=backend, fullgraph=True, dynamic=True)
    for rows in 1000, 1:
        same(compiled(unseen(10, rows)), calibrator.transform(unseen(10, rows)))


def test_module_of_probabilities_columns_and_images(traced):
    odds, hits = binary()
    odds_of, hits_of = torch.stack([odds, 2*odds], 1), torch.stack([hits, 1 - hits], 1)
    columns = quiet(VectorScaling(), odds_of, hits_of, kind="multilabel")
    z = unseen(2)
    same(columns.as_module()(z), columns.transform(z))
    logits, target = overconfident(K=3)
    probs = logits.softmax(1)
    probs = torch.where((probs < 1e-3) & (nn.functional.one_hot(target) == 0), 0, probs)
    probs /= probs.sum(1, keepdim=True)
    of_probs = Isotonic().fit_probs(probs, target)
    assert of_probs.eps_ > 0
    same(of_probs.as_module()(probs), of_probs.transform(probs))
    image = unseen(3, 12).view(2, 6, 3).movedim(-1, 1)  # (2, 3, 6)
    vector = fitted("vector", 3)
    same(vector.as_module()(image), vector.transform(image))
    same(quiet(Platt(), odds, hits).as_module()(odds), quiet(Platt(), odds, hits).transform(odds))


def test_module_is_a_module():
    calibrator = fitted("isotonic", 3)
    module, z = calibrator.as_module(), unseen(3).requires_grad_()
    assert set(module.state_dict()) == {"maps___0__x", "maps___0__y"}
    module(z)[:, 0].sum().backward()
    assert z.grad.abs().sum() > 0
    half = calibrator.as_module(torch.float32)
    same(half(z), module(z), 1e-3)
    same(module(z.half()), module(z.half().float()), 0)
    with pytest.raises(ValueError, match="logits: 4 classes, want 3"):
        module(unseen(4))
    calibrator.fit(*overconfident(seed=5, K=3))  # the module has its own copy
    same(module(z), fitted("isotonic", 3).transform(z))


class OfUser(Calibrator):
    "A calibrator of a user, with a number and a tensor."
    fitted, keeps_prediction = ("slope_", "bias_"), False

    def _fit(self, logits, target):
        self.slope_, self.bias_ = .5, torch.linspace(0, 1, logits.shape[1])

    def _logits(self, z): return self.slope_*z + self.bias_.to(z)


class Fixed(OfUser):
    def _logits(self, z): return z if z.sum() > 0 else z/2


class OfTwoRows(OfUser):
    def _logits(self, z): return z if len(z) == 2 else z/2


def test_calibrators_of_users():
    errors = deployment_errors(OfUser().fit(*overconfident(K=3)), unseen(3), ["fold", "module", "export"])
    assert errors["fold"].startswith("calibrator: OfUser cannot be folded into a network")
    assert errors["module"] == 0 and errors["export"] <= LIMIT
    pytest.importorskip("onnxscript")
    with pytest.raises(ValueError, match="calibrator: Fixed cannot be exported .*avoid branches on values"):
        Fixed().fit(*overconfident(K=3)).export_onnx("never.onnx")
    with pytest.raises(ValueError, match="OfTwoRows cannot be exported .*the file takes 2 rows only"):
        OfTwoRows().fit(*overconfident(K=3)).export_onnx("never.onnx")


# folding

def vision_transformer():
    return models.VisionTransformer(image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8,
                                    num_classes=10)


class Timm(nn.Module):
    "A network with the layer where timm has it, and another that would be found by its name."
    def __init__(self):
        super().__init__()
        self.fc, self.last = nn.Linear(192, 16), nn.Linear(16, 10, bias=False)

    def get_classifier(self): return self.last
    def forward(self, x): return self.last(self.fc(x.flatten(1)).relu())


NETWORKS = {"ours": lambda: make_model("mlp", 10, (3, 8, 8), hidden=[16]),
            "resnet": lambda: models.resnet18(num_classes=10),
            "mobilenet": lambda: models.mobilenet_v3_small(num_classes=10), "vit": vision_transformer, "timm": Timm}


@pytest.mark.parametrize("network", NETWORKS)
def test_checkpoint_of_a_calibrated_network(network, tmp_path):
    torch.manual_seed(0)
    make = NETWORKS[network]
    net, images = make().eval(), torch.randn(12, 3, *[16 if network == "vit" else 8]*2)
    state = copy.deepcopy(net.state_dict())
    calibrator = fitted("temperature" if network == "timm" else "matrix", 10)
    folded = calibrator.fold_into(nn.DataParallel(net.train()), sample=images)
    assert type(folded) is type(net) and net.training
    torch.save(folded.state_dict(), tmp_path/"calibrated.pt")
    again = make().eval()
    again.load_state_dict(torch.load(tmp_path/"calibrated.pt", weights_only=True))
    with torch.no_grad():
        same(again(images).softmax(1), calibrator.transform(net.eval()(images)))
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name, K", [("temperature", 10), ("vector", 10), ("matrix", 10), ("matrix", 1), ("platt", 1),
                                     ("vector+platt", 1)])
def test_folded_exactly(name, K):
    assert deployment_errors(fitted(name, K), unseen(K), ["fold"])["fold"] <= LIMIT


def test_multilabel_and_dirichlet_are_folded_where_they_are_linear():
    odds, hits = binary()
    columns = quiet(Platt(), torch.stack([odds, 2*odds], 1), torch.stack([hits, 1 - hits], 1), kind="multilabel")
    assert deployment_errors(columns, unseen(2), ["fold"])["fold"] <= LIMIT
    dirichlet = fitted("dirichlet", 3)
    with pytest.raises(ValueError, match="`weight_` have different sums"):
        dirichlet.fold_into(nn.Linear(2, 3))
    dirichlet.weight_ -= dirichlet.weight_.mean(1, keepdim=True) - 1/3
    assert isinstance(dirichlet, Dirichlet) and deployment_errors(dirichlet, unseen(3), ["fold"])["fold"] <= LIMIT


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("temperature", "vector", "matrix")])
def test_what_cannot_be_folded_says_why(name):
    for K in 2, 10:
        with pytest.raises(ValueError, match="cannot be folded into a network: it.*; take as_module") as error:
            fitted(name, K).fold_into(nn.Linear(4, K))
        assert "\n" not in str(error.value)


def test_networks_that_are_refused():
    scaling, vector = fitted("temperature", 3), fitted("vector", 3)
    ends_in_relu = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    for network, layer, message in [
            (ends_in_relu, None, "no linear last layer found in Sequential"),
            (ends_in_relu, "fc", "'fc' is not a layer of Sequential.*name the layer, '0'"),
            (ends_in_relu, nn.Linear(4, 3), "Linear is not a layer of Sequential"),
            (nn.Linear(4, 5), None, "'' has 5 outputs, want 3")]:
        with pytest.raises(ValueError, match=message):
            scaling.fold_into(network, layer)
    with pytest.raises(ValueError, match="differ from transform by up to"):
        vector.fold_into(ends_in_relu, "0", sample=torch.randn(9, 4))
    with pytest.raises(ValueError, match="fitted on probabilities"):
        logits, target = overconfident(K=3)
        TemperatureScaling().fit_probs(logits.softmax(1), target).fold_into(nn.Linear(4, 3))


# ONNX files

def saved_network(path, *layers, **options):
    network = nn.Sequential(nn.Linear(4, 3), *layers).eval()
    options = dict(output_names=["logits"], dynamo=True, verbose=False) | N | options
    torch.onnx.export(network, (torch.randn(2, 4),), path, **options)


def saved_graph(path, classes, last):
    "A network of one layer and a last node, written by hand."
    import onnx
    from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor, make_tensor_value_info
    x, out = (make_tensor_value_info(name, 1, ["N", n]) for name, n in (("x", 4), ("logits", classes)))
    nodes = [make_node("MatMul", ["x", "w"], ["z"]), make_node(last, ["z"], ["logits"])]
    weight = make_tensor("w", 1, [4, classes], [.1]*4*classes)
    model = make_model(make_graph(nodes, "network", [x], [out], [weight]), opset_imports=[make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for module in "onnxscript", "onnxruntime":
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    fitted("isotonic", 3).save("calibrator.safetensors")
    return tmp_path


def test_command_writes_a_network_with_its_calibrator(folder, capsys):
    import onnxruntime
    saved_network("network.onnx", opset_version=18)
    calibrator = Calibrator.load("calibrator.safetensors")
    assert cli.main("export calibrator.safetensors --onnx service.onnx --with network.onnx".split()) == 0
    assert "differs from `transform` by at most" in capsys.readouterr().out
    session, alone = (onnxruntime.InferenceSession(name) for name in ("service.onnx", "network.onnx"))
    x = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    about = session.get_modelmeta().custom_metadata_map
    assert about["calibrator"] == "isotonic" and about["n_classes"] == "3" and json.loads(about["classes"]) == []
    for rows in x, x[:1]:
        probs, = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
        logits, = alone.run(None, {alone.get_inputs()[0].name: rows.numpy()})
        same(torch.from_numpy(probs), calibrator.transform(torch.from_numpy(logits)))


def test_bad_input_of_the_command(folder, capsys):
    saved_graph("softmax.onnx", 3, "Softmax")
    saved_graph("five.onnx", 5, "Identity")
    (folder/"cut.onnx").write_bytes((folder/"five.onnx").read_bytes()[:-40])
    for line, message in [
            ("none.safetensors --onnx out.onnx", "calibrator: none.safetensors does not exist"),
            ("five.onnx --onnx out.onnx", "calibrator: five.onnx is not a safetensors file"),
            ("calibrator.safetensors --onnx out.pt", "file format: '.pt' is not known"),
            ("calibrator.safetensors --onnx five.onnx --with five.onnx", "--onnx: five.onnx is an input file"),
            ("calibrator.safetensors --onnx out.onnx --with cut.onnx", "--with: cut.onnx"),
            ("calibrator.safetensors --onnx out.onnx --with calibrator.safetensors", "--with: calibrator.safetensors"),
            ("calibrator.safetensors --onnx out.onnx --with softmax.onnx", "comes from Softmax, want logits"),
            ("calibrator.safetensors --onnx out.onnx --with five.onnx", "shape (N, 5), want (N, 3)")]:
        before = sorted(folder.iterdir())
        assert cli.main(["export", *line.split()]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
        assert sorted(folder.iterdir()) == before
