"""How far is a deployed calibrator from `transform`: folded into a network, compiled, exported or written to ONNX?"""
import torch
from torch import nn

from calibnb.core.reading import reason
from calibnb.posthoc.export import onnx_function, onnx_graph


def _exported(calibrator, logits):
    N = torch.export.Dim('N', max=2**31)  # torch 2.6 needs a maximum
    return torch.export.export(calibrator.as_module(), (logits[:2],), dynamic_shapes=({0: N},)).module()

def _folded(calibrator, logits):
    "Return probabilities of a linear layer with unit weights, into which the calibrator is folded."
    K = calibrator.n_classes_
    layer = nn.Linear(K, K, dtype=torch.float32, device=logits.device)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(calibrator.fold_into(layer), nn.Sigmoid() if calibrator.inputs_.separate else nn.Softmax(1))

_WAYS = dict(
    fold=_folded,
    module=lambda calibrator, logits: calibrator.as_module(),
    compile=lambda calibrator, logits: torch.compile(calibrator.as_module(), fullgraph=True, dynamic=True),
    export=_exported,
    onnx=lambda calibrator, logits: onnx_function(onnx_graph(calibrator.as_module())))

@torch.no_grad()
def deployment_errors(
    calibrator,       # fitted on logits
    logits,           # (N, K) float32, at least two rows
    ways=tuple(_WAYS),# 'fold', 'module', 'compile', 'export', 'onnx'
)->dict:                   # way -> largest difference of a probability from `transform`, or the reason why it failed
    "Compare each way to deploy a calibrator with `transform`, for all rows and for the first row alone."
    expected, found = calibrator.transform(logits), {}
    for way in ways:
        try:
            function = _WAYS[way](calibrator, logits)
            found[way] = max((function(z) - p).abs().max().item() for z, p in ((logits, expected),
                                                                               (logits[:1], expected[:1])))
        except Exception as e: found[way] = reason(e)
    return found
