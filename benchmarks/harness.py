"""Measure two pieces of code in turn and say how they compare.

CPU time is measured in one process on one thread, memory at its peak, wall time for what works in other processes.
"""
import ctypes
import gc
import platform
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Row:
    "A line of the table: how much work takes, in units of other work."
    what: str
    unit: str     # what counts as 1.0
    ratio: float  # median over pairs of ours/unit
    low: float
    high: float
    budget: float|None = None  # promised on any of our machines; None: a peer, for comparison
    goal: float|None = None    # what would be nice

    @property
    def verdict(self):
        if self.budget is None:
            return "peer"
        if self.goal is not None and self.ratio <= self.goal:
            return "met, and the goal"
        return "met" if self.ratio <= self.budget else "NOT MET"

    def __str__(self):
        budget, goal = ("" if number is None else f"{number:.3g}" for number in (self.budget, self.goal))
        spread = f"{self.low:.3g} to {self.high:.3g}"
        return f"| {self.what} | {self.unit} | {self.ratio:.3g} | {spread} | {budget} | {goal} | {self.verdict} |"


HEADER = "| work | unit = 1.0 | ratio | spread | at most | goal | |\n|---|---|---|---|---|---|---|"


def cpu_time(fn, repeat):
    "Seconds of CPU time that a call takes, the mean of some."
    start = time.process_time()
    for _ in range(repeat):
        fn()
    return (time.process_time() - start)/repeat


def warm_time(fn, clock):
    "Seconds of the second call; the first one fills caches."
    fn()
    return clock(fn, 1)


LONGEST = 20         # seconds for all pairs of a row, about
SHORTEST_CALL = 1e-7 # seconds; the clock may say 0


def times_in_turn(ours, unit, clock, pairs, seconds, longest=LONGEST):
    "Interleaved pairs (ours, unit) of seconds that a call takes; `clock(fn, repeat)` gives their mean over some calls."
    once = {fn: warm_time(fn, clock) for fn in (ours, unit)}
    repeat = {fn: max(1, int(seconds/max(once[fn], SHORTEST_CALL))) for fn in (ours, unit)}
    pairs = max(1, min(pairs, int(longest/max(sum(once.values()), SHORTEST_CALL))))
    return [(clock(ours, repeat[ours]), clock(unit, repeat[unit])) for _ in range(pairs)]


def compare(
    what,          # the work, as the table names it
    ours,          # a function without arguments
    unit_name,     # what counts as 1.0
    unit,          # a function without arguments
    budget=None,   # the ratio promised; None: a peer, for comparison
    pairs=15,      # at most; one for what takes seconds
    seconds=.05,   # that each side of a pair takes at least
    goal=None,     # the ratio that would be nice
):
    "Median ratio of CPU times over interleaved pairs."
    torch.set_num_threads(1)
    ratios = sorted(a/b for a, b in times_in_turn(ours, unit, cpu_time, pairs, seconds))
    inner = ratios[1:-1] if len(ratios) > 3 else ratios  # without the extremes
    return Row(what, unit_name, statistics.median(ratios), inner[0], inner[-1], budget, goal)


def wall_time(fn):
    "Seconds that a call takes by the clock on the wall."
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def compare_wall(what, ours, unit_name, unit, budget=None, pairs=3, times=1):
    "Median ratio of wall times, for what works in other processes; `ours` does the work of the unit `times` times."
    found = [(wall_time(ours)/times, wall_time(unit)) for _ in range(pairs)]
    ratios = sorted(a/b for a, b in found)
    mine, theirs = (statistics.median(column) for column in zip(*found))
    what, unit_name = f"{what} ({mine:.2f} s)", f"{unit_name} ({theirs:.2f} s)"
    return Row(what, unit_name, statistics.median(ratios), ratios[0], ratios[-1], budget)


def best_of(what, measure, at_most, unit_name="1 s", times=3, goal=None):
    "The best of some measurements, in units that people feel, with what is promised."
    found = sorted(measure() for _ in range(times))
    return Row(what, unit_name, found[0], found[0], found[-1], at_most, goal)


def memory(kind):
    "MB of this process, as the kernel counts them: VmRSS now, VmHWM at the peak."
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+)", status)[1])/1024


def peak_memory(fn):
    "MB that a call takes beyond what the process had before, at its peak; Linux."
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    fn()
    return memory("VmHWM") - before


def compare_memory(what, ours, unit_name, unit, budget=None, pairs=5):
    "Median ratio of peak memories over interleaved pairs."
    ours()
    unit()
    found = [(peak_memory(ours), peak_memory(unit)) for _ in range(pairs)]
    ratios = sorted(a/b for a, b in found)
    mine, theirs = (statistics.median(column) for column in zip(*found))
    what, unit_name = f"{what} ({mine:.0f} MB)", f"{unit_name} ({theirs:.0f} MB)"
    return Row(what, unit_name, statistics.median(ratios), ratios[1], ratios[-2], budget)


def cpu_name():
    "The processor as Linux names it; elsewhere as well as Python can."
    info = Path("/proc/cpuinfo")
    found = info.exists() and re.search(r"model name\s*: (.+)", info.read_text())
    return found[1] if found else platform.processor() or platform.machine()
