"Streaming metrics on two processes: uneven shards, one of them empty-handed at the end, equal the metric of the whole."
import json
import subprocess
import sys

from conftest import patience

SCRIPT = """
import json, os, sys, torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from calibnb import metrics, streaming
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
draw = torch.Generator().manual_seed(0)
probs, target = torch.randn(501, 4, generator=draw).softmax(1), torch.randint(4, (501,), generator=draw)
mine = MetricCollection(dict(ece=streaming.ECE(), mce=streaming.MCE(), classwise_ece=streaming.ClasswiseECE(4), nll=streaming.NLL(),
                             brier_score=streaming.BrierScore(), error_rate=streaming.ErrorRate()))
shard = slice(0, 350) if rank == 0 else slice(350, 501)
for p, y in zip(probs[shard].split(64), target[shard].split(64)):
    mine.update(p, y)
got = {k: v.item() for k, v in mine.compute().items()}
if rank == 0:
    want = {k: getattr(metrics, k)(probs, target).item() for k in got}
    open(sys.argv[1], "w").write(json.dumps([got, want]))
dist.destroy_process_group()
"""


def test_two_processes_equal_the_whole(tmp_path):
    (tmp_path/"script.py").write_text(SCRIPT)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2",
           str(tmp_path/"script.py"), str(tmp_path/"out.json")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    got, want = json.loads((tmp_path/"out.json").read_text())
    assert got.keys() == want.keys() and all(abs(got[k] - want[k]) < 1e-12 for k in want)
