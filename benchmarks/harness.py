"Time two pieces of code in turn, in one process on one thread, and say how they compare."
import statistics
import time
from dataclasses import dataclass

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

