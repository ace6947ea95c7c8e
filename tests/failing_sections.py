"Sections of `make gpu` that fail, in a module that imports nothing heavy: each is imported in a process of its own."
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]/"benchmarks"))
from gpu_rows import Row  # noqa: E402


def with_an_error(bench):
    "The middle one of three fails."
    yield "first", lambda: Row("first", "1 s", target="at most 2 s", met=True)
    yield "second", lambda: 1/0
    yield "third", lambda: [Row("third | of three", "3 s", target="at most 2 s", met=False)]


def that_dies(bench):
    "The process ends in the middle."
    yield "first", lambda: Row("before the end", "1 s")
    yield "second", lambda: os._exit(3)


def that_hangs(bench):
    "Longer than it may."
    yield "first", lambda: time.sleep(1000)


def is_in_bad_fork(send):
    "Return True in a copy of a process that has asked for GPUs, which cannot use them."
    import torch
    return torch.cuda._is_in_bad_fork()
