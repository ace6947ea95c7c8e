"""Run the tests that compare numbers as they would run on other processors.

`make processors` runs them in six environments, one after the other; `make processors ONLY="oldest mkl"` in those
named; `QUICK=1` without the slow ones. Libraries choose their kernels by what the processor can do, and add up in
another order on another one; these variables make them choose as there. The exit code is 1 if any test fails.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from numpy._core import _multiarray_umath as numpy_core

TESTS = Path(__file__).parent
NUMERIC = "metrics losses posthoc evaluate meta models devices house/test_defaults.py".split()
QUICK = ("metrics losses/test_losses.py losses/test_penalties.py losses/test_vectors.py posthoc"
         " evaluate/test_evaluate.py house/test_defaults.py").split()
SLOW = "compile or hold"  # names of tests of compiled losses, and of how often an interval holds the truth


def newer_features():
    "Return the instruction sets that NumPy chooses at run time on this processor; NumPy warns of any other name."
    return [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__[name]]


ENVIRONMENTS = {
    "oldest": dict(ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE", ONEDNN_MAX_CPU_ISA="SSE41",
                   OPENBLAS_CORETYPE="NEHALEM", NPY_DISABLE_CPU_FEATURES=" ".join(newer_features())),
    "aten": dict(ATEN_CPU_CAPABILITY="avx2"),
    "mkl": dict(MKL_CBWR="AVX2"),
    "zen": dict(OPENBLAS_CORETYPE="ZEN"),
    "haswell": dict(OPENBLAS_CORETYPE="HASWELL"),
    "threads": dict(OMP_NUM_THREADS="3"),
}


def counts(report):
    "Return how many tests passed, failed and were skipped, of a file that pytest wrote; a failure if there is none."
    if not report.exists():
        return 0, 1, 0
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    totals = [[int(s.get(key)) for key in ("tests", "failures", "errors", "skipped")] for s in suites]
    tests, failures, errors, skipped = map(sum, zip(*totals))
    return tests - failures - errors - skipped, failures + errors, skipped


def run(name, arguments):
    "Return the table's row of one environment: passed, failed, skipped, seconds."
    print(f"\n{name}: {' '.join(f'{k}={v!r}' for k, v in ENVIRONMENTS[name].items())}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder)/"report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", f"--junitxml={report}"]
        code = subprocess.call([*command, *arguments], cwd=TESTS.parent, env=os.environ | ENVIRONMENTS[name])
        passed, failed, skipped = counts(report)
    return passed, failed or int(code != 0), skipped, time.monotonic() - start


def table(rows):
    "Return the rows as lines of text."
    lines = [f"{'environment':12}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"]
    return lines + [f"{name:12}{passed:8}{failed:8}{skipped:8}{seconds:9.0f}"
                    for name, (passed, failed, skipped, seconds) in rows.items()]


def main(names, quick):
    if unknown := set(names) - set(ENVIRONMENTS):
        sys.exit(f"ONLY: got {' '.join(sorted(unknown))}, expected names among {' '.join(ENVIRONMENTS)}")
    arguments = [str(TESTS/test) for test in (QUICK if quick else NUMERIC)]
    rows = {name: run(name, arguments + ["-k", f"not ({SLOW})"]*quick) for name in names or ENVIRONMENTS}
    print("", *table(rows), sep="\n")
    return int(any(failed for _, failed, _, _ in rows.values()))


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name != "--quick"], "--quick" in sys.argv))
