"A confidence and whether the answer was correct: one answer from every format, and one clear error for bad input."
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli, metrics
from calibnb.core import Predictions
from calibnb.evaluate import compare_models, evaluate
from calibnb.evaluate.page import page_data


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    draw = np.random.default_rng(0)
    sure = draw.choice([.6, .7, .8, .9, .95], 800)
    frame = pd.DataFrame(dict(question=[f"q {i}" for i in range(800)], sure=sure, right=draw.random(800) < sure - .2))
    frame.to_csv("a.csv", index=False)
    frame.to_parquet("a.parquet")
    frame.to_json("a.jsonl", orient="records", lines=True)
    frame.assign(right=np.where(frame.right, "yes", "no")).to_csv("words.csv", index=False)
    frame.assign(sure=100*sure).to_csv("percent.csv", index=False)
    Path("torn.jsonl").write_text('{"sure": 0.5, "right": 1}\n[1, 2]\n')


def audit(capsys, line): return cli.main(["audit", *line.split(), "--no-report"]), capsys.readouterr()


def test_every_format_gives_the_same_answer(capsys):
    for file in "a.csv", "a.parquet --calibrator platt", "a.jsonl --calibrator platt", "words.csv --pos-label yes":
        _, out = audit(capsys, f"{file} --confidence sure --correct right --json")
        found = json.loads(out.out)
        assert .15 < found["rows"]["uncalibrated"]["ece"]["interval"][0] < .2 and not out.err
        some = ["platt"] if "platt" in file else ["temperature", "platt", "histogram", "isotonic"]
        assert [*found["rows"]] == ["uncalibrated", *some]
        assert "overconfident" in found["verdict"] and found["recommended"] != "uncalibrated"
        assert found["kind"] == "confidence" and "P(y" not in found["verdict"] + found["advice"]
        status, = (c for c in found["checks"] if c["code"] == "CNB011")
        assert status["status"] == "tip" and "5 distinct values, 0.6, 0.7, 0.8, 0.9, 0.95" in status["text"]


def test_nothing_is_thresholded_and_selective_metrics_rank_by_the_confidence():
    draw = np.random.default_rng(1)
    sure = draw.choice([.1, .3, .5, .9, 1.], 500)
    right = draw.random(500) < .2 + .5*sure
    with pytest.warns(UserWarning, match="answers contradict a confidence of 0 or 1"):
        preds = Predictions.from_confidence(sure, right)
    found = evaluate(preds, draws=10, metrics=["aurc"])
    for measures in found.rows.values():
        assert measures["error"].value == pytest.approx(1 - right.mean())
        assert not {"top_label_ece", "classwise_ece"} & {*measures}
    first = found.rows["uncalibrated"]
    assert first["ece"].value == pytest.approx(metrics.ece(sure, right).item())
    assert first["aurc"].value == pytest.approx(metrics.aurc(sure, right, score="given").item())
    given = torch.tensor([[.1], [.3], [.5], [.9], [1.]], dtype=torch.float64)
    assert (found.fitted["platt"].transform(given).diff(dim=0) > 0).all()  # 1 stays above .9, although often wrong
    assert "P(y" not in page_data(found)["words"] and "P(y" not in found.caption() + found.advice()
    other = Predictions.from_confidence(sure.clip(max=.9), ~right)  # the answers of another model
    compared = compare_models(preds, other)
    assert compared.differences["error"].value == pytest.approx(2*right.mean() - 1)
    with pytest.raises(ValueError, match="new: one column, P.y = 1., but old: stated confidences"):
        compare_models(preds, Predictions.from_probs(sure.clip(max=.9), right))


def test_compare_plan_and_apply_take_stated_confidences(capsys):
    columns = "--confidence sure --correct right"
    assert cli.main(f"audit a.csv {columns} --calibrator platt".split()) == 0
    told, = (line for line in capsys.readouterr().out.splitlines() if "calibnb apply" in line)
    Path("new.csv").write_text("question,sure\n1,.6\n2,.95\n")
    assert cli.main(told.split("calibnb ")[1].replace("FILE", "new.csv").replace("OUT.csv", "out.csv").split()) == 0
    out = pd.read_csv("out.csv")
    assert [*out] == ["sure"] and (out.sure < [.6, .95]).all()
    page = Path("calibnb-audit/a/report.html").read_text()
    assert columns in page and "P(y" not in page
    pd.read_csv("a.csv").assign(right=lambda f: ~f.right).to_csv("b.csv", index=False)
    capsys.readouterr()
    assert cli.main(f"compare a.csv b.csv {columns} --json".split()) in (0, 1, 2)
    found = json.loads(capsys.readouterr().out)["measures"]["error"]
    assert found["old"] + found["new"] == pytest.approx(1)
    assert cli.main("plan new.csv --confidence sure --width 60".split()) == 0


@pytest.mark.parametrize("line, message", [
    ("a.csv --confidence sure", "--correct: not given, but --confidence is; want both columns"),
    ("a.csv --confidence sure --correct right --target-col right", "--confidence: given with --target-col"),
    ("a.csv --confidence sure --correct right --by predicted_class", "stated confidences have no classes"),
    ("a.csv --confidence surre --correct right", "'surre' is not known; did you mean 'sure'?"),
    ("words.csv --confidence sure --correct right", "column 'right' holds text"),
    ("percent.csv --confidence sure --correct right", "percentages /100"),
    ("torn.jsonl --confidence sure --correct right", "torn.jsonl cannot be read as jsonl (line 2 holds [1, 2]"),
])
def test_refusals(line, message, capsys):
    code, out = audit(capsys, line)
    assert code == 2 and message in out.err and out.err.count("\n") == 1


def sample_of_lm_eval(i, scores, **more):
    return dict(doc_id=i, doc={}, filtered_resps=[[float(s), False] for s in scores], **more)


def test_samples_of_lm_eval_are_recognised_by_their_keys(capsys):
    "Choices differ in number, a second filter repeats the samples, and `acc` decides where there is one."
    draw = np.random.default_rng(0)
    lines = []
    for i in range(400):
        scores = 2*draw.standard_normal(draw.integers(3, 6)) - 30
        target = int((scores/2 + draw.gumbel(size=len(scores))).argmax())
        given = dict(target=str(target)) if i % 2 else dict(target="B", acc=float(scores.argmax() == target))
        lines += [sample_of_lm_eval(i, scores, filter=name, **given) for name in ("none", "strict")]
    Path("samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for flag in "", " --format lm-eval":
        _, out = audit(capsys, f"samples.jsonl{flag} --json --calibrator temperature")
        found = json.loads(out.out)
        assert "the softmax of the log-likelihoods at the chosen answer" in found["notes"][0]
        assert found["samples"] == 400 and .1 < found["rows"]["uncalibrated"]["ece"]["value"] < .25
    assert cli.main("audit samples.jsonl --calibrator temperature".split()) == 0
    told, = (line for line in capsys.readouterr().out.splitlines() if "calibnb apply" in line)
    assert cli.main(told.split("calibnb ")[1].replace("FILE", "samples.jsonl").split()) == 0
    assert np.load("OUT.npz")["confidence"].shape == (400,)


@pytest.mark.parametrize("sample, message", [
    (dict(doc_id=0, target="0", filtered_resps=["some text"]), "no log-likelihood for each choice"),
    (sample_of_lm_eval(0, [-1, -2], target="B"), "neither `acc` nor a number as `target`"),
])
def test_refused_samples_of_lm_eval(sample, message, capsys):
    Path("samples.jsonl").write_text(json.dumps(sample))
    code, out = audit(capsys, "samples.jsonl")
    assert code == 2 and message in out.err and out.err.count("\n") == 1


def test_a_log_of_inspect_is_a_table_of_answers(capsys):
    draw = np.random.default_rng(0)
    def sample(i):
        sure = draw.uniform(.5, 1)
        score = dict(value="C" if draw.random() < sure - .2 else "I", metadata=dict(confidence=sure, by="model"))
        return dict(id=i//2, epoch=1 + i % 2, metadata=dict(level=str(i % 3)), scores=dict(judge=score))
    samples = [sample(i) for i in range(600)]
    Path("log.json").write_text(json.dumps(dict(eval={}, samples=samples)))
    with zipfile.ZipFile("log.eval", "w") as file:
        for i, one in enumerate(samples): file.writestr(f"samples/{i:03d}.json", json.dumps(one))
    answers = []
    for line in "log.json", "log.eval", "log.eval --correct judge", "log.eval --by level":
        _, out = audit(capsys, f"{line} --confidence confidence --calibrator platt --json")
        answers.append(json.loads(out.out)["rows"]["uncalibrated"])
    assert .15 < answers[0]["ece"]["value"] < .25 and answers[0] == answers[1] == answers[2] == answers[3]
    _, out = audit(capsys, "log.eval --confidence confidence --cluster id")
    assert "600 samples in 300 clusters" in out.out
    refused = {"--confidence sure": "did you mean", "": "--confidence COLUMN, of: id, epoch, level, judge"}
    for line, said in refused.items():
        code, out = audit(capsys, f"log.eval {line}")
        assert code == 2 and "log.eval" in out.err and out.err.count("\n") == 1, out.err
    Path("other.json").write_text("[1, 2]")
    code, out = audit(capsys, "other.json --confidence confidence")
    assert code == 2 and "no log of Inspect" in out.err
