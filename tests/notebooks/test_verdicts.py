"The rule that decides claims, tried on itself: how often it errs where there is no effect, how often it finds one."
from unittest.mock import patch

import numpy as np
import pytest

from calibnb.data import load_data
from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.notebooks import (
    CONTRADICTED, EQUIVALENT, HOLDS, HOLDS_BUT_SMALL, OPEN, Claim, Pairs, decide, differences, needs)
from calibnb.notebooks.differences import Difference
from calibnb.runs import RunConfig, get_runs
from calibnb.train import Recipe

DECIDED = HOLDS, HOLDS_BUT_SMALL, CONTRADICTED
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
    "looks at 5, 10 and 20 seeds": (lambda rng: claims(one_claim(rng, seeds=20)), .05),
    "ten claims": (ten_claims, .01),
    "ten of ours, three looks": (lambda rng: claims(*(one_claim(rng, seeds=20) for _ in range(10)), kind="ours"), .05),
    "best of twelve": (best_of_twelve, .01),
}


@pytest.mark.parametrize("null", NULLS)
def test_false_verdicts_are_rare(null):
    study, level = NULLS[null]
    assert share_decided(study) <= upper_end(level)


def shares_below(alpha, seeds=5, studies=2000, **noise):
    "Share of p-values below `alpha` where there is no effect."
    rng = np.random.default_rng(1)
    return np.mean([Difference.of(one_claim(rng, seeds=seeds, n_boot=200, **noise)).p < alpha for _ in range(studies)])


MIXTURES = [dict(), dict(test_noise=0.), dict(seed_noise=.2, response=.2), dict(response=3.), dict(seeds=20)]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_p_values_have_their_level(mixture):
    assert .028 <= shares_below(.05, **mixture) <= upper_end(.052, 2000)


def test_effects_are_found():
    assert share_decided(lambda rng: claims(one_claim(rng, effect=9., response=.2))) >= .8
    assert share_decided(lambda rng: claims(one_claim(rng, effect=3.5, seeds=20))) >= .8
    found = decide(claims(one_claim(np.random.default_rng(0), effect=-20.)))
    assert [f.verdict for f in found] == [CONTRADICTED]
    small = decide(claims(1e-4*one_claim(np.random.default_rng(0))))
    assert [f.verdict for f in small] == [EQUIVALENT]


def test_more_seeds_never_take_a_verdict_back():
    rng, decided = np.random.default_rng(2), 0
    for _ in range(60):
        rows = one_claim(rng, effect=4., seeds=20)
        looks = [decide(claims(rows[:, :seeds]))[0] for seeds in (5, 7, 10, 20)]
        first = next((f for f in looks if f.verdict in DECIDED), None)
        if first is None: continue
        decided += 1
        assert all(f.verdict == first.verdict for f in looks[looks.index(first):])
        assert (first.effect.interval[0] > 0) == (first.verdict != CONTRADICTED)
    assert decided > 10


def test_the_interval_excludes_zero_exactly_where_the_claim_is_decided():
    rng = np.random.default_rng(3)
    for _ in range(40):
        for finding in decide(claims(*(one_claim(rng, effect=e, seeds=10) for e in (0, 3, 6, -6)))):
            lower, upper = finding.effect.interval
            assert (lower > 0 or upper < 0) == (finding.verdict in DECIDED)

    verdicts = set()
    for effect in np.linspace(-4, -1, 40):  # two rivals of three are better
        rivals = {name: one_claim(rng, effect=e, seeds=10) for name, e in dict(a=9., b=effect, c=effect).items()}
        finding, = decide(claims(rivals))
        if finding.effect.value >= 0: continue
        assert (finding.effect.interval[1] < 0) == (finding.verdict == CONTRADICTED)
        verdicts.add(finding.verdict)
    assert verdicts == {CONTRADICTED, OPEN}


def test_the_best_of_all_holds_only_if_every_rival_is_beaten():
    ahead, behind, even = np.full(5, 1.) + .1*np.arange(5), -1 - .1*np.arange(5), np.array([.3, -.2, .1, -.4, .3])
    found = {name: decide(claims(dict(zip("abc", rivals))))[0] for name, rivals in dict(
        ahead=(ahead, ahead + .1, ahead), even=(ahead, ahead, even), behind=(ahead, behind, even)).items()}
    assert {name: f.verdict for name, f in found.items()} == dict(ahead=HOLDS, even=OPEN, behind=CONTRADICTED)
    assert found["behind"].effect.note == "the smallest margin is against b"
    noisy = ahead + 2 + .5*np.array([-3, -1, 0, 1, 3])
    noted = decide(claims(dict(near=ahead, noisy=noisy)))[0].effect
    assert noted.note == "the smallest margin is against near; p is against noisy"
    assert noted.value == pytest.approx(1.2)
    contradicted = decide(claims(dict(near=-ahead, noisy=-noisy)))[0].effect
    assert contradicted.note == "the smallest margin is against noisy; margin and p are against near"
    assert contradicted.value == pytest.approx(-1.2)

    rivals = claims(dict(near=ahead, noisy=ahead + 2 + 5*np.array([-3, -1, 0, 1, 3])))
    still_open, = decide(rivals)
    assert still_open.verdict == OPEN and still_open.effect.interval[0] < 0 < still_open.effect.interval[1]
    assert still_open.effect.note == "the smallest margin is against near; margin and p are against noisy"
    assert needs(rivals).margin.item() == pytest.approx(3.2)


def test_too_few_seeds_decide_nothing():
    for seeds in 1, 2, 4:
        finding, = decide(claims(1 + .01*np.arange(seeds)))
        assert finding.verdict == OPEN and finding.effect.note.startswith(f"n = {seeds} seed")
    finding, = decide(claims([1., 1.1, np.nan, 1., 1.2]))
    assert finding.verdict == OPEN and "not measured" in finding.effect.note


def test_methods_that_never_differ_are_equivalent():
    assert [f.verdict for f in decide(claims(np.zeros(20)))] == [EQUIVALENT]


def test_needs_says_what_decides_a_claim():
    rng = np.random.default_rng(0)
    table = needs([*claims(one_claim(rng, effect=30.)), *claims(one_claim(rng, effect=2., test_noise=.1))], minutes=3.)
    assert table.verdict.tolist() == [HOLDS, OPEN] and table.needed.tolist() == ["", "20 seeds"]
    assert table.minutes.tolist()[1] == 45


def measured(run, rows, posterior, T=1.):
    preds = run.predictions("test")
    return resampled_measures(Scored.of(type(preds)(preds.logits/T, preds.target)), Resamples(rows, 100), posterior)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "Twenty real runs that differ in nothing but the seed; measures as trained, and with a temperature of 1.3."
    configs = [RunConfig(experiment="equal", data="noisy_digits", data_args=dict(more_variants=4),
                         recipe=Recipe.quick(30, seed=s)) for s in range(20)]
    runs = get_runs(configs, tmp_path_factory.mktemp("equal"), progress=False)
    tests = [load_data("noisy_digits", seed=c.seed, **c.data_args).test for c in configs]
    return [[measured(run, test.rows, test.posterior, T) for run, test in zip(runs, tests)] for T in (1., 1.3)]


def splits_decided(trained, measure, other=0):
    "The share of 200 splits into two groups of ten runs in which a difference is seen, after five runs or after ten."
    rng, n_decided = np.random.default_rng(0), 0
    for _ in range(200):
        runs = rng.permutation(20)
        pairs = Pairs({("a", i): trained[0][r] for i, r in enumerate(runs[:10])}
                      | {("b", i): trained[other][r] for i, r in enumerate(runs[10:])})
        finding, = decide(claims(pairs.difference("a", "b", measure)))
        n_decided += finding.verdict in DECIDED
    return n_decided/200


@pytest.mark.parametrize("measure", ["ece", "nll", "error", "true_ce"])
def test_equal_runs_are_not_told_apart(trained, measure):
    assert splits_decided(trained, measure) <= .05


def test_another_temperature_is_found(trained):
    assert splits_decided(trained, "confidence", other=1) >= .8
    assert splits_decided(trained, "ece", other=1) >= .8
