"Streaming metrics: batches and shards on two processes add up to the whole; refused batches change nothing."
import multiprocessing
import os
from functools import partial

import pytest
import torch
from conftest import group_of, patience, rounding
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError

from calibnb import metrics
from calibnb.metrics import streaming
from calibnb.processes.distributed import joined, rank

PEERS = dict(binary=BinaryCalibrationError, multiclass=partial(MulticlassCalibrationError, 4))


def kinds(K):
    return dict(ece=streaming.ECE, mce=streaming.MCE, classwise_ece=partial(streaming.ClasswiseECE, K),
                nll=streaming.NLL, brier_score=streaming.BrierScore, error_rate=streaming.ErrorRate)


def sharded():
    "Return metrics of two uneven shards on two processes, a batch of ignored labels among them, and of the whole."
    draw = torch.Generator().manual_seed(0)
    probs, target = torch.randn(501, 4, generator=draw).softmax(1), torch.randint(4, (501,), generator=draw)
    target[::9] = -1
    tasks = dict(multiclass=(probs, target, 4), binary=(probs[:, 1], target.clamp(-1, 1), 1))
    got, want = {}, {}
    with joined("cpu"):
        shard = slice(0, 350) if rank() == 0 else slice(350, 501)
        for task, (p, y, K) in tasks.items():
            mine = {name: kind(ignore_index=-1) for name, kind in kinds(K).items()}
            mine = MetricCollection(mine, compute_groups=False)  # all states are 0 after the first batch
            mine.update(p[:3], torch.full((3,), -1))
            for batch in zip(p[shard].split(64), y[shard].split(64)):
                mine.update(*batch)
            got |= {f"{task} {name}": value.item() for name, value in mine.compute().items()}
            want |= {f"{task} {name}": getattr(metrics, name)(p, y, ignore_index=-1).item() for name in kinds(K)}
    return got, want


def in_a_copy(environment, end):
    os.environ |= environment
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    end.send(sharded())


def test_two_processes_equal_the_whole():
    "Copies of this process, which take a second to begin; a new process takes ten."
    context, (_store, ranks) = multiprocessing.get_context("fork"), group_of(2)
    pipes = [context.Pipe(duplex=False) for _ in ranks]
    copies = [context.Process(target=in_a_copy, args=(rank, end)) for rank, (_, end) in zip(ranks, pipes)]
    for copy, (_, end) in zip(copies, pipes):
        copy.start()
        end.close()
    for copy, (pipe, _) in zip(copies, pipes):
        assert pipe.poll(patience(30))
        got, want = pipe.recv()
        copy.join()
        assert got.keys() == want.keys()
        assert all(abs(got[name] - want[name]) < 1e-12 for name in want)


@pytest.mark.parametrize("ignored", [None, -1, 0])
@pytest.mark.parametrize("task", PEERS)
def test_batches_agree_with_torchmetrics(task, ignored):
    "Images in three batches, by batch and in all."
    draw = torch.Generator().manual_seed(1)
    logits, target = 2*torch.randn(3, 32, 4, 5, generator=draw), torch.randint(4, (3, 32, 5), generator=draw)
    probs = logits.softmax(2) if task == "multiclass" else logits[:, :, 0].sigmoid()
    target = target if task == "multiclass" else target % 2
    if ignored is not None:
        target[torch.rand(target.shape, generator=draw) < .1] = ignored
    for norm, n_bins in ("l1", 10), ("max", 15):
        ours = streaming.ECE(n_bins, norm=norm, ignore_index=ignored)
        peer = PEERS[task](n_bins=n_bins, norm=norm, ignore_index=ignored)
        for p, y in zip(probs, target):
            value = ours(p if task == "multiclass" else p[:, None], y)
            assert torch.isclose(value.float(), peer(p, y), rtol=0, atol=rounding(160, torch.float32))
        assert torch.isclose(ours.compute().float(), peer.compute(), rtol=0, atol=rounding(480, torch.float32))


KINDS = [streaming.ECE, streaming.MCE, lambda **o: streaming.ClasswiseECE(3, **o), streaming.ErrorRate, streaming.NLL,
         streaming.BrierScore]
IDS = ["ECE", "MCE", "ClasswiseECE", "ErrorRate", "NLL", "BrierScore"]
PROBS, TARGET = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).softmax(1), torch.arange(20) % 3
REFUSED = {"empty": (PROBS[:0], TARGET[:0]), "no pixels": (torch.zeros(2, 3, 0), torch.zeros(2, 0).long()),
           "a label too many": (PROBS, TARGET + 1), "no label": (PROBS, None)}


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_batch_that_is_refused_leaves_nothing_behind(kind, case, validate):
    "Also where `metric(probs, target)` is called, which sets the sums aside for the value of the batch."
    if case == "a label too many" and not validate:
        pytest.skip("nobody looks")
    metric = kind(validate=validate)
    metric.update(PROBS[:9], TARGET[:9])
    for take in metric.update, metric:
        with pytest.raises(ValueError, match="probs: empty|target: "):
            take(*REFUSED[case])
    metric(PROBS[9:], TARGET[9:])
    whole = kind()
    whole.update(PROBS, TARGET)
    torch.testing.assert_close(metric.compute(), whole.compute())
    assert metric.n == 20


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_the_result_is_where_the_state_is(kind):
    metric = kind()
    metric.update(PROBS, TARGET)
    assert metric.compute().device.type == "cpu" and metric.result().dtype == torch.float64
    metric.to("meta")  # a device without numbers
    assert metric.result().device.type == "meta"


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_device_without_float64_is_refused(kind, monkeypatch):
    metric, to = kind(), torch.Tensor.to
    def as_mps(t, *args, **kwargs):
        if t.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework "
                            "doesn't support float64.")
        return to(t, *args, **kwargs)
    metric.update(PROBS, TARGET)
    want = metric.compute()
    with monkeypatch.context() as m:
        m.setattr(torch.Tensor, "to", as_mps)
        message = ("the sums are float64, which this device does not have; "
                   "leave the metric on the CPU and call update with probs.cpu")
        with pytest.raises(TypeError, match=f"{type(metric).__name__}: {message}"):
            metric.to("cpu")
    metric.update(PROBS, TARGET)
    torch.testing.assert_close(metric.compute(), want)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_inside_and_outside_of_inference_mode(kind):
    whole, metric = kind(), kind()
    for _ in range(2):
        whole.reset()
        whole.update(PROBS, TARGET)
        with torch.inference_mode():
            metric.reset()
            metric.update(PROBS[:5], TARGET[:5])
        metric.update(PROBS[5:9], TARGET[5:9])
        with torch.inference_mode():
            metric(PROBS[9:], TARGET[9:])
        torch.testing.assert_close(metric.compute(), whole.compute())
    MetricCollection(dict(a=metric)).compute()
