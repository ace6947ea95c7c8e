"The tests that are marked cuda, run by pytest; in a dry pass they compare the CPU with itself."
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from gpu_rows import Row

ROOT = Path(__file__).parents[1]
AT_MOST = 65  # seconds; a little less than the section has, so that pytest does not outlive it


def tests_section(bench):
    "Every loss, metric, streaming update, a training and a step that learns its loss, within rounding."
    yield "pytest -m cuda", partial(tests_rows, bench)


def tests_rows(bench):
    files = [str(p) for p in sorted((ROOT/"tests").rglob("test_*.py")) if "mark.cuda" in p.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "-n", "0", "-rf", *files]
    env = dict(os.environ, CALIBNB_TEST_DEVICE=str(bench.device), TORCHDYNAMO_DISABLE=bench.size("0", "1"),
               COLUMNS="400")  # pytest cuts the reason of a failure to this width
    ended = subprocess.run(command, cwd=ROOT, env=env, timeout=bench.size(AT_MOST, 4*AT_MOST), text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = ended.stdout.strip().split("\n")[-1].strip("= ")
    for name, error in re.findall(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", ended.stdout, re.M):
        yield Row(name, error=error or "no reason given")
    all_passed = ended.returncode == 0 and "passed" in last and "skipped" not in last
    yield Row("tests marked cuda", last, target="all pass", met=all_passed)
