"A wheel, built from an sdist: what it brings, what its commands do outside of any clone, and how a release is made."
import json
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import date

import numpy as np
import pytest
from conftest import ROOT, patience

sys.path.insert(0, str(ROOT/"docs"))
import release  # noqa: E402

COPIED = ["settings.ini", "setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "calibnb", "nbs",
          "sweeps", "runs/gallery/cifar10"]
COMMANDS = """import sys; from calibnb.cli import main
for line in sys.argv[1:]: assert main(line.split()) == 0, line"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "The files of the wheel, in a folder that stands for site-packages."
    copy, site = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("site")
    for name in COPIED:
        source = ROOT/name
        (copy/name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy/name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        else:
            shutil.copy(source, copy/name)
    command = [sys.executable, "-m", "build", "--no-isolation"]  # an sdist, and from the sdist the wheel
    subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=patience(60))
    path, = (copy/"dist").glob("*.whl")
    assert path.stat().st_size < 6e6
    zipfile.ZipFile(path).extractall(site)
    for path in [site, *site.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return site


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts}


def test_a_wheel_has_what_the_clone_has(wheel):
    found = contents(wheel/"calibnb")
    shared = [*ROOT.glob("sweeps/*.yaml"), *ROOT.glob("nbs/*.csv"), *ROOT.glob("nbs/assets/*"),
              *ROOT.glob("nbs/ex*/*.ipynb"), ROOT/"nbs"/"index.ipynb", *ROOT.glob("runs/gallery/cifar10/*.npz"),
              ROOT/"runs"/"gallery"/"cifar10"/"gamma.csv"]
    wanted = {f"_repository/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
              for path in shared if not path.name.endswith((".votes.npz", ".more.npz"))  # left out
              and not (path.suffix == ".npz" and path.name.startswith("cifar10_papers"))}
    wanted |= {name: text for name, text in contents(ROOT/"calibnb").items() if name.endswith((".py", ".pyi"))}
    assert found == wanted


def test_a_wheel_does_its_work_anywhere_and_writes_nothing_into_itself(wheel, tmp_path):
    draw = np.random.default_rng(0)
    np.savez(tmp_path/"p.npz", logits=3*draw.normal(size=(300, 3)), target=draw.integers(3, size=300))
    before = contents(wheel)
    env = {k: v for k, v in os.environ.items() if not k.startswith("CALIBNB_RUNS")}
    env |= dict(PYTHONPATH=str(wheel))
    lines = ["list", "notebooks --copy mine", "sweep lin2025_tables1_5_quick --dry-run",
             "sweep sweeps/lin2025_tables1_5_quick.yaml --dry-run",
             "audit p.npz --logits --calibrator temperature --to audited", "run toy_gaussian -p n_seeds 1 -p epochs 1"]
    ended = subprocess.run([sys.executable, "-c", COMMANDS, *lines], cwd=tmp_path, env=env, capture_output=True,
                           text=True, timeout=patience(120))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "toy_gaussian, " in ended.stdout and ended.stdout.count("30 runs, 30 to be made") == 2
    assert (tmp_path/"audited"/"report.html").exists()
    runs = {path.parent.parent.name for path in (tmp_path/"runs").glob("*/*/result.json")}
    assert runs == {"toy_gaussian"}
    made = json.loads((tmp_path/"mine"/"experiments"/"toy_gaussian.ipynb").read_text())
    assert made["cells"] and contents(wheel) == before


def test_a_release_is_a_version_a_changelog_and_a_tag_or_nothing(tmp_path, monkeypatch):
    for name in release.FILES:
        (tmp_path/name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/name, tmp_path/name)
    for who in "AUTHOR", "COMMITTER":
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b.c")
    changes = tmp_path/"CHANGELOG.md"
    changes.write_text("# Changes\n\n## Unreleased\n\n- One.\n")
    release.git(tmp_path, "init", "-q")
    release.git(tmp_path, "add", ".")
    release.git(tmp_path, "commit", "-qm", "all")
    day = date(2026, 1, 2)

    def broken(root):
        raise RuntimeError("no wheel")
    with pytest.raises(RuntimeError):
        release.release(tmp_path, "9.1.0", day, build=broken)
    assert not release.git(tmp_path, "status", "--porcelain") and not release.git(tmp_path, "tag")
    release.release(tmp_path, "9.1.0", day, build=lambda root: None)
    assert release.git(tmp_path, "describe") == "v9.1.0" and not release.git(tmp_path, "status", "--porcelain")
    assert "## Unreleased\n\n## 9.1.0 (2026-01-02)\n\n- One.\n" in changes.read_text()
    assert '__version__ = "9.1.0"' in (tmp_path/"calibnb"/"__init__.py").read_text()
    assert "version = 9.1.0\n" in (tmp_path/"settings.ini").read_text()
    for version, reason in ("9.2", "three numbers"), ("9.1.0", "exists"), ("9.2.0", "no entry under"):
        with pytest.raises(SystemExit, match=reason):
            release.release(tmp_path, version, day, build=lambda root: None)
    changes.write_text("")
    with pytest.raises(SystemExit, match="not clean"):
        release.release(tmp_path, "9.2.0", day, build=lambda root: None)


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
