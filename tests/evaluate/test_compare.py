"Two models on the same samples: the difference of the ECE by hand, exit codes, matched rows, one line for bad input."
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.evaluate import compare_models
from calibnb.evaluate.compare import MARGINS
from calibnb.metrics import ece_difference
from calibnb.metrics.paired import _gaps

DRAW = np.random.default_rng(0)
LOGITS = 2*DRAW.standard_normal((4000, 3))
TARGET = (LOGITS + DRAW.gumbel(size=LOGITS.shape)).argmax(1)  # drawn from softmax(LOGITS)


def gaps_by_hand(models, n_bins):
    "Mean residuals of the bins of both models, and their covariance, sample by sample."
    n, M = len(models[0][0]), n_bins
    place = [[k*M + min(max(math.ceil(c*M) - 1, 0), M - 1) for c in conf] for k, (conf, _) in enumerate(models)]
    rows = []  # the residual of a sample in each bin of each model
    for i in range(n):
        row = [0.]*(2*M)
        for k, (conf, hit) in enumerate(models):
            row[place[k][i]] = hit[i] - conf[i]
        rows.append(row)
    gap = [sum(row[a] for row in rows)/n for a in range(2*M)]
    cov = [[sum((row[a] - gap[a])*(row[b] - gap[b]) for row in rows)/n**2 for b in range(2*M)] for a in range(2*M)]
    scale = [0.]*(2*M)
    for a in range(2*M):
        conf, hit = models[a//M]
        hits = [hit[i] for i in range(n) if place[a//M][i] == a]
        share = (sum(hits) + 2)/(len(hits) + 4)
        wanted, had = max(cov[a][a], len(hits)*share*(1 - share)/n**2), cov[a][a]
        scale[a] = math.sqrt(wanted/had) if had > 0 else 0.
    return gap, [[cov[a][b]*scale[a]*scale[b] for b in range(2*M)] for a in range(2*M)]


def test_the_difference_of_the_ece_by_hand():
    "Value, covariance and largest bias in plain Python; the half width from draws of its own."
    n, M, draw = 60, 3, np.random.default_rng(3)
    p = .34 + .66*draw.random(n)
    hit = [bool(h) for h in draw.random(n) < p]
    models = [(p.tolist(), hit), ((1/(1 + (1/p - 1)**2)).tolist(), hit)]
    given = [(torch.tensor(conf, dtype=torch.float64), torch.tensor(hits)) for conf, hits in models]
    gap, cov = gaps_by_hand(models, M)
    got_gap, got_cov = _gaps(*given, M)
    assert np.allclose(got_gap, gap, atol=1e-14) and np.allclose(got_cov, cov, atol=1e-14)

    def estimate(gaps):
        total = 0.
        for a, g in enumerate(gaps):
            sd = math.sqrt(cov[a][a])
            if sd:
                z = g/sd
                total += (1 if a >= M else -1)*sd*(abs(z) - .907*math.exp(-z*z/(2*.774**2)))
        return total

    found = ece_difference(*given, n_bins=M, draws=4000)
    assert math.isclose(found.value, estimate(gap), abs_tol=1e-12)
    assert math.isclose(found.new, sum(map(abs, gap[M:])), abs_tol=1e-12)
    error = np.std([estimate(g) for g in draw.multivariate_normal(gap, cov, 4000, method="eigh")])
    sd, bias = [math.sqrt(cov[a][a]) for a in range(2*M)], 0.
    for a, b in zip(range(M), range(M, 2*M)):
        if sd[a] and sd[b]:
            rho = cov[a][b]/(sd[a]*sd[b])
            apart = abs(gap[a]/sd[a] - gap[b]/sd[b]) + 1.96*math.sqrt(max(0, 2 - 2*rho))
            bias += min(.243*(sd[a] + sd[b]), .243*abs(sd[a] - sd[b]) + min(sd[a], sd[b])*apart)
        else:
            bias += .243*(sd[a] + sd[b])
    noise = np.abs(bias/error + draw.standard_normal(100_000))
    assert math.isclose(found.high - found.value, error*np.quantile(noise, .95), rel_tol=.05)


@pytest.fixture
def files(tmp_path):
    def write(name, scale, rows=slice(None), order=1, **columns):
        frame = pd.DataFrame(scale*LOGITS, columns=[f"logit_{k}" for k in range(3)])
        ids = [f"s{i}" for i in range(len(frame))]
        side = np.where(np.arange(4000) % 4, "left", "right")
        frame = frame.assign(target=TARGET, key=ids, side=side, **columns).iloc[rows][::order]
        frame.to_csv(tmp_path/name, index=False)
        return str(tmp_path/name)
    return write


def run(capsys, *line):
    code = cli.main(["compare", *line])
    return code, *capsys.readouterr()


def test_exit_codes_and_matched_rows(files, capsys):
    right, sharp = files("right.csv", 1), files("sharp.csv", 2, order=-1)
    by = ["--id", "key", "--by", "side"]
    code, out, _ = run(capsys, right, sharp, *by, "--json")
    found = json.loads(out)
    assert (code, found["exit_code"]) == (1, 1) and found["measures"]["error"]["verdict"] == "equivalent"
    preds = [Predictions(torch.tensor(z), torch.tensor(TARGET)) for z in (LOGITS, 2*LOGITS)]
    nll = compare_models(*preds).differences["nll"]
    assert math.isclose(found["measures"]["nll"]["value"], nll.value, abs_tol=1e-12)
    assert [*found["slices"]] == ["side = left", "side = right"]
    code, out, _ = run(capsys, sharp, right, *by, "--margin", "ece=5", "--markdown")
    assert code == 0 and "| ECE % |" in out and out.startswith("**The new model is not worse")
    few = [files(f"{i}.csv", scale, slice(80)) for i, scale in enumerate((1, 1.1))]
    code, out, _ = run(capsys, *few, *by, "--least", "5")
    assert code == 2 and out.startswith("80 samples cannot decide error")


def test_the_page_shows_the_bins_of_both_models(files, capsys):
    "The numbers of the page against NumPy; rows in another order; names of columns and files that hold code."
    old, new = files("old.csv", 1, **{"<b>": "</script>"}), files("<i>new.csv", 2, order=-1)
    page = Path(old).with_name("page.html")
    code, out, _ = run(capsys, old, new, "--id", "key", "--by", "side", "--by", "<b>", "--html", str(page))
    text = page.read_text()
    assert code == 1 and out.endswith(f"page: {page}\n") and len(text) < 500_000
    assert text.count("<script") == 2 and "<b>" not in text and "<i>new" not in text
    assert "default-src 'none'" in text and not re.search("<(?:link|img|iframe)|(?:src|href)=", text)
    assert "--id key --by side" in text and text.index("side = left") < text.index("Make this page again")
    data = json.loads(re.search('id="data">(.*?)</script>', text)[1])
    for model, scale in zip(data["models"], (1, 2)):
        probs = np.exp(scale*LOGITS)/np.exp(scale*LOGITS).sum(1, keepdims=True)
        conf, hit = probs.max(1), probs.argmax(1) == TARGET
        for bins in model["bins"]["10"], model["bins"]["15"]:
            for b in bins:
                inside = (conf > b["lo"]) & (conf <= b["hi"])
                wanted = inside.sum(), hit[inside].mean(), conf[inside].mean()
                assert np.allclose([b["n"], b["acc"], b["conf"]], wanted, atol=1e-6)
            assert sum(b["n"] for b in bins) == 4000
    assert [d["style"] for d in data["differences"]] == ["", "worse", "worse", "worse"]
    assert run(capsys, old, new, "--id", "key", "--html", new)[2].startswith(f"calibnb: --html: {new} is an input file")


def test_the_page_of_stated_confidences_with_clusters(tmp_path, capsys):
    "Whiskers of both models count clusters: ten answers of each of 40 people, all right or all wrong."
    right = np.repeat(DRAW.random(40) < .7, 10).astype(int)
    for name, sure in ("old", .7), ("new", .9):
        pd.DataFrame(dict(sure=sure, right=right, who=np.arange(400)//10)).to_csv(tmp_path/f"{name}.csv", index=False)
    files = [str(tmp_path/f"{name}.csv") for name in ("old", "new")]
    widths = []
    for more in [], ["--cluster", "who"]:
        run(capsys, *files, "--confidence", "sure", "--correct", "right", *more, "--html", str(tmp_path/"page.html"))
        data = json.loads(re.search('id="data">(.*?)</script>', (tmp_path/"page.html").read_text())[1])
        assert data["words"][0] == "stated confidence"
        widths.append([m["bins"]["15"][0]["high"] - m["bins"]["15"][0]["low"] for m in data["models"]])
    assert np.all(np.array(widths[1]) > 2*np.array(widths[0]))


def test_a_worse_slice_fails_the_whole():
    groups = dict(part=np.repeat(["a", "b"], [400, 3600]))
    old = Predictions(torch.tensor(LOGITS), torch.tensor(TARGET), groups=groups)
    new = Predictions(torch.tensor(LOGITS*np.repeat([4, 1], [400, 3600])[:, None]), old.target)
    margins = dict(nll=.2, brier=.2, ece=.2)
    assert compare_models(old, new, margins).exit_code == 0
    found = compare_models(old, new, margins, by="part")
    assert found.exit_code == 1 and [*found.worse_slices] == ["part = a"]


@pytest.mark.parametrize("line, told", [
    ("{old} {less} --id key --by side", "--id: 3,990 of 4,000 rows of {old} are not in {less}, and 0 of 10"),
    ("{old} {old} --id side --by key", "--id: 3,998 rows of {old} repeat an id, first left"),
    ("{old} {old} --id kye", "column: 'kye' is not known; did you mean 'key'"),
    ("{old} {turned} --by key --by side", "new: the label of row 0 is "),
    ("{old} {less} --by key --by side", "new: 10 samples, but old: 4,000"),
    ("{old} {old} --id key --by side --margin eec=1", "--margin: 'eec' is not known; did you mean 'ece'"),
    ("{old} {old} --id key --margin ece=-1", "--margin: ece is -1.0, want a number of at least 0"),
    ("{old} {old} --id key --by sied", "did you mean 'side'"),
])
def test_bad_input_is_one_line(files, capsys, line, told):
    paths = dict(old=files("old.csv", 1), less=files("less.csv", 1, slice(10)), turned=files("turned.csv", 1, order=-1))
    code, out, err = run(capsys, *line.format(**paths).split())
    assert code == 2 and not out and err.count("\n") == 1 and told.format(**paths) in err, err


SHARED = "https://example.org/a/long/path/of/a/document/", "/and/a/long/end/of/it.html"
ALIKE = {
    "a real value beside the pool": ["other"]*400 + ["a"]*3400 + [f"rare{i}" for i in range(200)],
    "long values": [f"{SHARED[0]}{k}{SHARED[1]}" for k in [1]*400 + [2]*3600],
    "a number beside its text": [1]*400 + ["1"]*3600,
}


@pytest.mark.parametrize("values", ALIKE.values(), ids=ALIKE)
def test_slices_whose_names_would_be_equal_are_all_compared(values):
    "The first 400 rows are far worse."
    target = torch.tensor(TARGET)
    worse = torch.tensor(np.concatenate([-LOGITS[:400], LOGITS[400:]]))
    old = Predictions(torch.tensor(LOGITS), target, groups=dict(part=pd.Series(values, dtype=object)))
    found = compare_models(old, Predictions(worse, target), dict(error=1, nll=9, brier=9, ece=1), by="part")
    assert sorted(s["error"].n for s in found.slices.values())[-1] >= 3400
    assert any(s["error"].n == 400 and s["error"].value > .3 for s in found.slices.values()), [*found.slices]
    n_slices = len({str(type(v)) + str(v) for v in values if "rare" not in str(v)}) + ("rare1" in values)
    assert len(found.slices) == n_slices and math.isclose(found.slice_level, 1 - .05/n_slices)
    assert len(found.record()["slices"]) == n_slices and len(found.frame()) == len(MARGINS)*(1 + n_slices)
    assert found.frame().index.is_unique


def test_ids_are_text(tmp_path, capsys):
    "0001 and 00001 are two samples, also where every id is a number."
    table = pd.DataFrame(dict(prob_a=[.9, .2, .6], prob_b=[.1, .8, .4], target=["a", "b", "b"]))
    table["id"] = "0001", "00001", "2"
    old, new = tmp_path/"old.csv", tmp_path/"new.csv"
    table.to_csv(old, index=False)
    table[::-1].to_csv(new, index=False)
    cli.main(["compare", str(old), str(new), "--id", "id", "--json"])
    assert json.loads(capsys.readouterr().out)["measures"]["error"]["value"] == 0
    table.assign(id=["1", "00001", "2"]).to_csv(new, index=False)
    assert cli.main(["compare", str(old), str(new), "--id", "id"]) == 2
    assert "1 of 3 rows" in capsys.readouterr().err


def test_a_label_that_differs_is_named_by_its_id(tmp_path, capsys):
    table = pd.DataFrame(dict(cat=.7, dog=.3, target="cat", id=["a7", "b8", "c9"]))
    for name, labels in ("old", ["cat", "dog", "cat"]), ("new", ["cat", "dog", "dog"]):
        table.assign(target=labels)[::-1 if name == "new" else 1].to_csv(tmp_path/f"{name}.csv", index=False)
    code, _, err = run(capsys, *(str(tmp_path/f"{name}.csv") for name in ("old", "new")), "--probs", "--id", "id")
    told = "new: the label of id c9 is dog, but in old cat (1 of 3 labels differ); want the same labels in both"
    assert code == 2 and told in err
