"""How many small faults do the tests see? `make mutants N=80 SEED=0` changes one line of calibnb/ at a time.

A mutant swaps an operator, flips a comparison, changes a constant or drops a statement, in a copy of the checkout. The
lessons of its room run, then the tests of its wing and those that call every public name, until one fails. Survivors
are printed: each is a missing test, or a change without effect.
"""
import argparse
import ast
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nbdev.sync import nbdev_update

ROOT = Path(__file__).parents[1]
PRELOADED = ("torch", "torchmetrics", "pandas", "scipy.stats", "sklearn.linear_model", "matplotlib.pyplot",
             "hypothesis", "pytest", "nbformat", "pydantic")  # not calibnb, which differs
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
         ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
         ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In}
EVERYWHERE = "tests/house/test_defaults.py"  # calls every public name; the rules of the house read code as text
TESTS = {  # wing -> where its tests lie, if not in a folder of its name
    "core": "tests/metrics tests/evaluate tests/posthoc", "plots": "tests/widgets tests/evaluate",
    "metrics": "tests/metrics tests/losses/test_vectors.py",
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
    "Yield (node, text after) of every mutant of a file; texts with braces (f-strings) are left alone."
    tree = ast.parse(path.read_text())
    formatted = {inner for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        after = None if node in formatted else mutated(node)
        if after:
            yield node, after


def with_mutant(text, node, after):
    "Return the file's text with the node's segment replaced."
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    head = b"".join(lines[:first]) + lines[first][:node.col_offset]
    tail = lines[last][node.end_col_offset:] + b"".join(lines[last + 1:])
    return (head + after.encode() + tail).decode()


def drawn(n, seed):
    "Draw n lines that have mutants, over all files, and one mutant of each: (path, node, text after)."
    lines = {}
    for path in sorted((ROOT/"calibnb").rglob("*.py")):
        if path.name not in ("__init__.py", "_modidx.py"):
            for place in places(path):
                lines.setdefault((path, place[0].lineno), []).append(place)
    draw = random.Random(seed)
    return [(path, *draw.choice(lines[path, line])) for path, line in draw.sample(sorted(lines), n)]


def tests_of(path):
    wing = path.relative_to(ROOT/"calibnb").parts[0].removesuffix(".py")
    return [*TESTS.get(wing, f"tests/{wing}").split(), EVERYWHERE]


def room_of(path, text):
    "Return the notebook from which a module is exported, as its header says."
    return (path.parent/re.search(r"File to edit: (.+\.ipynb)", text)[1]).resolve()


def lessons_fail(copy, file, room, limit_s):
    "Return True if a lesson of a module's room fails, with the module's code in the room, too."
    nbdev_update(str(file))
    command = [sys.executable, copy/"tests"/"lessons.py", room]
    given = dict(env=os.environ | {"PYTHONPATH": str(copy)}, timeout=limit_s)
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **given).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def tested(copy, tests):
    "Run some tests of a copy of the checkout until one fails, in a copy (a fork) of this process; pytest's exit code."
    import pytest
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    sys.stdout = sys.stderr = open(os.devnull, "w")
    sys.exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])))


def killed(copy, path, text, limit_s):
    "Return what fails, or takes too long, with this text in the place of a file: 'lesson', 'test' or ''."
    file = copy/path.relative_to(ROOT)
    room = room_of(file, text)
    before = {p: p.read_text() for p in (file, room)}
    file.write_text(text)
    process = multiprocessing.get_context("fork").Process(target=tested, args=(copy, tests_of(path)))
    try:
        if lessons_fail(copy, file, room, limit_s):
            return "lesson"
        process.start()
        process.join(limit_s)
        return "test" if process.exitcode != 0 else ""
    finally:
        if process.is_alive():
            process.kill()
        for p, code in before.items():
            p.write_text(code)


def judge(mutants, limit_s, report):
    "Judge every mutant that is left, in a copy of the checkout of this process's own."
    sys.dont_write_bytecode = True  # a file that changes twice within a second would be taken for the same
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)/"copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".hypothesis"))
        os.chdir(copy)
        for path, node, after in iter(mutants.get, None):
            start = time.monotonic()
            by = killed(copy, path, with_mutant(path.read_text(), node, after), limit_s)
            where, before = f"{path.relative_to(ROOT)}:{node.lineno}", ast.get_source_segment(path.read_text(), node)
            change = f"{' '.join(before.split())[:60]} -> {after[:60]}"
            verdict = f"killed by a {by}" if by else "SURVIVED"
            print(f"{verdict:<18} {time.monotonic() - start:4.0f} s  {where}  {change}", flush=True)
            report.put(bool(by))


def main(n, seed, limit_s, workers):
    for name in PRELOADED:
        __import__(name)
    context = multiprocessing.get_context("fork")
    mutants, report = context.Queue(), context.Queue()
    for mutant in [*drawn(n, seed), *[None]*workers]:
        mutants.put(mutant)
    judges = [context.Process(target=judge, args=(mutants, limit_s, report)) for _ in range(workers)]
    for process in judges:
        process.start()
    for process in judges:
        process.join()
    print(f"{sum(report.get() for _ in range(n))} of {n} mutants killed (seed {seed})")


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("n", type=int, nargs="?", default=80)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--limit", type=float, default=600., help="seconds for the tests of one mutant")
    flags.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    given = flags.parse_args()
    main(given.n, given.seed, given.limit, given.workers)
