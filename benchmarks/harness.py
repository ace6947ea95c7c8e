"Time two pieces of code in turn and say how they compare: CPU time in one process on one thread; the memory that they take; wall time of what works in other processes."
import ctypes
import gc
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Row:
    what: str
    unit: str     # what counts as 1.0
    ratio: float  # median over pairs of ours/unit
    low: float
    high: float
    budget: float|None = None  # None: a peer, for comparison

    @property
    def verdict(self):
        if self.budget is None:
            return "peer"
        return "met" if self.ratio <= self.budget else "NOT MET"

    def __str__(self):
        budget = "" if self.budget is None else f"{self.budget:.3g}"
        return f"| {self.what} | {self.unit} | {self.ratio:.3g} | {self.low:.3g} to {self.high:.3g} | {budget} | {self.verdict} |"


HEADER = "| work | unit = 1.0 | ratio | spread | at most | |\n|---|---|---|---|---|---|"


def cpu_time(fn, repeat):
    start = time.process_time()
    for _ in range(repeat):
        fn()
    return (time.process_time() - start)/repeat


def compare(what, ours, unit_name, unit, budget=None, pairs=15, seconds=.05):
    "Median ratio of CPU times over interleaved pairs, each long enough to be measured; one pair for what takes seconds."
    torch.set_num_threads(1)
    once = {fn: (fn(), cpu_time(fn, 1))[1] for fn in (ours, unit)}
    repeat = {fn: max(1, int(seconds/max(once[fn], 1e-7))) for fn in (ours, unit)}
    pairs = max(1, min(pairs, int(20/sum(once.values()))))
    ratios = sorted(cpu_time(ours, repeat[ours])/cpu_time(unit, repeat[unit]) for _ in range(pairs))
    inner = ratios[1:-1] if len(ratios) > 3 else ratios
    return Row(what, unit_name, statistics.median(ratios), inner[0], inner[-1], budget)


def wall_time(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def compare_wall(what, ours, unit_name, unit, budget=None, pairs=3, times=1):
    "Median ratio of wall time, for what works in other processes; `ours` does the work of the unit so many times."
    found = [(wall_time(ours)/times, wall_time(unit)) for _ in range(pairs)]
    ratios, (mine, theirs) = sorted(a/b for a, b in found), (statistics.median(x) for x in zip(*found))
    return Row(f"{what} ({mine:.2f} s)", f"{unit_name} ({theirs:.2f} s)", statistics.median(ratios), ratios[0], ratios[-1], budget)


def peak_memory(fn):
    "MB that a call takes beyond what the process had before, at its peak; Linux."
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    size = lambda what: int(re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())[1])/1024
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = size("VmRSS")
    fn()
    return size("VmHWM") - before


def compare_memory(what, ours, unit_name, unit, budget=None, pairs=5):
    "Median ratio of peak memories over interleaved pairs."
    ours(), unit()
    found = [(peak_memory(ours), peak_memory(unit)) for _ in range(pairs)]
    ratios, (mine, theirs) = sorted(a/b for a, b in found), (statistics.median(x) for x in zip(*found))
    return Row(f"{what} ({mine:.0f} MB)", f"{unit_name} ({theirs:.0f} MB)", statistics.median(ratios), ratios[1], ratios[-2], budget)
