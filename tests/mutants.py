"""How many small faults do the tests see? `make mutants N=80 SEED=0` changes one place of calibnb/ at a time.

A mutant swaps an operator, flips a comparison, changes a constant or drops a statement, in a copy of the checkout. The
tests of its wing run until one fails. Survivors are printed: each is a missing test, or a change without effect.
"""
import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
         ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
         ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In}
TESTS = {  # wing -> where its tests lie, if not in a folder of its name
    "core": "tests/house/test_defaults.py tests/metrics tests/evaluate tests/posthoc",
    "metrics": "tests/metrics tests/losses/test_vectors.py", "plots": "tests/widgets tests/evaluate",
    "checks": "tests/notebooks tests/studies", "params": "tests/notebooks tests/cli",
}


def mutated(node):
    "Return the text of a node with one small fault, or None where it has no mutant."
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        return f"({ast.unparse(_with(node, op=SWAPS[type(node.op)]()))})"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return f"({ast.unparse(_with(node, ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]]))})"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return repr(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return repr(node.value + 1)
    if isinstance(node, (ast.AugAssign, ast.Raise)) or isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "pass"


def _with(node, **changed):
    return type(node)(**{name: changed.get(name, value) for name, value in ast.iter_fields(node)})


def places(path):
    "Yield (node, text before, text after) of every mutant of a file; texts with braces (f-strings) are left alone."
    text = path.read_text()
    tree = ast.parse(text)
    formatted = {inner for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        after = None if node in formatted else mutated(node)
        if after:
            yield node, ast.get_source_segment(text, node), after


def with_mutant(text, node, after):
    "Return the file's text with the node's segment replaced."
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    head = b"".join(lines[:first]) + lines[first][:node.col_offset]
    tail = lines[last][node.end_col_offset:] + b"".join(lines[last + 1:])
    return (head + after.encode() + tail).decode()


def drawn(n, seed):
    "Draw n mutants over all files."
    files = [p for p in sorted((ROOT/"calibnb").rglob("*.py")) if p.name not in ("__init__.py", "_modidx.py")]
    found = [(path, *place) for path in files for place in places(path)]
    return random.Random(seed).sample(found, n)


def tests_of(path):
    wing = path.relative_to(ROOT/"calibnb").parts[0].removesuffix(".py")
    return TESTS.get(wing, f"tests/{wing}").split()


def killed(copy, path, text, limit_s):
    "Return True if a test fails, or takes too long, with this text in the place of a file."
    file = copy/path.relative_to(ROOT)
    file.write_text(text)
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests_of(path)]
    env = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=limit_s)
        return ended.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        shutil.copy(path, file)


def main(n, seed, limit_s):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)/"copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".hypothesis"))
        alive = 0
        for i, (path, node, before, after) in enumerate(drawn(n, seed), 1):
            start = time.monotonic()
            dead = killed(copy, path, with_mutant(path.read_text(), node, after), limit_s)
            alive += not dead
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            verdict = "killed  " if dead else "SURVIVED"
            change = f"{' '.join(before.split())[:60]} -> {after[:60]}"
            print(f"{i:3} {verdict} {time.monotonic() - start:4.0f} s  {where}  {change}", flush=True)
    print(f"{n - alive} of {n} mutants killed (seed {seed})")


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("n", type=int, nargs="?", default=80)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--limit", type=float, default=600., help="seconds for the tests of one mutant")
    given = flags.parse_args()
    main(given.n, given.seed, given.limit)
