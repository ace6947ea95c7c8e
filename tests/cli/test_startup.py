"""Help, lists and mistakes do not wait for torch: what they bring is looked at, in processes of their own."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, patience

sys.path.insert(0, str(ROOT/"docs"))
from names import cell, registries  # noqa: E402

from calibnb.core.names import NAMES  # noqa: E402

HEAVY = {"torch", "sklearn", "pandas", "numpy", "matplotlib", "torchvision", "torchmetrics", "papermill", "IPython"}
REGISTRIES = registries()  # of today: tests add theirs


def test_names_are_those_of_the_registries():
    "In their order, in which they are listed."
    assert REGISTRIES == NAMES and [*REGISTRIES] == [*NAMES], "run `make sync`"
    assert cell({"kind": ["a", "b"]}).endswith("    'kind': [\n        'a', 'b'\n    ],\n}")


IN_COPIES = """import json, os, sys
from calibnb.cli import main

def ended(line, name):
    for stream, end in enumerate(["out", "err"], 1):
        os.dup2(os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT), stream)
    try: code = main(line.split())
    except SystemExit as e: code = e.code
    brought = [*sys.modules]
    sys.stdout.flush(), sys.stderr.flush()
    with open(f"{name}.json", "w") as file: json.dump([code or 0, brought], file)
    os._exit(0)

for i, line in enumerate(json.load(sys.stdin)):
    child = os.fork()  # of a process that has the command line and nothing else
    if not child: ended(line, f"ended{i}")
    assert os.waitpid(child, 0)[1] == 0, line"""


BARE = [("--help", 0), ("--version", 0), ("audit --help", 0), ("", 0), ("list losses", 0), ("list calibrators", 0),
        ("completion bash", 0), ("completion csh", 2), ("runn", 2), ("run x --nope", 2),
        ("sweep fine.yaml --engine rya", 2), ("download cifar11", 2)]


@pytest.mark.parametrize("line, code", BARE)
def test_what_needs_no_file_brings_nothing(ends, line, code):
    ended, out, err, brought = ends[line]
    assert ended == code and not brought & (HEAVY | {"pydantic"}), (err, brought & HEAVY)
    assert (out if code == 0 else err).strip()


LOOKED_UP = [
    ("list", "bsce_gra"), ("list runs", "0 in"), ("papers lin2025 --json", '"place": "Table 6"'),
    ("papers guo", "paper: 'guo' is not known"), ("run toy_gausian", "did you mean 'toy_gaussian'"),
    ("run toy_gaussian -p n_sees 3", "n_sees is not declared"), ("run toy_gaussian -p n_seeds 0", "n_seeds: 0"),
    ("run train -p loss focall", "loss: 'focall' is not known; did you mean 'focal'"),
    ("sweep no.yaml", "no.yaml"), ("sweep unknown.yaml", "bses: not known"),
    ("sweep data.yaml", "data: 'cifar' is not known"), ("sweep fine.yaml --workers 0", "--workers: '0'"),
    ("sweep train --grid loss=ce,focall", "did you mean 'focal'"), ("collect", "no trainings in"),
    ("audit absent.npz --logits", "file: absent.npz does not exist"),
    ("compare absent.npz x.npz", "old: absent.npz does not exist"), ("compare a b --margin ece", "--margin: 'ece'"),
    ("audit script.py --logits --eps 3", "--eps: 3"),
    ("apply absent.safetensors x.npz --logits --out o.npz", "calibrator: absent.safetensors does not exist"),
]

TABLES = ["runs --root others", "runs --root others --html index.html"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    here = tmp_path_factory.mktemp("here")
    (here/"fine.yaml").write_text("preset: quick\ngrid: {seed: '0:2'}")
    (here/"data.yaml").write_text("base: {data: cifar}")
    (here/"unknown.yaml").write_text("bses: {}")
    (here/"script.py").write_text("")
    run = here/"others"/"toy"/"0123abcd-s0"
    run.mkdir(parents=True)
    (run/"run.json").write_text(json.dumps(dict(kind="train", settings=dict(loss="ce", seed=0))))
    return here


@pytest.fixture(scope="module")
def ends(here):
    "Return exit code, stdout, stderr and the modules that were imported, of each command."
    lines = [line for line, _ in (*BARE, *LOOKED_UP)] + TABLES + [f"completion {shell}" for shell in ("zsh", "fish")]
    env = os.environ | dict(CALIBNB_RUNS=str(here/"runs"))
    subprocess.run([sys.executable, "-c", IN_COPIES], cwd=here, env=env, input=json.dumps(lines), text=True, check=True,
                   timeout=patience(120))
    found = {}
    for i, line in enumerate(lines):
        code, brought = json.loads((here/f"ended{i}.json").read_text())
        out, err = ((here/f"ended{i}.{end}").read_text() for end in ("out", "err"))
        found[line] = code, out, err, set(brought)
    return found


@pytest.mark.parametrize("line, told", LOOKED_UP)
def test_what_is_looked_up_or_refused_does_not_wait(ends, line, told):
    code, out, err, brought = ends[line]
    fine = line.startswith(("list", "papers")) and line != "papers guo"
    assert told in (out if fine else err) and not brought & HEAVY, (err, brought & HEAVY)
    assert code == (0 if fine else 2)


@pytest.mark.parametrize("line", TABLES)
def test_a_table_of_runs_does_not_wait_for_torch(ends, line):
    "The page of 10,000 runs took 800 MB, of which torch took 600."
    code, _, err, brought = ends[line]
    assert code == 0 and not brought & {"torch", "sklearn", "matplotlib"}, err


@pytest.mark.parametrize("typed, offered", [
    ("calibnb ''", "run sweep collect runs show watch audit compare plan estimate apply export predict download list "
                   "papers notebooks lab completion"),
    ("calibnb a", "audit apply"),
    ("calibnb audit --v", "--val --val-target"),
    ("calibnb sweep x --engine ''", "processes ray slurm"),
    ("calibnb audit fi", "fine.yaml"),
    ("calibnb audit x --val fi", "fine.yaml"),
])
def test_bash_completes(here, ends, typed, offered):
    "Commands, flags, choices and files."
    script = ends["completion bash"][1]
    ask = 'COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_calibnb; echo "${COMPREPLY[*]}"' % typed
    bash = dict(cwd=here, capture_output=True, text=True, timeout=patience(10))
    ended = subprocess.run(["bash", "--norc", "-c", f"{script}\n{ask}"], **bash)
    assert ended.stdout.strip() == offered and not ended.stderr, ended


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_of_completion_names_all_commands(ends, shell):
    code, script, _, _ = ends[f"completion {shell}"]
    commands = ["run", "sweep", "collect", "audit", "apply", "predict", "download", "list", "papers", "completion"]
    assert code == 0 and all(name in script for name in [*commands, "val-target"])
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).returncode == 0
