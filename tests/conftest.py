"What the tests share: golden vectors, the repository, and one thread for steady numbers."
import json
import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # promises of equal bits are for the CPU; set it to run the tests marked cuda
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for kernels and children: two processes of several threads each wait for one another

import pytest  # noqa: E402
import torch  # noqa: E402

ROOT = Path(__file__).parents[1]
VECTORS = ROOT/"tests"/"vectors"


def vectors(name):
    "A file of golden numbers: (cases, data)."
    file = json.loads((VECTORS/f"{name}.json").read_text())
    return file["cases"], file.get("data", {})


def tensors(record):
    "Lists of a record as tensors: floats in float64, ids in int64."
    return {k: torch.tensor(v, dtype=torch.int64 if k == "labels" else torch.float64) for k, v in record.items()}


def within(got, want, case):
    "|got - want| <= atol + rtol |want|, the tolerance written in the case."
    got, want = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(want, dtype=torch.float64)
    assert got.shape == want.shape
    worst = ((got - want).abs() - case["rtol"]*want.abs()).max().item()
    assert worst <= case["atol"], f"{case['id']}: off by {worst:.3g} more than rtol allows"


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error::UserWarning")


def pytest_collection_modifyitems(items):
    "What takes longest comes first, so that two workers end together."
    items.sort(key=lambda item: item.path.name != "test_experiments.py")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
