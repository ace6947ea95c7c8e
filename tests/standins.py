"""A device that is not there: tensors without numbers, which know their shapes, dtypes and device.

`FakeTensorMode` refuses what would have to look at numbers (`item`, `nonzero`, `bincount`, a mask as an index) and what
mixes devices. Its tensors of device `cuda` need no GPU, but a backward pass asks the driver; on `meta` it does not.
"""
import re
from contextlib import contextmanager
from copy import deepcopy
from unittest import mock

import pytest
import torch
from conftest import ROOT
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


LOOKS = DataDependentOutputException, DynamicOutputShapeException  # raised where numbers are asked for

TRIED = "2.15"  # what is here is made of torch's internals, which change; on torch 2.13 the interpreter aborts


def skip_on_another_torch():
    "Skip the test that is running, on a torch that stand-ins were not tried with."
    if torch.__version__.split(".")[:2] != TRIED.split("."):
        pytest.skip(f"devices that are not there were tried on torch {TRIED}; this is {torch.__version__}")


WITHOUT_A_STAND_IN = {torch.ops.aten._fused_sgd_.default}  # changes weights in place; its devices are looked at


def _places(values):
    "Devices of the tensors among some values; of one number on the CPU, which kernels take as it is, none."
    tensors = [v for v in tree_leaves(values) if isinstance(v, Tensor)]
    return {t.device.type for t in tensors if t.ndim or t.device.type != "cpu"}


class Traffic(TorchDispatchMode):
    "Which operations carry numbers from the device to the CPU, for which it waits, and which take tensors of both."
    def __init__(self):
        super().__init__()
        self.fetched, self.mixed = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _places((args, kwargs))
        out = None if func in WITHOUT_A_STAND_IN else func(*args, **(kwargs or {}))
        tensors = [v for v in tree_leaves(out) if isinstance(v, Tensor)]
        if given - {"cpu"} and any(t.device.type == "cpu" for t in tensors):
            self.fetched.append(str(func))
        if len(given) > 1 and func is not torch.ops.aten.copy_.default:
            self.mixed.append(str(func))
        return out


class Launches(TorchDispatchMode):
    "How many kernels are started on the device: of operations that compute, not of views and of memory that is taken."
    FREE = {"device", "detach", "_unsafe_view", "empty", "empty_like", "new_empty", "empty_strided",
            "new_empty_strided"}

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in self.FREE and _places(out) - {"cpu"}:
            self.number += 1
        return out


class WrittenKernels:
    """A backend of torch.compile: the kernels that inductor writes for a GPU are counted, and torch's own are run.

    They are written from tensors of the CPU, in Triton, which needs the package and no GPU, and they are not compiled.
    """
    def __init__(self):
        skip_on_another_torch()
        self.numbers = []  # of each graph: forward, then backward

    def __call__(self, graph, inputs):
        from torch._inductor.compile_fx import compile_fx
        return compile_fx(graph, inputs, inner_compile=self._count)

    def _count(self, graph, inputs, **how):
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._inductor import compile_fx, config, graph as lowered, metrics
        def written(lowering):
            before = metrics.generated_kernel_count
            lowering.codegen()
            self.numbers.append(metrics.generated_kernel_count - before)
            return mock.Mock()
        runs = deepcopy(graph)
        with (config.patch(cpu_backend="triton", fx_graph_cache=False),
              mock.patch("torch.utils._triton.triton_hash_with_backend", lambda: "of no machine"),
              mock.patch.object(lowered.GraphLowering, "compile_to_module", written)):
            compile_fx.compile_fx_inner(graph, inputs, **how)
        return make_boxed_func(runs.forward)


def launch_table():
    "Rows of RESULTS.md: name -> (usual, before, now, compiled), numbers of kernels; None where there is none."
    text = (ROOT/"benchmarks"/"RESULTS.md").read_text().split("## Kernels started by a loss")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (\d*) ?\| (\d+) \| (\d+) \| (\d*) ?\|$", text, re.M)
    return {name: tuple(int(n) if n else None for n in numbers) for name, *numbers in rows}


@contextmanager
def stand_in(fetches=0):
    "What runs inside may fetch so often from the device, and mix nothing; yields the mode that makes its tensors."
    skip_on_another_torch()
    with FakeTensorMode() as mode, Traffic() as traffic:
        yield mode
    assert not traffic.mixed, f"tensors of two devices in {traffic.mixed}"
    assert len(traffic.fetched) == fetches, f"fetched from the device by {traffic.fetched}, want {fetches}"


def moved(module, device, mode):
    "A module whose buffers and parameters lie on the stand-in; `Module.to` cannot move there."
    def there(value):
        return (value if isinstance(value, FakeTensor) else mode.from_tensor(value)).to(device)
    for part in module.modules():
        part._buffers.update({k: v if v is None else there(v) for k, v in part._buffers.items()})
        weights = {k: v for k, v in part._parameters.items() if v is not None}
        part._parameters.update({k: torch.nn.Parameter(there(v.detach())) for k, v in weights.items()})
    return module


def batch(device, n=64, classes=10, grad=False, dtype=torch.float32):
    "Logits and labels."
    logits = torch.randn(n, classes, device=device, dtype=dtype, requires_grad=grad)
    return logits, torch.randint(classes, (n,), device=device)
