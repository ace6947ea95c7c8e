"The rules of the house, held by tests: wings, notebooks, exports, README, sizes, names."
import ast
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import papermill
import pytest
from conftest import ROOT, patience

import calibnb
from calibnb.cli.command import parser
from calibnb.cli.run import _params_of
from calibnb.notebooks.execute import Notebook
from calibnb.notebooks.parameters import notebook_parameters

NOTEBOOKS = sorted(p for p in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
WINGS = {  # the wings that each may import from
    "core": "", "processes": "", "metrics": "core", "losses": "core metrics",
    "posthoc": "core metrics", "plots": "metrics losses", "evaluate": "core metrics posthoc",
    "data": "core", "models": "core data",
    "train": "core processes metrics losses posthoc data models", "meta": "core processes losses data models train",
    "runs": "core processes metrics losses posthoc evaluate data models train meta",
    "notebooks": "core processes metrics evaluate runs", "params": "notebooks",
    "widgets": "core metrics losses posthoc evaluate plots runs",
    "sweep": "core processes data train runs notebooks",
    "cli": "core processes posthoc evaluate data runs notebooks sweep",
}


def default_exp(path):
    "The module that a notebook exports, e.g. 'metrics.bins'; 'metrics.__init__' for a door; None if it exports none."
    found = re.search(r"#\|\s*default_exp (\S+?)(\\n)?\"", path.read_text())
    return found and found[1]


MODULES = {name: p for p in NOTEBOOKS if (name := default_exp(p))}
DOORS = [m.removesuffix(".__init__") for m in MODULES if m.endswith(".__init__")]
EXPERIMENTS = sorted((ROOT/"nbs"/"experiments").glob("*.ipynb"))
BIN = Path(sys.executable).parent


def cells(path, kind="code"):
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def exported(path):
    return [source(c) for c in cells(path) if re.match(r"#\|\s*export", source(c))]


def tracked():
    "Files git knows or would take."
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    files = [p for line in out.stdout.splitlines() if (p := ROOT/line).is_file()]
    return files or pytest.skip("not a git checkout")


def file_of(module):
    return ROOT/"calibnb"/f"{module.replace('.', '/')}.py"


def place(module):
    "Where a module stands in the sorted listing of the notebooks; a door stands for its wing, so it comes last."
    parts = MODULES[module].relative_to(ROOT/"nbs").parts
    return parts[0].removesuffix(".ipynb"), module.endswith("__init__"), parts[-1]


def imported(module, source=None):
    "Modules of the package that a module uses, by import or as `calibnb.x`."
    package = ["calibnb", *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(source or file_of(module).read_text())):
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


def breaches(module, source=None):
    "What a module must not import: what stands below it, and wings without an arrow."
    wing = module.split(".")[0]
    for other in set(imported(module, source)) - {None}:
        home = other.split(".")[0]
        if home != wing and home not in WINGS[wing].split():
            yield f"{module} imports {other}, and no arrow leads from {wing} to {home}"
        own_room = module == f"{wing}.__init__" and home == wing
        if not own_room and place(other) >= place(module):
            yield f"{module} imports {other}, which does not stand above it"


def test_imports_go_up_the_listing():
    assert [breach for module in MODULES for breach in breaches(module)] == []


def test_no_room_bears_the_name_of_what_its_door_hands_out():
    for module in MODULES:
        if module.endswith(".__init__"):
            wing = module.removesuffix(".__init__")
            rooms = {m.split(".")[1] for m in MODULES if m.startswith(f"{wing}.")}
            assert not rooms & set(getattr(importlib.import_module(f"calibnb.{wing}"), "__all__", ()))


WHOLE = {"arange", "randint", "randperm"}  # of whole numbers, whatever the default dtype
FACTORIES = WHOLE | {"as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn",
                     "scalar_tensor", "tensor", "zeros"}


def factory(node):
    "The torch function that a call makes a new tensor by, and the names of its arguments."
    func = getattr(node, "func", None) if isinstance(node, ast.Call) else None
    of_torch = isinstance(func, ast.Attribute) and getattr(func.value, "id", "") == "torch"
    if of_torch and func.attr in FACTORIES:
        return func.attr, {k.arg for k in node.keywords}
    return "", set()


def test_new_tensors_say_what_and_where_they_are():
    "No result may depend on torch's default dtype or device; `**kind` is believed to name both."
    for module in MODULES:
        for node in ast.walk(ast.parse(file_of(module).read_text())):
            where = f"{module}, line {getattr(node, 'lineno', 0)}: torch"
            name, given = factory(node)
            if name and None not in given:
                assert "device" in given, f"{where}.{name} without a device"
                assert "dtype" in given or name in WHOLE, f"{where}.{name} without a dtype"
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                name, given = factory(node.left)
                assert name not in WHOLE or "dtype" in given, f"{where}.{name}(...)/x without a dtype"


def test_every_module_has_its_notebook():
    python = {p for p in (ROOT/"calibnb").rglob("*.py")} - {ROOT/"calibnb"/"__init__.py", ROOT/"calibnb"/"_modidx.py"}
    python -= {ROOT/"calibnb"/"train"/"__main__.py"}  # what `python -m calibnb.train` starts
    assert python == {file_of(module) for module in MODULES}
    assert {module.split(".")[0] for module in MODULES} == set(WINGS)
    assert set(WINGS) <= set(calibnb.__all__)


MADE_BY_SYNC = [ROOT/name for name in ("calibnb/_modidx.py", "README.md", "runs/README.md", "docs/house.svg",
                                       "docs/checks.md")]
MADE_BY_SYNC += [*map(file_of, MODULES), *(ROOT/"calibnb").rglob("*.pyi"), *NOTEBOOKS]


def test_committed_is_what_sync_makes(tmp_path):
    "The notebooks are exported and cleaned again somewhere else, README included."
    (tmp_path/"runs").mkdir()
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md", "Makefile", "runs/README.md"):
        shutil.copy(ROOT/name, tmp_path/name)
    for name in ("nbs", "calibnb", "docs"):
        ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
        shutil.copytree(ROOT/name, tmp_path/name, ignore=ignored)
    for module in MODULES:
        (tmp_path/file_of(module).relative_to(ROOT)).unlink()
    command = ["make", "sync", f"BIN={BIN}", "DEV="]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=patience(120), capture_output=True)
    differ = [p for p in MADE_BY_SYNC if p.read_text() != (tmp_path/p.relative_to(ROOT)).read_text()]
    assert not differ, "run `make sync`"


def test_notebooks_are_clean():
    assert not [p for p in NOTEBOOKS for c in cells(p) if c["outputs"] or c["execution_count"] is not None]


def test_public_names_are_documented():
    for module in MODULES:
        live = importlib.import_module(f"calibnb.{module}".removesuffix(".__init__"))
        for name in getattr(live, "__all__", ()):
            item = getattr(live, name)
            if inspect.isfunction(item) or inspect.isclass(item):
                assert inspect.getdoc(item), f"{module}.{name} has no docstring"


def test_experiments_declare_their_parameters():
    for path in EXPERIMENTS:
        types = notebook_parameters(path)
        assert types["quick"] == (bool, True) and types["seed"] == (int, 0)
        names = papermill.inspect_notebook(str(path)).keys()
        assert types.keys() == names, f"{path.stem}: papermill reads other names: a second `=` on a line?"
        code = [source(c) for c in cells(path)]
        assert "check_parameters(globals())" in code[1], f"{path.stem}: the cell after the parameters checks them"
        assert cells(path)[1]["metadata"].get("tags") == ["checks"], f"{path.stem}: a plan runs the cell with this tag"
        assert f"Experiment('{path.stem}', settings)" in "".join(code)
        assert "experiment.findings(" in code[-1]


def test_version_is_one():
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT/"settings.ini")
    assert calibnb.__version__ == ini["DEFAULT"]["version"]


def printed(code):
    "By a process of its own."
    command, wait = [sys.executable, "-c", code], patience(60)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=wait).stdout.strip()


def loaded_by(imported, among):
    "Those of the heavy modules that an import brings, in a new process."
    return printed(f"import sys, {imported}; print(*(m for m in {among} if m in sys.modules))")


HEAVY = ("torch", "sklearn", "pandas", "pydantic", "matplotlib", "torchvision", "torchmetrics", "papermill")


def test_import_is_light():
    doors = ", ".join(f"calibnb.{door}" for door in DOORS)
    assert loaded_by(f"calibnb, {doors}", HEAVY) == ""


NEEDED = {
    "losses import make_loss, focal_loss": "torch", "metrics import ece": "torch",
    "data import load_data, Splits": "torch", "models import make_model": "torch",
    "train import Trainer": "torch pydantic", "runs import get_run": "torch pydantic",
    "sweep import sweep": "torch pydantic", "notebooks import run_notebook, Experiment": "torch pydantic"}
EACH_ALONE = """
import os, sys, torch
for names in {names}:
    child = os.fork()  # of a process that has torch, which takes longer than all the rest
    if not child:
        exec("from calibnb." + names)
        print(*(m for m in {among} if m in sys.modules), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, names
"""


def test_names_bring_what_they_need():
    "scikit-learn comes with calibrators; pandas, matplotlib and papermill when a table, a figure, a notebook is made."
    lines = printed(EACH_ALONE.format(names=[*NEEDED], among=HEAVY)).splitlines()
    assert dict(zip(NEEDED, lines, strict=True)) == NEEDED


def towers(sources):
    "Bases with a single subclass, and classes with more than two bases above them, of the sources of modules."
    bases = {node.name: [b.id if isinstance(b, ast.Name) else getattr(b, "attr", "") for b in node.bases]
             for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}
    def depth(name):
        return 1 + max(map(depth, bases[name]), default=0) if name in bases else 0
    counts = Counter(base for names in bases.values() for base in names)
    return {name for name in bases if counts[name] == 1} | {name for name in bases if depth(name) > 3}


def test_a_class_is_not_built_as_a_tower():
    "One class is one class: a base has two subclasses or more, and a chain at most three classes."
    meant = {"RunError",            # users catch it for all that goes wrong in a run
             "Trainer", "Stepper"}  # users subclass them; ours trains gamma-Net
    assert towers(file_of(module).read_text() for module in MODULES) == meant
    assert towers(["class A: pass", "class B(A): pass"]) == {"A"}
    assert towers(["class A: pass\nclass B(A): pass\nclass C(A): pass\nclass D(B): pass\nclass E(B): pass\n"
                   "class F(D): pass\nclass G(D): pass"]) == {"F", "G"}


def test_a_door_hands_out_what_its_stub_shows():
    "Each name is its room's, and the stub for editors names the same room."
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


@pytest.mark.parametrize("old, new", [
    ("names", "core.names"), ("evaluate.AS_GIVEN", "evaluate.UNCALIBRATED"),
    ("evaluate.Worth", "evaluate.ShiftResult"), ("train.KeptEpoch", "train.BestEpoch"),
])
def test_an_old_name_is_the_new_one_and_warns(old, new):
    def look_up(name):
        wing, _, name = f"calibnb.{name}".rpartition(".")
        return getattr(importlib.import_module(wing), name)
    with pytest.warns(DeprecationWarning, match=f"calibnb.{old} is now calibnb.{new}"):
        found = look_up(old)
    assert found is look_up(new)


def test_names_at_the_top_are_there():
    assert all(getattr(calibnb, name) is not None for name in calibnb.__all__)


def test_checking_parameters_is_light():
    "A wrong parameter is refused before anything heavy is imported."
    assert loaded_by("calibnb.notebooks.parameters", ("torch", "numpy", "pandas", "matplotlib", "papermill")) == ""


def test_the_gallery_is_of_today():
    for path in sorted((ROOT/"runs"/"gallery").rglob("*.ipynb")):
        shown = [source(c) for c in cells(path) if not source(c).startswith("# Parameters")]
        assert shown == [source(c) for c in cells(ROOT/"nbs"/"experiments"/path.name)], f"{path.stem}: `make gallery`"
        outputs = [o for c in cells(path) for o in c["outputs"]]
        assert not [o for o in outputs if o.get("name") == "stderr" or o["output_type"] == "error"], path.stem


def test_no_big_file_and_no_path_of_this_machine():
    for path in tracked():
        assert path.stat().st_size < 1_500_000, f"{path} is large"
        if path.parent.name == "gallery":
            assert path.stat().st_size < 600_000, f"{path} is large for the gallery"
        text = path.read_bytes().decode("utf-8", "ignore")
        assert f"{ROOT}/" not in text and f"{Path.home()}/" not in text, f"{path} holds a path of this machine"


def test_the_oldest_python_can_read_it_and_no_name_is_unused_or_undefined():
    "Of notebooks, too: syntax that is newer than the least version of settings.ini is refused."
    ini = ConfigParser(delimiters=["="])
    ini.read(ROOT/"settings.ini")
    oldest = "py" + ini["DEFAULT"]["min_python"].replace(".", "")
    for select, places in ("E9", ["docs", "nbs"]), ("F,E9", ["calibnb", "tests", "benchmarks", "setup.py"]):
        command = [str(BIN/"ruff"), "check", "--isolated", "--select", select, "--target-version", oldest, *places]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    "Beside a clone called calibnb, Python finds that folder first; an editable install must be found all the same."
    clone, site, beside = tmp_path/"clone", tmp_path/"site", tmp_path/"beside"
    (beside/"calibnb").mkdir(parents=True)
    site.mkdir()
    shutil.copytree(ROOT/"calibnb", clone/"calibnb", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT/name, clone/name)
    build = "import setuptools.build_meta as b, sys; b.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(site)], cwd=clone, check=True, capture_output=True, timeout=120)
    shutil.unpack_archive(next(site.glob("*.whl")), site, "zip")
    found = ("import site, sys; from importlib.util import find_spec; site.addsitedir(sys.argv[1]); "
             "print(find_spec('calibnb').origin)")
    command = [sys.executable, "-S", "-c", found, str(site)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ended = subprocess.run(command, cwd=beside, env=env, capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == str(clone/"calibnb"/"__init__.py"), ended


# a Python whose pip says as much as the real one, a hundred lines and more, and brings the uv that lies beside it
FAKE_PYTHON = r"""#!/bin/sh
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip install"*" uv") cp uv .venv/bin/uv ;;
  *"pip install"*)
    echo "pip $*" >> asked
    for i in $(seq 49); do printf "Collecting package$i\n  Downloading package$i-1.0-py3-none-any.whl ($i.5 MB)\n"; done
    echo "Downloading torch-2.9-cp311-cp311-manylinux_2_28_x86_64.whl (899.8 MB)"
    echo "Using cached nvidia_cudnn-9.1-py3-none-manylinux_2_27_x86_64.whl (706.8 MB)"
    echo "Installing collected packages: a, b, c"
    test -z "$PIP_BREAKS" || { echo "ERROR: no space left on device" >&2; exit 3; }
    echo "Successfully installed a-1 b-1 c-1" ;;
esac
"""
FAKE_UV = r"""#!/bin/sh
{
  echo "uv $*" >> asked
  echo "Resolved 149 packages in 5.37s"
  echo "   Building calibnb @ file:///here"
  for i in $(seq 49); do printf "Downloading package$i ($i.5MiB)\n Downloaded package$i\n"; done
  echo "Downloading torch (514.2MiB)"
  echo "Downloading nvidia-cudnn-cu13 (1.1GiB)"
  test -z "$UV_BREAKS" || { echo "error: Failed to fetch torch"; exit 2; }
  echo "Installed 149 packages in 1.13s"
  for i in $(seq 9); do echo " + package$i==1.0"; done
} >&2
"""


@pytest.fixture
def clone(tmp_path):
    "What `make` needs to make an environment, with a Python and a uv that only say what they would do."
    for name in ("Makefile", "setup.py", "settings.ini", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT/name, tmp_path/name)
    for name, text in dict(python=FAKE_PYTHON, uv=FAKE_UV).items():
        (tmp_path/name).write_text(text)
        (tmp_path/name).chmod(0o755)
    return tmp_path


def make(clone, *arguments, **env):
    "`make` there, as from a shell."
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "UV")}
    command = ["make", "--no-print-directory", "PYTHON=./python", *arguments]
    return subprocess.run(command, cwd=clone, env=own | env, capture_output=True, text=True, timeout=patience(60))


def asked(clone):
    "The installations that were asked for: by what, of what."
    lines = (clone/"asked").read_text().splitlines()
    assert all("-c constraints.txt" in line for line in lines)
    return [(line.split()[0], line.split()[-1]) for line in lines]


def test_make_installs_by_uv_and_adds_only_what_is_missing(clone):
    first, second = make(clone, ".venv/.notebooks"), make(clone, ".venv/.dev")
    again = make(clone, ".venv/.notebooks", ".venv/.dev")
    assert not (first.returncode or second.returncode or again.returncode), (first, second, again)
    assert asked(clone) == [("uv", ".[notebooks]"), ("uv", ".[dev]")] and "up to date" in again.stdout
    assert "making .venv" in first.stdout and "making .venv" not in second.stdout
    a_minute_ago = time.time() - 60
    os.utime(clone/".venv"/".dev", (a_minute_ago, a_minute_ago))  # file systems tell times apart by some ms only
    (clone/"constraints.txt").touch()
    make(clone, ".venv/.dev")
    assert asked(clone)[2:] == [("uv", ".[dev]")]


def test_make_demo_sets_parameters_that_its_studies_have():
    kept = [word for file in (".venv/.made", ".venv/.notebooks") for word in ("-o", file)]
    args = parser().parse_args(shlex.split(make(ROOT, "-n", *kept, "demo").stdout)[1:])
    for name in args.experiments:
        assert Notebook(name).plan(_params_of(name, dict(args.parameters), args.experiments))["n_seeds"] == 5


def test_make_gpu_looks_for_a_gpu_before_it_installs(clone):
    ended = make(clone, "gpu", "HAS_CUDA=false")
    assert ended.returncode == 2 and "no NVIDIA GPU is here" in ended.stdout and len(ended.stdout.splitlines()) == 1
    assert not (clone/"asked").exists() and not (clone/".venv").exists()
    for wanted in "HAS_CUDA=true", "DRY=1":
        (clone/".venv"/".dev").unlink(missing_ok=True)
        (clone/"asked").unlink(missing_ok=True)
        make(clone, "gpu", wanted)
        assert ("uv", ".[dev]") in asked(clone)


def test_make_installs_nothing_into_the_environment_of_another_checkout(clone, tmp_path_factory):
    "But into one of its own that lies on another disk."
    others = tmp_path_factory.mktemp("others")
    (others/"bin").mkdir()
    (clone/".venv").symlink_to(others)
    for made_by in None, "/another\n":
        if made_by:
            (others/".made").write_text(made_by)
        made = make(clone, ".venv/.notebooks")
        assert made.returncode and ".venv is a link" in made.stdout + made.stderr, made
        assert not (clone/"asked").exists() and "-m venv" not in made.stdout
    (clone/".venv").unlink()
    (clone/".venv").symlink_to(tmp_path_factory.mktemp("scratch"))
    assert not make(clone, ".venv/.notebooks").returncode and not make(clone, ".venv/.dev").returncode
    assert asked(clone) == [("uv", ".[notebooks]"), ("uv", ".[dev]")]


@pytest.mark.parametrize("without", ["uv that is not to be had", "UV=", "uv that breaks"])
def test_make_installs_by_pip_where_uv_cannot(clone, without):
    if "had" in without:
        (clone/"uv").unlink()
    made = make(clone, ".venv/.dev", *[without]*(without == "UV="), UV_BREAKS="1")
    assert made.returncode == 0 and (clone/".venv"/".dev").exists(), made
    assert asked(clone)[-1] == ("pip", ".[dev]")
    assert ("error: Failed to fetch torch" in made.stdout) == ("breaks" in without)


@pytest.mark.parametrize("by", ["UV=uv", "UV="])
def test_make_tells_what_it_installs_and_fails_when_that_does(clone, by):
    "Five minutes are not silent, and not flooded."
    ready = clone/".venv"/".dev"
    broken = make(clone, by, ".venv/.dev", UV_BREAKS="1", PIP_BREAKS="1")
    assert broken.returncode and "no space left" in broken.stderr and not ready.exists()
    good = make(clone, by, ".venv/.dev")
    lines = good.stdout.splitlines()
    assert good.returncode == 0 and ready.exists() and len(lines) < 12, good
    assert any("torch" in line and re.search("899.8 MB|514.2MiB", line) for line in lines)
    assert any("nvidia" in line and "cudnn" in line for line in lines)
    assert "minute" in lines[0] and any("Install" in line for line in lines)
