"Studies in which there is nothing to find, and how often the rule that decides claims finds something in them."
from unittest.mock import patch

import numpy as np

from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.studies import (
    CONTRADICTED, CONTRADICTED_BUT_SMALL, HOLDS, HOLDS_BUT_SMALL, Claim, Pairs, decide, differences,
)

DECIDED = HOLDS, HOLDS_BUT_SMALL, CONTRADICTED, CONTRADICTED_BUT_SMALL
STUDIES = 400


def upper_end(level, studies=STUDIES):
    "Upper end of the 95 % interval of a share, if the probability is `level`."
    return level + 1.96*(level*(1 - level)/studies)**.5


def claims(*margins, kind="paper"):
    id = "wang-01" if kind == "paper" else ""
    return [Claim(kind, f"claim {i}", "", margin, sesoi=.01, id=id) for i, margin in enumerate(margins)]


def share_decided(study, studies=STUDIES):
    "The share of studies in which any claim is decided; intervals, which decide nothing here, take most of the time."
    rng = np.random.default_rng(0)
    with patch.object(differences, "two_errors_quantile", return_value=np.nan):
        return np.mean([any(f.verdict in DECIDED for f in decide(study(rng))) for _ in range(studies)])


def one_claim(rng, effect=0., seeds=5, seed_noise=1., test_noise=1., response=1., n_boot=100):
    "A margin that varies with the seed, with the shared test samples, and with each seed's response to the samples."
    noise = seed_noise*rng.standard_normal(seeds) + response*rng.standard_normal(seeds)
    by_seed = effect + noise + test_noise*rng.standard_normal()
    resampled = by_seed + test_noise*rng.standard_normal((n_boot, 1)) + response*rng.standard_normal((n_boot, seeds))
    return np.concatenate([by_seed[None], resampled])


def ten_claims(rng):
    return claims(*rng.standard_normal((10, 5)))


def best_of_twelve(rng):
    "Twelve equal methods; the claim is that the first is the best."
    values = rng.standard_normal((12, 5)) + rng.standard_normal((12, 1))
    noise = rng.standard_normal((100, 12, 1))
    rows = np.concatenate([values[None], values + noise])
    return claims({f"rival {i}": rows[:, i] - rows[:, 0] for i in range(1, 12)})


NULLS = {  # name -> (study, probability of a false verdict)
    "one claim": (lambda rng: claims(one_claim(rng)), .01),
    "seeds alone": (lambda rng: claims(rng.standard_normal(5)), .01),
    "little noise of seeds": (lambda rng: claims(one_claim(rng, seed_noise=.1, response=.1)), .01),
    "looks at 5, 10, 20 and 40 seeds": (lambda rng: claims(one_claim(rng, seeds=40)), .05),
    "ten claims": (ten_claims, .01),
    "ten of ours, four looks": (lambda rng: claims(*(one_claim(rng, seeds=40) for _ in range(10)), kind="ours"), .05),
    "best of twelve": (best_of_twelve, .01),
}


def measured(preds, rows, posterior, T=1.):
    "Resampled measures of predictions with a temperature."
    return resampled_measures(Scored.of(type(preds)(preds.logits/T, preds.target)), Resamples(rows, 100), posterior)


def splits_decided(runs, measure, other=0, splits=200):
    "The share of splits into two groups of ten runs in which a difference is seen, after five runs or after ten."
    rng, n_decided = np.random.default_rng(0), 0
    for _ in range(splits):
        order = rng.permutation(20)
        pairs = Pairs({("a", i): runs[0][r] for i, r in enumerate(order[:10])}
                      | {("b", i): runs[other][r] for i, r in enumerate(order[10:])})
        finding, = decide(claims(pairs.difference("a", "b", measure)))
        n_decided += finding.verdict in DECIDED
    return n_decided/splits
