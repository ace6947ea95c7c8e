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
    budget: float

    def __str__(self):
        verdict = "met" if self.ratio <= self.budget else "NOT MET"
        return f"{self.what:44} {self.ratio:7.2f}  [{self.low:.2f}, {self.high:.2f}]  at most {self.budget:<6g} {verdict:8} unit: {self.unit}"


def cpu_time(fn, repeat):
    start = time.process_time()
    for _ in range(repeat):
        fn()
    return (time.process_time() - start)/repeat


def compare(what, ours, unit_name, unit, budget, pairs=15, seconds=.05):
    "Median ratio of CPU times over interleaved pairs, each long enough to be measured."
    torch.set_num_threads(1)
    for fn in (ours, unit):
        fn()
    repeat = {fn: max(1, int(seconds/max(cpu_time(fn, 1), 1e-7))) for fn in (ours, unit)}
    ratios = sorted(cpu_time(ours, repeat[ours])/cpu_time(unit, repeat[unit]) for _ in range(pairs))
    return Row(what, unit_name, statistics.median(ratios), ratios[1], ratios[-2], budget)
