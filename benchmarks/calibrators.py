"""What calibrators make of held-out logits, and what their fits cost, beside those of probmetrics and netcal.

    python benchmarks/calibrators.py            # two tables for RESULTS.md; some four minutes on one core
    python benchmarks/calibrators.py --quick    # 5,000 samples at most

Logits are normal, raised for the true class, mixed by a matrix near the identity, shifted, and too large. Fitted on N
samples, judged on 20,000 others. CPU seconds of one thread, the best of some fits that are made in turn; a peer that
is not installed is left out. The second table has the measures of such logits as they are, ours and probmetrics'.
"""
import argparse
import os
import time
import warnings
from contextlib import suppress

import numpy as np
import torch

from calibnb import metrics
from calibnb.posthoc import held_out_scores, make_calibrator

SIZES = 500, 5_000, 50_000
N_TEST = 20_000
OF_CLASSES = dict(temperature=["probmetrics ts-mix", "netcal TemperatureScaling"], hts=[], vector=[], matrix=[],
                  dirichlet=[], svs=["probmetrics svs"], sms=["probmetrics sms"])
OF_ONE = dict(platt=["netcal LogisticCalibration"], beta=["probmetrics beta", "netcal BetaCalibration"],
              isotonic=["netcal IsotonicRegression"], histogram=["netcal HistogramBinning"],
              spline=["probmetrics spline"], venn_abers=["probmetrics ivap"])


def logits_of(n, K, seed):
    draw = torch.Generator().manual_seed(seed)
    z = 1.5*torch.randn(n, K, generator=draw)
    target = torch.randint(K, (n,), generator=draw)
    z[torch.arange(n), target] += 2.5
    fixed = torch.Generator().manual_seed(99)
    mixed = torch.eye(K) + .15*torch.randn(K, K, generator=fixed)/K**.5
    return 1.7*(z @ mixed.T + .3*torch.randn(K, generator=fixed)), target


class Peer:
    "Fits probabilities; gives rows of them, or of one class."
    def __init__(self, name):
        self.name = name
        package, self.method = name.split()
        self.make = dict(probmetrics=self.of_probmetrics, netcal=self.of_netcal)[package]

    def of_probmetrics(self):
        from probmetrics import calibrators
        kinds = dict(beta=calibrators.BetacalCalibrator, spline=calibrators.MLISplineCalibrator,
                     ivap=calibrators.BinaryVennAbersCalibrator) if self.method in ("beta", "spline", "ivap") else {}
        return kinds[self.method]() if kinds else calibrators.get_calibrator(self.method)

    def of_netcal(self):
        from netcal import binning, scaling
        kind = getattr(scaling, self.method, None) or getattr(binning, self.method)
        return kind()

    def fit(self, z, target):
        p = given(z)
        self.calibrator = self.make()
        self.calibrator.fit(p, target.numpy())

    def transform(self, z):
        calibrator = self.calibrator
        if hasattr(calibrator, "predict_proba"):
            p = calibrator.predict_proba(given(z))
        else:
            p = calibrator.transform(given(z))
        p = torch.from_numpy(np.asarray(p, dtype=np.float64)).squeeze()
        if z.ndim == 2 and p.ndim == 1:
            return torch.stack([1 - p, p], 1)
        return p[:, 1] if z.ndim == 1 and p.ndim == 2 else p


def given(z):
    "Probabilities as peers take them: float64, of one class a column."
    return z.double().sigmoid().numpy() if z.ndim == 1 else z.double().softmax(1).numpy()


class TwoColumns(Peer):
    "A peer that wants both classes' columns."
    def fit(self, z, target):
        self.calibrator = self.make()
        self.calibrator.fit(self.both(z), target.numpy())

    def transform(self, z):
        return torch.from_numpy(np.asarray(self.calibrator.predict_proba(self.both(z)), dtype=np.float64)[:, 1])

    def both(self, z):
        return np.stack([given(-z), given(z)], 1)


def installed(calibrators, z, target):
    "Those that can be fitted here; each is fitted once, so that nothing is compiled or imported later."
    for calibrator in calibrators:
        with suppress(ImportError):
            calibrator.fit(z, target)
            yield calibrator


def seconds(calibrators, z, target):
    "The best of some fits of each, three at a time in turn, so that what else the machine does meets all of them."
    found = [[] for _ in calibrators]
    while not found[0] or len(found[0]) < 24 and sum(map(sum, found)) < 3:
        for calibrator, times in [pair for pair in zip(calibrators, found) for _ in range(3)]:
            start = time.process_time()
            calibrator.fit(z, target)
            times.append(time.process_time() - start)
    return [min(times) for times in found]


def judged(calibrator, new, label):
    p = calibrator.transform(new).double()
    p = p.clamp(1e-12, 1) if p.ndim == 1 else (p.clamp_min(1e-12)/p.clamp_min(1e-12).sum(1, keepdim=True))
    return [f"{metrics.nll(p, label):.5f}", f"{metrics.brier_score(p, label):.5f}",
            f"{100*metrics.ece(p, label):.2f}"]


def rows_of(name, peers, K, N, data, new):
    kinds = [TwoColumns if "probmetrics" in peer and data[0].ndim == 1 else Peer for peer in peers]
    all_of_them = [make_calibrator(name), *(kind(peer) for kind, peer in zip(kinds, peers))]
    calibrators = list(installed(all_of_them, *data))
    took = seconds(calibrators, *data)
    for calibrator, s in zip(calibrators, took):
        ours = calibrator is calibrators[0]
        first = [f"{K:,}", f"{N:,}", name] if ours else ["", "", calibrator.name]
        yield [*first, *judged(calibrator, *new), f"{s:.4f}", "" if ours else f"{s/took[0]:.1f}"]


def ours(z, y):
    "Measures by probmetrics' names; of two classes its bins and its smooth ECE are of P(y = 1)."
    p = z.double().softmax(1)
    of = p[:, 1] if p.shape[1] == 2 else p
    return {"logloss": metrics.nll(p, y), "brier": metrics.brier_score(p, y), "ece-15": metrics.ece(of, y),
            "rmsce-15": metrics.ece(of, y, norm="l2"), "mce-15": metrics.mce(of, y), "smece": metrics.smooth_ece(of, y),
            "refinement_logloss_ts-mix_cv-5": held_out_scores(z, y).mean(),
            "refinement_brier_ts-mix_cv-5": held_out_scores(z, y, score="brier").mean()}


def of_measures(sizes):
    from probmetrics.metrics import Metrics
    for K in 2, 10, 100:
        for N in sizes:
            z, y = logits_of(N, K, 0)
            mine = ours(z, y)
            theirs = Metrics.from_names(list(mine)).compute_all_from_labels_logits(y, z)
            for name, value in mine.items():
                their = float(theirs[name])
                yield [f"{K:,}", f"{N:,}", name, f"{value:.6f}", f"{their:.6f}", f"{their - value:+.0e}"]


def table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|'*len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()


def of_calibrators(sizes):
    for K in 2, 10, 100:
        for N in sizes:
            data, new = logits_of(N, K, 0), logits_of(N_TEST, K, 1)
            cases = [(name, peers, data, new) for name, peers in OF_CLASSES.items()]
            if K == 2:
                one = [(z[:, 1] - z[:, 0], y) for z, y in (data, new)]
                cases += [(name, peers, *one) for name, peers in OF_ONE.items()]
            for name, peers, *sets in cases:
                yield from rows_of(name, peers, K, N, *sets)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    sizes = SIZES[:2] if parser.parse_args().quick else SIZES
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = ["K", "N", "calibrator", "NLL", "Brier", "ECE in %", "CPU s", "times ours"]
    table(head, of_calibrators(sizes))
    with suppress(ImportError):
        table(["K", "N", "measure", "ours", "probmetrics", "difference"], of_measures(sizes))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
