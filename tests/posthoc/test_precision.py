"The same scores in csv, parquet, float64, float32, as a module and by ONNX: the same calibrated rows."
import os

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.evaluate import UNCALIBRATED, evaluate
from calibnb.files.predictions import read_predictions
from calibnb.posthoc import VennAbers, list_calibrators, make_calibrator

pytestmark = pytest.mark.filterwarnings("ignore:.*have probability 0", "ignore:.*divided by its sum")
DRAW = torch.Generator().manual_seed(0)
RATES = torch.tensor([[.5, .3, .2], [.1, .8, .1], [.05, .05, .9]], dtype=torch.float64)[torch.arange(400) % 3]
TARGET = torch.multinomial(RATES, 1, generator=DRAW)[:, 0]
DRAWN = torch.multinomial(RATES, 100, True, generator=DRAW)
VOTES = torch.stack([(DRAWN == k).double().mean(1) for k in range(3)], 1)
SCORES = {"votes": VOTES, "two decimals": (50*RATES + 50*VOTES).round()/100, "one column": VOTES[:, 1]}
SCORES["two decimals"][:, 2] = 1 - SCORES["two decimals"][:, :2].sum(1)
SCORES["near ties"] = SCORES["two decimals"].clone()  # the first class and the last differ by one rounding step
SCORES["near ties"][::3] = torch.tensor([.4, .2, 1 - .4 - .2], dtype=torch.float64)
SCORES["about 1"] = (50*RATES + 50*VOTES + .3).round()/100  # each row is divided by its own sum

STEPS = ["isotonic", "histogram", "bbq", "venn_abers"]


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("name", list_calibrators())
def test_precision_does_not_move_a_score_into_another_bin(name, kind):
    "A step map whose edge was a score of the fit gave .167 for .1 in float64, and .154 for .1 in float32."
    probs, target = SCORES[kind], (TARGET == 1).long() if kind == "one column" else TARGET
    fitted = make_calibrator(name).fit_probs(probs, target, eps=.01)
    want = fitted.transform(probs)
    forms = {"float32": fitted.transform(probs.float()), "normalised": fitted.transform(probs/(1 + 1e-15)),
             "module": fitted.as_module()(probs), "module, float32 input": fitted.as_module()(probs.float())}
    for form, found in forms.items():
        assert (found.double() - want.double()).abs().max() < 2e-6, form


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("name", list_calibrators())
def test_a_fit_in_float32_is_the_fit_in_float64(name, kind):
    "Equal scores whose float32 copies differed by 1e-8 were knots of their own: isotonic regression moved by .03."
    probs, target = SCORES[kind], (TARGET == 1).long() if kind == "one column" else TARGET
    found = [make_calibrator(name).fit_probs(scores, target, eps=.01).transform(probs).double()
             for scores in (probs, probs.float())]
    within = 2e-6 if name in STEPS else 1e-3  # where the NLL is flat, a minimiser ends elsewhere
    assert (found[1] - found[0]).abs().max() < within


@pytest.mark.parametrize("name", STEPS)
def test_onnx_moves_no_tied_score_into_another_bin(name):
    "Exports of step maps, on forest votes k/n as float32."
    pytest.importorskip("onnxruntime")
    from calibnb.posthoc.export import onnx_function, onnx_graph
    fitted = make_calibrator(name).fit_probs(VOTES, TARGET, eps=.01)
    found = onnx_function(onnx_graph(fitted.as_module()))(VOTES.float())
    assert (found.double() - fitted.transform(VOTES)).abs().max() < 1e-6


def test_venn_abers_answers_in_both_precisions_alike():
    p, y = [.1]*10 + [.3]*10 + [.7]*10, [0]*9 + [1] + [0]*6 + [1]*4 + [1]*8 + [0]*2
    fitted = VennAbers().fit_probs(torch.tensor(p, dtype=torch.float64), torch.tensor(y))
    for dtype in torch.float64, torch.float32:
        found = fitted.transform(torch.tensor([.1, .3, .7], dtype=dtype)).double()
        assert torch.allclose(found, torch.tensor([1/6, 5/12, 3/4], dtype=torch.float64), atol=2e-3), dtype


def test_a_file_is_audited_and_calibrated_alike_in_each_format(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(VOTES.numpy(), columns=["class_0", "class_1", "class_2"]).assign(target=TARGET.numpy())
    frame.to_csv("a.csv", index=False)
    frame.to_parquet("a.parquet", index=False)
    for dtype in np.float64, np.float32:
        np.savez(f"{dtype.__name__}.npz", probs=VOTES.numpy().astype(dtype), target=TARGET.numpy())
    files = ["a.csv", "a.parquet", "float64.npz", "float32.npz"]
    found = [evaluate(read_predictions(file, "probs", eps=.01), draws=5, n_boot=20) for file in files]
    for other in found[1:]:
        assert other.recommended == found[0].recommended
        for row, measures in found[0].rows.items():
            for name in measures if row == UNCALIBRATED else ("nll",):
                within = 1e-5 if row == UNCALIBRATED else .005  # a row may change folds
                assert abs(measures[name].value - other.rows[row][name].value) < within, (row, name)
    for name in "histogram", "isotonic", "bbq", "venn_abers":
        make_calibrator(name).fit_probs(VOTES, TARGET, eps=.01).save("c.safetensors")
        tables = []
        for file in files:
            assert cli.main(["apply", "c.safetensors", file, "--probs", "--out", "out.npz"]) == 0
            tables.append(np.load("out.npz")["probs"])
        assert max(abs(table - tables[0]).max() for table in tables) < 2e-6, name
    assert os.path.exists("out.npz") and capsys.readouterr().out
