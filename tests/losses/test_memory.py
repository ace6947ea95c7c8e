"The peak memory of large inputs in a new process."
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import patience

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
    "SECE of a batch of 10,000": ("gradient(surrogates.sece, 10_000, 10)", 1000),  # 1900 with all pairs at once
    "DECE, 1024x1000": ("gradient(surrogates.dece, 1024, 1000)", 50),
    "MMCE of a batch of 100,000": ("gradient(surrogates.mmce, 100_000, 10)", 100),
    "ECE, 100,000x1000": ("ece(100_000, 1000)", 8),
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


@pytest.fixture(scope="module")
def peaks():
    "Return the peak of each case in MB."
    code = SCRIPT + IN_CHILDREN.format(calls=[call for call, _ in CASES.values()])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(float, done.stdout.split()), strict=True))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux")
@pytest.mark.parametrize("case", CASES)
def test_peak(peaks, case):
    _, most_mb = CASES[case]
    assert peaks[case] < most_mb, f"{case}: {peaks[case]:.0f} MB, want below {most_mb}"
