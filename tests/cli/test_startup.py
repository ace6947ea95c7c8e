"""Help, lists and mistakes do not wait for torch: what they bring is looked at, in processes of their own."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, patience

sys.path.insert(0, str(ROOT/"docs"))
from names import cell, registries  # noqa: E402

from calibnb.core.names import NAMES  # noqa: E402
from calibnb.evaluate.table import _columns  # noqa: E402
from calibnb.metrics.registered import _STANDARD_COLUMNS  # noqa: E402

HEAVY = {"torch", "sklearn", "pandas", "numpy", "matplotlib", "torchvision", "torchmetrics", "papermill", "IPython"}
REGISTRIES = registries()  # of today: tests add theirs


def test_names_are_those_of_the_registries():
    "In their order, in which they are listed."
    assert REGISTRIES == NAMES and [*REGISTRIES] == [*NAMES], "run `make sync`"
    assert cell({"kind": ["a", "b"]}).endswith("    'kind': [\n        'a', 'b'\n    ],\n}")
    assert set(_STANDARD_COLUMNS) == set(_columns)  # of which no name can be registered


SPIES = """import sys
from calibnb.cli import main
try: code = main(sys.argv[1:])
except SystemExit as e: code = e.code
print('brought', *sys.modules)
sys.exit(code)"""


def call(line, here):
    "Exit code, stdout, stderr, and the modules that were imported."
    (here/"fine.yaml").write_text("preset: quick\ngrid: {seed: '0:2'}")
    (here/"preset.yaml").write_text("preset: quik")
    (here/"data.yaml").write_text("base: {data: cifar}")
    (here/"unknown.yaml").write_text("bses: {}")
    (here/"script.py").write_text("")
    command = [sys.executable, "-c", SPIES, *line.split()]
    env = os.environ | dict(CALIBNB_RUNS=str(here/"runs"))
    ended = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=patience(60))
    out, _, brought = ended.stdout.rpartition("brought")
    return ended.returncode, out, ended.stderr, set(brought.split())


BARE = [("--help", 0), ("--version", 0), ("run --help", 0), ("sweep --help", 0), ("collect --help", 0),
        ("runs --help", 0), ("audit --help", 0), ("apply --help", 0), ("download --help", 0), ("list --help", 0),
        ("papers --help", 0), ("compare --help", 0), ("predict --help", 0),
        ("list losses", 0), ("list models", 0), ("list calibrators", 0), ("completion bash", 0),
        ("completion csh", 2), ("", 0), ("runn", 2), ("run", 2), ("run x --nope", 2),
        ("sweep fine.yaml --engine rya", 2), ("download cifar11", 2), ("list what", 2)]


@pytest.mark.parametrize("line, code", BARE)
def test_what_needs_no_file_brings_nothing(tmp_path, line, code):
    ended, out, err, brought = call(line, tmp_path)
    assert ended == code and not brought & (HEAVY | {"pydantic"}), (err, brought & HEAVY)
    assert (out if code == 0 else err).strip()


LOOKED_UP = [
    ("list", "bsce_gra"), ("list experiments", "toy_gaussian"), ("list runs", "0 in"),
    ("papers", "figures/over_epochs"), ("papers lin2025 --json", '"place": "Table 6"'),
    ("papers guo", "paper: 'guo' is not known"), ("run toy_gausian", "did you mean 'toy_gaussian'"),
    ("run toy_gaussian -p n_sees 3", "n_sees is not declared"), ("run toy_gaussian -p n_seeds 0", "n_seeds: 0"),
    ("run toy_gaussian --timeout 0", "--timeout: 0"),
    ("run train -p loss focall", "loss: 'focall' is not known; did you mean 'focal'"),
    ("run calibratability -p data mnist", "data: 'mnist'"), ("sweep trian", "did you mean 'train'"),
    ("sweep no.yaml", "no.yaml"), ("sweep unknown.yaml", "bses: not known"),
    ("sweep preset.yaml", "did you mean 'quick'"), ("sweep data.yaml", "data: 'cifar' is not known"),
    ("sweep fine.yaml --grid loss", "--grid loss"), ("sweep fine.yaml --workers 0", "--workers: '0'"),
    ("sweep train --grid loss=ce,focall", "did you mean 'focal'"),
    ("sweep toy_gaussian --grid n_seeds=0", "n_seeds: 0"), ("collect --root absent", "--root: absent is not a folder"),
    ("collect", "no trainings in"), ("audit x.npz", "file: x.npz does not exist"),
    ("audit absent.npz --logits", "file: absent.npz does not exist"),
    ("compare absent.npz x.npz", "old: absent.npz does not exist"), ("compare a b --margin ece", "--margin: 'ece'"),
    ("audit script.py --logits", "file format: '.py'"), ("audit script.py --logits --eps 3", "--eps: 3"),
    ("apply absent.safetensors x.npz --logits --out o.npz", "calibrator: absent.safetensors does not exist"),
    ("apply script.py x.npz --logits --out o.npz", "file: x.npz does not exist"),
]


@pytest.mark.parametrize("line, told", LOOKED_UP)
def test_what_is_looked_up_or_refused_does_not_wait(tmp_path, line, told):
    code, out, err, brought = call(line, tmp_path)
    fine = line.startswith(("list", "papers")) and line != "papers guo"
    assert told in (out if fine else err) and not brought & HEAVY, (err, brought & HEAVY)
    assert code == (0 if fine else 2)


@pytest.mark.parametrize("typed, offered", [
    ("calibnb ''", "run sweep collect runs show watch audit compare plan apply export predict download list papers "
                   "notebooks lab completion"),
    ("calibnb a", "audit apply"),
    ("calibnb audit --v", "--val --val-target"),
    ("calibnb sweep x --engine ''", "processes ray slurm"),
    ("calibnb audit fi", "fine.yaml"),
    ("calibnb audit x --val fi", "fine.yaml"),
])
def test_bash_completes(tmp_path, typed, offered):
    "Commands, flags, choices and files."
    _, script, _, _ = call("completion bash", tmp_path)
    ask = 'COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_calibnb; echo "${COMPREPLY[*]}"' % typed
    bash = dict(cwd=tmp_path, capture_output=True, text=True, timeout=patience(10))
    ended = subprocess.run(["bash", "--norc", "-c", f"{script}\n{ask}"], **bash)
    assert ended.stdout.strip() == offered and not ended.stderr, ended


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_completion_names_all_commands(tmp_path, shell):
    code, script, _, _ = call(f"completion {shell}", tmp_path)
    commands = ["run", "sweep", "collect", "audit", "apply", "predict", "download", "list", "papers", "completion"]
    assert code == 0 and all(name in script for name in [*commands, "val-target"])
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).returncode == 0
