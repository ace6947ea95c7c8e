"The peak memory of large inputs in a new process."
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import patience

from calibnb.losses import surrogates

SCRIPT = """
import re, torch
from calibnb import losses, metrics
from calibnb.losses import surrogates
torch.set_num_threads(1)
def peak():
    "Return the peak of this process in MB, without its parent as in ru_maxrss."
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])/1024
def gradient(fn, N, K):
    logits, target = torch.randn(N, K, requires_grad=True), torch.randint(K, (N,))
    fn(logits[:8], target[:8]).backward()
    before = peak()
    fn(logits, target).backward()
    return peak() - before
def ece(N, K):
    probs, target = torch.rand(N, K), torch.randint(K, (N,))
    probs.div_(probs.sum(1, keepdim=True))
    metrics.ece(probs[:8], target[:8])
    before = peak()
    metrics.ece(probs, target)
    return peak() - before
"""
CASES = {
    "DECE, 1024x1000": ("gradient(surrogates.dece, 1024, 1000)", 50),
    "MMCE of a batch of 100,000": ("gradient(surrogates.mmce, 100_000, 10)", 100),
    "ECE, 20,000x1000": ("ece(20_000, 1000)", 8),
}


IN_CHILDREN = """
import os
for call in {calls}:
    child = os.fork()  # one thread only; the peak of a copy begins at its own size
    if not child:
        print(eval(call), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, call
"""


def check_peaks(cases):
    "Assert that no case (call, most MB) has a larger peak."
    code = SCRIPT + IN_CHILDREN.format(calls=[call for call, _ in cases.values()])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    for (case, (_, most_mb)), peak in zip(cases.items(), map(float, done.stdout.split()), strict=True):
        assert peak < most_mb, f"{case}: {peak:.0f} MB, want below {most_mb}"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux")
def test_peaks():
    check_peaks(CASES)


def test_sece_keeps_no_matrix_of_pairs():
    "Between forward and backward, which computes it again in chunks."
    logits, target, kept = torch.randn(200, 3, requires_grad=True), torch.arange(200) % 3, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        surrogates.sece(logits, target, chunk=50).backward()
    assert sum(kept) < 200*200/4
