"Models that are rarely wrong: how often does each interval that is printed contain the truth?"
from collections import defaultdict
from functools import partial

import numpy as np
import torch

from calibnb import metrics
from calibnb.core.predictions import Predictions
from calibnb.evaluate.compare import _differences
from calibnb.evaluate.groups import _slice
from calibnb.evaluate.measures import Scored, measure_all

CLASSES = 3
CHANCE = ("ece", "ada_ece", "smooth_ece", "classwise_ece")  # of a calibrated model, 0
CALIBRATION = (metrics.debiased_ece_ci, metrics.ks_error_ci, metrics.skce_ci, metrics.one_sided_ci,
               metrics.top_k_ece_ci, metrics.marginal_ce_ci)
MEANS = dict(error=metrics.error_rate, nll=metrics.nll, brier=metrics.brier_score)


def others(draw, label):
    return (label + torch.from_numpy(draw.integers(1, CLASSES, len(label)))) % CLASSES


def predicted(draw, label, conf, hit):
    "Probabilities whose largest one is `conf`, of the label where `hit`."
    top = torch.where(hit, label, others(draw, label))
    rest = (1 - conf)/(CLASSES - 1)
    return rest[:, None].repeat(1, CLASSES).scatter(1, top[:, None], conf[:, None])


def truth(p):
    "Error, NLL and Brier score of a calibrated model whose confidence is always p."
    q = (1 - p)/(CLASSES - 1)
    hit, miss = (1 - p)**2 + (CLASSES - 1)*q**2, p**2 + (1 - q)**2 + (CLASSES - 2)*q**2
    return dict(error=1 - p, nll=-p*np.log(p) - (1 - p)*np.log(q), brier=p*hit + (1 - p)*miss)


def intervals(p, n, seed):
    "Return {name: (interval, truth)} of one test set of n samples."
    draw = np.random.default_rng([seed, n, round(1e4*p)])
    conf, label = torch.full((n,), p, dtype=torch.float64), torch.from_numpy(draw.integers(CLASSES, size=n))
    old, new = ((torch.from_numpy(draw.random(n)) < p) for _ in range(2))
    probs, true = predicted(draw, label, conf, old), truth(p)
    preds, rival = (Predictions(q.log(), label) for q in (probs, predicted(draw, label, conf, new)))
    found = measure_all(Scored.of(preds), draws=10, seed=seed)
    made = {name: (found[name].interval, true.get(name, 0.)) for name in (*MEANS, *CHANCE)}
    made |= {function.__name__: (function(probs, label), 0.) for function in CALIBRATION}
    boot = partial(metrics.bootstrap_ci, probs=probs, target=label, n_boot=100, seed=seed)
    made |= {f"bootstrap {name}": (boot(metric), true[name]) for name, metric in MEANS.items()}
    made["bias of a slice"] = _slice("all", conf, old, 15, seed)["bias_interval"], 0.
    differences = _differences(preds, rival, slice(None), .95)
    return made | {f"difference of {name}": ((d.low, d.high), 0.) for name, d in differences.items()}


def coverage(p, n, times):
    "Return {name: number of sets whose interval contains the truth}."
    count = defaultdict(int)
    for seed in range(times):
        for name, ((low, high), true) in intervals(p, n, seed).items():
            count[name] += low - 1e-12 <= true <= high + 1e-12
    return count
