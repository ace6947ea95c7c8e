"What a notebook declares is read, never run; a plan runs the checks cell of our own experiments and no other cell."

import ast
import json
import subprocess
import sys
from typing import Any, Literal, Optional, Union

import nbformat
import pytest
from conftest import ROOT, code_cell, write_cells

from calibnb import cli
from calibnb.notebooks import Notebook, list_experiments
from calibnb.notebooks.parameters import check_values, join_dotted, notebook_parameters, read_declarations
from calibnb.sweep import expand


def notebook(path, parameters="seed: int = 0", checks=None):
    cells = [code_cell(checks, "checks")] if checks else []
    return write_cells(path, code_cell(parameters, "parameters"), *cells)


@pytest.mark.parametrize("attack", [
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0]({command!r}, shell=True)",
    "__import__('os').system({command!r})",
    "Annotated[int, __import__('os').system({command!r})]",
    'list[\'__import__("os").system("touch {file}")\']',
    "Literal[__import__('os').system({command!r})]",
    "Union[int, (lambda: __import__('os').system({command!r}))()]",
])
def test_planning_runs_nothing_of_an_annotation(tmp_path, monkeypatch, capsys, attack):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    file = tmp_path/"hit"
    annotation = attack.replace("{command!r}", repr(f"touch {file}")).replace("{file}", str(file))
    path = notebook(tmp_path/"theirs.ipynb", f"seed: int = 0\nx: {annotation} = 1")
    for argv in ["run", str(path)], ["sweep", str(path), "--dry-run"]:
        assert cli.main(argv) == 2
        err = capsys.readouterr().err
        assert "x: annotation" in err and "want one of bool, int, float, str" in err and err.count("\n") == 1
    assert not file.exists() and not (tmp_path/"runs").exists()


@pytest.mark.parametrize("annotation, kind, good, bad", [
    ("bool", bool, True, 1), ("int", int, 3, True), ("float", float, 2.5, "2"), ("str", str, "a", 1),
    ("list", list, [1, "a"], {}), ("dict", dict, {"a": 1}, []), ("tuple", tuple, (1,), "a"),
    ("None", type(None), None, 0), ("typing.Any", Any, 3, None), ("List[float]", list[float], [1.5], [None]),
    ("typing.Dict[str, list[int]]", dict[str, list[int]], {"a": [1]}, {"a": 1}),
    ("tuple[int, ...]", tuple[int, ...], (1, 2), (1, "a")), ("tuple[int, str]", tuple[int, str], (1, "a"), (1, 2)),
    ("None | int | str", Union[int, str, None], "a", 1.5), ("Optional[float]", Optional[float], None, "a"),
    ("typing.Union[int, str]", Union[int, str], "a", 1.5),
    ("typing.Literal[-1, 'a', True, None]", Literal[-1, "a", True, None], "a", 2),
    ("list[Literal['a'] | None]", list[Optional[Literal["a"]]], ["a", None], ["b"]),
])
def test_types_as_people_write_them(annotation, kind, good, bad):
    types = read_declarations(f"x: {annotation} = None")
    assert types["x"][0] == kind and check_values(dict(x=good), types)["x"] == good
    if kind is not Any:
        with pytest.raises(TypeError, match="^x: "):
            check_values(dict(x=bad), types)


@pytest.mark.parametrize("annotation", [
    "set[int]", "np.ndarray", "object", "Path", "Optional", "Union", "Literal", "Optional[int, str]", "int[3]",
    "list[int, str]", "dict[str]", "list[3]", "int | 3", "int & str", "Literal[1.5]", "Literal[x]", "builtins.int",
    "Callable[[int], int]", "typing.get_type_hints", "...", "list[...]", "lambda: 0", "tuple[..., int]", "Literal[()]",
    "Any[int]"])
def test_other_types_are_refused_in_one_line(annotation):
    with pytest.raises(ValueError, match="^parameters cell: gamma: annotation ") as error:
        read_declarations(f"seed: int = 0\ngamma: {annotation} = 1")
    message = str(error.value)
    assert ast.unparse(ast.parse(annotation)) in message and "\n" not in message  # 3.10 has a space in `lambda: 0`
    assert "want one of bool, int, float, str, list, dict, tuple, None, Any, Optional, Union, Literal" in message


@pytest.mark.parametrize("source, message", [
    ("seed: int = 0\nx: int = 1 +", "line 2"), ("x: int = int('3')", "x: int('3'), want a literal"),
    ("a.b: int = 3", "'a.b: int = 3', want `name: type = literal`"),
    ("x: int", "'x: int', want `name: type = literal`"),
    ("x: list[int] = [i for i in range(3)]", "x: [i for i in range(3)], want a literal"),
    ("x: int = " + "(" * 500 + "1" + ")" * 500, "parameters cell")])
def test_a_cell_that_cannot_be_read_is_refused_in_one_line(source, message):
    with pytest.raises(ValueError, match="^parameters cell: ") as error:
        read_declarations(source)
    assert message in str(error.value) and "\n" not in str(error.value) and " at 0x" not in str(error.value)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b'{"cells": 3}', b'{"cells": [3]}', b'{"cells": [{"cell_type": "code"}]}', b"\xff\xfe\x00"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys, content):
    path = tmp_path/"damaged.ipynb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged.ipynb"):
        notebook_parameters(path)
    assert cli.main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "damaged.ipynb" in err


CHECKS = """from calibnb.notebooks.parameters import at_least, check_parameters
settings = check_parameters(globals())
at_least(settings, seed=3)
open(r'{hit}', 'w')"""


@pytest.fixture
def own_experiments(tmp_path, monkeypatch):
    "nbs/experiments of a checkout or wheel that this package is imported from."
    folder = tmp_path/"home"/"nbs"/"experiments"
    folder.mkdir(parents=True)
    monkeypatch.setattr("calibnb.notebooks.execute.resource", lambda path: tmp_path/"home"/path)
    return folder


@pytest.mark.parametrize("where", ["elsewhere", "beside", "below", "linked"])
def test_planning_runs_no_cell_of_a_strangers_notebook(own_experiments, tmp_path, where):
    hit, name = tmp_path/"hit", "toy.ipynb"
    folder = dict(beside=own_experiments.parent, below=own_experiments/"x").get(where, tmp_path/"nbs"/"experiments")
    folder.mkdir(parents=True, exist_ok=True)
    path = notebook(folder/name, checks=CHECKS.format(hit=hit))
    if where == "linked":
        (own_experiments/name).symlink_to(path)
        path = own_experiments/name
    assert Notebook(path).plan(dict(seed=1)) == dict(seed=1) and not hit.exists()


def test_planning_runs_the_checks_cell_of_our_own_and_no_other(own_experiments, tmp_path):
    path = notebook(own_experiments/"toy.ipynb", checks=CHECKS.format(hit=tmp_path/"hit"))
    nb = nbformat.read(path, 4)
    nb.cells.append(nbformat.v4.new_code_cell("1/0"))
    nbformat.write(nb, path)
    with pytest.raises(ValueError, match="seed: 1, want at least 3"):
        Notebook("toy").plan(dict(seed=1))
    assert not (tmp_path/"hit").exists()
    assert Notebook("toy").plan(dict(seed="4")) == dict(seed=4) and (tmp_path/"hit").exists()


WRONG = dict(  # experiment -> (values, message)
    audit=[(dict(kind="odds"), "kind: 'odds'"), (dict(n_bins=0), "n_bins: 0"), (dict(val_file="v.npz"), "file: empty"),
           (dict(calibrators=["ets+iso"]), "calibrator: 'ets+iso', then: 'iso' is not known")],
    calibratability=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=19), "epochs: 19"), (dict(resamples=1), "resamples: 1"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"), (dict(least_ratio=0.0), "least_ratio: 0.0"),
        (dict(data="mnist"), "data: 'mnist'"), (dict(data="svhn"), "set quick to False"),
        (dict(model="resnet110"), "set quick to False"), (dict(quick=False, model="vgg16"), "model: 'vgg16'"),
        (dict(quick=False, data="20newsgroups", model="resnet110"), "texts have a 1-D CNN; leave model out"),
        (dict(shares=[1.0]), "shares: ")],
    evidence=[
        (dict(n_boot=49), "n_boot: 49"), (dict(after="best"), "after: 'best'"),
        (dict(roots=["/runs"]), "roots: ['/runs'] belongs to the full setting"),
        (dict(quick=False, table="made_up"), "leave table out"), (dict(sesoi_rank=0.0), "sesoi_rank: 0.0"),
        (dict(votes="no.npy"), "votes: no.npy does not exist")],
    loss_comparison=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=9), "epochs: 9"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"), (dict(paper="lin2025"), "paper: 'lin2025'"),
        (dict(data="mnist"), "data: 'mnist'"), (dict(data="svhn"), "set quick to False"),
        (dict(quick=False, paper="loss_study", data="svhn"), "the loss study has cifar10"),
        (dict(sesoi_logits=0.0), "sesoi_logits: 0.0"),
        (dict(others=["brier", "mblss"]), "others: loss: 'mblss' is not known; did you mean 'mbls'")],
    loss_geometry=[(dict(gammas=[]), "gammas: "), (dict(gammas=[0.0]), "gammas: "), (dict(points=99), "points: 99")],
    meta_regularization=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=9), "epochs: 9"), (dict(data="svhn"), "data: 'svhn'"),
        (dict(data="cifar100"), "set quick to False"), (dict(scope="all"), "scope: 'all'"),
        (dict(bandwidth=0.0), "bandwidth: 0.0"), (dict(meta_lr=0.0), "meta_lr: 0.0"),
        (dict(moving_lr=0.0), "moving_lr: 0.0"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"), (dict(least_gamma=0.0), "least_gamma: 0.0")],
    nll_overfitting=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=19), "epochs: 19"), (dict(gammas=[0.0]), "gammas: "),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"), (dict(sesoi_norm=0.0), "sesoi_norm: 0.0"),
        (dict(sesoi_epochs=0.0), "sesoi_epochs: 0.0"), (dict(sesoi_temperature=0.0), "sesoi_temperature: 0.0")],
    report=[(dict(least=0), "least: 0")],
    shift=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=9), "epochs: 9"), (dict(members=1), "members: 1"),
        (dict(kinds=["smog"]), "kinds: 'smog'"), (dict(gamma=0.0), "gamma: 0.0"),
        (dict(sesoi_auroc=0.0), "sesoi_auroc: 0.0")],
    toy_gaussian=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=0), "epochs: 0"), (dict(lr=0.0), "lr: 0.0"),
        (dict(gammas=[0.0]), "gammas: "), (dict(betas=[1.0]), "betas: "), (dict(betas=[.5, 1., 2.]), "betas: "),
        (dict(distance="l1"), "distance: 'l1'"), (dict(sesoi=0.0), "sesoi: 0.0")],
    train=[
        (dict(loss="focall"), "did you mean 'focal'"), (dict(n_bins=0), "n_bins: 0"),
        (dict(recipe=dict(lrr=1)), "lrr: not known"), (dict(recorders=["norm"]), "recorder"),
        (dict(model="resnet"), "model"), (dict(data="cifar"), "data"),
        (dict(loss="focal", loss_args=dict(gama=1)), "option: 'gama' is not known")],
    weighted_gradients=[
        (dict(n_seeds=-1), "n_seeds: -1"), (dict(epochs=9), "epochs: 9"), (dict(data="svhn"), "data: 'svhn'"),
        (dict(data="cifar100"), "set quick to False"), (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(model="mlp"), "model: 'mlp'"), (dict(model="resnet110"), "set quick to False"),
        (dict(sesoi_r=0.0), "sesoi_r: 0.0"), (dict(sesoi_cost=-0.1), "sesoi_cost: -0.1")],
)


def wrong_values(name):
    "Wrong parameters and the message of each; of an experiment without a row, a wrong seed."
    return WRONG.get(name, [(dict(seed=-1), "seed: -1")])


@pytest.mark.parametrize("name", list_experiments())
def test_wrong_values_are_refused_when_planned(name):
    notebook = Notebook(name)
    notebook.plan()
    for wrong, message in wrong_values(name):
        with pytest.raises(ValueError) as error:
            notebook.plan(wrong)
        assert message in str(error.value)
    with pytest.raises(ValueError, match="sweep, .*nothing was started"):
        expand(dict(notebook=name, base=wrong))


@pytest.mark.parametrize("name", list_experiments())
def test_a_running_notebook_refuses_by_the_same_cell(name):
    "Under plain papermill, where nothing has planned the run."
    nb = json.loads(list_experiments()[name].read_text())
    _summary, parameters, checks, *_ = ["".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "code"]
    wrong, message = wrong_values(name)[0]
    defaults = {name: default for name, (_, default) in read_declarations(parameters).items()}
    for namespace, expected in (defaults | wrong, message), (defaults | dict(seed="3"), "seed: '3' is a str"):
        with pytest.raises((ValueError, TypeError), match=expected):
            exec(checks, namespace | dict(In=["", parameters]))


def test_the_checks_of_a_study_are_light():
    "A wrong value is refused within a second: nothing heavy is imported for it."
    light = [name for name in list_experiments() if name not in ("train", "audit")]  # which ask what torch has
    code = f"""import sys
from calibnb.notebooks.parameters import PLANNED, PlannedValues, cells_tagged, notebook_parameters, read_notebook
for name in {light}:
    path = f'nbs/experiments/{{name}}.ipynb'
    values = {{name: default for name, (_, default) in notebook_parameters(path).items()}}
    exec(cells_tagged(read_notebook(path), 'checks')[0], {{PLANNED: PlannedValues(values)}})
print(*(m for m in ('torch', 'numpy', 'pandas', 'matplotlib', 'papermill') if m in sys.modules))"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize("path", ["nbs/experiments/loss_geometry.ipynb", "nbs/../nbs/experiments/loss_geometry.ipynb"])
def test_an_experiment_is_checked_by_whatever_path_it_is_called(monkeypatch, path):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match="points: 3, want at least 100"):
        Notebook(path).plan(dict(points=3))


def test_a_dictionary_given_whole_and_by_its_entries():
    types = read_declarations("recipe: dict = {}")
    for order in (("recipe", '{"lr": 1}'), ("recipe.epochs", "5")), (("recipe.epochs", "5"), ("recipe", '{"lr": 1}')):
        assert join_dotted(order, types) == dict(recipe=dict(lr=1, epochs=5))
    with pytest.raises(TypeError, match="recipe: 3, want a dictionary, as recipe.epochs is an entry of recipe"):
        join_dotted([("recipe.epochs", "5"), ("recipe", "3")], types)
