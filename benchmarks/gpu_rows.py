"""A row of RESULTS-gpu.md, and how one is measured: where, in what sizes, by which clock.

A section of the page is a function of a `Bench` that yields (what, measure) pairs; `measure()` gives a Row or some. So
what fails is one row.
"""
import gc
import math
import statistics
import time
from dataclasses import dataclass

import torch
from harness import times_in_turn


@dataclass
class Row:
    "A line of a table. Its target is in words; whether it is met is None where there is none."
    what: str
    found: str = ""  # with its unit
    beside: str = "" # what it is compared with
    ratio: float = math.nan
    target: str = ""
    met: bool|None = None
    error: str = ""  # why there is no number

    @property
    def verdict(self):
        if self.error:
            return "FAILED"
        return {None: "", True: "met", False: "NOT MET"}[self.met]

    def __str__(self):
        ratio = "" if math.isnan(self.ratio) else f"{self.ratio:.3g}"
        cells = [self.what, self.found or self.error, self.beside, ratio, self.target, self.verdict]
        return f"| {' | '.join(one_line(cell) for cell in cells)} |"


HEADER = "| work | measured | beside it | ratio | target | |\n|---|---|---|---|---|---|"


def one_line(text, most=300):
    "Text that fits into a cell of a table."
    return " ".join(str(text).split())[:most].replace("|", "\\|")


def failed(what, error):
    return Row(what, error=f"{type(error).__name__}: {error}")


def duration(seconds):
    unit, factor = next(((u, f) for u, f in (("s", 1.), ("ms", 1e-3)) if seconds >= f), ("µs", 1e-6))
    return f"{seconds/factor:.3g} {unit}"


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Bench:
    "Where it is measured, and whether only to try every line, in tiny sizes."
    device: torch.device
    dry: bool = False

    def size(self, real, tiny):
        return tiny if self.dry else real

    def clock(self, fn, repeat):
        "Seconds that a call takes, launches and all, of some calls one behind the other."
        wait_for(self.device)
        start = time.perf_counter()
        for _ in range(repeat):
            fn()
        wait_for(self.device)
        return (time.perf_counter() - start)/repeat

    def compare(self, what, ours, unit_name, unit, at_most=None):
        "Medians of both, and of their ratio."
        pairs, seconds = self.size((7, .01), (1, 0.))
        found = times_in_turn(ours, unit, self.clock, pairs, seconds, longest=3)
        mine, theirs = (statistics.median(column) for column in zip(*found))
        ratio = statistics.median(a/b for a, b in found)
        target, met = ("", None) if at_most is None else (f"at most {at_most:g}", ratio <= at_most)
        return Row(what, duration(mine), f"{unit_name}: {duration(theirs)}", ratio, target, met)

    def peak_mb(self, fn):
        "MB of the device that a call takes beyond what was taken before, at its peak; nan on a CPU."
        if self.device.type != "cuda":
            fn()
            return math.nan
        gc.collect()
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        fn()
        torch.cuda.synchronize(self.device)
        return (torch.cuda.max_memory_allocated(self.device) - before)/2**20

    def compare_memory(self, what, ours, unit_name, unit):
        mine, theirs = self.peak_mb(ours), self.peak_mb(unit)
        return Row(what, f"{mine:,.0f} MB", f"{unit_name}: {theirs:,.0f} MB", mine/theirs)


def rows_of(section, bench):
    "The rows of a section as they come; a piece that fails is a row, too."
    for what, measure in section(bench):
        try:
            found = measure()
            yield from [found] if isinstance(found, Row) else found
        except Exception as e:
            yield failed(what, e)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
