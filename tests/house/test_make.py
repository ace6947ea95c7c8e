"What `make` installs, by uv or pip, and what it says meanwhile; Python and uv only say what they would do here."
import os
import re
import shlex
import shutil
import subprocess
import time

import pytest
from conftest import ROOT, patience

from calibnb.cli.command import parser
from calibnb.cli.run import parameters_of
from calibnb.notebooks.execute import Notebook

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
        assert Notebook(name).plan(parameters_of(name, dict(args.parameters), args.experiments))["n_seeds"] == 5


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
