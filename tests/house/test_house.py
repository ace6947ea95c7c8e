"The rules of the house. A test that fails names the place, and its docstring says what to do."
import ast
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import papermill
import pytest
from conftest import ROOT, patience

import calibnb
from calibnb.notebooks.parameters import notebook_parameters

NOTEBOOKS = sorted(p for p in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
EXPERIMENTS = sorted((ROOT/"nbs"/"experiments").glob("*.ipynb"))
WINGS = {  # the wings that each may import from
    "core": "", "processes": "", "files": "core", "metrics": "core", "losses": "core metrics",
    "posthoc": "core metrics", "plots": "metrics losses", "evaluate": "core metrics posthoc",
    "data": "core", "models": "core data",
    "train": "core processes files metrics losses posthoc data models",
    "meta": "core processes losses data models train",
    "runs": "core processes metrics losses posthoc evaluate data models train meta",
    "studies": "core metrics losses posthoc evaluate data models train meta runs",
    "notebooks": "core plots processes metrics runs studies",
    "widgets": "core metrics losses posthoc evaluate plots runs",
    "sweep": "core processes data train runs studies notebooks",
    "cli": "core processes files metrics posthoc evaluate data train runs studies notebooks sweep",
}


def default_exp(path):
    "The module that a notebook exports, e.g. 'metrics.bins'; 'metrics.__init__' for a door; None if it exports none."
    found = re.search(r"#\|\s*default_exp (\S+?)(\\n)?\"", path.read_text())
    return found and found[1]


MODULES = {name: p for p in NOTEBOOKS if (name := default_exp(p))}
DOORS = [m.removesuffix(".__init__") for m in MODULES if m.endswith(".__init__")]


def cells(path, kind="code"):
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def tracked():
    "Files git knows or would take."
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    files = [p for line in out.stdout.splitlines() if (p := ROOT/line).is_file()]
    return files or pytest.skip("not a git checkout")


def file_of(module):
    return ROOT/"calibnb"/f"{module.replace('.', '/')}.py"


TREES = {module: ast.parse(file_of(module).read_text()) for module in MODULES}


def place(module):
    "Where a module stands in the sorted listing of the notebooks; a door stands for its wing, so it comes last."
    parts = MODULES[module].relative_to(ROOT/"nbs").parts
    return parts[0].removesuffix(".ipynb"), module.endswith("__init__"), parts[-1]


def imported(module):
    "Yield the modules of the package that a module uses, by import or as `calibnb.x`."
    package = ["calibnb", *module.split(".")[:-1]]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            path = [*base, *(node.module.split(".") if node.module else [])]
            if path[0] == "calibnb":
                for name in node.names:
                    yield named(".".join([*path[1:], name.name])) or named(".".join(path[1:]))
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("calibnb."):
                    yield named(name.name.removeprefix("calibnb."))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "calibnb" and named(node.attr):
            yield named(node.attr)


def named(path):
    "The module at a dotted path: a room, or the door of a wing."
    return next((name for name in (path, f"{path}.__init__") if name in MODULES), None)


def test_a_room_imports_from_rooms_above_it_and_from_wings_of_the_list():
    "Move the room down the listing of nbs/, or what it needs up; a new arrow between wings goes into `WINGS`."
    for module in MODULES:
        wing = module.split(".")[0]
        for other in set(imported(module)) - {None}:
            home = other.split(".")[0]
            assert home in (wing, *WINGS[wing].split()), f"{module} imports {other}"
            own_room = module == f"{wing}.__init__" and home == wing
            assert own_room or place(other) < place(module), f"{module} imports {other}, which is not above it"


WHOLE = {"arange", "randint", "randperm"}  # of whole numbers, whatever the default dtype
FACTORIES = WHOLE | {"as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn",
                     "scalar_tensor", "tensor", "zeros"}


def test_a_new_tensor_has_a_dtype_and_a_device():
    "Torch's defaults belong to the whole process: write both; `**kind` is believed to name them."
    for module in MODULES:
        for node in ast.walk(TREES[module]):
            function = node.func if isinstance(node, ast.Call) else None
            if not isinstance(function, ast.Attribute) or getattr(function.value, "id", "") != "torch":
                continue
            given = {k.arg for k in node.keywords}
            if function.attr in FACTORIES and None not in given:
                wanted = {"device"} if function.attr in WHOLE else {"device", "dtype"}
                assert wanted <= given, f"{module}, line {node.lineno}: torch.{function.attr}"


def test_a_base_class_has_two_subclasses():
    "Write one class instead of a base with a single subclass, or a function instead of a third level."
    bases = {node.name: [b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases]
             for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    def depth(name):
        return 1 + max(map(depth, bases[name]), default=0) if name in bases else 0
    counts = Counter(base for names in bases.values() for base in names)
    alone = {name for name in bases if counts[name] == 1} | {name for name in bases if depth(name) > 3}
    assert alone == {"RunError", "Trainer", "Stepper"}  # users catch the first and subclass the others


def test_every_module_has_its_notebook():
    "Write a room in nbs/ instead of a file in calibnb/."
    python = {p for p in (ROOT/"calibnb").rglob("*.py")} - {ROOT/"calibnb"/"__init__.py", ROOT/"calibnb"/"_modidx.py"}
    python -= {ROOT/"calibnb"/"runs"/"__main__.py"}  # what `python -m calibnb.runs` starts
    assert python == {file_of(module) for module in MODULES}
    assert {module.split(".")[0] for module in MODULES} == set(WINGS)
    assert all(getattr(calibnb, name) is not None for name in calibnb.__all__) and set(WINGS) <= set(calibnb.__all__)


MADE_BY_SYNC = [ROOT/name for name in ("calibnb/_modidx.py", "README.md", "runs/README.md", "docs/house.svg",
                                       "docs/checks.md", "nbs/claims.csv")]
MADE_BY_SYNC += [*map(file_of, MODULES), *(ROOT/"calibnb").rglob("*.pyi"), *NOTEBOOKS]


def test_committed_is_what_sync_makes(tmp_path):
    "Run `make sync`: exports, stubs, clean notebooks, sources, README."
    (tmp_path/"runs").mkdir()
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md", "Makefile", "runs/README.md"):
        shutil.copy(ROOT/name, tmp_path/name)
    (tmp_path/"runs"/"gallery").symlink_to(ROOT/"runs"/"gallery")
    for name in ("nbs", "calibnb", "docs"):
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT/name, tmp_path/name, ignore=ignored)
    for module in MODULES:
        (tmp_path/file_of(module).relative_to(ROOT)).unlink()
    command = ["make", "sync", f"BIN={Path(sys.executable).parent}", "DEV="]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=patience(120), capture_output=True)
    differ = [p for p in MADE_BY_SYNC if p.read_text() != (tmp_path/p.relative_to(ROOT)).read_text()]
    assert not differ, "run `make sync`"


def test_a_public_name_is_documented_and_at_its_door():
    "Write a docstring; name a room unlike the names of its door; list a name in the first notebook of the wing."
    for module in MODULES:
        live = importlib.import_module(f"calibnb.{module}".removesuffix(".__init__"))
        items = {name: getattr(live, name) for name in getattr(live, "__all__", ())}
        missing = [name for name, item in items.items()
                   if (inspect.isfunction(item) or inspect.isclass(item)) and not inspect.getdoc(item)]
        assert not missing, f"{module}: no docstring"
    for door in DOORS:
        rooms = {m.split(".")[1] for m in MODULES if m.startswith(f"{door}.")}
        assert not rooms & set(getattr(importlib.import_module(f"calibnb.{door}"), "__all__", ())), door


def test_a_door_gives_the_names_of_its_stub():
    "Run `make sync`, which writes the stubs for editors."
    for stub in (ROOT/"calibnb").glob("*/__init__.pyi"):
        door = stub.parent.name
        live, body = importlib.import_module(f"calibnb.{door}"), ast.parse(stub.read_text()).body
        rooms = {name.name: node.module for node in body if isinstance(node, ast.ImportFrom) and node.level
                 for name in node.names}
        metrics = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        assert sorted([*rooms, *metrics]) == sorted(live.__all__)
        for name, node in metrics.items():
            arguments = [*node.args.args, *node.args.kwonlyargs]
            assert [a.arg for a in arguments] == list(inspect.signature(getattr(live, name)).parameters)
        for name, room in rooms.items():
            assert getattr(live, name) is getattr(importlib.import_module(f"calibnb.{door}.{room}"), name)
        with pytest.raises(AttributeError, match="no_such_name"):
            live.no_such_name


def test_experiments_declare_their_parameters():
    "One cell tagged `parameters`, then one tagged `checks`; `Experiment(...)`; findings in the last cell."
    for path in EXPERIMENTS:
        types = notebook_parameters(path)
        assert types["quick"] == (bool, True) and types["seed"] == (int, 0)
        names = papermill.inspect_notebook(str(path)).keys()
        assert types.keys() == names, f"{path.stem}: papermill reads other names: a second `=` on a line?"
        code = [source(c) for c in cells(path)]
        assert "show_summary()" in code[0], f"{path.stem}: the answer stands above the parameters"
        assert "check_parameters(globals())" in code[2], f"{path.stem}: the cell after the parameters checks them"
        assert cells(path)[2]["metadata"].get("tags") == ["checks"], f"{path.stem}: a plan runs the cell with this tag"
        assert f"Experiment('{path.stem}', settings)" in "".join(code)
        assert "experiment.findings(" in code[-1] and "found=" in code[-1], f"{path.stem}: what was found, in words"


def test_the_gallery_is_of_today():
    "Run `make gallery` after a change of an experiment."
    for path in sorted((ROOT/"runs"/"gallery").rglob("*.ipynb")):
        shown = [source(c) for c in cells(path) if not source(c).startswith("# Parameters")]
        assert shown == [source(c) for c in cells(ROOT/"nbs"/"experiments"/path.name)], f"{path.stem}: `make gallery`"
        outputs = [o for c in cells(path) for o in c["outputs"]]
        assert not [o for o in outputs if o.get("name") == "stderr" or o["output_type"] == "error"], path.stem


@pytest.mark.parametrize("path", MODULES.values(), ids=MODULES)
def test_a_room_shows_what_its_code_prints_today(path):
    "Run `make sync`, which stores outputs; a room without an output needs an example that one sees."
    sys.path.insert(0, str(ROOT/"docs"))
    import outputs
    assert not outputs.is_stale(path), "its outputs are older than its code: make sync"
    assert outputs.problem(path, json.loads(path.read_text())) == ""


def test_a_styled_table_is_stored_alike_each_time(monkeypatch):
    monkeypatch.syspath_prepend(ROOT/"docs")
    import outputs
    import pandas as pd
    one, two = (pd.DataFrame(dict(ece=[.1])).style.to_html() for _ in range(2))
    assert one != two and outputs.with_steady_ids(one) == outputs.with_steady_ids(two) != one


def test_every_source_of_the_list_is_cited():
    "Delete its row of nbs/sources.csv, or cite it by its key."
    sys.path.insert(0, str(ROOT/"docs"))
    import sources
    known = sources.known_sources(ROOT)
    text = "\n".join(source(c) for p in NOTEBOOKS for kind in ("code", "markdown") for c in cells(p, kind)
                     if c["id"] != sources.CELL)
    assert sources.cited(text, known) == list(known)
    for wrong in ("[Nobody 2018]", "[Guo et al. 2017]", "[Guo 2017; Lin and Xu 2025]"):
        with pytest.raises(ValueError, match="nbs/sources.csv does not have it"):
            sources.cited(wrong, known)


def test_no_big_file_and_no_path_of_this_machine():
    for path in tracked():
        assert path.stat().st_size < (600_000 if path.parent.name == "gallery" else 1_500_000), f"{path} is large"
        text = path.read_bytes().decode("utf-8", "ignore")
        assert f"{ROOT}/" not in text and f"{Path.home()}/" not in text, f"{path} holds a path of this machine"


def test_version_is_one():
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT/"settings.ini")
    assert calibnb.__version__ == ini["DEFAULT"]["version"]
