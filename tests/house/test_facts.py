"How the full settings measure is read from the notebooks, and each difference from a paper's settings is named."
import sys
from types import SimpleNamespace

import pytest
from conftest import EXPERIMENTS, ROOT, write_notebook

from calibnb.evaluate import resampled_measures
from calibnb.posthoc import HistogramBinning, TemperatureScaling
from calibnb.train import Recipe, make_recorder

sys.path.insert(0, str(ROOT/"docs"))
import facts  # noqa: E402
import measuring  # noqa: E402

CODE = """scalings = [TemperatureScaling.reference(), TemperatureScaling('nll' if quick else 'ece', 'pool')]
binning = partial(HistogramBinning, smooth=False)
counts = [10, 20]
found = resampled_measures(scored, *given, n_bins=few), [scored.ece(M) for M in counts]
of_resamples = resamples.ece(scored.conf, scored.hit, 50), pairs.of('CE', 'ece')"""


@pytest.fixture
def read(tmp_path):
    import functools
    names = dict(quick=False, few=5, partial=functools.partial, TemperatureScaling=TemperatureScaling,
                 HistogramBinning=HistogramBinning, resampled_measures=resampled_measures)

    def of(code):
        write_notebook(tmp_path/"study.ipynb", code)
        path = tmp_path/"study.ipynb"
        return measuring.calibrators(path, names), measuring.numbers_of_bins(path, names)
    return of


def test_calls_are_read_with_the_variables_of_the_full_setting(read):
    calibrators, bins = read(CODE)
    scalings = {(c.criterion, c.search) for c in calibrators if isinstance(c, TemperatureScaling)}
    assert scalings == {("ece", "grid"), ("ece", "pool")}
    assert [(c.n_bins, c.smooth) for c in calibrators if isinstance(c, HistogramBinning)] == [(15, False)]
    assert bins == {15, 5, 10, 20, 50}  # 15 of the trainings' own measures


def test_a_number_of_bins_that_cannot_be_read_is_an_error(read):
    with pytest.raises(KeyError, match="many"):
        read("scored.ece(many)")


def made(study="calibratability", calibrators=(), bins=frozenset({15}), recorders=(), **names):
    return SimpleNamespace(study=study, calibrators=list(calibrators), bins=set(bins), names=names,
                           recorders={name: make_recorder(name) for name in recorders})


def temperatures(text, explained=None, paper="Wang 2021", **fields):
    setting = dict(temperature=text, paper=paper)
    return list(facts.differences_of_temperatures(setting, made(**fields),
                                                   facts.Explained() if explained is None else explained))


@pytest.mark.parametrize("text, bins, lines", [
    ("15 (ECE)", {15}, 0), ("15 (ECE)", {15, 20}, 1), ("15 (ECE); adaptive: number not stated", {10}, 1),
    ("Fig. 4: 20, 50; Fig. 2 not stated", {15, 20, 50}, 0), ("Fig. 4: 20, 50; Fig. 2 not stated", {15, 20}, 1),
    ("ECE, MCE: not stated", {7}, 0)])
def test_numbers_of_bins(text, bins, lines):
    assert len(list(facts.differences_of_bins(dict(bins=text), made(bins=bins)))) == lines


def test_lists_of_temperatures_and_their_criterion():
    pool, grid = "pool 0.01, 0.02, ..., 10 on validation data", "grid 0, 0.1, ..., 10 on validation ECE"
    by_ece, reference = TemperatureScaling("ece", "pool"), TemperatureScaling.reference()
    assert temperatures(pool, calibrators=[by_ece]) == []
    assert temperatures(pool, calibrators=[reference]) == [
        "the 100 temperatures of 'grid' from 0.1 to 10, facts: 1000 from 0.01 to 10"]
    assert temperatures(pool) == ["no temperatures are tried, facts: pool 0.01, 0.02, ..., 10"]
    explained = facts.Explained()
    assert temperatures(grid, explained, "Lin 2025", calibrators=[reference, TemperatureScaling()]) == []
    assert explained == {("Lin 2025", "", "T of 0")}
    assert len(temperatures(grid, paper="Lin 2025", calibrators=[TemperatureScaling("nll", "grid")])) == 2
    tuned = "cross-validated on ECE (validation); printed to one decimal, grid not stated"
    assert temperatures(tuned, calibrators=[reference]) == []
    assert len(temperatures(tuned, calibrators=[by_ece])) == 1


def test_histogram_binning_and_the_search_of_every_epoch():
    hb, every = "HB 15 equal-width bins on the top-1 confidence", "searched on the test data in every epoch"
    assert temperatures(hb, calibrators=[HistogramBinning(smooth=False)]) == []
    for other in HistogramBinning(10), HistogramBinning(scheme="mass"), HistogramBinning(mode="each"):
        assert len(temperatures(hb, calibrators=[other])) == 1
    assert temperatures(every, recorders=["optimal_ece"]) == []
    assert len(temperatures(every)) == 1


def test_repetitions():
    from calibnb.runs import RunConfig
    def differences(text, n, **names):
        configs = [RunConfig(experiment="e", loss=loss, recipe=Recipe.quick(2, seed=s), recorders=[
            "weight_norm"]*(s == 0)) for loss in ("ce", "brier") for s in range(n)]
        return list(facts.differences_of_repetitions(dict(repetitions=text), (), configs, made(**names)))
    assert differences("5 (mean and sd)", 5) == []
    assert differences("not stated (5 runs in general)", 3) == []
    assert differences("5 (mean and sd)", 4) == ["[4] repetitions, facts: 5"]
    assert differences("the 5th run", 5, drawn=4) == []
    assert differences("the 5th run", 5, drawn=0) == ["seed 0 of [0, 1, 2, 3, 4] is drawn, facts: the 5th run"]
    assert len(differences("the 5th run", 4, drawn=3)) == 1


def test_the_full_settings_have_the_papers_bins_and_temperatures():
    import plans
    path = EXPERIMENTS/"calibratability.ipynb"
    _, names = plans.run_until_plan((path, plans.jobs("calibnb run calibratability -p quick False")[0][1]))
    assert measuring.numbers_of_bins(path, names) == {15}
    scaling, binning, *others = measuring.calibrators(path, names)
    assert (scaling.search, binning.n_bins, binning.scheme, others) == ("pool", 15, "width", [])
