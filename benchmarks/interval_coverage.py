"""How often do the printed intervals hold the truth? Models whose true probabilities are known, calibrated and not.

    python benchmarks/interval_coverage.py             # some 20 minutes on two cores
    python benchmarks/interval_coverage.py --draws 50  # with larger errors: 3 points of standard error at 95 %

Logits are normal, labels are drawn from their softmax. The model is that softmax (calibrated), or a sharper one.
The truth is what the same measure gives on a million samples with true probabilities in place of labels.
"""
import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pandas as pd
import torch

from calibnb.core import Predictions
from calibnb.evaluate import Scored, measure_all
from calibnb.metrics import debiased_ece_ci
from calibnb.metrics.bins import bin_ids
from calibnb.metrics.smoothing import cosine_means, smooth_error_norm

CLASSES = 2, 10, 100, 200
SIZES = 500, 2_000, 10_000
SHARPER = {"calibrated": 1., "overconfident": 1.3}
N_TRUTH = 1_000_000
BINS = 15


def logits_of(n, K, generator):
    "More classes need larger logits for the same confidences."
    return (1.5 + K**.25)*torch.randn(n, K, generator=generator, dtype=torch.float64)


def gaps(conf, eta, n_bins=BINS):
    "Sum of confidence less truth in each bin."
    return torch.zeros(n_bins, dtype=torch.float64).index_add_(0, bin_ids(conf, n_bins).long(), eta - conf)


def parts_of_truth(K, sharper, seed):
    "What the measures of many samples are made of, added up in pieces that fit into memory."
    draw, n = torch.Generator().manual_seed(seed), max(1000, 2**22//K)
    classes, means, pieces = 0., [], []
    for _ in range(-(-N_TRUTH//(4*n))):
        z = logits_of(n, K, draw)
        eta, p = z.softmax(1), (sharper*z).softmax(1)
        conf, pred = p.max(1)
        right = eta.gather(1, pred[:, None])[:, 0]
        pieces.append((conf, right))
        means.append(torch.stack([1 - right, -(eta*p.clamp_min(1e-300).log()).sum(1),
                                  (p**2).sum(1) - 2*(p*eta).sum(1) + 1]).mean(1))
        classes = classes + torch.stack([gaps(p[:, k], eta[:, k]) for k in range(K)])
    conf, right = map(torch.cat, zip(*pieces))
    n_all = len(conf)
    found = dict(zip(("error", "nll", "brier"), torch.stack(means).mean(0).tolist()))
    for M in (BINS, 10, 50):
        found["ece" if M == BINS else f"ece_{M}"] = (gaps(conf, right, M).abs().sum()/n_all).item()
    order = conf.sort()[1].tensor_split(BINS)
    found["ada_ece"] = sum((right - conf)[part].sum().abs().item() for part in order)/n_all
    found["smooth_ece"] = smooth_error_norm(cosine_means([(conf, right - conf)]))
    found["classwise_ece"] = (classes.abs().sum()/n_all/K).item()
    count = torch.bincount(bin_ids(conf, BINS).long(), minlength=BINS).clamp_min(1)
    found["debiased_ece"] = (gaps(conf, right).square()/count/n_all).sum().sqrt().item()
    return found


def covered(K, n, sharper, truth, seeds):
    "For each draw: does the interval of each measure hold the truth, and does it lie above 0?"
    rows = []
    for seed in seeds:
        draw = torch.Generator().manual_seed(10_000 + seed)
        z = logits_of(n, K, draw)
        target = torch.multinomial(z.softmax(1), 1, generator=draw)[:, 0]
        preds = Predictions(sharper*z, target)
        found = measure_all(Scored.of(preds), more_bins=(10, 50), draws=2, n_boot=200, seed=seed)
        intervals = {name: m.interval for name, m in found.items()}
        intervals["debiased_ece"] = debiased_ece_ci(preds.probs, target, BINS)
        rows.append({name: lo <= truth[name] <= hi for name, (lo, hi) in intervals.items()})
    return pd.DataFrame(rows)


def setting(job, draws):
    K, n, kind = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    truth = parts_of_truth(K, SHARPER[kind], 0)
    held = covered(K, n, SHARPER[kind], truth, range(draws))
    return dict(classes=K, n=n, model=kind) | (100*held.mean()).round(1).to_dict()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="data sets a setting")
    parser.add_argument("--classes", type=int, nargs="*", default=CLASSES)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    args = parser.parse_args()
    jobs = [(K, n, kind) for K in args.classes for n in args.sizes for kind in SHARPER]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        table = pd.DataFrame(pool.map(partial(setting, draws=args.draws), jobs))
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
