"Runs: made once, loaded afterwards, and never done without a valid result."
import json
import math
import os
import pickle
import re
import threading
import weakref

import pandas as pd
import pytest
import scipy.stats
import torch
from conftest import forks, patience

from calibnb import metrics
from calibnb.core import Predictions
from calibnb.data import load_data
from calibnb.runs import training
from calibnb.runs.folder import RunError, RunFolder, runs_root, write_json
from calibnb.runs.run import _train_with_torchrun
from calibnb.runs.tables import find_run
from calibnb.runs.watch import watch_lines
from calibnb.losses import make_loss
from calibnb.models import make_model
from calibnb.posthoc import TemperatureScaling, oracle_ece
from calibnb.cli import main
from calibnb.runs import RunConfig, collect, compare, comparison_table, get_run, list_runs
from calibnb.train import LearnedEpoch, Recipe, Trainer

SMALL = dict(model_args=dict(hidden=[16]), recorders=["nll_breakdown", "weight_norm"])


def config(epochs=4, seed=0, **kwargs):
    return RunConfig(**{**SMALL, **kwargs}, recipe=Recipe.quick(epochs, seed=seed))


def small_trainer(splits, epochs):
    "Return the trainer of `get_run(config(epochs))`."
    model = make_model("mlp", 10, splits.in_shape, seed=0, hidden=[16])
    return Trainer(model, make_loss("ce"), Recipe.quick(epochs))


def train_saving_each_step(config, root):
    torch.set_num_threads(1)
    fit = Trainer.fit
    Trainer.fit = lambda self, *args, **kwargs: fit(self, *args, **{**kwargs, "every_s": 0})
    get_run(config, root, progress=False)


def test_a_run_that_exists_is_loaded(tmp_path, monkeypatch):
    first = get_run(config(), tmp_path)
    monkeypatch.setattr("calibnb.runs.run.train", lambda *args: pytest.fail("trained again"))
    again = get_run(config(), tmp_path)
    assert again.path == first.path and again.history.rows == first.history.rows
    assert again.config == config()
    saved = first.predictions("test").logits
    assert torch.equal(again.predictions("test").logits, saved)  # bits: the same file


def test_memory_is_given_back_between_the_runs_of_one_process(tmp_path, monkeypatch):
    "Also after a run that ran out of memory, while its error is still referenced."
    made, left, make = [], [], training._make_trainer

    def watched(*args):
        made.append(weakref.ref(trainer := make(*args)))
        return trainer
    monkeypatch.setattr(training, "_make_trainer", watched)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: left.append([trainer() for trainer in made]))
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError, match="with batch_size=64"):
        patch.setattr("calibnb.train.Stepper.__call__", out_of_memory)
        get_run(config(), tmp_path, progress=False)
    assert RunFolder(config().path(tmp_path)).state == "failed"
    get_run(config(), tmp_path, progress=False)
    assert left == [[None], [None, None]]


def out_of_memory(stepper, batch, lr):
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_progress_is_told_to_a_function(tmp_path):
    told = []
    get_run(config(3), tmp_path, progress=told.append)
    assert [state["epoch"] for state in told] == [1, 2, 3]
    assert [(state["epoch"], state["epochs_done"]) for state in told] == [(1, 1), (2, 2), (3, 3)]


def test_a_tree_network_begins_with_vectors_of_words(tmp_path, monkeypatch):
    "At rate 0 they stay what they were; at another plain SGD moves them, and words without a vector, without decay."
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path))
    (tmp_path/"sst").mkdir()
    for name in "train", "dev", "test":
        (tmp_path/"sst"/f"{name}.txt").write_text("(4 (3 good) (2 film))\n(0 (1 bad) (2 film))\n"*4)
    (tmp_path/"glove.tiny.txt").write_text("film 1 2 3\ngood 4 5 6\nnever 7 8 9\n")

    def embedding(epochs=1, **model_args):
        options = dict(vocabulary=9, dim=4, embedding=3, dropout=0.) | model_args
        recipe = Recipe.sst(epochs, batch_size=8)
        run = get_run(RunConfig(data="sst", data_args=dict(vectors="glove.tiny"), model="tree_lstm", model_args=options,
                                recipe=recipe), tmp_path/"runs", progress=False)
        return run.model().embedding.weight.detach()
    still, moved = embedding(embedding_lr=0.), embedding(embedding_lr=.1)
    assert still[2].tolist() == [1, 2, 3] and [4, 5, 6] in still.tolist() and [7, 8, 9] not in still.tolist()
    assert (moved[2] != still[2]).all() and torch.allclose(moved, still, atol=.1)
    assert torch.equal(moved[6:], still[6:])  # of words that do not occur
    assert not torch.equal(embedding()[6:], still[6:])  # AdaGrad has a weight decay for them
    with pytest.raises(ValueError, match="give the model the option embedding=3"):
        embedding(embedding=5)
    words = tmp_path/"glove.tiny.txt"  # other numbers of the same size, at the same time
    before = words.stat()
    words.write_text(words.read_text().replace("1 2 3", "3 2 1"))
    os.utime(words, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert embedding(embedding_lr=0.)[2].tolist() == [3, 2, 1]


def test_same_seed_same_bits_other_seed_other_bits(tmp_path):
    def logits(seed, root):
        return get_run(config(seed=seed), tmp_path/root).predictions("test").logits
    first = logits(0, "a")
    assert torch.equal(first, logits(0, "b")) and not torch.equal(first, logits(1, "a"))


def test_the_split_can_be_held_fixed(tmp_path):
    targets = [get_run(config(1, seed, data_seed=5), tmp_path).predictions("test").target for seed in (0, 1)]
    assert torch.equal(*targets)
    targets = [get_run(config(1, seed), tmp_path).predictions("test").target for seed in (0, 1)]
    assert not torch.equal(*targets)


def test_recorders_of_learned_epochs_and_optimal_ece(tmp_path):
    run = get_run(config(epochs=12, recorders=["learned_epoch", "optimal_ece"]), tmp_path)
    right = []
    splits = load_data("digits", seed=0)
    trainer = small_trainer(splits, 12)
    trainer.fit(splits, recorders=[lambda view: right.append(view.predictions("train").hit) or {}])
    kept, want = run.recorded("learned_epoch"), metrics.learned_epoch(torch.stack(right, 1))
    learned = torch.where(kept["last_wrong"] < 12, kept["last_wrong"].double() + 1, torch.nan)
    assert torch.equal(learned.nan_to_num(-1), want.nan_to_num(-1)) and learned.isnan().any()
    largest = trainer.predict(splits.train).logits.amax(1)
    assert torch.equal(kept["max_logit"], largest)  # bits: the same training twice, one thread
    frame = run.history.frame()
    assert frame.epoch[frame.optimal_ece.notna()].tolist() == list(range(1, 13)), "after each epoch"
    last, test, val = frame.iloc[-1], run.predictions("test"), run.predictions("val")
    best = oracle_ece(test.logits, test.target)
    assert (last.optimal_ece, last.optimal_temperature) == best
    assert last.val_temperature == TemperatureScaling("ece").fit(val.logits, val.target).temperature_
    assert last.unscaled_ece == pytest.approx(metrics.ece(test.probs, test.target).item())
    assert last.val_temperature_ece >= best.ece
    with pytest.raises(ValueError, match="recorder: 'nll_breakdown' is not known"):
        run.recorded("nll_breakdown")


def test_a_recorder_begins_anew():
    splits, recorder = load_data("digits"), LearnedEpoch()
    for epochs in 4, 2:
        small_trainer(splits, epochs).fit(splits, [recorder])
    assert recorder.arrays["last_wrong"].max() <= 2


def test_histograms_of_the_label_probability(tmp_path):
    run = get_run(config(epochs=7, recorders=["confidence_histogram"]), tmp_path)
    kept, preds = run.recorded("confidence_histogram"), run.predictions("test")
    assert kept["epoch"].tolist() == [1, 3, 5, 7]
    p = preds.probs.gather(1, preds.target[:, None])[:, 0]
    for name, which in ("right", preds.hit), ("wrong", ~preds.hit):
        assert kept[name][3].tolist() == p[which].float().histc(20, 0, 1).tolist()
        assert kept[name].sum(1).min() > 0
    assert (kept["right"] + kept["wrong"]).sum(1).tolist() == [len(preds)]*4


def test_compare_marks_significant_differences():
    "Of four runs with each of three losses, one that was run once and one that was run twice."
    frames = dict(ce=[.90, .91, .92, .91], a=[.80, .81, .82, .81], b=[.90, .92, .91, .93], once=[.5], twice=[.4, .5])
    accuracies = pd.DataFrame([dict(loss=loss, acc=acc) for loss, values in frames.items() for acc in values])
    found = compare(accuracies, metrics=["acc"], higher=["acc"])
    assert found.loc[("a", "acc"), "mark"] == "●" and found.loc[("b", "acc"), "mark"] == ""
    assert math.isnan(found.loc[("ce", "acc"), "p"])
    acc = accuracies.acc
    for loss, group in ("a", acc[4:8]), ("b", acc[8:12]):
        want = scipy.stats.ttest_ind(group, acc[:4], equal_var=False).pvalue
        assert found.loc[(loss, "acc"), "p"] == pytest.approx(want)
    table = comparison_table(found, dict(acc=100))
    assert list(table.acc) == ["91.00 ± 0.82", "81.00 ± 0.82 ●", "91.50 ± 1.29", "50.00", "45.00 ± 7.07"]
    assert compare(accuracies, metrics=["acc"]).loc[("a", "acc"), "mark"] == "○"
    assert compare(accuracies, metrics=["acc"], unmarked=["acc"]).loc[("a", "acc"), "mark"] == ""
    for wrong in dict(baseline="cs"), dict(metrics=["accuracy"]), dict(by="los"):
        with pytest.raises(ValueError, match="is not known"):
            compare(accuracies, **dict(metrics=["acc"]) | wrong)


MIXED = {
    "data": (dict(data=["digits", "sst"]*4),
             "loss 'ce' has rows with several data ('digits', 'sst'), want one; select"),
    "a recipe": ({"recipe.epochs": [1, 1, 2, 2]*2},
                 r"several recipe.epochs \(1, 2\).*frame\[frame\['recipe.epochs'\] == 1\]"),
    "an option of a loss": ({"loss_args.gamma": [1., 2.]*2 + [None]*4},  # the advice keeps the rows of the other loss
                            "select rows, e.g. frame[(frame['loss'] != 'ce') | (frame['loss_args.gamma'] == 1.0)]"),
    "a list": (dict(recorders=0, **{"model_args.hidden": [[8], [16]]*4}),
               r"frame\['model_args.hidden'\].map\(repr\) == "),
    "networks of two losses": (dict(model=["mlp"]*4 + ["vgg16"]*4), "the rows have several model ('mlp', 'vgg16')"),
    "other data of one name": (dict(content=["a0", "b1"]*4), "loss 'ce' has rows with several content ('a0', 'b1')"),
    "other data of two losses": (dict(content=["a0"]*4 + ["b1"]*4), "the rows have several content ('a0', 'b1')"),
    "another file": ({"files.x.csv": ["a0", "b1"]*4}, "loss 'ce' has rows with several files.x.csv ('a0', 'b1')"),
    "members of an ensemble": (dict(data_seed=[0, 0, 1, 1]*2), "loss 'ce' has 4 seeds on 2 splits"),
}


@pytest.mark.parametrize("columns, message", MIXED.values(), ids=MIXED)
def test_compare_says_what_to_select_of_a_mixed_table(columns, message):
    "A table of `collect` may hold several settings; their mean is refused."
    frame = pd.DataFrame({"loss": ["ce"]*4 + ["focal"]*4, "recipe.seed": [0, 1, 2, 3]*2, "test.ece": range(8)})
    assert len(compare(frame.assign(data_seed=None, **{"loss_args.gamma": [None]*4 + [2.]*4}))) == 2
    assert len(compare(frame.assign(data_seed=frame["recipe.seed"]))) == 2
    with pytest.raises(ValueError, match=message if "\\" in message else re.escape(message)):
        compare(frame.assign(**columns))


def test_two_workers_make_it_once(tmp_path):
    setting = config(epochs=10)
    children = [forks().Process(target=train_saving_each_step, args=(setting, tmp_path)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(patience(120))
    assert [child.exitcode for child in children] == [0, 0]
    log = (setting.path(tmp_path)/"log.txt").read_text()
    assert log.count("begun by process") == 1 and log.count("  done") == 1


def test_a_failure_is_recorded_and_tried_again(tmp_path, monkeypatch):
    def no_room(*args):
        raise MemoryError("no room")
    monkeypatch.setattr("calibnb.runs.training._fit_and_write", no_room)
    with pytest.raises(MemoryError):
        get_run(config(), tmp_path)
    folder, reason = RunFolder(config().path(tmp_path)), r"MemoryError: no room \(test_runs.py, line \d+, in no_room\)"
    assert folder.state == "failed" and re.fullmatch(reason, folder.status["reason"])
    monkeypatch.undo()
    assert get_run(config(), tmp_path).folder.state == "done"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path/"runs").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        get_run(config(), tmp_path/"runs")


def test_saturated_predictions_have_a_result():
    found = training._measures(Predictions([[0., 2000.], [3., 0.], [0., 2.]], [0, 0, 1]))
    assert found["nll"].value > 600 and found["mce"].interval is None
    assert all(lo <= m.value <= hi for k, m in found.items() if k != "mce" for lo, hi in [m.interval])


def test_predictions_of_a_trainer_can_be_differentiated(tmp_path):
    preds = get_run(config(), tmp_path).predictions("val")
    T = torch.ones((), requires_grad=True)
    trainer = Trainer(make_model("mlp", 10, (1, 4, 4)), make_loss("ce"))
    for logits in preds.logits, trainer.predict(load_data("digits").val).logits:
        torch.nn.functional.cross_entropy(logits/T, preds.target).backward()


def test_a_last_batch_of_one_does_not_break_batch_norm():
    splits = load_data("digits", n_train=129)
    model = make_model("small_cnn", 10, splits.in_shape, width=4)
    Trainer(model, make_loss("ce"), Recipe(epochs=1)).fit(splits)


def test_the_same_settings_are_the_same_folder():
    same = [RunConfig(loss="flsd", loss_args=dict(gammas=gammas)) for gammas in ([5, 3], (5., 3.), [5., 3])]
    assert len({c.path("r") for c in [*same, RunConfig(loss="flsd")]}) == 1
    assert "code" not in same[0].model_dump()


def test_an_infinite_option_survives_json():
    endless = RunConfig(loss="bsce", loss_args=dict(beta=float("inf")))
    text = endless.model_dump_json()
    assert RunConfig.model_validate_json(text) == endless and "Infinity" not in text


def test_a_file_of_rubbish_stops_nobody(tmp_path):
    run = get_run(config(), tmp_path)
    for rubbish in b"\xff\xfe{", b"[1, 2]", b"{}", b"":
        (run.path/"result.json").write_bytes(rubbish)
        assert list(collect(tmp_path).state) == ["failed"]
    (run.path/"status.json").write_bytes(b"\xff\xfe{")
    assert list(collect(tmp_path).state) == ["absent"]
    assert get_run(config(), tmp_path).folder.state == "done"


BAD = [  # settings, message
    (dict(loss="focall"), "loss: 'focall' is not known; did you mean 'focal'"),
    (dict(loss="focal", loss_args=dict(gama=1)), "loss focal option: 'gama' is not known; did you mean 'gamma'"),
    (dict(loss="focal", loss_args=dict(gamma=float("nan"))), "gamma"),
    (dict(data_args=dict(name="x")), "data digits option: 'name' is not known"),
    (dict(data="digit"), "data: 'digit' is not known; did you mean 'digits'"),
    (dict(model="mpl"), "model: 'mpl' is not known; did you mean 'mlp'"),
    (dict(experiment="../elsewhere"), "experiment"),
    (dict(seed=3), r"seed: an option of the recipe, want RunConfig\(recipe=Recipe.quick\(seed=3\)\)"),
    (dict(lr=.1), "in a sweep, take recipe.lr"),
    (dict(hidden=[3]), "in a sweep, take model_args.hidden"),
    (dict(recipe=dict(epochs=0)), "^recipe.epochs: 0, input should be greater than or equal to 1$"),
    (dict(data_args=dict(n_train="300")), "data digits option n_train: '300', want int"),
    (dict(n_train=300), r"n_train: an option of the data, want RunConfig\(data_args=dict\(n_train=300\)\)"),
    (dict(loss="focal", gamma=2), r"gamma: an option of the loss, want RunConfig\(loss_args=dict\(gamma=2\)\)"),
    (dict(recipe=dict(learning_rate=.1)), "^recipe.learning_rate: not known$"),
    (dict(meta={}), "data_args: n_meta is 0, but meta learns on held-out samples; give the number or share of these samples, e.g. n_meta=100"),
    (dict(los="ce"), "^los: not known, did you mean 'loss'[?]$"),
    (dict(loss=["ce"]), r"loss: \['ce'\] is not known"),
    (dict(loss_args=dict(reduction="avg")), "loss_args: reduction is 'avg', want .mean. or .sum."),
    (dict(model_args=dict(hidden="x")), "hidden: 'x'"),
    (dict(recorders=["norm"]), "recorder: 'norm' is not known"),
    (dict(meta=dict(learn="nothing")), "meta.learn"),
    (dict(data_seed=-1), "data_seed"),
    (dict(recipe=dict(lr=-2)), "recipe.lr"),
    (dict(recipe=dict(seed=-1)), "recipe.seed"),
    (dict(recipe=dict(seed=10**20)), "recipe.seed"),
    (dict(recipe=dict(seed="one")), "recipe.seed"),
    (dict(recipe=dict(schedule="cos")), "recipe.schedule: 'cos' is not known"),
]


@pytest.mark.parametrize("settings, message", BAD, ids=str)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**settings)


def test_a_value_that_the_loss_refuses_is_the_reason_of_a_failed_run(tmp_path):
    config = RunConfig(loss="focal", loss_args=dict(gamma=-2))
    with pytest.raises(ValueError, match="^gamma: -2.0, want a finite number >= 0"):
        get_run(config, tmp_path, progress=False)
    status = RunFolder(config.path(tmp_path)).status
    assert status["state"] == "failed" and status["reason"].startswith("ValueError: gamma: -2.0, want")


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize("name", ["predictions/test.safetensors", "checkpoint.pt"])
def test_a_pickle_with_code_is_not_executed(tmp_path, monkeypatch, name):
    monkeypatch.setenv("BOMB", str(tmp_path/"boom"))
    run = get_run(config(), tmp_path/"runs")
    if name == "checkpoint.pt":
        (run.path/"result.json").unlink()
        torch.save(Bomb(), run.path/name)
        with pytest.raises(pickle.UnpicklingError):
            get_run(config(), tmp_path/"runs")
        assert RunFolder(run.path).state == "failed"
    else:
        (run.path/name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(ValueError, match="not a safetensors file"):
            run.predictions("test")
    assert not (tmp_path/"boom").exists()


def test_where_runs_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path))
    assert runs_root() == tmp_path
    monkeypatch.delenv("CALIBNB_RUNS")
    monkeypatch.chdir(tmp_path)
    assert runs_root().name == "runs" and runs_root().parent != tmp_path  # an editable install: runs of the checkout


def hold(path, pipe):
    "Hold the lock of a run until a message comes."
    folder = RunFolder(path)
    folder.acquire()
    pipe.send("held")
    pipe.recv()
    folder.release()


def test_a_run_in_use_names_its_holder_only_where_it_is_known(tmp_path, capsys):
    "Between the lock and the first status its holder is unknown."
    folder, (ours, theirs) = RunFolder(tmp_path/"toy"/"00000000-s0"), forks().Pipe()
    holder = forks().Process(target=hold, args=(folder.path, theirs))
    holder.start()
    assert ours.poll(patience(60)) and ours.recv() == "held"
    with pytest.raises(RunError) as error:
        folder.acquire(wait=False)
    assert str(error.value) == f"{folder.path} is in use by another process; end that process first, or wait"
    threading.Timer(1, ours.send, ["end"]).start()
    folder.acquire()
    assert capsys.readouterr().err == f"waiting for another process, which works on {folder.path}\n"
    holder.join(patience(60))
    assert holder.exitcode == 0
    folder.release()


def test_an_infinite_nll_is_inf_in_the_table(tmp_path):
    "JSON has no name for it; an empty cell would be a run without a result."
    run = get_run(config(1), tmp_path, progress=False)
    result = json.loads((run.path/"result.json").read_text())
    result["metrics"]["test"]["nll"]["value"] = None
    (run.path/"result.json").write_text(json.dumps(result))
    assert collect(tmp_path)["test.nll"].tolist() == [math.inf]


def test_a_failure_with_the_name_of_a_file_that_no_text_holds_is_told(tmp_path):
    folder = RunFolder(tmp_path/"study"/"0-s0")
    with pytest.raises(ValueError, match="a\udcff.npz: no images"), folder.running("train", {}):
        raise ValueError("a\udcff.npz: no images")
    assert folder.state == "failed" and "a\\udcff.npz: no images" in (folder/"log.txt").read_text(encoding="utf-8")


def write_file(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")


def write_run(root, name, kind="train", settings=None, status=None, result=None):
    "Write the files of a run folder as another program might have left them."
    folder = RunFolder(root/"toy"/f"{name}-s0")
    folder.path.mkdir(parents=True)
    settings = dict(data="digits", model="mlp", recipe=dict(lr=.1, seed=3), code=dict(loss="f0"))|(settings or {})
    write_json(folder/"run.json", dict(kind=kind, settings=settings))
    write_json(folder/"status.json", status or dict(state="failed", reason="no room", start="2026-01-01T00:00:00"))
    if result is not None:
        write_json(folder/"result.json", result)
    return folder


def test_runs_are_listed_for_readers(tmp_path):
    done = dict(state="done", start="2026-01-01T00:00:00", end="2026-01-02T03:04:05")
    test = {name: dict(value=value, n=100) for name, value in (("error", .25), ("ece", .03))}
    write_run(tmp_path, "a", settings=dict(loss="ce"), status=done, result=dict(metrics=dict(test=test), findings=[]))
    write_run(tmp_path, "b", settings=dict(loss="focal"), status=dict(state="running", start="2026-01-03T00:00:00"))
    write_run(tmp_path, "c", settings=dict(loss="focal", model="cnn"))
    for name, more in dict(d={}, e=dict(dry_run=True), f={}).items():
        study = write_run(tmp_path, name, "notebook", dict(quick=True)|more, done, dict(metrics={}, findings=[]))
        for figure in "map.png", "map.svg", "curve.png":
            write_file(study/"figures"/figure)
        if name != "f":
            write_file(study/"notebook.ipynb")
    table = list_runs(tmp_path).set_index("run")
    assert list(table.index) == ["d-s0", "e-s0", "f-s0", "b-s0", "a-s0", "c-s0"]
    assert table.loc["a-s0", ["setting", "seed", "result"]].tolist() == ["digits mlp ce", 3, "error 25.00%, ECE 3.00%"]
    assert table.loc["b-s0", ["state", "ended", "started"]].tolist() == ["died", "", "2026-01-03 00:00:00"]
    assert table.loc["c-s0", ["state", "result", "setting"]].tolist() == ["failed", "no room", "digits cnn focal"]
    assert table.figures[:3].tolist() == [2, 2, 2] and [bool(path) for path in table.notebook[:3]] == [True, False, False]


@pytest.mark.parametrize("odd", [
    dict(settings=dict(recipe=[1])), dict(status=dict(state="failed", reason=None, end=None)),
    dict(status=dict(state="done"), result=dict(metrics=dict(test={}), findings=[])),
    dict(settings=dict(meta=dict(learn="gamma")))])
def test_an_odd_folder_does_not_end_the_list(tmp_path, odd):
    write_run(tmp_path, "a", **odd)
    write_run(tmp_path, "b")
    assert len(list_runs(tmp_path)) == 2 and len(collect(tmp_path)) == 2


DAMAGED = {  # name of a file -> content, which calibnb does not write
    "status.json": ['{"state": ["done"]}', '{"state": -5, "start": -5}', "["*100_000],
    "run.json": ['{"kind": "train", "settings": -5}', "["*100_000, None],
}


@pytest.mark.parametrize("file, content", [(file, content) for file in DAMAGED for content in DAMAGED[file]])
def test_a_damaged_folder_is_named_and_stops_nobody(tmp_path, capsys, file, content):
    damaged = write_run(tmp_path, "a")
    write_run(tmp_path, "b")
    (damaged/file).unlink()
    if content is None: (damaged/file).mkdir()
    else: (damaged/file).write_text(content)
    is_empty = file == "status.json" and content.startswith("[")  # as a status.json that is not there
    for read in list_runs, collect:
        assert len(read(tmp_path)) == 1 + is_empty
        assert capsys.readouterr().err == "unreadable: toy/a-s0\n"*(not is_empty)
    watch_lines(tmp_path)
    assert find_run("toy/b-s0", tmp_path).path.name == "b-s0"
    for name in "toy/a-s0", "a-s0":
        assert main(["show", name, "--root", str(tmp_path)]) == 1 - is_empty
        assert capsys.readouterr().err.splitlines()[-1:] == ["unreadable: toy/a-s0"]*(not is_empty)


def test_processes_write_where_the_experiment_folder_leads(tmp_path, monkeypatch):
    (tmp_path/"scratch"/"train").mkdir(parents=True)
    (tmp_path/"runs").mkdir()
    (tmp_path/"runs"/"train").symlink_to(tmp_path/"scratch"/"train")
    asked = []
    monkeypatch.setattr("calibnb.runs.run.torchrun", lambda module, arguments, *args, **kw: asked.append(arguments))
    _train_with_torchrun(config(), config().identity(tmp_path/"runs"), "cpu", 2, False, False)
    assert asked[0][1:3] == ["--root", str(tmp_path/"runs")]
