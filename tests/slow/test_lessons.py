"Lessons that take long: cells that begin with `#| slow`, with the rooms that they stand in."
import subprocess
import sys

from conftest import ROOT, patience


def test_slow_lessons_pass():
    command = [sys.executable, str(ROOT/"tests"/"lessons.py"), "--slow"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patience(600))
    assert ended.returncode == 0 and ", 0 failed" in ended.stdout, ended.stdout + ended.stderr
