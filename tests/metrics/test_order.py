"The order of the samples changes nothing: not a metric, a calibrator, an audit or its advice; with many ties."
import inspect

import pytest
import torch
from close import rounding

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.evaluate import evaluate, slices
from calibnb.posthoc import list_calibrators, make_calibrator

pytestmark = pytest.mark.filterwarnings("ignore:.*have probability 0")
DRAW = torch.Generator().manual_seed(0)
N = 1500  # more than a kernel width and blocks of pairs draw from
RATES = torch.tensor([[.5, .3, .2], [.1, .8, .1], [.05, .05, .9]], dtype=torch.float64)[torch.arange(N) % 3]
VOTES = torch.multinomial(RATES, 10, True, generator=DRAW)
PROBS = torch.stack([(VOTES == k).double().mean(1) for k in range(3)], 1)
TARGET = torch.multinomial(RATES, 1, generator=DRAW)[:, 0]
ORDER = torch.randperm(N, generator=DRAW)
FORMS = {"classes": (PROBS, TARGET), "one column": (PROBS[:, 0], (TARGET == 0).long())}
MORE = dict(net_benefit=([.2, .5],), expected_cost=(1., 4.), cheapest_threshold=(1., 4.))
ON_COLUMNS = {"decision_curve", *MORE}
ON_CLASSES = {"top_k_ece", "top_k_ece_ci"}


def numbers(value):
    "All numbers of a result, in a row."
    if isinstance(value, torch.Tensor):
        return value.double().flatten()
    if isinstance(value, dict): value = [*value.values()]
    if isinstance(value, tuple | list):
        return torch.cat([numbers(v) for v in value])
    if hasattr(value, "__dict__"):  # a record
        return numbers([v for v in vars(value).values() if isinstance(v, torch.Tensor | float | tuple)])
    return torch.tensor([float(value)], dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
def test_metrics_do_not_depend_on_the_order_of_the_samples(form):
    probs, target = FORMS[form]
    tried, skipped = 0, ON_COLUMNS if form == "classes" else ON_CLASSES
    for name in sorted({*metrics.__all__} - skipped):
        metric = getattr(metrics, name)
        if not inspect.isfunction(metric) or [*inspect.signature(metric).parameters][:2] != ["probs", "target"]:
            continue
        found, shuffled = (numbers(metric(probs[rows], target[rows], *MORE.get(name, ())))
                           for rows in (slice(None), ORDER))
        assert torch.allclose(found, shuffled, rtol=0, atol=rounding(N, size=N), equal_nan=True), name
        tried += 1
    assert tried > 35


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", list_calibrators())
def test_calibrators_do_not_depend_on_the_order_of_the_samples(name, form):
    probs, target = (v[:300] for v in FORMS[form])
    order = ORDER[ORDER < 300]
    fits = [make_calibrator(name).fit_probs(probs[rows], target[rows], eps=.01) for rows in (slice(None), order)]
    found, shuffled = (fit.transform(probs) for fit in fits)
    assert torch.allclose(found.double(), shuffled.double(), rtol=0, atol=1e-6)  # the precision of the solvers


@pytest.mark.parametrize("form", FORMS)
def test_audits_do_not_depend_on_the_order_of_the_samples(form):
    probs, target = (v[:400] for v in FORMS[form])
    order = ORDER[ORDER < 400]
    found, shuffled = (evaluate(Predictions.from_probs(probs[rows], target[rows], .01), draws=10, n_boot=20)
                       for rows in (slice(None), order))
    assert found.recommended == shuffled.recommended
    best, other_best = ({name: {*rows} for name, rows in e.best.items()} for e in (found, shuffled))
    assert best == other_best
    assert [c.code for c in found.checks] == [c.code for c in shuffled.checks]
    for row, measures in found.rows.items():
        for name, measure in measures.items():
            other = shuffled.rows[row][name]
            for mine, theirs in zip((measure.value, measure.floor, *(measure.interval or ())),
                                    (other.value, other.floor, *(other.interval or ()))):
                assert mine is theirs or abs(mine - theirs) < 1e-5, (row, name)


@pytest.mark.parametrize("form", FORMS)
def test_slices_do_not_depend_on_the_order_of_the_samples(form):
    "Permutations were drawn by row numbers, so that p was .054 or .030."
    probs, target = (v[:400] for v in FORMS[form])
    site = torch.arange(400) % 7 % 2
    found, shuffled = (slices(Predictions.from_probs(probs[rows], target[rows], .01, groups=dict(site=site[rows])))
                       for rows in (slice(None), ORDER[ORDER < 400]))
    assert found.text() == shuffled.text()
    for mine, theirs in zip(found.slices, shuffled.slices):
        assert (mine.name, mine.p, mine.p_max) == (theirs.name, theirs.p, theirs.p_max)
