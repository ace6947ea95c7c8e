"The rule that decides claims, tried on itself: how often it errs where there is no effect, how often it finds one."
import numpy as np
import pytest
import torch
from nulls import DECIDED, NULLS, claims, measured, one_claim, share_decided, splits_decided, upper_end

from calibnb.core import Predictions
from calibnb.studies import CONTRADICTED, EQUIVALENT, HOLDS, OPEN, Claim, decide, needs
from calibnb.studies.differences import Difference


@pytest.mark.parametrize("null", NULLS)
def test_false_verdicts_are_rare(null):
    "In 100 studies of several claims, which take long, and in 400 of one; 1,000 in tests/slow/test_grids.py."
    study, level = NULLS[null]
    studies = 100 if "ten" in null or "twelve" in null else 400
    assert share_decided(study, studies) <= upper_end(level, studies)


def shares_below(alpha, seeds=5, studies=2000, **noise):
    "Share of p-values below `alpha` where there is no effect."
    rng = np.random.default_rng(1)
    return np.mean([Difference.of(one_claim(rng, seeds=seeds, n_boot=200, **noise)).p < alpha for _ in range(studies)])


MIXTURES = [dict(), dict(test_noise=0.), dict(response=3., seeds=20)]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_p_values_have_their_level(mixture):
    assert .028 <= shares_below(.05, **mixture) <= upper_end(.052, 2000)


def test_effects_are_found():
    assert share_decided(lambda rng: claims(one_claim(rng, effect=9., response=.2)), studies=100) >= .8
    assert share_decided(lambda rng: claims(one_claim(rng, effect=3.5, seeds=20)), studies=100) >= .8
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


def of_paper(margin, **more):
    finding, = decide([Claim("paper", "it is lower", "Table 1", margin, **dict(id="wang-01", unit="points") | more)])
    return finding


LOWER, UNSURE = np.array([.021, .018, .025, .019, .022]), np.array([.02, .005, .03, .003, .012])


@pytest.mark.parametrize("margin, verdict", [
    (LOWER, "holds"), (LOWER/10, "holds, smaller than matters"),
    (-LOWER, "contradicted here"), (-LOWER/10, "contradicted here, smaller than matters"),
    ([.001, -.001, .002, 0., -.002], "equivalent"), ([.03, -.02, .01, .05, -.03], "open"),
    # equal in every seed: decided if too large for a coincidence
    ([.5]*5, "holds"), ([-.5]*5, "contradicted here"), ([.002]*5, "equivalent"), ([-.002]*5, "equivalent"),
    ([.01]*5, "open"), (dict(a=[.5]*5, b=UNSURE), "open"), (dict(a=[.5]*5, b=LOWER), "holds"),
])
def test_the_table_of_verdicts(margin, verdict):
    assert of_paper(margin).verdict == verdict


def test_a_claim_about_some_methods_is_never_contradicted():
    found = of_paper(dict(FL=-LOWER, LS=LOWER), some=True)
    assert (found.verdict, found.effect.note, round(found.effect.value, 1)) == ("holds", "by LS", 2.1)
    assert of_paper(dict(FL=-LOWER, LS=-LOWER), some=True).verdict == OPEN


def test_identities_are_decided_without_a_test():
    of_a_paper = [Claim("identity", "the weight is 1 - p", "", holds, id="lin-39") for holds in (True, False)]
    arithmetic, tested = Claim("identity", "2 + 2 is 4", "", True), Claim("ours", "more", "", 10*LOWER, sesoi=.1)
    found = decide([*of_a_paper, arithmetic, tested])
    assert [f.verdict for f in found] == ["holds", "wrong as printed", "holds", "holds"]


@pytest.mark.parametrize("kind, more, wanted", [
    ("paper", dict(id="wang-01"), "want the smallest effect of interest, above 0"),
    ("paper", dict(unit="points"), "want an id of nbs/claims.csv"),
    ("ours", dict(id="wang-01", unit="nats"), "want no id, or kind 'paper'"),
])
def test_claims_that_are_refused(kind, more, wanted):
    with pytest.raises(ValueError, match=wanted):
        Claim(kind, "it is lower", "", [.1]*5, **more)


def test_needs_says_what_decides_a_claim():
    rng = np.random.default_rng(0)
    table = needs([*claims(one_claim(rng, effect=30.)), *claims(one_claim(rng, effect=2., test_noise=.1))], minutes=3.)
    assert table.verdict.tolist() == [HOLDS, OPEN] and table.needed.tolist() == ["", "20 seeds"]
    assert table.minutes.tolist()[1] == 45


@pytest.fixture(scope="module")
def simulated():
    "Measures of twenty networks that differ in noise alone, as they are and with a temperature of 1.3."
    draw = torch.Generator().manual_seed(0)
    truth = 2*torch.randn(300, 5, generator=draw)
    target = torch.multinomial(truth.softmax(1), 1, generator=draw)[:, 0]
    networks = [Predictions(1.5*truth + torch.randn(300, 5, generator=draw), target) for _ in range(20)]
    return [[measured(preds, torch.arange(300), truth.softmax(1), T) for preds in networks] for T in (1., 1.3)]


@pytest.mark.parametrize("measure", ["ece", "true_ce"])
def test_equal_networks_are_not_told_apart(simulated, measure):
    "Real runs, and other measures, in tests/slow/test_grids.py."
    assert splits_decided(simulated, measure, splits=60) <= .05


def test_another_temperature_is_found(simulated):
    assert splits_decided(simulated, "confidence", other=1, splits=20) >= .8
    assert splits_decided(simulated, "ece", other=1, splits=20) >= .8


def test_the_interval_of_an_equivalent_claim_is_the_one_within_the_band():
    "Its 90 % interval decides; the interval adjusted for ten claims reaches out of the band."
    rng = np.random.default_rng(0)
    small = [rng.normal(0, .009, 10) for _ in range(10)]
    found = [f for f in decide(claims(*small)) if f.verdict == EQUIVALENT]
    assert len(found) > 2
    for finding in found:
        assert finding.effect.level == .9
        assert max(map(abs, finding.effect.interval)) <= finding.effect.sesoi
