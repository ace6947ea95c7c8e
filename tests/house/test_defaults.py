"No result depends on a default of the process: dtype, device, inference mode, deterministic algorithms, threads."
import importlib
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from close import close
from sklearn.naive_bayes import GaussianNB
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibnb.train import Recipe

ROOMS = {  # what is tried together: its name here -> rooms
    "core": "core.atomic core.options core.checks core.runtime core.probabilities core.classes "
            "core.folds core.attributes core.predictions core.two_sets core.plugins",
    "bins": "metrics.bins", "paired": "metrics.paired", "smoothing": "metrics.smoothing",
    "intervals": "metrics.intervals metrics.clusters", "rare": "metrics.rare", "samples": "metrics.samples",
    "metrics": "metrics.scores metrics.errors metrics.variants metrics.testing metrics.selective"
               " metrics.ood metrics.decisions metrics.certainty metrics.registered",
    "streaming": "metrics.streaming",
    "weights": "losses.weights losses.fast_weights", "surrogates": "losses.surrogates",
    "losses": "losses.weighted losses.regularised losses.penalties losses.adaptive losses.modules losses.theory",
    "temperature": "posthoc.temperature posthoc.ensemble_temperature posthoc.entropy_temperature"
                   " posthoc.listed_temperature",
    "score_maps": "posthoc.score_maps posthoc.smooth_maps posthoc.venn_abers",
    "posthoc": "posthoc.newton posthoc.linear_objective posthoc.linear_newton posthoc.linear_fit posthoc.registry"
               " posthoc.fitting posthoc.calibrator posthoc.scaling posthoc.linear posthoc.structured posthoc.oracle"
               " posthoc.confidence_maps posthoc.composed posthoc.named posthoc.refinement posthoc.prior"
               " posthoc.sklearn",
    "plots": "plots",
    "evaluate": "evaluate.floors evaluate.confidences evaluate.measures evaluate.diagnosis evaluate.choice"
                " evaluate.words evaluate.table evaluate.ranking evaluate.audit evaluate.shifted evaluate.costs"
                " evaluate.plan evaluate.checks evaluate.conditions evaluate.by_class",
    "compared": "evaluate.groups evaluate.compare evaluate.comparison_page",
    "synth": "data.synth",
    "data": "data.splits data.toys data.corruptions data.sets data.downloads",
    "models": "models.classifier models.convnets models.sequences models.named models.clipping",
    "batches": "train.batches",
    "recorders": "train.history train.recorders",
    "train": "train.hooks train.finite train.device train.evaluator train.reporter train.one_batch train.trainer"
             " train.callbacks",
    "gamma_net": "meta.learned meta.hypergradients", "meta": "meta.trainer",
}


class Group:
    "Rooms as one namespace."
    def __init__(self, rooms):
        self.__all__ = []
        for room in rooms.split():
            module = importlib.import_module(f"calibnb.{room}")
            self.__all__ += [name for name in module.__all__ if name not in self.__all__]
            vars(self).update({k: v for k, v in vars(module).items() if not k.startswith("__")})


GROUPS = {name: Group(rooms) for name, rooms in ROOMS.items()}
core, bins, paired, smoothing, intervals, rare, samples, metrics, streaming, weights, surrogates, losses, temperature, \
    score_maps, posthoc, plots, evaluate, compared, synth, data, models, batches, recorders, train, gamma_net, \
    meta = GROUPS.values()

# a dependency that calls what another one is about to drop is none of our errors; what is said of our own calls is
OF_OTHERS = "DeprecationWarning", "PendingDeprecationWarning"
pytestmark = pytest.mark.filterwarnings("error", *(f"ignore::{kind}" for kind in OF_OTHERS),
                                        *(f"error::{kind}:calibnb" for kind in OF_OTHERS))
N, K = 24, 3
CLUSTER = torch.arange(N)//3


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype, device="cpu")


LOGITS = 2*draw(N, K)
MASKED = LOGITS.masked_fill(torch.arange(K) == 1, -float("inf"))
TARGET = torch.where(draw(N, seed=1) > -.5, LOGITS.argmax(1), (draw(N, seed=2) > 0).long())
PROBS = LOGITS.softmax(1)
CONF, HIT = PROBS.amax(1), PROBS.argmax(1) == TARGET
FEATURES = draw(N, 4, seed=3)
SCORES = [(PROBS, TARGET), (LOGITS.double().softmax(1), TARGET), (PROBS.numpy(), TARGET.numpy()),
          (PROBS[:6].double().div(PROBS[:6].double().sum(1, keepdim=True)).tolist(), TARGET[:6].tolist())]
SEGMENTS = draw(2, K, 2, 2, seed=4), TARGET[:8].view(2, 2, 2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# what is computed: a public name -> a function of nothing

TABLE, TRAINS = {}, set()  # of the latter, what needs a gradient


def scored(*names, **options):
    "Metrics of probabilities: float32, float64, NumPy arrays and lists."
    for name in names:
        TABLE[f"metrics.{name}"] = lambda fn=getattr(metrics, name): [fn(p, y, **options) for p, y in SCORES]


scored("error_rate", "nll", "entropy", "brier_score", "ece", "mce", "average_ce", "debiased_ece", "ada_ece", "ace")
scored("classwise_ece", "smooth_ece", "sece", "ece_ci", "debiased_ece_ci")
scored("overconfidence_error", "underconfidence_error", "one_sided_ci", "top_k_ece", "top_k_ece_ci", "ks_error")
scored("ks_error_ci", "ks_test", "skce_ci", "aurc", "augrc", "marginal_ce", "marginal_ce_ci", "canonical_ce", "e_aurc")
scored("failure_auroc", "risk_coverage")
BOTH = ["ece", "mce", "smooth_ece", "classwise_ece", "nll", "brier_score", "error_rate", "entropy"]


def weighed():
    return [samples.check_samples(p, HIT if p.ndim == 1 else TARGET, FEATURES[:, 0].abs(), 1) for p in (CONF, PROBS)]


TABLE |= {
    "metrics.reliability_bins": lambda: [metrics.reliability_bins(p, y, 5, scheme=s) for p, y in SCORES
                                         for s in ("width", "mass")],
    "metrics.mean_confidence": lambda: [metrics.mean_confidence(p) for p, _ in SCORES],
    "metrics.noise_floor": lambda: [metrics.noise_floor(p, draws=3) for p, _ in SCORES],
    "metrics.top_label_sums": lambda: metrics.top_label_sums(PROBS, TARGET, [5, 10]),
    "metrics.ece_from_logits": lambda: [metrics.ece_from_logits(z, TARGET, [5, 10])
                                        for z in (LOGITS, LOGITS.double(), LOGITS.numpy())],
    "metrics.kde_ece": lambda: [metrics.kde_ece(PROBS, TARGET, b, kernel=k)
                                for b, k in ((None, "beta"), ("loo", "beta"), (None, "triweight"))],
    "metrics.brier_of_samples": lambda: metrics.brier_of_samples(PROBS, TARGET),
    "metrics.learned_epoch": lambda: metrics.learned_epoch(np.array([[False, True, True], [True, True, False]])),
    "metrics.bootstrap_ci": lambda: [metrics.bootstrap_ci(m, PROBS, TARGET, n_boot=5)
                                     for m in (metrics.nll, metrics.error_rate)],
    "metrics.bootstrap_ci, of columns": lambda: [
        metrics.bootstrap_ci(metrics.brier_score, PROBS, F.one_hot(TARGET, K), n_boot=5, task="multilabel", **o)
        for o in ({}, dict(sample_weight=FEATURES[:, 0].abs()), dict(ignore_index=-1))],
    "metrics.ece, of one column": lambda: [
        [getattr(metrics, name)(p, HIT, **o) for name in BOTH for p in (CONF, CONF.double(), CONF.numpy())
         for o in ({}, dict(sample_weight=FEATURES[:, 0].abs()), dict(ignore_index=0))]],
    "metrics.ece, of columns": lambda: [getattr(metrics, name)(PROBS, F.one_hot(TARGET, K), task="multilabel")
                                        for name in BOTH],
    "samples.hits": lambda: samples.hits(PROBS, TARGET, CONF, CONF),
    "samples.Samples": lambda: [(s.pairs, s.correct, s.p_y, s.mean(s.p_y, s.correct)) for s in weighed()],
    "samples.check_samples": weighed,
    "samples.over_samples": lambda: samples.over_samples(lambda s: s.mean(s.p_y), PROBS, TARGET),
    "metrics.decision_curve": lambda: [metrics.decision_curve(p, HIT) for p in (CONF, CONF.double(), CONF.numpy())],
    "metrics.net_benefit": lambda: metrics.net_benefit(CONF, HIT, [.2, .5], sample_weight=FEATURES[:, 0].abs()),
    "metrics.expected_cost": lambda: [metrics.expected_cost(CONF, HIT, 1, 5, threshold=t) for t in (None, .5)],
    "metrics.cheapest_threshold": lambda: metrics.cheapest_threshold(CONF, HIT, 1, 5),
    "metrics.benefit_of_samples": lambda: metrics.benefit_of_samples(CONF.double(), HIT, CONF[:2].double()),
    "metrics.cost_of_samples": lambda: metrics.cost_of_samples(CONF.double(), HIT, 1., 5., .5),
    "metrics.registered_measures": lambda: metrics.registered_measures(["aurc", "skce"], PROBS, TARGET, n_boot=5),
    "metrics.consistency_test": lambda: [metrics.consistency_test(metrics.ece, p, y, draws=5) for p, y in SCORES],
    "metrics.kernel_width": lambda: [metrics.kernel_width(p) for p in (PROBS, PROBS.double())],
    "metrics.skce": lambda: [metrics.skce(p, y, block=b) for p, y in SCORES for b in (None, 2)],
    "metrics.skce_test": lambda: [metrics.skce_test(p, y, block=b, draws=5) for p, y in SCORES for b in (None, 2)],
    "metrics.RiskCoverage": lambda: [(c.coverage, c.risk, c.generalized, c.aurc, c.augrc, c.frame())
                                     for c in [metrics.RiskCoverage.of(CONF, ~HIT)]],
    "metrics.aurc, others": lambda: [metrics.aurc(p, y, score=s, sample_weight=FEATURES[:, 0].abs())
                                     for s in ("max", "margin", "entropy") for p, y in ((PROBS, TARGET), (CONF, HIT))],
    "metrics.energy_score": lambda: [metrics.energy_score(z, 2.) for z in (LOGITS, LOGITS.double(), LOGITS.numpy())],
    "metrics.ood_auroc": lambda: [metrics.ood_auroc(p, p[:10], score="entropy") for p, _ in SCORES],
    "metrics.fpr_at_tpr": lambda: [metrics.fpr_at_tpr(p, p[:10]) for p, _ in SCORES],
    "metrics.ood_measures": lambda: metrics.ood_measures(LOGITS, LOGITS[:9], score="energy", n_boot=5),
    "metrics.brownian_cdf": lambda: [metrics.brownian_cdf(x) for x in (.01, 1., 3.)],
    "metrics.brownian_tail": lambda: [metrics.brownian_tail(x) for x in (1., 3.)],
    "metrics.brownian_quantile": lambda: metrics.brownian_quantile(.95),
    "metrics.from_tables": lambda: [metrics.from_tables(s, lambda t: t.gap.nansum(), [5, 10], "right")
                                    for s in weighed()],
    "metrics.cumulative_errors": lambda: [metrics.cumulative_errors(s) for s in weighed()],
    "metrics.marginal_ce, others": lambda: [metrics.marginal_ce(PROBS, TARGET, 5, **o)
                                            for o in (dict(p=3), dict(debiased=True))],
    "metrics.canonical_ce, others": lambda: [metrics.canonical_ce(p, y, "loo") for p, y in ((PROBS, TARGET),
                                                                                            (CONF, HIT))],
    "metrics.top_k_ece, others": lambda: [metrics.top_k_ece(PROBS, TARGET, 2, ranks="at"),
                                          metrics.ks_error(PROBS, TARGET, k=2), metrics.ks_error(CONF, HIT)],
    "metrics.mce of no bin": lambda: metrics.mce(PROBS, TARGET, min_count=100),
    "metrics.ada_ece, others": lambda: [metrics.ada_ece(PROBS, TARGET, 5, **o)
                                        for o in (dict(method="interp"), dict(ties="group"))],
    "metrics.ece_ci, others": lambda: [metrics.ece_ci(PROBS, TARGET, 5, scheme=s)
                                       for s in ("mass", "classwise", "smooth")],
}

PAIRS = [(LOGITS, TARGET), (LOGITS.double(), TARGET), SEGMENTS]
EACH_GAMMA = {"focal_loss", "inverse_focal_loss", "dual_focal_loss", "bsce_loss"}


def of_logits(name, fn):
    "A function of logits: its values, and its gradients."
    def gradients():
        found = []
        for z, y in PAIRS:
            z = z.clone().requires_grad_()
            found.append(torch.autograd.grad(fn(z, y).sum(), z)[0])
        return found
    TABLE[name] = lambda: [fn(z, y) for z, y in PAIRS]
    TABLE[f"{name}, gradient"] = gradients
    TRAINS.add(f"{name}, gradient")


def by_seed(loss):
    def seeded(*args):
        torch.manual_seed(0)
        return loss(*args)
    return seeded


soft = lambda fn: lambda z, y: fn(z, torch.full_like(z.detach(), 1/K))
SPECIAL = {"soft_target_loss": soft(losses.soft_target_loss),
           "SoftTargetLoss": soft(lambda *args: losses.SoftTargetLoss()(*args)),
           "mixup_loss": lambda z, y: losses.mixup_loss(z, y, y.flip(0), .3),
           "consistency_loss": by_seed(losses.consistency_loss),
           "ConsistencyLoss": by_seed(lambda *args: losses.ConsistencyLoss()(*args))}
for name in losses.__all__:
    item = getattr(losses, name)
    if name.endswith("_loss") and name not in ("make_loss", "register_loss") or name == "weighted_cross_entropy":
        of_logits(f"losses.{name}", SPECIAL.get(name, item))
    elif name.endswith("Loss"):  # made under the defaults that are tried
        of_logits(f"losses.{name}", SPECIAL.get(name, lambda z, y, item=item: item()(z, y)))
    if name in EACH_GAMMA:
        of_logits(f"losses.{name}, gamma of each", lambda z, y,
                  item=item: item(z, y, torch.full_like(y, 2).float(), reduction="none"))
for name in "focal_loss", "label_smoothing_loss", "sece_loss":
    of_logits(f"losses.{name}, of which some count", lambda z, y, item=getattr(losses, name): item(
        z, y, weight=[1., 2., .5], ignore_index=1))
for name in losses.list_losses():
    of_logits(f"losses.make_loss {name}",
              by_seed(lambda z, y, name=name: losses.make_loss(name, reduction="sum")(z, y)))


def moved_adafocal():
    loss = losses.AdaFocalLoss(n_bins=4)
    loss.update(CONF, HIT)
    return loss, loss(LOGITS, TARGET)


TABLE |= {
    "weights.gamma_of_bin": lambda: weights.gamma_of_bin(CONF, LOGITS[:3, 0], CONF[:2].sort().values),
    "weights.adafocal_weight": lambda: weights.adafocal_weight(LP, LOGITS[:3, 0], CONF[:2].sort().values),
    "losses.loss_options": lambda: [losses.loss_options(name) for name in losses.list_losses()],
    "losses.focal_gradient_factor": lambda: [losses.focal_gradient_factor(p, 3.)
                                             for p in (.3, [.1, .2, 1.], np.array([.1, .3]), CONF)],
    "losses.gamma_from_p0": lambda: losses.gamma_from_p0(.2),
    "losses.binary_focal_argmin": lambda: losses.binary_focal_argmin(.7, 3.),
    "losses.weighted_cross_entropy, weights": lambda: [losses.weighted_cross_entropy(LOGITS, TARGET, w)
                                                       for w in (weights.focal_weight, lambda lp: lp.d_y)],
    "losses.equal_mass_edges": lambda: losses.equal_mass_edges(CONF, 4),
    "losses.confidence_gaps": lambda: losses.confidence_gaps(CONF, HIT, losses.equal_mass_edges(CONF, 4)),
    "losses.next_gammas": lambda: losses.next_gammas(torch.tensor([1., -.21], dtype=torch.float64, device="cpu"),
                                                     torch.tensor([.5, .5], dtype=torch.float64, device="cpu")),
    "losses.AdaFocalLoss, moved": moved_adafocal,
    "losses.gammas in a list": lambda: losses.focal_loss(LOGITS, TARGET, [1.5]*N),
}
for name in surrogates.__all__:
    of_logits(f"surrogates.{name}", getattr(surrogates, name))
of_logits("surrogates.sece, others", lambda z, y: surrogates.sece(z, y, accuracy="hard", self_term=False, chunk=5))

LP = weights.LogProbs(LOGITS, TARGET)
TABLE |= {f"weights.{name}": lambda fn=getattr(weights, name): fn(LP) for name in weights.__all__
          if name.endswith("_weight") and name not in ("adafocal_weight", "check_class_weight")}
TABLE |= {
    "weights.LogProbs": lambda: weights.LogProbs(LOGITS, TARGET),
    "weights.gamma_of_bucket": lambda: weights.gamma_of_bucket(CONF, (.2, .5), (5., 3., 1.)),
    "weights.unmasked": lambda: weights.unmasked(MASKED, MASKED == -float("inf")),
    "weights.row_mean": lambda: [weights.row_mean(LOGITS, m) for m in (None, MASKED == -float("inf"))],
    "weights.reduce": lambda: [weights.reduce(CONF, r, None, s) for r in ("mean", "sum", "none") for s in (None, CONF)],
    "weights.weighted_reduce": lambda: weights.weighted_reduce(CONF, CONF, "mean"),
    "weights.check_batch": lambda: [weights.check_batch(z, y, [1., 2., .5], 1) for z, y in PAIRS],
    "weights.LossBatch": lambda: [weights.check_batch(z, y, [1., 2., .5], 1).sample_weights() for z, y in PAIRS],
    "weights.check_class_weight": lambda: weights.check_class_weight([1., 2., 3], LOGITS),
    "weights.weighted_ce": lambda: weights.weighted_ce(LOGITS, TARGET, partial(weights.bsce_weight, beta=3.)),
    "bins.bin_ids": lambda: [bins.bin_ids(c, M, closed)
                             for c in (CONF, CONF.double(), torch.arange(0, 11, dtype=torch.float64, device="cpu")/10)
                             for M in (5, 10) for closed in ("left", "right")],
    "bins.bin_sums": lambda: bins.bin_sums(bins.bin_ids(CONF, 5), CONF, HIT, 5),
    "bins.scatter_sums": lambda: bins.scatter_sums(bins.bin_ids(CONF, 5), 5, [HIT, CONF]),
    "bins.hit_variance": lambda: bins.hit_variance(CONF.double(), TARGET + 1),
    "bins.width_bins": lambda: bins.width_bins(CONF, HIT, 5),
    "bins.width_table": lambda: bins.width_table(bins.bin_sums(bins.bin_ids(CONF, 5), CONF, HIT, 5)),
    "bins.ReliabilityBins": lambda: [(t.gap, t.weight, t.noise, t.frame()) for t in [bins.width_bins(CONF, HIT, 5)]],
    "bins.mass_table": lambda: [bins.mass_table(CONF, HIT, 5, ties) for ties in ("mean", "split", "group")],
    "bins.mass_shares": lambda: bins.mass_shares(CONF, 5),
    "bins.tie_starts": lambda: bins.tie_starts(CONF[:, None].sort(0).values, 1e-9),
    "bins.mean_of_ties": lambda: bins.mean_of_ties(CONF[:, None].sort(0).values, HIT[:, None].double(), 1e-9),
    "bins.mukhoti_adaptive_ece": lambda: bins.mukhoti_adaptive_ece(CONF, HIT, 5),
    "bins.chunks": lambda: list(bins.chunks(PROBS, TARGET, 16)),
    "bins.class_sums": lambda: bins.class_sums(PROBS, TARGET, 5),
    "bins.class_gaps": lambda: bins.class_gaps(PROBS, TARGET, 5),
    "bins.table_norm": lambda: [bins.table_norm(bins.width_bins(CONF, HIT, 5), norm) for norm in ("l1", "l2", "max")],
    "smoothing.grid_size": lambda: smoothing.grid_size(.01),
    "smoothing.cosine_means": lambda: smoothing.cosine_means([(CONF, HIT.double() - CONF)], 64),
    "smoothing.smoothed_error": lambda: smoothing.smoothed_error(smoothing.cosine_means([(CONF, HIT.double() - CONF)],
                                                                                        64), .1),
    "smoothing.smooth_error_norm": lambda: smoothing.smooth_error_norm(smoothing.cosine_means([(CONF,
                                                                                                HIT.double() - CONF)])),
    "smoothing.smooth_error_norms": lambda: smoothing.smooth_error_norms(
        smoothing.cosine_means([(CONF, HIT.double() - CONF)], 64)[None]),
    "smoothing.smooth_noise": lambda: smoothing.smooth_noise(CONF, HIT, draws=3, cells=64),
    "smoothing.smooth_curve": lambda: smoothing.smooth_curve(CONF, HIT),
    "smoothing.gaussian_log_kernel": lambda: smoothing.gaussian_log_kernel(CONF, TARGET, .1, False),
    "smoothing.gaussian_regression": lambda: smoothing.gaussian_regression(CONF, HIT, .1),
    "smoothing.dirichlet_regression": lambda: smoothing.dirichlet_regression(PROBS, F.one_hot(TARGET, K), .1),
    "smoothing.dirichlet_bandwidth": lambda: smoothing.dirichlet_bandwidth(PROBS),
    "smoothing.triweight_error": lambda: smoothing.triweight_error(CONF, HIT),
    "intervals.resamples": lambda: list(intervals.resamples(N, 3, 0)),
    "bins.interpolated_edges": lambda: bins.interpolated_edges(CONF, 5),
    "bins.squared_gaps": lambda: bins.squared_gaps(bins.width_bins(CONF, HIT, 5)),
    "intervals.Resamples": lambda: [
        intervals.Resamples(n, 3, draw=kind).means(draw(2, n))
        for n in (N, 9000) for kind in ("poisson", "multinomial")],
    "intervals.percentiles": lambda: intervals.percentiles(CONF, .9),
    "intervals.norm_interval": lambda: intervals.norm_interval(CONF, draw(5, N), CONF/3, CONF, 4.),
    "intervals.gap_interval": lambda: [intervals.gap_interval(t.gap, t.acc, t.count, t.weight, draws=20)
                                       for t in [bins.width_bins(CONF, HIT, 5)]],
    "intervals.squared_interval": lambda: [intervals.squared_interval(t.gap, t.noise, t.count)
                                           for t in [bins.mass_table(CONF, HIT, 5)]],
    "intervals.class_interval": lambda: intervals.class_interval(bins.class_sums(PROBS, TARGET, 5), draws=20),
    "intervals.consistent_errors": lambda: [intervals.consistent_errors(t.conf, t.count, draws=20)
                                            for t in [bins.width_bins(CONF, HIT, 5)]],
    "intervals.monte_carlo_p": lambda: intervals.monte_carlo_p(CONF, .5),
    "intervals.calibration_in_the_large_p": lambda: intervals.calibration_in_the_large_p(CONF, HIT),
    "intervals.holm": lambda: intervals.holm([.01, .04, .03]),
    "intervals.gap_errors": lambda: intervals.gap_errors(CONF - .5, TARGET, torch.full_like(TARGET, 5)),
    "intervals.proportion_interval": lambda: intervals.proportion_interval(TARGET, torch.full_like(TARGET, 5)),
    "intervals.rate_variance": lambda: [intervals.rate_variance(t.count*t.acc.nan_to_num(0), t.count.clamp_min(1))
                                        for t in [bins.width_bins(CONF, HIT, 5)]],
    "intervals.linearized": lambda: intervals.linearized(CONF, CONF),
    "intervals.effective_size": lambda: intervals.effective_size(CONF),
    "intervals.weighting_effect": lambda: intervals.weighting_effect(CONF, CONF),
    "intervals.cluster_sums": lambda: intervals.cluster_sums(CONF[None], CLUSTER),
    "intervals.design_effect": lambda: intervals.design_effect(CONF, CLUSTER),
    "intervals.variance_factor": lambda: intervals.variance_factor(CONF, CLUSTER),
    "intervals.together": lambda: intervals.together(CLUSTER),
    "intervals.few_clusters": lambda: intervals.few_clusters(8),
    "rare.bias_interval": lambda: [rare.bias_interval(c, HIT) for c in (CONF, CONF.double())],
    "rare.loss_of_a_miss": lambda: rare.loss_of_a_miss(CONF.double(), HIT, CONF.double(), CONF.double()),
    "rare.mean_intervals": lambda: rare.mean_intervals(CONF[None].double(), CONF[:1], intervals.Resamples(N, 9)),
    "rare.with_unseen_misses": lambda: [[*rare.with_unseen_misses(PROBS, TARGET, 3, 0)][:3]],
}

LOG_WEIGHTS = torch.tensor([.7, .2, .1], dtype=torch.float64).log()
FITTED = {"temperature": [{}, dict(criterion="ece"), dict(search="grid"), dict(criterion="ece", search="grid")],
          "ets": [{}], "vector": [{}], "matrix": [{}], "dirichlet": [{}], "hts": [{}], "svs": [{}], "sms": [{}],
          "histogram": [{}, dict(mode="each", scheme="mass", empty="zero"), dict(mode="each", empty="identity")],
          "isotonic": [dict(mode=m) for m in ("top", "each")],
          "bbq": [dict(mode=m, bin_numbers=b) for m in ("top", "each") for b in (None, [2, 5])],
          "platt": [dict(mode=m, targets=t) for m in ("top", "each") for t in ("platt", "hard")],
          "beta": [dict(mode=m) for m in ("top", "each")], "spline": [dict(mode=m) for m in ("top", "each")],
          "venn_abers": [dict(mode=m, folds=n) for m in ("top", "each") for n in (None, 3)]}
OTHER = (draw(N, seed=7) > 0).long() + (draw(N, seed=8) > 1).long()
ROUGH = LOGITS + draw(N, K, seed=5), torch.where(draw(N, seed=6) > -.6, LOGITS.argmax(1), OTHER)  # nothing separates it


def calibrated(name, options):
    "A calibrator fitted, what it gives, and the same from a file."
    found, out = posthoc.make_calibrator(name, **options), []
    for z in ROUGH[0].double(), ROUGH[0].numpy():
        found.fit(z, ROUGH[1])
        out.append([vars(found), found.transform(LOGITS), found.transform(LOGITS.double()),
                    found.transform(LOGITS.numpy()), found.predict(LOGITS), found.nll(LOGITS, TARGET)])
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/c.safetensors")
        again = posthoc.Calibrator.load(f"{folder}/c.safetensors")
    return out, vars(again), again.transform(LOGITS)


for name, kind in ((n, k) for n, k in posthoc.CALIBRATORS.items() if n != "+"):
    for i, options in enumerate(FITTED[name]):
        TABLE[f"posthoc.{kind.__name__}" + (f" {options}" if i else "")] = partial(calibrated, name, options)
TABLE |= {
    "posthoc.Composed": partial(calibrated, "vector+platt", {}),
    "posthoc.calibrated_logits": lambda: posthoc.calibrated_logits(posthoc.VectorScaling().fit(*ROUGH), LOGITS),
    "posthoc.held_out_logits": lambda: posthoc.held_out_logits(posthoc.VectorScaling(), *ROUGH),
    "temperature.entropy_temperature": lambda: temperature.entropy_temperature(*ROUGH),
    "temperature.sample_temperatures": lambda: temperature.sample_temperatures(ROUGH[0], -.2, 1.),
    "temperature.ensemble_temperature": lambda: temperature.ensemble_temperature(*ROUGH),
    "temperature.mixture_log_probs": lambda: temperature.mixture_log_probs(
        LOGITS.double(), 2., LOG_WEIGHTS),
    "core.uniform_weight": lambda: core.uniform_weight(ROUGH[0].softmax(1), ROUGH[1]),
    "posthoc.CalibratedModel": lambda: posthoc.CalibratedModel(GaussianNB(), cv=2).fit(FEATURES.numpy(), TARGET.numpy())
                                              .predict_proba(FEATURES.numpy()),
    "posthoc.held_out_scores": lambda: [posthoc.held_out_scores(*ROUGH, score=score) for score in ("nll", "brier")],
    "posthoc.score_decomposition": lambda: posthoc.score_decomposition(*ROUGH, "vector", n_boot=5),
    "posthoc.adjust_prior": lambda: [posthoc.adjust_prior(p, [.2, .3, .5], [.6, .4, 0.]) for p, _ in SCORES],
    "posthoc.estimate_prior": lambda: [[posthoc.estimate_prior(p, [.2, .3, .5]), posthoc.estimate_prior(
        p, method="bbse", probs_val=PROBS, target_val=TARGET, confusion="hard")] for p, _ in SCORES],
    "posthoc.oracle_ece": lambda: [posthoc.oracle_ece(*ROUGH, 5, search) for search in ("pool", "grid")],
    "temperature.nll_temperature": lambda: [temperature.nll_temperature(z, ROUGH[1])
                                            for z in (ROUGH[0], ROUGH[0].double())],
    "temperature.nll_temperature_in": lambda: [temperature.nll_temperature_in(*ROUGH, search)
                                               for search in ("pool", "grid")],
    "temperature.ece_by_temperature": lambda: temperature.ece_by_temperature(*ROUGH,
                                                                             temperature.temperature_lists["grid"]),
    "temperature.ece_temperature_in": lambda: temperature.ece_temperature_in(*ROUGH),
    "score_maps.edges_between": lambda: score_maps.edges_between(CONF.double().sort().values, TARGET[:3] + 1),
    "score_maps.histogram_map": lambda: score_maps.histogram_map(CONF.double(), HIT),
    "score_maps.isotonic_map": lambda: score_maps.isotonic_map(CONF.double(), HIT),
    "score_maps.platt_map": lambda: score_maps.platt_map(CONF.double(), HIT),
    "score_maps.beta_map": lambda: score_maps.beta_map(CONF.logit(), HIT),
    "score_maps.spline_map": lambda: score_maps.spline_map(CONF.logit(), HIT),
    "score_maps.venn_abers_map": lambda: score_maps.venn_abers_map(CONF, HIT),
    "score_maps.beta": lambda: score_maps.beta(score_maps.beta_map(CONF.logit(), HIT), CONF.logit()),
    "score_maps.spline": lambda: score_maps.spline(score_maps.spline_map(CONF.logit(), HIT), CONF.logit()),
    "score_maps.venn_abers": lambda: score_maps.venn_abers(score_maps.venn_abers_map(CONF, HIT), CONF.double()),
    "score_maps.bbq_map": lambda: score_maps.bbq_map(CONF.double(), HIT),
    "score_maps.step_map": lambda: score_maps.step_map(score_maps.histogram_map(CONF.double(), HIT), CONF.double()),
    "score_maps.affine_map": lambda: score_maps.affine_map(score_maps.isotonic_map(CONF.double(), HIT), CONF.double()),
    "score_maps.platt": lambda: score_maps.platt(score_maps.platt_map(CONF.double(), HIT), CONF.double()),
}


def streamed(kind, *args):
    metric, found = kind(*args), []
    found += [metric(p, y) for p, y in SCORES[:2]]
    metric.update(PROBS, TARGET)
    table = metric.table() if isinstance(metric, streaming.ECE) else None
    return found, metric.compute(), metric.sums, metric.n, str(metric.device), table


TABLE |= {f"streaming.{name}": partial(streamed, getattr(streaming, name), *[K]*(name == "ClasswiseECE"))
          for name in streaming.__all__ if name not in ("SumMetric", "MeanMetric")}


def mixture(**options):
    problem = synth.GaussianMixture(**dict(means=[[0., 1.5], [.1, -2.], [3., 0.]]) | options)
    x, y = problem.sample(12, generator(), balanced=True)
    return x, y, problem.sample(12, generator()), problem.posterior(x), problem.log_posterior(x.float()), problem.priors


IMAGES = draw(6, 1, 8, 8)
TABLE |= {
    "synth.GaussianMixture": lambda: [mixture(**o)
                                      for o in ({}, dict(cov=.3), dict(cov=[[1., .3], [.3, .7]]),
                                                dict(priors=[.1, .2, .7]),
                                                dict(means=draw(3, 2), priors=draw(3).abs()))],
    "synth.GaussianMixture.random": lambda: synth.GaussianMixture.random(3, 2, generator=generator()).means,
    "synth.vary_images": lambda: synth.vary_images(IMAGES, TARGET[:6], K, generator=generator()),
    "synth.blend_images": lambda: synth.blend_images(IMAGES, TARGET[:6], 7, 8., generator()),
    "synth.NoisyImages": lambda: synth.NoisyImages(IMAGES, TARGET[:6], PROBS[:6], TARGET[:6]),
    "synth.true_calibration_error": lambda: [synth.true_calibration_error(PROBS, PROBS.flip(0), kind)
                                             for kind in ("sq", "norm", "top")],
    "data.gaussian_problem": lambda: data.gaussian_problem(3).means,
    "data.gaussians": lambda: data.gaussians(3, train_per_class=4, val_per_class=2, test_per_class=3),
    "data.digits": lambda: data.digits(3, n_meta=100),
    "data.noisy_digits": lambda: data.noisy_digits(3, variants=1, n_train=20, n_val=10),
    "data.ambiguous_digits": lambda: data.ambiguous_digits(3, n_train=20, n_val=10, n_test=10),
    "data.load_data": lambda: data.load_data("digits", pool=4),
    "data.data_size": lambda: data.data_size("digits"),
    "data.true_posterior": lambda: data.true_posterior("noisy_digits", n_train=50),
    "data.corrupt": lambda: [data.corrupt(pixels, kind, 5) for kind in data.list_corruptions() for pixels in COLOURS],
    "data.corrupt_split": lambda: data.corrupt_split(data.digits(3).test[:9], "rotate").x,
    "data.hold_out": lambda: data.hold_out(TARGET.numpy() > 0, [4, 5], 0),
    "data.channel_scale": lambda: data.channel_scale(SQUARES["train_x"]),
    "data.split_arrays": lambda: [(s.num_classes, s.train.ready(s.train.x[:]), s.test.ready(s.test.x[:]), s.val.y)
                                  for n in (4 << 30, 0)
                                  for s in [data.split_arrays("squares", SQUARES, 0, val=.2, in_memory=n)]],
    "data.Rows": lambda: data.Rows(IMAGES, TARGET)[4:9],
    "data.Split": lambda: data.Split(PIXELS, TARGET[:6], scale=((.3,), (.2,))).ready(PIXELS),
    "data.Splits": lambda: small_digits().parts,
    "train.calibration_measures": lambda: [train.calibration_measures(z, TARGET) for z in (LOGITS, LOGITS.numpy())],
    "train.hf_measures": lambda: train.hf_measures(
        SimpleNamespace(predictions=LOGITS.numpy(), label_ids=TARGET.numpy())),
    "batches.EpochPlan": lambda: [planned(augment=a, mixup=m) for a in ((), ("crop",), ("crop", "flip"))
                                  for m in (0., .4)],
    "batches.crop_and_flip": lambda: batches.crop_and_flip(IMAGES, None, TARGET[:6] > 0),
    "batches.batches": lambda: list(batches.batches(data.Split(PIXELS, TARGET[:6], scale=((.3,), (.2,))),
                                                    planned(n=6, augment=("crop", "flip"), mixup=.4), "cpu")),
    "batches.place_split": lambda: batches.place_split(data.Split(IMAGES, TARGET[:6]), "cpu"),
}
PIXELS = (IMAGES*50 + 100).clamp(0, 255).to(torch.uint8)
COLOURS = [colours := draw(2, 3, 8, 8, seed=9).sigmoid(), colours.double(), (255*colours).to(torch.uint8)]
SQUARES = dict(train_x=np.arange(20*64, dtype=np.uint8).reshape(20, 1, 8, 8), train_y=np.arange(20) % 2)


def planned(n=N, **options):
    return batches.EpochPlan(n, 5, generator(), **options)


def small_digits(**options):
    return data.load_data("digits", n_train=60, n_val=1700, **options)


SMALL = {"mlp": ((16,), dict(hidden=[8])), "small_cnn": ((1, 8, 8), dict(width=4)),
         "small_resnet": ((3, 8, 8), dict(width=4, hidden=8)),
         "resnet18": ((3, 8, 8), dict(width=4)), "resnet50": ((3, 8, 8), dict(blocks=[1, 1], width=4)),
         "resnet32": ((3, 8, 8), dict(blocks=[1, 1], width=4)),
         "resnet110": ((3, 8, 8), dict(blocks=[1, 1, 1], width=4, shortcut="pad")),
         "wide_resnet": ((3, 8, 8), dict(depth=8, width=1)), "densenet121": ((3, 8, 8), dict(blocks=[1, 1], growth=4)),
         "vgg16": ((3, 32, 32), dict(channels=[4, 0, 8, 0])),
         "text_cnn": ((16,), dict(vocabulary=9, dim=4, width=4)), "tree_lstm": ((5, 5), dict(vocabulary=9, dim=4)),
         "torchvision_resnet50": ((3, 32, 32), dict(net="resnet18"))}
TREES = torch.tensor([[[2, -1, -1, 0, 1], [3, -1, -1, 0, 0], [4, -1, -1, 0, -1], [0, 0, 1, 1, 1], [0, 3, 2, 2, 0]],
                      [[5, -1, -1, 0, 1], [6, -1, -1, 0, 0], [0, 0, 1, 1, 1], [0, -1, -1, -1, -1],
                       [0, -1, -1, -1, -1]]], dtype=torch.int16, device="cpu")


def inputs(name, shape):
    if name == "tree_lstm":
        return TREES
    if name == "text_cnn":
        return (TARGET[:, None] + TARGET[:16]) % 9  # word ids
    return draw(8, *shape)


def built(name):
    "A network, its logits, and it after a step of training."
    if torch.are_deterministic_algorithms_enabled():
        torch.set_num_threads(1)  # two would share a convolution
    shape, options = SMALL[name]
    net = models.make_model(name, K, shape, seed=3, **options)
    x = inputs(name, shape)
    y = TARGET[:len(x)]
    before, logits = {k: v.clone() for k, v in net.state_dict().items()}, net.eval()(x)
    torch.manual_seed(0)
    optimizer = Recipe(optimizer="sgd").make_optimizer(net.parameters())
    F.cross_entropy(*net.train().supervised(x, y)).backward()
    optimizer.step()
    return before, logits, net, net.features(x)


for name in SMALL:
    TABLE[f"models.make_model {name}"] = partial(built, name)
    TRAINS.add(f"models.make_model {name}")
HEAD = models.make_model("mlp", K, (4,), hidden=[5]).requires_grad_()
TABLE |= {
    "models.model_options": lambda: [models.model_options(name) for name in models.list_models()],
    "models.head_gradient_norm": lambda: models.head_gradient_norm(F.cross_entropy, LOGITS, TARGET, FEATURES),
    "gamma_net.focal_logit_gradient": lambda: gamma_net.focal_logit_gradient(LOGITS, TARGET, CONF),
    "gamma_net.GammaNet": lambda: [inner(gamma_net.GammaNet, 4, k, init=i, positivity=p) for k, i, p in
                                   ((3, "exact", "abs"), (6, "exact", "abs"), (3, "scaled", "abs"),
                                    (3, "random", "softplus"), (3, "exact", "softplus"),
                                    (3, "random", "min_max"))],
    "gamma_net.LearnedSmoothing": lambda: [inner(gamma_net.LearnedSmoothing, K, kind) for kind in gamma_net.SMOOTHINGS],
    "gamma_net.LearnedL2": lambda: [(m, m(HEAD.head)) for m in [gamma_net.LearnedL2(HEAD.head)]],
    "gamma_net.hypergradient": lambda: [hyper(gamma_net.hypergradient, **o)
                                        for o in ({}, dict(scope="full"), dict(scope="full", jvp_by="difference"))],
    "gamma_net.leaked_gradients": lambda: hyper(gamma_net.leaked_gradients),
    "gamma_net.head_direction": lambda: gamma_net.head_direction(HEAD.head, FEATURES5,
                                                                 (HEAD.head.weight, HEAD.head.bias), FEATURES5, TARGET,
                                                                 F.cross_entropy, .1),
    "gamma_net.replay_rng": lambda: [drawn() for _ in range(2)],
}
FEATURES5 = draw(N, 5, seed=9)
TRAINS |= {"models.head_gradient_norm", "gamma_net.hypergradient", "gamma_net.leaked_gradients",
           "gamma_net.head_direction"}


def inner(kind, *args, **options):
    with core.seeded(3):
        net = kind(*args, **options)
    if hasattr(net, "rescale"):
        net.rescale(FEATURES)
    return net, net(FEATURES) if kind is gamma_net.GammaNet else net(TARGET, K), net.losses(LOGITS, TARGET, FEATURES)


def hyper(fn, **options):
    with core.seeded(3):
        net = gamma_net.GammaNet(5, K)
    return fn(HEAD, net, (FEATURES, TARGET), (FEATURES.flip(0), TARGET.flip(0)),
              partial(surrogates.sece, bandwidth=.1), .1, **options)


def drawn():
    torch.manual_seed(0)
    state = gamma_net.rng_state("cpu")
    with gamma_net.replay_rng(state, "cpu"):
        return torch.rand(3, dtype=torch.float32, device="cpu")


def trained(recorders=(), **recipe):
    splits = small_digits()
    net = models.make_model("mlp", 10, splits.in_shape, hidden=[8])
    trainer = train.Trainer(net, losses.make_loss("focal"), Recipe(**dict(epochs=2, batch_size=16) | recipe), "cpu")
    history = trainer.fit(splits, recorders)
    kept = [getattr(r, "arrays", None) for r in trainer.recorders]
    return history.rows, net, trainer.predict(splits.test), trainer.features(splits.val), kept


def clipped():
    net = models.make_model("mlp", K, (4,), seed=0, hidden=[8])
    threshold = models.clip_threshold(net.head, net.features(FEATURES), TARGET)
    return threshold, models.ClippedFeatures(net, .5)(FEATURES)


TABLE |= {"models.clip_threshold": lambda: clipped()[0], "models.ClippedFeatures": lambda: clipped()[1]}


def meta_trained(recipe=Recipe(epochs=2, batch_size=16), **options):
    splits = small_digits(n_meta=30)
    net = models.make_model("mlp", 10, splits.in_shape, hidden=[12])
    trainer = meta.MetaTrainer(net, meta.MetaRecipe(**options), recipe, "cpu")
    gamma = options.get("learn", "gamma") == "gamma"
    history = trainer.fit(splits, ["meta_progress", "gamma_stats"] if gamma else ["meta_progress"])
    return history.rows, net, trainer.stepper.inner, trainer.gamma(splits.test) if gamma else None


ALL_RECORDERS = [name for name in recorders.recorders if name != "meta_progress"]
TABLE |= {
    "train.Trainer": lambda: [trained(**o)
                              for o in (dict(mixup=.4, clip=1.), dict(accumulate=2, label_noise=.3, schedule="cosine"),
                                        dict(precision="bf16", keep="val_nll"))],
    "train.Trainer, optimisers": lambda: [trained(optimizer=o, lr=.01, epochs=1) for o in ("adam", "adamw", "adagrad")],
    "batches.flip_labels": lambda: batches.flip_labels(TARGET, K, .5, 0),
    "train.loss_of_batch": lambda: train.loss_of_batch(losses.make_loss("focal"), LOGITS, TARGET),
    "train.mean_loss": lambda: train.mean_loss(CONF, N, Recipe(), 0),
    "recorders.make_recorder": lambda: trained(ALL_RECORDERS, keep="refinement"),
    "meta.MetaTrainer": lambda: [meta_trained(**o)
                                 for o in ({}, dict(scope="full"), dict(learn="smoothing", outer="dece"),
                                           dict(learn="l2", ce_weight=1., with_leak=True))],
    "meta.MetaRecipe": lambda: meta.MetaRecipe().model_dump(),
    "meta.EndlessBatches": lambda: [b.next("cpu") for b in [meta.EndlessBatches(data.Split(FEATURES, TARGET), 7, 0)]
                                    for _ in range(5)],
}
TRAINS |= {"train.Trainer", "train.Trainer, optimisers", "recorders.make_recorder", "meta.MetaTrainer"}

PREDS = core.Predictions(LOGITS, TARGET)


def columns():
    "Predictions of one column, of each form."
    flags = TARGET == 0
    return [core.Predictions(LOGITS[:, 0], flags), core.Predictions(LOGITS[:, :1].double(), flags[:, None]),
            core.Predictions.from_probs(CONF, flags), core.Predictions.from_probs(CONF.tolist(), flags.tolist()),
            core.Predictions.from_probs(flags.double(), flags, eps=.1)]


def two_rows():
    sharper = core.Predictions(2*PREDS.logits, PREDS.target)
    return dict(given=evaluate.Scored.of(PREDS), sharper=evaluate.Scored.of(sharper))


def carried_over():
    few = [core.Predictions(draw(2*N, K, seed=s), (draw(2*N, seed=s + 1) > 0).long()) for s in (5, 7)]
    found = evaluate.evaluate(few[0], calibrators=["platt"], folds=2, n_boot=2, draws=2)
    return list(evaluate.evaluate_shifted(found, *few).record()["rows"].values())


def evaluated():
    found = evaluate.evaluate(PREDS, core.Predictions(*ROUGH), ["temperature", "platt"], n_bins=5, more_bins=(),
                              n_boot=5, draws=2)
    return found.frame(), found.text(), found.scored, found.notes


def costs_of_decisions():
    found = [evaluate.evaluate(p, None, ["temperature"], folds=2, n_bins=5, n_boot=5, draws=2) for p in columns()]
    return [(f.frame(), d.record(), d.text(), d.curves)
            for f, d in ((f, evaluate.Decisions.of(f, 1, 4, n_boot=5)) for f in found)]


def drawn_figure():
    from matplotlib.figure import Figure
    axes = Figure().subplots(1, 4)
    tables = plots.reliability_row(axes[:2], {name: evaluate.Scored.of(PREDS).diagram(5) for name in "ab"})
    image = plots.density(axes[3], CONF, CONF, "x", "y")
    return tables, plots.correctness_histogram(axes[2], CONF, HIT), image.get_array()


def in_groups():
    return core.Predictions(LOGITS, TARGET, groups=dict(side=["a", "b"]*(N//2), end=["c"]*(N//2) + ["d"]*(N//2)))


TABLE |= {
    "paired.mean_difference": lambda: [paired.mean_difference(a, 2*a) for a in (CONF, CONF.double())],
    "paired.rate_difference": lambda: paired.rate_difference(HIT, HIT.flip(0)),
    "paired.ece_difference": lambda: [paired.ece_difference((c, HIT), (c**2, HIT.flip(0)), 5, draws=9)
                                      for c in (CONF, CONF.double())],
    "compared.groupings": lambda: [(g.names, g.ids) for by in (None, compared.MADE)
                                   for g in compared.groupings(in_groups(), by, 2)],
    "compared.crossed": lambda: [(g.names, g.ids)
                                 for g in compared.crossed(compared.groupings(in_groups(), None, 2), 2)],
    "compared.slices": lambda: compared.slices(in_groups(), find=True, least=2, permutations=9).frame(),
    "compared.compare_models": lambda: [compared.compare_models(
        p, core.Predictions(2*p.logits, p.target), by=["predicted_class"], least=2).frame()
        for p in (in_groups(), *columns()[:2])],
    "compared.comparison_data": lambda: [compared.comparison_data(
        compared.compare_models(p, core.Predictions(2*p.logits, p.target))) for p in (in_groups(), *columns()[:2])],
    "evaluate.evaluate": evaluated,
    "evaluate.evaluate_shifted": carried_over,
    "evaluate.labels_needed": lambda: [vars(evaluate.labels_needed(p, y, width=points, assumed_ece=0., draws=100))
                                       for p, y, points in ((PROBS, None, 30), (PROBS.double(), TARGET, 60))],
    "evaluate.Decisions": costs_of_decisions,
    "evaluate.Scored": lambda: [(s, s.diagram(), s.ece()) for s in [evaluate.Scored.of(PREDS)]],
    "evaluate.ConfidenceHistogram": lambda: [evaluate.ConfidenceHistogram(c, dict(ece=5), dict(ada=5)).errors(3, 0)
                                         for c in (CONF.double(), draw(9000).sigmoid().double())],
    "evaluate.ece_floor": lambda: evaluate.ece_floor(CONF.double(), 5),
    "evaluate.resamples_of": lambda: [evaluate.resamples_of(c, N, 2, 0).weight for c in (None, CLUSTER)],
    "evaluate.class_floors": lambda: evaluate.class_floors(bins.class_sums(PROBS, TARGET, 5)),
    "evaluate.class_noise": lambda: evaluate.class_noise(bins.class_sums(PROBS, TARGET, 5), 3, 0),
    "evaluate.ClassErrors": lambda: evaluate.ClassErrors.of(evaluate.Scored.of(PREDS, n_bins=5), draws=9),
    "evaluate.class_data": lambda: [evaluate.class_data(found, evaluate.class_errors(found)) for found in [
        evaluate.evaluate(PREDS, calibrators=["temperature"], n_boot=2, draws=2)]],
    "evaluate.classwise_floor": lambda: evaluate.classwise_floor(bins.class_sums(PROBS, TARGET, 5)),
    "evaluate.mean_absolute_deviation": lambda: evaluate.mean_absolute_deviation(CONF.double()*9, CONF.double()),
    "evaluate.measure_all": lambda: evaluate.measure_all(
        evaluate.Scored.of(PREDS, n_bins=5), more_bins=(10,), n_boot=5, draws=2),
    "evaluate.Resamples": lambda: [evaluate.Resamples(n, 3).mean(draw(n)) for n in (N, 9000)],
    "evaluate.resampled_measures": lambda: evaluate.resampled_measures(
        evaluate.Scored.of(PREDS), evaluate.Resamples(TARGET, 3), PROBS.double()),
    "evaluate.shows_no_error": lambda: [
        evaluate.shows_no_error("a row", evaluate.measure_all(evaluate.Scored.of(PREDS), n_boot=2, draws=2)["ece"])],
    "evaluate.signed_residuals": lambda: evaluate.signed_residuals(evaluate.Scored.of(PREDS)),
    "evaluate.as_good_as_best": lambda: evaluate.as_good_as_best(
        {name: evaluate.measure_all(s, n_boot=2, draws=2) for name, s in two_rows().items()}, two_rows()),
    "evaluate.miscalibration_test": lambda: [
        evaluate.miscalibration_test(evaluate.measure_all(s, n_boot=2, draws=2)["ece"], s)[1]
        for s in two_rows().values()],
    "evaluate.Confidences": lambda: [(c.ece(5), c.ada_ece(5), c.mean_p(), c.factor, c.diagram(5))
                                     for c in (evaluate.Confidences(CONF.double(), HIT, cluster=g)
                                               for g in (None, CLUSTER))],
    "evaluate.ece_text": lambda: evaluate.ece_text(bins.width_bins(CONF, HIT, 5)),
    "plots.reliability_row": drawn_figure,
    "core.Predictions": lambda: [(p.probs, p.pred, p.conf, p.hit, p.nll)
                                 for p in (core.Predictions(*ROUGH), core.Predictions.from_probs(*SCORES[3]),
                                           core.Predictions(LOGITS.numpy(), TARGET.numpy()), *columns())],
    "core.class_probs": lambda: [core.class_probs(p) for p in (PROBS, CONF[:, None], CONF[:, None].double())],
    "core.class_logits": lambda: [core.class_logits(z) for z in (LOGITS, LOGITS[:, :1], LOGITS[:, :1].double())],
    "core.log_probs": lambda: [core.log_probs(p) for p in (*(p for p, _ in SCORES), CONF, CONF.tolist())],
    "core.as_tensor": lambda: [core.as_tensor(v)
                               for v in ([1, 2], [.1, .2], np.array([1.5], dtype=np.float32), np.array([True]))],
    "core.top_probability": lambda: core.top_probability(LOGITS, LOGITS.amax(1)),
    "core.copied_rows": lambda: core.copied_rows(LOGITS.repeat(9, 1), TARGET.repeat(9), CONF.repeat(9), HIT.repeat(9)),
    "core.projected": lambda: core.projected(LOGITS.double()),
    "core.random_order": lambda: [core.random_order(LOGITS, TARGET), core.row_hashes(LOGITS, TARGET)],
    "core.row_hashes": lambda: core.row_hashes(LOGITS),
    "core.reaches": lambda: [core.reaches(p, .5) for p in (CONF, CONF.double())],
    "core.masked_classes": lambda: [core.masked_classes(z) for z in (LOGITS, MASKED)],
    "core.masked_far_below": lambda: core.masked_far_below(MASKED, MASKED == -float("inf")),
    "core.first_argmax": lambda: [core.first_argmax(z) for z in (LOGITS, LOGITS.bfloat16())],
}


# every public name is there, or here

HELPERS = "no result: a check, a list of names, a type or a table of what has entries of its own"
DRAWING = "draws what others computed; plots.reliability_row goes through it"
ON_DISK = "data sets on disk: the arrays go through data.split_arrays"
RECORDERS = " ".join(kind.__name__ for kind in recorders.recorders.values())
LAYERS = "layers as of torch.nn, which follow torch's defaults; make_model does not"
ELSEWHERE = {
    "losses": {HELPERS: "SAMPLE_OPTIONS with_surrogate times_ce check_gamma check_weight valid_rows with_penalty "
                         "losses LossModule check_adafocal list_losses register_loss"},
    "surrogates": {},
    "metrics": {HELPERS: "CUSTOM auroc_of_scores bins_of_samples confidences ks_interval warn_of_pairs metrics "
                         "register_metric SCORES MEAN_SCORES MeanScore scores_of_a_miss DecisionCurve "
                         "cost_threshold"},
    "posthoc": {HELPERS: "fit_rows fit_columns fit_to FitNote nearly_constant check_strengths Penalty "
                         "CALIBRATORS Calibrator OracleECE list_calibrators make_calibrator COMPOSABLE ON_TOP "
                         "PriorEstimate register_calibrator register_class make_registered name_of top_class",
                "bases and parts of the calibrators":
                    "ConfidenceMap DiagonalMap DiagonalPreconditioner FullMap FullPreconditioner Hessian LinearNewton "
                    "LinearObjective LinearScaling Prepared StructuredScaling affine_logits capped cholesky_factor "
                    "conjugate_gradients fit_linear_map log_odds logistic_nll logistic_regression LogisticObjective "
                    "minimise mixed_log_probs newton_step normalised odir_penalty other_log_probs prepared "
                    "tempered_logits"},
    "streaming": {HELPERS: "SumMetric MeanMetric"},
    "smoothing": {HELPERS: "cosine_means_on_grid"},
    "rare": {},
    "samples": {HELPERS: "checked_weight refuse_empty sample_metric"},
    "intervals": {HELPERS: "check_level check_metric z_quantile check_resamples"},
    "paired": {HELPERS: "WORSE EQUIVALENT BETTER NOT_WORSE UNDECIDED PairedDifference"},
    "compared": {HELPERS: "MADE ALPHA Grouping Slice Slices MARGINS ModelComparison slice_section check_margins "
                          "check_same_samples write_comparison_page"},
    "bins": {HELPERS: "BIN_RULES check_bins check_closed check_norm equal_mass_starts"},
    "weights": {HELPERS: "above_zero at_label second_class check_reduction sample_loss"},
    "temperature": {HELPERS: "T_BOUNDS check_varied temperature_lists EnsembleTemperature EntropyTemperature "
                             "class_dimension temperature_bounds warn_at_bound",
                    "parts of the searches for a temperature":
                        "TemperatureNLL below_top bracketed_newton cached_temperature cached_temperatures "
                        "candidate_temperatures entropy_nll find_temperature mean_confidence mixture_nll scaled_exp "
                        "start_temperature wide_enough"},
    "score_maps": {HELPERS: "ROUNDING no_slope check_finite check_unit_interval refuse_first",
                   "parts of the fits of maps, and of maps":
                       "banded_matrix choose_smoothing gap_index mass_edges merged_scores tie_distance "
                       "first_of_ties first_scores "
                       "bucket natural_spline second_derivatives soft_labels spline_features spline_values "
                       "tangent_point values_with_hit with_curvature"},
    "evaluate": {HELPERS: "table_interval binned intervals_of_means heading_of probs_of doubts outcome_after "
                          "Bias Diagnosis LabelOrder biases permuted_labels "
                          "Choice PassedOver Residual RestsOn VISIBLE "
                          "IN_ADVICE advice_sentences bias_clause capitalised changes_sentence chosen_name "
                          "ece_sentence ece_words judged_noun labels_sentence miscalibration_sentence nll_words "
                          "none_clause passed_over_sentence remedy_clause residual_sentences rests_on_sentence "
                          "row_name state_clause use_sentence "
                          "UNCALIBRATED Evaluation check_sets check_metrics check_shifted Shifted ShiftResult "
                          "SAME_NLL LEAST_TO_CHOOSE DOUBT concatenate CrossFits warning_texts "
                          "check_tie CHOSEN_THRESHOLDS check_costs LabelsNeeded class_errors class_section "
                          "Outcome STATUSES CHECKS Check check_codes run_checks round_up "
                          "Condition gate exit_code write_junit",
                 "text of numbers of evaluate.Decisions": "decision_svg decision_section"},
    "gamma_net": {HELPERS: "POSITIVITY INITS SMOOTHINGS frozen_batchnorm_stats rng_state Direction LearnedLoss",
                  "steps of gamma_net.hypergradient": "full_direction meta_gradient virtual_step"},
    "meta": {HELPERS: "LEARN OUTER InnerLoss InnerStep",
             "a part of meta.MetaTrainer": "MetaStepper"},
    "models": {HELPERS: "check_image conv conv_bn models Classifier list_models set_vectors register_model",
               LAYERS: "MLP SmallCNN SmallResNet ResNet WideResNet DenseNet VGG TextCNN TreeLSTM Torchvision Timm"},
    "synth": {},
    "data": {HELPERS: "split_of CIFAR_SCALE data_sets downloads list_data data_options data_fingerprint download "
                         "data_paths "
                      "licences "
                       "check_data data_input note_data register_data check_corruption list_corruptions pixel_scale",
             ON_DISK: "cifar10 cifar100 svhn tiny_imagenet newsgroups sst imagefolder npz"},
    "batches": {HELPERS: "prefetch Batch"},
    "train": {HELPERS: "check_task check_micro_batches check_finite loss_reduction "
                       "makes_own_labels "
                       "one_thread training_context explain_memory release_cached_memory free_graph to_memory_format "
                       "compile_function clip_gradients largest_weight average_buffers Hooks "
                       "lightning_callback",
              "parts of train.Trainer": "Evaluator Stepper Position Reporter reporting"},
    "recorders": {HELPERS: "view_for recorders History EventFiles EpochView Recorder "
                           "Snapshots make_recorders register_recorder",
                  "part of train.Trainer": "BestEpoch",
                  "made by recorders.make_recorder, or in meta.MetaTrainer": RECORDERS},
    "core": {HELPERS: "ABOVE_ONE OFF_SUM MOST_VALUES check_class_names check_sampling_weights edge_tolerance "
                      "checked_groups cluster_numbers row_numbers check_comparable shared_samples KINDS "
                      "missing_text rounded_digits precisions flatten_classes at_least_float32 traced check_target "
                      "check_positive check_bool pick "
                      "check_scores one_column check_logits check_unlabelled check_probs check_multilabel exp_ "
                      "ENOUGH_ROWS refuse_probs class_order number_in only_count quote_names "
                      "impossible_labels_text impossible_labels form_text "
                      "bind_options not_installed require seed_everything seeded deterministic flush_denormals "
                      "pick_device in_threads ImpossibleLabels draw_folds "
                      "classifier_column classifier_probs one_vs_rest_names "
                      "autocast naming_target atomic_write atomic_folder unchecked_log_probs",
             "names, their origins and where they are imported from":
                 "VARIABLE GROUP HINT Registry PluginError UnknownName Origin plugin_names add_plugins has_plugins "
                 "load_plugins user_registered used_code code_is_same add_user registers"},
    "plots": {HELPERS: "black orange sky green yellow blue vermillion purple grey classes sequential set_style "
                       "loss_style",
              DRAWING: "curves seed_lines log_ticks reliability_axes fill_reliability_axes reliability_diagram "
                       "correctness_histogram label_histograms interval_dots forest_plot forest_columns density "
                       "shared_colorbar risk_coverage decision_curve label_points"},
}


@pytest.mark.parametrize("module", ELSEWHERE)
def test_every_public_name_is_tried(module):
    tried = {name.split(".", 1)[1].split(",")[0].split(" ")[0] for name in TABLE if name.startswith(f"{module}.")}
    excused = " ".join(ELSEWHERE[module].values()).split()
    public = set(GROUPS[module].__all__)
    assert public - tried - set(excused) == set() and set(excused) <= public - tried


def test_every_model_is_tried():
    "But vit_b_16, which is torchvision's and too large for a quick test, and timm's networks, a package of its own."
    assert set(SMALL) == set(models.list_models()) - {"vit_b_16", "timm"}


# the same, whatever the defaults

@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Unused(TorchDispatchMode):
    "Refuses every tensor of a dtype: of the default that nobody asked for."
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [v for v in tree_leaves(out) if getattr(v, "dtype", None) == self.dtype]
        assert not made, f"{func} made a tensor of the default dtype"
        return out


@contextmanager
def other_defaults(name):
    """Another dtype, which is watched, and device; no gradients; deterministic algorithms on two threads.

    Some names need gradients; torchmetrics makes a tensor of the default dtype, so for it nothing is watched.
    """
    watched = not name.startswith("streaming.")
    dtype, threads = torch.float16 if watched else torch.bfloat16, torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    try:
        with default_dtype(dtype), torch.device("meta"), torch.inference_mode(not name.startswith(tuple(TRAINS))):
            with Unused(dtype) if watched else nullcontext():
                yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


SUMMED = N*N*K  # numbers in a sum, at most
SOLVED = 1/torch.finfo(torch.float32).eps  # a minimum is known to the square root of the rounding of its value
MINIMA = "posthoc.MatrixScaling", "posthoc.Dirichlet"


def leaves(x):
    "All that a result holds, in order: arrays, and what describes the rest."
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            return [f"a tensor on {x.device}"]
        return [str(x.dtype), (x.detach().view(torch.int16) if x.dtype == torch.bfloat16 else x.detach()).numpy()]
    if isinstance(x, nn.Module):
        return leaves(x.state_dict())
    if isinstance(x, pd.DataFrame):
        return leaves(x.to_dict("split"))
    if isinstance(x, dict):  # a fingerprint is a hash of bits, which other kernels may change
        return [leaf for k, v in x.items() if k != "fingerprint" for leaf in (k, *leaves(v))]
    if isinstance(x, (list, tuple)):
        return [len(x), *(leaf for v in x for leaf in leaves(v))]
    if type(x).__module__.startswith("calibnb") and hasattr(x, "__dict__"):
        return leaves(vars(x))
    if isinstance(x, float):
        return [np.float64(x)]
    return [x if isinstance(x, (np.ndarray, np.generic)) else repr(x)]


def same(a, b, terms):
    "Of one type, dtype and shape, and equal: numbers up to rounding in float32, in which most is computed."
    if not isinstance(a, (np.ndarray, np.generic)) or type(a) is not type(b):
        return a is b or type(a) is type(b) and a == b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return a.tobytes() == b.tobytes()
    return close(a, b, terms, torch.float32) or close(a, b, terms, size=1.)  # or cancelled: beside 1


@cache
def caches(n_modules):
    "What functions of the package keep, of the modules there are by now: to look for it takes longer than a result."
    items = (item for k, m in sys.modules.items() if k.startswith("calibnb.") for item in vars(m).values())
    return {id(item): item for item in items if hasattr(item, "cache_clear")}.values()


def computed(name):
    "A result of the table, with nothing kept from an earlier one."
    for item in caches(len(sys.modules)):
        item.cache_clear()
    return TABLE[name]()


def difference(name, want):
    "The first leaf of a result that is not as wanted, or the error; nothing if all are."
    try:
        with other_defaults(name):
            got = leaves(computed(name))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    if len(got) != len(want):
        return f"{len(got)} leaves, want {len(want)}"
    terms = SOLVED if name.startswith(MINIMA) else SUMMED
    return next((f"{a!r}, want {b!r}" for a, b in zip(got, want) if not same(a, b, terms)), "")


@pytest.mark.parametrize("module", ELSEWHERE)
def test_no_default_changes_anything(module):
    found = {name: difference(name, leaves(computed(name))) for name in TABLE if name.startswith(f"{module}.")}
    assert {name: text for name, text in found.items() if text} == {}
