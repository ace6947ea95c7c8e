"Grids of which the fast tests have one case, and what they have a stand-in for: compiled trainings, pairs of audits."
import os

import pytest
import torch
from nulls import NULLS, measured, share_decided, splits_decided, upper_end
from pairs import Place, pairs

from calibnb.data import load_data
from calibnb.losses import make_loss
from calibnb.models import make_model
from calibnb.runs import RunConfig, get_runs
from calibnb.train import Recipe, Trainer


def test_compiled_training_agrees(monkeypatch):
    "Traced whole, and run without the C++ compiler, which some machines lack."
    seen, compile = [], torch.compile

    def traced(fn, mode, **options):
        seen.append(mode)
        return compile(fn, **options, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr("torch.compile", traced)
    splits, found = load_data("digits", n_train=128), []
    for compiled in False, True:
        trainer = Trainer(make_model("mlp", 10, splits.in_shape, seed=0), make_loss("ce"),
                          Recipe(epochs=1, batch_size=16, compile=compiled), "cpu")
        trainer.fit(splits)
        found.append(trainer.predict(splits.test).logits)
    assert torch.allclose(*found, atol=1e-4) and len(seen) == 1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("here"), notebooks=True)


@pytest.mark.parametrize("kind, first, second", list(pairs(int(os.environ.get("CALIBNB_TEST_PAIRS", 10)))))
def test_of_two_commands_one_stands_with_notebooks(place, tmp_path, kind, first, second):
    "CALIBNB_TEST_PAIRS=50 tries as many."
    place.check(kind, first, second, tmp_path)


@pytest.mark.parametrize("null", NULLS)
def test_false_verdicts_are_rare_in_many_studies(null):
    study, level = NULLS[null]
    assert share_decided(study, 1000) <= upper_end(level, 1000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "Measures of twenty real runs that differ in nothing but the seed, as trained and with a temperature of 1.3."
    configs = [RunConfig(experiment="equal", data="noisy_digits", data_args=dict(more_variants=4),
                         recipe=Recipe.quick(30, seed=s)) for s in range(20)]
    runs = get_runs(configs, tmp_path_factory.mktemp("equal"), progress=False)
    tests = [load_data("noisy_digits", seed=c.seed, **c.data_args).test for c in configs]
    return [[measured(run.predictions("test"), test.rows, test.posterior, T) for run, test in zip(runs, tests)]
            for T in (1., 1.3)]


@pytest.mark.parametrize("measure", ["ece", "nll", "error", "true_ce"])
def test_equal_runs_are_not_told_apart(trained, measure):
    assert splits_decided(trained, measure) <= .05


def test_another_temperature_is_found(trained):
    assert splits_decided(trained, "confidence", other=1) >= .8
    assert splits_decided(trained, "ece", other=1) >= .8


def test_parameters_of_a_vision_transformer_as_published():
    "With 1000 classes; the smaller networks in tests/models."
    net = make_model("vit_b_16", 1000, (3, 224, 224))
    assert sum(p.numel() for p in net.parameters()) == 86_567_656 and net.head.in_features == 768
