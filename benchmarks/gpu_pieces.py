"""Single functions on a GPU: losses, metrics, and what the host spends on a streaming update."""
import statistics
import time
from functools import partial

import torch
import torch.nn.functional as F
import usual_forms
from gpu_rows import Row, duration, wait_for
from torchmetrics.classification import MulticlassCalibrationError
from torchmetrics.functional.classification import multiclass_calibration_error

from calibnb import metrics
from calibnb.losses import make_loss
from calibnb.metrics import streaming

SIZES = (128, 10), (1024, 1000), (1_000_000, 10)
TINY = (16, 3), (8, 12), (40, 3)
OUR_LOSSES = "focal", "dual_focal", "bsce", "bsce_gra", "mmce"
PAIRS_AT_MOST = 5000  # samples; MMCE as usually written has a matrix of all their pairs


def drawn(bench, N, K):
    "Logits and labels, the same for everybody who asks."
    draw = torch.Generator().manual_seed(0)
    logits, target = torch.randn(N, K, generator=draw), torch.randint(K, (N,), generator=draw)
    return logits.to(bench.device), target.to(bench.device)


def compiled(fn):
    "As one graph: a break in it is an error."
    return torch.compile(fn, fullgraph=True, dynamic=False)


def loss_section(bench):
    "Forward and backward, beside F.cross_entropy in eager mode and compiled."
    for N, K in bench.size(SIZES, TINY):
        logits, target = drawn(bench, N, K)
        logits.requires_grad_()
        torch.compiler.reset()
        for how, prepare, at_most in ("eager", lambda fn: fn, None), ("compiled", compiled, 1.5):
            unit = gradient(prepare(cross_entropy), logits, target)
            for name, fn, budget in contenders(N, bench, at_most):
                what = f"{name}, {N:,} x {K:,}, {how}"
                unit_name = f"F.cross_entropy, {how}"
                yield what, partial(measured_loss, bench, what, prepare, fn, logits, target, unit_name, unit, budget)


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


def contenders(N, bench, at_most):
    "(name, function, target) of our losses and of the usual forms."
    for name in OUR_LOSSES:
        yield name, make_loss(name).to(bench.device), at_most
        if name in usual_forms.LOSSES and (name != "mmce" or N <= PAIRS_AT_MOST):
            yield f"{name} as usually written", usual_forms.LOSSES[name], None


def gradient(fn, logits, target):
    return lambda: torch.autograd.grad(fn(logits, target), logits)


def measured_loss(bench, what, prepare, fn, logits, target, unit_name, unit, budget):
    step = gradient(prepare(fn), logits, target)
    step()  # compiles
    row = bench.compare(what, step, unit_name, unit, budget)
    row.found += f", {bench.peak_mb(step):,.1f} MB"
    return row


def torchmetrics_ece(probs, target):
    return multiclass_calibration_error(probs, target, probs.shape[1], n_bins=15, validate_args=False)


def metric_section(bench):
    "From probabilities, without checks; beside probs.max(1)."
    for N, K in bench.size(SIZES, TINY):
        logits, target = drawn(bench, N, K)
        probs = logits.softmax(1)
        largest = (N, K) == bench.size(SIZES, TINY)[-1]
        torch.compiler.reset()
        for name, fn, budget in measures(largest):
            what = f"{name}, {N:,} x {K:,}"
            yield what, partial(bench.compare, what, partial(fn, probs, target), "probs.max(1)",
                                partial(probs.max, 1), budget)
    peak = partial(bench.compare_memory, f"memory of ECE, {N:,} x {K:,}")
    yield "memory of ECE", partial(peak, partial(metrics.ece, probs, target, validate=False), "as usually written",
                                   partial(usual_forms.ece, probs, target))


def measures(largest):
    "(name, function, target) of metrics, and of the same as others write them."
    for name, usual in usual_forms.METRICS.items():
        ours = partial(getattr(metrics, name), validate=False)
        yield name, ours, 1.5 if name == "ece" and largest else None
        if name in ("ece", "nll"):
            yield f"{name}, compiled", torch.compile(ours, dynamic=False), None
        if name == "ece":
            yield "ece, torchmetrics", torchmetrics_ece, None
        yield f"{name} as usually written", usual, None


STREAMS = dict(ECE=(), MCE=(), ClasswiseECE=(10,), ErrorRate=(), NLL=(), BrierScore=())
UPDATES_AT_ONCE = 20  # fewer than what a queue of launches holds, so that the host never waits for room


def streaming_section(bench):
    "What `update` of a batch of 128 x 10 costs the host: until it returns, not until it is done."
    logits, target = drawn(bench, 128, 10)
    probs = logits.softmax(1)
    for name, args in STREAMS.items():
        metric = getattr(streaming, name)(*args, validate=False).to(bench.device)
        yield name, partial(update_row, bench, f"streaming.{name}.update", metric, probs, target, 50e-6)
    theirs = MulticlassCalibrationError(10, n_bins=15, validate_args=False).to(bench.device)
    what = "update of torchmetrics' calibration error, which keeps all batches"
    yield what, partial(update_row, bench, what, theirs, probs, target)


def update_row(bench, what, metric, probs, target, at_most=None):
    for _ in range(3):
        metric.update(probs, target)
    found = [host_time(bench, metric, probs, target) for _ in range(bench.size(30, 1))]
    row = Row(what, f"{duration(statistics.median(found))} of the host")
    if at_most:
        row.target, row.met = f"at most {duration(at_most)}", statistics.median(found) <= at_most
    return row


def host_time(bench, metric, probs, target):
    "Seconds until an update returns."
    wait_for(bench.device)
    start = time.perf_counter()
    for _ in range(UPDATES_AT_ONCE):
        metric.update(probs, target)
    seconds = time.perf_counter() - start
    wait_for(bench.device)
    metric.reset()  # torchmetrics keeps every batch
    return seconds/UPDATES_AT_ONCE
