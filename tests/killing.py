"What tests of interrupted trainings share: a training in a process that can be killed, and what a resumed run equals."
import torch
from conftest import forks

from calibnb.runs import RunConfig, get_run
from calibnb.train import Recipe, Trainer
from calibnb.train.checkpoint import Saver

SMALL = dict(model_args=dict(hidden=[32]))


def plain(epochs):
    "Augmentation, mixup, a best epoch to keep and recorders that keep arrays."
    recipe = Recipe.quick(epochs, augment=["flip"], mixup=.2, keep="val_nll")
    recorders = ["nll_breakdown", "learned_epoch"]
    return RunConfig(data_args=dict(pool=1), recipe=recipe, recorders=recorders, **SMALL)


def saved_at(path):
    "When the checkpoint of a run was written; None before the first."
    return (path/"checkpoint.pt").stat().st_mtime_ns if (path/"checkpoint.pt").exists() else None


def saved_state(path):
    "The checkpoint of a run."
    return torch.load(path/"checkpoint.pt", weights_only=True)


def train_when_told(pipe, setting, root, every_s, steps):
    """Train once the pipe says so, and tell it each epoch; checkpoints are `every_s` seconds apart.

    After `steps` batches, and a checkpoint, say "held" and wait to be killed.
    """
    torch.set_num_threads(1)
    fit, after_batch, done = Trainer.fit, Saver.after_batch, []

    def counted(self, last=False):
        after_batch(self, last)
        done.append(last)
        if len(done) >= steps and self.took_s:
            pipe.send("held")
            pipe.recv()  # as far as it may come, and saved
    Trainer.fit = lambda self, *args, **kwargs: fit(self, *args, **{**kwargs, "every_s": every_s})
    Saver.after_batch = counted
    pipe.recv()
    get_run(setting, root, progress=pipe.send)


def child(setting, root, every_s=.02, steps=10**9):
    "A process that does `train_when_told`, and the pipe to it."
    pipe, theirs = forks().Pipe()
    process = forks().Process(target=train_when_told, args=(theirs, setting, root, every_s, steps), daemon=True)
    process.start()
    theirs.close()
    return process, pipe


def assert_same_run(resumed, whole):
    "Weights, optimisers, history, what recorders keep, and predictions have the same bits."
    assert repr(resumed.history.rows) == repr(whole.history.rows)  # repr: nan is not equal to nan
    assert resumed.metrics == whole.metrics
    for split in "val", "test":
        found, want = (run.predictions(split).logits for run in (resumed, whole))
        assert torch.equal(found, want)  # bits: a resumed run is the run
    resumed_state, whole_state = saved_state(resumed.path), saved_state(whole.path)
    for part in "model", "stepper", "loss", "best", "arrays":  # the arrays are what recorders keep
        assert_same_bits(resumed_state[part], whole_state[part])


def assert_same_bits(a, b):
    if isinstance(a, torch.Tensor):
        return torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if not isinstance(a, (dict, list, tuple)):
        assert repr(a) == repr(b)
        return
    assert len(a) == len(b) and (list(a) == list(b) or not isinstance(a, dict))
    for x, y in zip(a.values(), b.values()) if isinstance(a, dict) else zip(a, b):
        assert_same_bits(x, y)
