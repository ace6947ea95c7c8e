"""Plugins: losses, networks, data and more, swept, changed and misspelt, in processes and in kernels."""
import json
import sys

import numpy as np
import pytest
import torch
from conftest import forks, patience, write_notebook
from sweeping import begun, command, spec_file
from sweeping import nothing_goes_on, two_workers  # noqa: F401
from yours import forget

from calibnb.cli import main
from calibnb.core import PluginError, load_plugins, plugins
from calibnb.losses.modules import list_losses, losses, make_loss
from calibnb.models import make_model, model_options
from calibnb.posthoc import CALIBRATORS, Calibrator
from calibnb.runs import Run, RunConfig, get_run, get_runs, train_file
from calibnb.runs.folder import RunFolder, find_runs
from calibnb.sweep import sweep
from calibnb.train import Recipe

MINE = '''
import torch
from torch import nn
from calibnb.data import register_data, split_arrays
from calibnb.losses import register_loss
from calibnb.metrics import register_metric
from calibnb.models import register_model
from calibnb.posthoc import Calibrator, register_calibrator
from calibnb.train import register_recorder

@register_loss("cubed")
def cubed(z, y, power: float = 3.):
    return (1 - z.softmax(1).gather(1, y[:, None])[:, 0])**power

@register_model("line")
class Line(nn.Module):
    def __init__(self, num_classes, in_shape, **others):
        super().__init__()
        if others.keys() - {"width"}: raise TypeError(f"options: {others}")
        self.last = nn.Linear(torch.Size(in_shape).numel(), num_classes)
    def forward(self, x):
        return self.last(x.flatten(1))

@register_data("rings")
def rings(seed, n: int = 120):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=draw)*(1 + y[:, None])
    return split_arrays("rings", dict(train_x=x.numpy(), train_y=y.numpy()), seed, test=.3)

@register_recorder("largest")
def largest(view):
    return dict(largest=view.predictions("val").conf.max().item())

@register_calibrator("halved")
class Halved(Calibrator):
    def _fit(self, logits, target): pass
    def _logits(self, z): return z/2

@register_metric("hardest")
def hardest(probs, target):
    return probs.gather(1, target[:, None]).min()
'''
GRID = dict(preset="quick", base={"data": "rings", "model": "line", "recorders": ["largest"], "recipe.epochs": 2},
            grid=dict(loss="ce,cubed"))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    "A plugin file; its names are removed after the test."
    monkeypatch.setenv("CALIBNB_PLUGINS", "")
    path = tmp_path/"mine.py"
    path.write_text(MINE)
    yield path
    forget(path)


@pytest.fixture
def named(mine, monkeypatch):
    "The same plugin file, named in the environment."
    monkeypatch.setenv("CALIBNB_PLUGINS", str(mine))
    return mine


def ended(process):
    out, err = process.communicate(timeout=patience(240))
    return process.returncode, out, err


def test_a_plugin_is_swept_and_swept_again_when_changed(mine, tmp_path):
    root, args = tmp_path/"runs", ["sweep", spec_file(tmp_path, GRID), "--plugin", str(mine)]
    code, out, err = ended(command(args, root))
    assert code == 0 and "2 done" in out, err
    first = {f.path.name for f in find_runs(root)}
    assert len(first) == 2 and all("largest" in (f/"history.csv").read_text() for f in find_runs(root))
    assert ended(command(args, root))[1].count("done before") == 3  # two rows, and their number
    mine.write_text(MINE.replace("power: float = 3.", "power: float = 2."))
    assert "2 done" in ended(command(args, root))[1]
    assert len({f.path.name for f in find_runs(root)} - first) == 2
    code, _, err = ended(command([*args, "--dry-run", "-p", "model", "lien"], root))
    assert code == 2 and "model: 'lien' is not known; did you mean 'line'?" in err and err.count("\n") == 1
    assert "CALIBNB_PLUGINS or --plugin" in err


def test_a_notebook_is_executed_again_when_the_file_that_it_used_has_changed(mine, tmp_path):
    path = write_notebook(
        tmp_path/"loss.ipynb", "seed: int = 0",
        "from calibnb.losses import make_loss\nfrom calibnb.notebooks import Experiment",
        "experiment = Experiment('loss', dict(seed=seed))\nmake_loss('cubed')\nexperiment.findings([])")
    root, args = tmp_path/"runs", ["sweep", path, "--plugin", str(mine)]
    for n in 1, 1, 2:
        if n == 2:
            mine.write_text(MINE + "# changed\n")
        code, out, err = ended(command(args, root))
        run, = find_runs(root)
        assert code == 0 and begun(run) == n, (out, err)
    assert list(run.info["plugins"]) == ["loss cubed"]


BREAKS = """from calibnb.train import register_recorder
def inner(view):
    raise IndexError("no luck")
@register_recorder("breaks")
def breaks(view):
    return inner(view)
"""
THERE = "(mine.py, line 3, in inner)"


def test_a_training_that_fails_says_where_in_the_code_of_the_user(named, tmp_path):
    "The message and status.json name the line, log.txt has the traceback; in a sweep and with workers."
    named.write_text(BREAKS)
    configs = [RunConfig(recorders=["breaks"], recipe=Recipe.quick(1, seed=seed)) for seed in (0, 1)]
    table = sweep(configs, tmp_path/"runs", progress=False)
    assert list(table.reason) == [f"IndexError: no luck {THERE}"]*2
    for config in configs:
        folder = RunFolder(config.path(tmp_path/"runs"))
        assert folder.status["reason"] == f"IndexError: no luck {THERE}"
        assert folder.status["where"] == f"{named}:3"
        text = (folder/"log.txt").read_text()
        assert "Traceback (most recent call last)" in text and "in fit" in text
        assert text.rstrip().endswith("IndexError: no luck")
    with pytest.raises(IndexError) as caught:
        get_runs(configs, tmp_path/"others", workers=2, progress=False)
    assert "in inner" in str(caught.value.__cause__)


def test_an_older_run_is_read_and_not_trained_with_other_code(named, tmp_path):
    config = RunConfig(data="rings", model="line", loss="cubed", recorders=["largest"], recipe=Recipe.quick(epochs=1))
    assert list(config.code) == ["data rings", "model line", "loss cubed", "recorder largest"]
    run = get_run(config, tmp_path/"runs", progress=False)
    torch.testing.assert_close(run.model()(torch.zeros(1, 2)).shape, torch.Size([1, 2]))
    (tmp_path/"old.json").write_text(config.model_dump_json())
    forget(named)
    named.write_text(MINE.replace("power: float = 3.", "exponent: float = 3.").replace("last", "first"))
    again = get_run(Run(run.path).config, tmp_path/"runs", progress=False)
    assert again.config == config and again.metrics == run.metrics
    with pytest.raises(ValueError, match="model: line does not fit the weights in .*model.safetensors"):
        again.model()
    with pytest.raises(ValueError, match="the source code of 'rings' in .*mine.py has changed since"):
        train_file(tmp_path/"old.json", tmp_path/"elsewhere")
    assert not (tmp_path/"elsewhere").exists()
    forget(named)
    named.write_text("")
    assert Run(run.path).config == config and Run(run.path).predictions().num_classes == 2
    with pytest.raises(ValueError, match="data: 'rings' is not known to this process; to use your own names"):
        train_file(tmp_path/"old.json", tmp_path/"elsewhere")


def test_a_network_that_takes_any_option_is_made_and_given_them(named):
    assert model_options("line") == {} and model_options("line", width=3) == dict(width=3)
    assert RunConfig(model="line", model_args=dict(width=3)).model_args == dict(width=3)
    make_model("line", 2, (2,), width=3)
    with pytest.raises(TypeError, match="'depth': 3"):
        make_model("line", 2, (2,), depth=3)


def error_of(capsys, *line):
    "Return the one line that a failing command prints."
    assert main(list(line)) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and not out
    return err


@pytest.mark.parametrize("text, why", [
    ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name', line 1"),
    ("\n\nx = (", "SyntaxError: '(' was never closed, line 3"),
    ("raise SystemExit(3)", "SystemExit: 3, line 1"),
    ("from calibnb.losses import register_loss\nregister_loss('focal')(print)",
     "ValueError: loss: 'focal' is a name of calibnb; take another, e.g. \"my_focal\", line 2"),
    ("from calibnb.losses import register_loss\nregister_loss('a b')(print)", "want a name of letters"),
    ("from calibnb.losses import register_loss\nregister_loss('x')(3)", "loss: x is 3, want a function"),
    ("from calibnb.models import register_model\nregister_model('x')(lambda n: n)", "model: x takes (n), want (num_cl"),
    ("from calibnb.data import register_data\nregister_data('x')(lambda n: n)", "data: x takes (n), want (seed"),
    ("from calibnb.metrics import register_metric\nregister_metric('ece_10')(min)", "'ece_10' is a column of every"),
    ("from calibnb.train import register_recorder\nregister_recorder('x')(3)", "recorder: x is 3, want a class"),
    ("from calibnb.posthoc import register_calibrator\nregister_calibrator('x')(3)", "want a subclass of calibnb"),
])
def test_a_file_that_cannot_be_imported_is_named_with_its_first_cause(mine, capsys, text, why):
    mine.write_text(text)
    err = error_of(capsys, "sweep", "train", "--plugin", str(mine), "-p", "loss", "mine", "--dry-run")
    assert f"plugin: {mine} cannot be imported (" in err and why in err


def test_what_is_not_there_is_named(mine, tmp_path, capsys, monkeypatch):
    assert "--plugin: absent.py does not exist" in error_of(capsys, "list", "--plugin", "absent.py")
    monkeypatch.setenv("CALIBNB_PLUGINS", str(tmp_path/"absent.py"))
    assert f"plugin: {tmp_path/'absent.py'} cannot be imported (FileNotFoundError" in error_of(capsys, "list", "losses")
    monkeypatch.setenv("CALIBNB_PLUGINS", "absent_module")
    assert "plugin: absent_module cannot be imported (ModuleNotFoundError" in error_of(capsys, "list", "losses")


def test_two_files_cannot_have_the_same_name(named, tmp_path, monkeypatch):
    other = tmp_path/"other.py"
    other.write_text(MINE)
    monkeypatch.setenv("CALIBNB_PLUGINS", f"{named}:{other}")
    with pytest.raises(PluginError, match="loss: 'cubed' is registered by .*mine.py and by .*other.py; rename one"):
        load_plugins()


ODD = "from calibnb.losses import register_loss\n@register_loss('odd')\n"


@pytest.mark.parametrize("text, options, message", [
    ("def odd(z, y, power=2.):\n    raise RuntimeError", dict(powr=1.),
     "option: 'powr' is not known; did you mean 'power'"),
    ("class odd(torch.nn.Module):\n    def __init__(self, n=1): super().__init__(), {}['k']", {},
     r"loss_args: {'n': 1}, but 'odd' cannot be made \(KeyError: 'k' \(mine.py, line 5, in __init__\)\)"),
    ("def odd(z, y, *, reduction='batch'):\n    raise RuntimeError", {},
     "reduction is 'batch', want \"mean\" or \"sum\""),
])
def test_a_wrong_loss_is_refused_when_a_run_is_configured_but_not_computed(named, text, options, message):
    named.write_text(f"import torch\n{ODD}{text}\n")
    with pytest.raises(ValueError, match=message):
        RunConfig(loss="odd", loss_args=options)


def test_a_loss_may_be_any_class_of_modules(named):
    named.write_text("from torch import nn\nfrom calibnb.losses import register_loss\n"
                    "@register_loss('smooth')\nclass Smooth(nn.CrossEntropyLoss):\n"
                    "    def __init__(self, eps: float = .1): super().__init__(label_smoothing=eps)\n")
    z, y = torch.randn(5, 3, dtype=torch.float64, device="cpu"), torch.tensor([0, 1, 2, 0, 1], device="cpu")
    torch.testing.assert_close(make_loss("smooth", eps=.05)(z, y), make_loss("label_smoothing", eps=.05)(z, y))
    assert RunConfig(loss="smooth").loss_args == dict(eps=.1)


@pytest.fixture
def predictions(tmp_path):
    rng = np.random.default_rng(0)
    logits = 4*rng.standard_normal((300, 3))
    target = (logits/2 + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(tmp_path/"preds.npz", logits=logits, target=target)
    return str(tmp_path/"preds.npz")


def test_an_audit_has_calibrators_and_metrics_of_the_file(mine, predictions, tmp_path, capsys):
    audit = ["audit", predictions, "--logits", "--no-report", "--plugin", str(mine), "--metric"]
    assert main([*audit, "hardest", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for row in found["rows"].values():
        lo, hi = row["hardest"]["interval"]
        assert 0 <= lo == row["hardest"]["value"] <= hi  # a resample cannot have a smaller least value
    assert "halved" in found["rows"] and found["best"]["hardest"] == []
    assert "--metric: 'hardst' is not known; did you mean 'hardest'" in error_of(capsys, *audit, "hardst")
    halved = CALIBRATORS.make("halved").fit(torch.eye(3, dtype=torch.float64), torch.arange(3))
    halved.save(tmp_path/"halved.safetensors")
    assert type(Calibrator.load(tmp_path/"halved.safetensors")) is CALIBRATORS["halved"]
    forget(mine)
    mine.write_text("")
    with pytest.raises(ValueError, match="holds a calibrator that is not known here; .* 'halved' is not known"):
        Calibrator.load(tmp_path/"halved.safetensors")


WRONG = {  # body of a calibrator -> message
    "def _fit(self, z, y): self.t = float('nan')\ndef _logits(self, z): return z/self.t":
        "gives (nan, nan, nan) for sample 0",
    "def _logits(self, z): return z": "define _fit(logits, target) to set the names",
    "def _fit(self, z, y): pass": "define _logits(z), or both _probs(z) and _log_probs(z)",
    "def _fit(self, z, y): pass\ndef _logits(self, z): return -z": "changes the predicted class of sample 0, but has",
    "def _fit(self, z, y): pass\ndef _logits(self, z): return z.nothing": "fails with AttributeError: 'Tensor' object",
    "def _fit(self, z, y): pass\ndef _logits(self, z): return z[:, :2]": "gives shape (300, 2), want (300, 3)",
    "def _fit(self, z, y): pass\ndef _probs(self, z): return z.softmax(1)*2\ndef _log_probs(self, z): return z":
        "want probabilities that sum to 1",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_wrong_calibrator_is_not_believed(mine, predictions, capsys, body):
    "The audit goes on without the calibrator and says why; fitting it is refused."
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    mine.write_text("from calibnb.posthoc import Calibrator, register_calibrator\n"
                    f"@register_calibrator('wrong')\nclass Wrong(Calibrator):\n{lines}")
    assert main(["audit", predictions, "--logits", "--no-report", "--plugin", str(mine), "--calibrator", "wrong"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "wrong could not be fitted" in text and WRONG[body] in text
    with pytest.raises((ValueError, NotImplementedError)):
        CALIBRATORS.make("wrong").fit(4*torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]], torch.tensor([0, 1, 2, 1]))


def test_a_metric_that_is_nan_is_undefined_and_not_infinite(mine, predictions, capsys):
    mine.write_text("from calibnb.metrics import register_metric\n"
                    "register_metric('nothing')(lambda p, y: float('nan'))\n"
                    "register_metric('endless')(lambda p, y: float('inf'))\n")
    audit = ["audit", predictions, "--logits", "--no-report", "--plugin", str(mine), "--metric", "nothing"]
    assert main(audit) == 0 and "∞" not in capsys.readouterr().out
    assert main([*audit, "--metric", "endless", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"]["uncalibrated"]
    assert row["nothing"]["undefined"] and "undefined" not in row["endless"] and row["endless"]["value"] is None


def test_what_a_plugin_prints_is_not_in_the_json(mine, predictions, capsys):
    mine.write_text("from calibnb.metrics import register_metric\nprint('loaded')\n"
                    "@register_metric('loud')\ndef loud(p, y):\n    print('computed')\n    return 0.\n")
    main(["audit", predictions, "--logits", "--no-report", "--plugin", str(mine), "--metric", "loud", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] and "loaded" in err and "computed" in err


def test_the_list_has_what_plugins_add(mine, capsys):
    assert main(["list", "losses", "--plugin", str(mine)]) == 0 and main(["list", "metrics"]) == 0
    out = capsys.readouterr().out
    assert f", cubed ({mine})" in out and f"hardest ({mine})" in out and "cubed" in list_losses()


def test_an_entry_point_of_a_package_is_a_plugin(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_PLUGINS", "")
    (tmp_path/"theirs.py").write_text(MINE.replace('"cubed"', '"theirs"').split("@register_model")[0])
    info = tmp_path/"theirs-1.0.dist-info"
    info.mkdir()
    (info/"METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info/"entry_points.txt").write_text("[calibnb.plugins]\nlosses = theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entries.cache_clear()
    try:
        assert "theirs" in list_losses() and RunConfig(loss="theirs").code
    finally:
        forget(tmp_path/"theirs.py")
        sys.modules.pop("theirs", None)
        plugins._loaded.discard("losses = theirs")
        plugins._entries.cache_clear()


def test_workers_say_when_a_name_is_known_to_the_notebook_only(tmp_path):
    forks()
    losses["here"] = losses["ce"]
    plugins._origins["loss", "here"] = plugins.Origin("a notebook", "0123456789abcdef")
    try:
        config = RunConfig(loss="here", recipe=Recipe.quick(epochs=1))
        table = sweep([config], tmp_path, progress=False)
        assert "loss: 'here' is not known to this process; to use your own names" in table.reason[0]
        with pytest.raises(ValueError, match="'here' is defined in a notebook, which other processes cannot import"):
            get_run(config, tmp_path, processes=2, progress=False)
    finally:
        del losses["here"], plugins._origins["loss", "here"]
        plugins._used.pop("loss here", None)
    assert RunFolder(config.path(tmp_path)).state in ("absent", "failed")
