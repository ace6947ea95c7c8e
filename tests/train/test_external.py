"External networks: weights, programs and folders of images, up to an audit on the command line."
import warnings
import zipfile

import fuzz
import numpy as np
import pytest
import torch
from PIL import Image

from calibnb import cli
from calibnb.data import load_data
from calibnb.models import make_model
from calibnb.train import load_network, predict_with


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path/"data"))
    return tmp_path


def save_program(make, *args):
    "Save a network as TorchScript, by `torch.jit.trace` or `torch.jit.script`."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(make(*args), "program.ts")


def save_mlp(columns, shape=(1, 4, 4)):
    net = make_model("mlp", columns, shape, hidden=[4]).eval()
    save_program(torch.jit.trace, net, torch.zeros(1, *shape))


def save_insects(home, part=".", n=1, side=4):
    "Save n noisy images of each of two classes."
    for label in "ant", "bee":
        (home/"insects"/part/label).mkdir(parents=True)
        for i in range(n):
            image = np.random.default_rng(i).integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(image).save(home/"insects"/part/label/f"{i}.png")


def test_weights_with_prefixes_and_in_checkpoints(home):
    net, x = make_model("small_cnn", 10, (1, 4, 4), seed=3).eval(), torch.randn(2, 1, 4, 4)
    def prefixed(prefix): return {prefix + k: v for k, v in net.state_dict().items()}
    for saved in (prefixed(""), dict(state_dict=prefixed(""), epoch=1), dict(model=prefixed("")), prefixed("module."),
                  dict(state_dict=prefixed("model.")), prefixed("_orig_mod.module."), prefixed("module._orig_mod.")):
        torch.save(saved, "weights.pth")
        loaded = load_network("weights.pth", 10, (1, 4, 4), "small_cnn")(x)
        assert loaded.equal(net(x)), list(saved)[:2]  # bits: the same weights


class Bad:
    def __reduce__(self):
        return open, ("hit", "w")


def test_code_in_a_file_of_weights_is_not_run(home):
    torch.save(dict(state_dict=Bad()), "weights.pt")
    with pytest.raises(ValueError, match="weights.pt cannot be read as weights") as caught:
        load_network("weights.pt", 10, (1, 4, 4), "mlp")
    assert "holds Python objects, which could run code" in str(caught.value) and "weights_only" not in str(caught.value)
    assert not (home/"hit").exists()


@pytest.mark.parametrize("saved", [{1: torch.ones(2)}, {}, [torch.ones(2)], {"weight": 1}])
def test_what_is_no_state_dictionary_is_refused(home, saved):
    torch.save(saved, "weights.pt")
    with pytest.raises(ValueError, match="weights.pt holds no state dictionary"):
        load_network("weights.pt", 10, (1, 4, 4), "mlp")


@pytest.mark.parametrize("n", [None, 40])
def test_a_damaged_program_is_one_line(home, n):
    with zipfile.ZipFile("program.pt", "w") as archive:
        archive.writestr("x/code/y", "")
    (home/"program.pt").write_bytes((home/"program.pt").read_bytes()[-n if n else None:])
    with pytest.raises(ValueError, match="program.pt cannot be read as"):
        load_network("program.pt", 10, (1, 4, 4), "mlp" if n else None)


@pytest.mark.parametrize("columns", [1, 9, 12])
def test_a_network_of_another_number_of_classes_is_refused(home, columns):
    save_mlp(columns)
    with pytest.raises(ValueError, match=f"program.ts returns {columns} columns, but digits has 10 classes"):
        predict_with("program.ts", "digits")


class Wrong(torch.nn.Module):
    "A program that does not give logits."
    def forward(self, x):
        assert x.shape[1] != 1, "want three channels"
        return x, x


@pytest.mark.parametrize("shape, told", [
    ((3, 4, 4), "the network returns a tuple for a batch, want a tensor of logits"),
    ((1, 4, 4), "AssertionError: want three channels"),
])
def test_a_program_that_gives_no_logits_is_one_line(home, shape, told):
    save_insects(home)
    save_program(torch.jit.script, Wrong())
    options = dict(mean=[.5], std=[.5]) if shape[0] == 3 else {}
    with pytest.raises(ValueError, match="program.ts cannot process images") as caught:
        predict_with("program.ts", "insects" if shape[0] == 3 else "digits", **options)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_an_image_that_unpacks_into_too_much_is_named(home):
    fuzz.save_images(home/"insects", np.random.default_rng(0))
    fuzz.png_bomb(home/"insects"/"a"/"1.png")
    with pytest.raises(ValueError, match="1.png: not a readable image .DecompressionBombError"):
        predict_with("program.ts", "insects", mean=[.5], std=[.5])


@pytest.mark.parametrize("given, told", [
    ("insects -p nonsense 3", "-p: {'nonsense': 3}, but insects is a folder"),
    ("insects --split nonsense", "--split: 'nonsense' is not known"),
    ("digits --size 8", "--size: 8, but digits is not a folder"),
    ("digits -p seed 3", "'seed' is not known"),
    ("digits -p device cpu", "'device' is not known"),
])
def test_what_would_be_ignored_is_refused(home, capsys, given, told):
    save_mlp(10)
    save_insects(home)
    scale = "--mean .5 --std .5" if "insects" in given else ""
    assert cli.main(f"predict program.ts {given} {scale} --out p.npz".split()) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1 and not (home/"p.npz").exists()


def test_parts_of_a_folder_and_the_scale_that_was_said(home):
    save_mlp(2, (3, 8, 8))
    save_insects(home, "train", n=3, side=16)
    save_insects(home, "test", n=2, side=16)
    options = dict(size=8, mean=(.1, .2, .3), std=(.5, .6, .7), device="cpu")
    preds = predict_with("program.ts", "insects", **options)
    assert preds.target.tolist() == [0, 0, 1, 1]
    assert len(predict_with("program.ts", "insects", split="train", **options)) == 6
    with pytest.raises(ValueError, match="split: 'val' is not known"):
        predict_with("program.ts", "insects", split="val", **options)
    other = predict_with("program.ts", "insects", **options | dict(mean=(0., 0., 0.)))
    assert not other.logits.equal(preds.logits)


def test_from_weights_to_an_audit_of_a_shift(home, capsys):
    net = make_model("mlp", 10, (1, 4, 4), hidden=[8], seed=1)
    torch.save(net.state_dict(), "weights.pt")
    line = ["predict", "weights.pt", "--model", "mlp", "--option", "hidden", "[8]"]
    assert cli.main([*line, "digits", "--out", "clean.npz"]) == 0
    assert cli.main([*line, "corrupted:digits", "-p", "kind", "rotate", "--out", "turned.npz"]) == 0
    with np.load("clean.npz") as clean, torch.no_grad():
        test = load_data("digits", seed=0).test
        np.testing.assert_allclose(clean["logits"], net.eval()(test.x).numpy(), atol=1e-5)
        assert (clean["target"] == test.y.numpy()).all()
    capsys.readouterr()
    assert cli.main(["audit", "clean.npz", "--logits", "--no-report", "--shifted", "turned.npz"]) == 0
    assert "On turned.npz, 697 samples" in capsys.readouterr().out
