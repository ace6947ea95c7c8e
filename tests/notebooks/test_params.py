"What a notebook declares is read, never run: types from a table of names, checks from the package alone."

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, Optional, Union

import nbformat
import pytest
from conftest import EXPERIMENTS, ROOT

from calibnb import checks, cli
from calibnb.notebooks import list_experiments, plan_notebook
from calibnb.params import check_values, declared, join_dotted, notebook_parameters
from calibnb.sweep import expand


def notebook(path, parameters="seed: int = 0", *sources, **metadata):
    cells = [
        nbformat.v4.new_code_cell(parameters, metadata=dict(tags=["parameters"])),
        *map(nbformat.v4.new_code_cell, sources),
    ]
    kernel = dict(kernelspec=dict(name="python3", display_name="python3", language="python"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel | metadata), path)
    return path


ATTACKS = [
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0]({command!r}, shell=True)",
    "().__class__.__base__.__subclasses__()",
    "__import__('os').system({command!r})",
    "Annotated[int, __import__('os').system({command!r})]",
    'ForwardRef(\'__import__("os").system("touch {file}")\')',
    '\'__import__("os").system("touch {file}")\'',
    'list[\'__import__("os").system("touch {file}")\']',
    "Literal[__import__('os').system({command!r})]",
    "Union[int, (lambda: __import__('os').system({command!r}))()]",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_planning_runs_nothing_of_an_annotation(tmp_path, monkeypatch, capsys, attack):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path / "runs"))
    file = tmp_path / "hit"
    annotation = attack.replace("{command!r}", repr(f"touch {file}")).replace("{file}", str(file))
    path = notebook(tmp_path / "theirs.ipynb", f"seed: int = 0\nx: {annotation} = 1")
    with pytest.raises(
        ValueError, match="^parameters cell: x: annotation .*, want one of bool, int, float, str, list, dict, tuple"
    ):
        declared(f"x: {annotation} = 1")
    for argv in ["run", str(path)], ["sweep", str(path), "--dry-run"]:
        assert cli.main(argv) == 2
        err = capsys.readouterr().err
        assert "x: annotation" in err and err.count("\n") == 1
    assert not file.exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "annotation, kind, good, bad",
    [
        ("bool", bool, True, 1),
        ("int", int, 3, True),
        ("float", float, 2.5, "2"),
        ("str", str, "a", 1),
        ("list", list, [1, "a"], {}),
        ("dict", dict, {"a": 1}, []),
        ("tuple", tuple, (1,), "a"),
        ("None", None, None, 0),
        ("Any", Any, [1, "a"], None),
        ("typing.Any", Any, 3, None),
        ("list[int]", list[int], [1], ["1"]),
        ("List[float]", list[float], [1.5], [None]),
        ("typing.List[str]", list[str], ["a"], [1]),
        ("dict[str, float]", dict[str, float], {"a": 1.0}, {"a": "b"}),
        ("typing.Dict[str, list[int]]", dict[str, list[int]], {"a": [1]}, {"a": 1}),
        ("tuple[int, ...]", tuple[int, ...], (1, 2), (1, "a")),
        ("tuple[int, str]", tuple[int, str], (1, "a"), (1, 2)),
        ("Tuple[float, float]", tuple[float, float], (1.0, 2.0), (1.0,)),
        ("int | None", Optional[int], None, "a"),
        ("None | int | str", Union[int, str, None], "a", 1.5),
        ("Optional[float]", Optional[float], None, "a"),
        ("typing.Union[int, str]", Union[int, str], "a", 1.5),
        ("Literal['a', 'b']", Literal["a", "b"], "b", "c"),
        ("typing.Literal[-1, 0, True, None]", Literal[-1, 0, True, None], -1, 2),
        ("list[Literal['a'] | None]", list[Optional[Literal["a"]]], ["a", None], ["b"]),
    ],
)
def test_types_as_people_write_them(annotation, kind, good, bad):
    types = declared(f"x: {annotation} = None")
    assert types["x"][0] == kind or (kind is None and types["x"][0] is type(None))
    assert check_values(dict(x=good), types)["x"] == good
    if kind is not Any:
        with pytest.raises(TypeError, match="^x: "):
            check_values(dict(x=bad), types)


@pytest.mark.parametrize(
    "annotation",
    [
        "set[int]",
        "np.ndarray",
        "numpy.float64",
        "object",
        "Path",
        "Optional",
        "Union",
        "Literal",
        "Optional[int, str]",
        "int[3]",
        "list[int, str]",
        "dict[str]",
        "list[3]",
        "int | 3",
        "int & str",
        "Literal[1.5]",
        "Literal[x]",
        "Callable[[int], int]",
        "builtins.int",
        "typing.get_type_hints",
        "...",
        "list[...]",
        "lambda: 0",
        "tuple[..., int]",
        "Literal[()]",
        "Any[int]",
    ],
)
def test_other_types_are_refused_in_one_line(annotation):
    with pytest.raises(ValueError, match="^parameters cell: gamma: annotation ") as error:
        declared(f"seed: int = 0\ngamma: {annotation} = 1")
    told = str(error.value)
    assert ast.unparse(ast.parse(annotation)) in told and "\n" not in told  # Python 3.10 puts a space into `lambda: 0`
    assert "want one of bool, int, float, str, list, dict, tuple, None, Any, Optional, Union, Literal" in told


@pytest.mark.parametrize(
    "source, told",
    [
        ("seed: int = 0\nx: int = 1 +", "line 2"),
        ("x: int = int('3')", "x: int('3'), want a literal"),
        ("a.b: int = 3", "'a.b: int = 3', want `name: type = literal`"),
        ("x: int", "'x: int', want `name: type = literal`"),
        ("x: list[int] = [i for i in range(3)]", "x: [i for i in range(3)], want a literal"),
        ("x: int = " + "(" * 500 + "1" + ")" * 500, "parameters cell"),
    ],
)
def test_a_cell_that_cannot_be_read_is_refused_in_one_line(source, told):
    with pytest.raises(ValueError, match="^parameters cell: ") as error:
        declared(source)
    assert told in str(error.value) and "\n" not in str(error.value) and " at 0x" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"cells": 3}',
        '{"cells": [3]}',
        '{"cells": [{"cell_type": "code"}]}',
        '{"worksheets": []}',
        b"\xff\xfe\x00",
    ],
)
def test_a_file_that_is_no_notebook_is_named(tmp_path, capsys, content):
    path = tmp_path / "damaged.ipynb"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match="damaged.ipynb"):
        notebook_parameters(path)
    assert cli.main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "damaged.ipynb" in err


CHECK = """open(r'{hit}', 'w')
from calibnb.params import check_parameters
settings = check_parameters(globals())
if seed > 5: raise ValueError('seed: too large')"""


@pytest.mark.parametrize("check", ["somebody_elses:check", "check_train", ["check_train"]], ids=str)
def test_planning_runs_no_cell_and_no_check_of_somebody_elses_notebook(tmp_path, monkeypatch, check):
    hit = tmp_path / "hit"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "somebody_elses.py").write_text(f"open(r'{hit}', 'w')\ndef check(settings): open(r'{hit}', 'w')\n")
    cell = CHECK.replace("{hit}", str(hit))
    path = notebook(tmp_path / "train.ipynb", "seed: int = 0", cell, calibnb=dict(check=check))
    assert plan_notebook(path, dict(seed=9))[1] == dict(seed=9)
    assert not hit.exists() and "somebody_elses" not in sys.modules


def test_planning_runs_no_cell_of_our_own_notebooks(tmp_path, monkeypatch):
    "Their checks are functions of the package, named by the notebook; what the cell says is not run."
    home, hit = tmp_path / "home", tmp_path / "hit"
    (home / "nbs" / "experiments").mkdir(parents=True)
    (home / "settings.ini").write_text("")
    monkeypatch.setattr("calibnb.notebooks.execute.checkout", lambda: home)
    path = home / "nbs" / "experiments" / "toy.ipynb"
    parameters = notebook_source("loss_geometry")
    notebook(path, parameters, CHECK.replace("{hit}", str(hit)), calibnb=dict(check="check_loss_geometry"))
    with pytest.raises(ValueError, match="points: 3, want at least 100"):
        plan_notebook("toy", dict(points=3))
    assert plan_notebook("toy", dict(points=300))[1]["points"] == 300
    for wrong in "os:system", "check_everything", "declared", "import_module":
        notebook(path, parameters, CHECK.replace("{hit}", str(hit)), calibnb=dict(check=wrong))
        with pytest.raises(ValueError, match="toy.ipynb: its metadata name the check"):
            plan_notebook("toy")
    assert not hit.exists()


def notebook_source(name):
    (cell,) = [
        c for c in nbformat.read(EXPERIMENTS / f"{name}.ipynb", 4).cells if "parameters" in c.metadata.get("tags", [])
    ]
    return cell.source


WRONG = dict(
    audit=[(dict(kind="odds"), "kind: 'odds'"), (dict(n_bins=0), "n_bins: 0"), (dict(val_file="v.npz"), "file: empty")],
    calibratability=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=19), "epochs: 19"),
        (dict(resamples=1), "resamples: 1"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(least_ratio=0.0), "least_ratio: 0.0"),
        (dict(data="mnist"), "data: 'mnist'"),
        (dict(data="svhn"), "set quick to False"),
    ],
    evidence=[
        (dict(n_boot=49), "n_boot: 49"),
        (dict(after="best"), "after: 'best'"),
        (dict(roots=["/runs"]), "roots: ['/runs'] belongs to the full setting"),
        (dict(quick=False, table="here"), "leave table out"),
        (dict(sesoi_rank=0.0), "sesoi_rank: 0.0"),
    ],
    loss_comparison=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=9), "epochs: 9"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(paper="lin2025"), "paper: 'lin2025'"),
        (dict(data="mnist"), "data: 'mnist'"),
        (dict(data="svhn"), "set quick to False"),
        (dict(quick=False, paper="loss_study", data="svhn"), "the loss study has cifar10"),
        (dict(sesoi_logits=0.0), "sesoi_logits: 0.0"),
        (dict(others=["brier", "mblss"]), "others: loss: 'mblss' is not known; did you mean 'mbls'"),
    ],
    loss_geometry=[(dict(gammas=[]), "gammas: "), (dict(gammas=[0.0]), "gammas: "), (dict(points=99), "points: 99")],
    meta_regularization=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=9), "epochs: 9"),
        (dict(data="svhn"), "data: 'svhn'"),
        (dict(data="cifar100"), "set quick to False"),
        (dict(scope="all"), "scope: 'all'"),
        (dict(bandwidth=0.0), "bandwidth: 0.0"),
        (dict(meta_lr=0.0), "meta_lr: 0.0"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(least_gamma=0.0), "least_gamma: 0.0"),
    ],
    nll_overfitting=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=19), "epochs: 19"),
        (dict(gammas=[0.0]), "gammas: "),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(sesoi_norm=0.0), "sesoi_norm: 0.0"),
        (dict(sesoi_epochs=0.0), "sesoi_epochs: 0.0"),
    ],
    report=[(dict(least=0), "least: 0")],
    shift=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=9), "epochs: 9"),
        (dict(members=1), "members: 1"),
        (dict(kinds=["smog"]), "kinds: 'smog'"),
        (dict(gamma=0.0), "gamma: 0.0"),
        (dict(sesoi_auroc=0.0), "sesoi_auroc: 0.0"),
    ],
    toy_gaussian=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=0), "epochs: 0"),
        (dict(lr=0.0), "lr: 0.0"),
        (dict(gammas=[0.0]), "gammas: "),
        (dict(betas=[1.0]), "betas: "),
        (dict(distance="l1"), "distance: 'l1'"),
        (dict(sesoi=0.0), "sesoi: 0.0"),
    ],
    train=[
        (dict(loss="focall"), "did you mean 'focal'"),
        (dict(n_bins=0), "n_bins: 0"),
        (dict(recipe=dict(lrr=1)), "lrr: not known"),
        (dict(recorders=["norm"]), "recorder"),
        (dict(model="resnet"), "model"),
        (dict(data="cifar"), "data"),
        (dict(loss="focal", loss_args=dict(gamma=-1)), "gamma: -1"),
    ],
    weighted_gradients=[
        (dict(n_seeds=0), "n_seeds: 0"),
        (dict(epochs=9), "epochs: 9"),
        (dict(data="svhn"), "data: 'svhn'"),
        (dict(data="cifar100"), "set quick to False"),
        (dict(quick_data="mnist"), "quick_data: 'mnist'"),
        (dict(sesoi_r=0.0), "sesoi_r: 0.0"),
        (dict(sesoi_cost=-0.1), "sesoi_cost: -0.1"),
    ],
)


@pytest.mark.parametrize("name", list_experiments())
def test_the_defaults_of_an_experiment_can_be_planned(name):
    plan_notebook(name)
    assert WRONG[name]


@pytest.mark.parametrize(
    "name, wrong, told", [(name, wrong, told) for name, cases in WRONG.items() for wrong, told in cases]
)
def test_wrong_values_are_refused_when_planned(name, wrong, told):
    with pytest.raises(ValueError) as error:
        expand(dict(notebook=name, base=wrong))
    assert told in str(error.value)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_an_experiment_names_its_check_and_calls_it(path):
    nb = nbformat.read(path, 4)
    name = nb.metadata["calibnb"]["check"]
    assert name in checks.__all__ and name == f"check_{path.stem}"
    cell = next(c for c in nb.cells[1:] if c.cell_type == "code" and "check_parameters(globals())" in c.source)
    assert f"from calibnb.checks import {name}" in cell.source
    assert f"{name}(settings)" in cell.source and "raise " not in cell.source


HEAVY = "torch", "numpy", "pandas", "matplotlib", "papermill"


def test_the_check_of_a_study_is_light():
    "A wrong value is refused within a second: nothing heavy is imported for it."
    code = f"import sys, calibnb.checks; print(*(m for m in {HEAVY} if m in sys.modules))"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize("name", list_experiments())
def test_a_running_notebook_refuses_by_the_same_check(name):
    "The very cell of an experiment, with a value that cannot be right."
    nb = json.loads(Path(list_experiments()[name]).read_text())
    code = ["".join(c["source"]) for c in nb["cells"] if c["cell_type"] == "code"]
    wrong, told = WRONG[name][0]
    space = {n: default for n, (_, default) in declared(code[0]).items()} | wrong | dict(In=["", code[0]])
    with pytest.raises(ValueError, match=told):
        exec(code[1], space)


@pytest.mark.parametrize(
    "path", ["nbs/experiments/loss_geometry.ipynb", "nbs/../nbs/experiments/loss_geometry.ipynb"]
)
def test_an_experiment_is_checked_by_whatever_path_it_is_called(monkeypatch, path):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match="points: 3, want at least 100"):
        plan_notebook(path, dict(points=3))


def test_a_dictionary_given_whole_and_by_its_entries():
    types = declared("recipe: dict = {}")
    for order in (("recipe", '{"lr": 1}'), ("recipe.epochs", "5")), (("recipe.epochs", "5"), ("recipe", '{"lr": 1}')):
        assert join_dotted(order, types) == dict(recipe=dict(lr=1, epochs=5))
    with pytest.raises(TypeError, match="recipe: 3, and recipe.epochs too, want a dictionary"):
        join_dotted([("recipe.epochs", "5"), ("recipe", "3")], types)
