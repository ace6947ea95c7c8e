"The rule that decides claims, tried on itself: how often it errs where there is no effect, how often it finds one."
import numpy as np
import pytest

from calibnb.data import load_data
from calibnb.evaluate import Resamples, Scored, resampled_measures
from calibnb.notebooks import CONTRADICTED, HOLDS, NO_DIFFERENCE, UNDECIDED, Claim, Pairs, decide, verdicts
from calibnb.runs import RunConfig, get_runs
from calibnb.train import Recipe

DECIDED = HOLDS, CONTRADICTED
STUDIES = 400
UPPER_END = .05 + 1.96*(.05*.95/STUDIES)**.5  # of what a test at 5 % shows in so many studies


def claims(*margins, kind="paper"):
    id = "wang-01" if kind == "paper" else ""
    return [Claim(kind, f"claim {i}", "", margin, sesoi=.01, id=id) for i, margin in enumerate(margins)]


def how_often(study, studies=STUDIES):
    "The share of studies in which any claim is decided."
    rng = np.random.default_rng(0)
    return np.mean([any(f.verdict in DECIDED for f in decide(study(rng))) for _ in range(studies)])


def one_claim(rng, effect=0., seeds=5, seed_noise=1., test_noise=1., n_boot=100):
    "A margin that varies from seed to seed, and with the test samples, which all seeds share."
    by_seed = effect + seed_noise*rng.standard_normal(seeds) + test_noise*rng.standard_normal()
    resampled = by_seed + test_noise*rng.standard_normal((n_boot, 1))
    return np.concatenate([by_seed[None], resampled])


def ten_claims(rng):
    return claims(*rng.standard_normal((10, 5)))


def best_of_twelve(rng):
    "Twelve equal methods, of which ours is one."
    values = rng.standard_normal((12, 5)) + rng.standard_normal((12, 1))
    noise = rng.standard_normal((100, 12, 1))
    rows = np.concatenate([values[None], values + noise])
    return claims({f"rival {i}": rows[:, i] - rows[:, 0] for i in range(1, 12)})


NULLS = {
    "one claim": lambda rng: claims(one_claim(rng)),
    "seeds alone": lambda rng: claims(rng.standard_normal(5)),
    "hardly any noise of seeds": lambda rng: claims(one_claim(rng, seed_noise=.1)),
    "twenty seeds": lambda rng: claims(one_claim(rng, seeds=20)),
    "ten claims": ten_claims,
    "ten of ours": lambda rng: claims(*(one_claim(rng) for _ in range(10)), kind="ours"),
    "best of twelve": best_of_twelve,
}


@pytest.mark.parametrize("null", NULLS)
def test_where_there_is_no_effect_nothing_is_decided(null):
    assert how_often(NULLS[null]) <= UPPER_END


def all_seeds_agree(claims):
    "The rule that this one replaces."
    margins = [next(iter(c.margins.values()))[0] for c in claims]
    agree = [(m > 0).all() or (m < 0).all() for m in margins]
    return [verdicts._finding(c, HOLDS if a else UNDECIDED) for c, a in zip(claims, agree)]


@pytest.mark.parametrize("broken", ["two seeds that agree", "no Holm", "no noise of test samples", "no t"])
def test_a_broken_rule_is_found_out(broken, monkeypatch):
    study = NULLS["one claim"]
    if broken == "two seeds that agree":
        monkeypatch.setitem(globals(), "decide", all_seeds_agree)
        study = lambda rng: claims(one_claim(rng, seeds=2))  # noqa: E731
    elif broken == "no Holm":
        monkeypatch.setattr(verdicts, "holm", lambda p: list(p))
        study = ten_claims
    elif broken == "no noise of test samples":
        study = lambda rng: claims(one_claim(rng)[0])  # noqa: E731
    else:
        from scipy import stats
        monkeypatch.setattr(stats.t, "sf", lambda x, df: stats.norm.sf(x))
        study = lambda rng: claims(rng.standard_normal(5))  # noqa: E731
    assert how_often(study) > UPPER_END


def test_effects_are_found():
    assert how_often(lambda rng: claims(one_claim(rng, effect=8.))) >= .8
    assert how_often(lambda rng: claims(one_claim(rng, effect=8., seed_noise=2.5, test_noise=.1))) >= .8
    found = decide(claims(one_claim(np.random.default_rng(0), effect=-9.)))
    assert [f.verdict for f in found] == [CONTRADICTED]
    small = decide(claims(1e-4*one_claim(np.random.default_rng(0))))
    assert [f.verdict for f in small] == [NO_DIFFERENCE]


def test_the_best_of_all_holds_only_if_every_rival_is_beaten():
    ahead, behind, even = np.full(5, 1.) + .1*np.arange(5), -1 - .1*np.arange(5), np.array([.3, -.2, .1, -.4, .3])
    verdict_of = {name: decide(claims(dict(zip("abc", rivals))))[0].verdict for name, rivals in dict(
        ahead=(ahead, ahead, ahead), even=(ahead, ahead, even), behind=(ahead, behind, even)).items()}
    assert verdict_of == dict(ahead=HOLDS, even=UNDECIDED, behind=CONTRADICTED)


def test_too_few_seeds_decide_nothing():
    for seeds in 1, 2, 4:
        finding, = decide(claims(1 + .01*np.arange(seeds)))
        assert finding.verdict == UNDECIDED and finding.effect.note.startswith(f"n = {seeds} seed")
    finding, = decide(claims([1., 1.1, np.nan, 1., 1.2]))
    assert finding.verdict == UNDECIDED and "not measured" in finding.effect.note


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
    "The share of 200 splits into two groups of five runs in which a difference is seen."
    rng, n_decided = np.random.default_rng(0), 0
    for _ in range(200):
        runs = rng.permutation(20)[:10]
        pairs = Pairs({("a", i): trained[0][r] for i, r in enumerate(runs[:5])}
                      | {("b", i): trained[other][r] for i, r in enumerate(runs[5:])})
        finding, = decide(claims(pairs.difference("a", "b", measure)))
        n_decided += finding.verdict in DECIDED
    return n_decided/200


@pytest.mark.parametrize("measure", ["ece", "nll", "error", "true_error"])
def test_equal_runs_are_not_told_apart(trained, measure):
    assert splits_decided(trained, measure) <= .05


def test_another_temperature_is_found(trained):
    assert splits_decided(trained, "confidence", other=1) >= .8
    assert splits_decided(trained, "ece", other=1) >= .8
