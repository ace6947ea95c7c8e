"""Our errors behind torchmetrics' names, beside its own: the same numbers from the same calls, batch by batch.

What differs by definition, such as a bin of its own for the confidence 1, is in `test_oracles.py`. That two processes
agree, too, is in `test_streaming.py`.
"""
from itertools import product

import pytest
import torch
from conftest import rounding
from torchmetrics import classification
from torchmetrics.functional import classification as functional

from calibnb import metrics
from calibnb.metrics import streaming

BATCHES, SIZE, K, EXTRA = 3, 32, 5, 4


# names of theirs for what is ours; what theirs guess from values and shapes, ours want to be told

def binary(preds, target):
    "A column, and probabilities: theirs take what lies outside [0, 1] for logits."
    inside = ((preds >= 0) & (preds <= 1)).all()
    return (preds if inside else preds.sigmoid()).unsqueeze(1), target


def multiclass(preds, target):
    inside = ((preds >= 0) & (preds <= 1)).all()
    return preds if inside else preds.softmax(1), target


class BinaryCalibrationError(streaming.ECE):
    def update(self, preds, target):
        super().update(*binary(preds, target))


class MulticlassCalibrationError(streaming.ECE):
    def __init__(self, num_classes, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def update(self, preds, target):
        super().update(*multiclass(preds, target))


def binary_calibration_error(preds, target, **options):
    return metrics.ece(*binary(preds, target), **options)


def multiclass_calibration_error(preds, target, num_classes, **options):
    return metrics.ece(*multiclass(preds, target), **options)


OURS = dict(binary=(BinaryCalibrationError, binary_calibration_error),
            multiclass=(MulticlassCalibrationError, multiclass_calibration_error))
THEIRS = dict(binary=(classification.BinaryCalibrationError, functional.binary_calibration_error),
              multiclass=(classification.MulticlassCalibrationError, functional.multiclass_calibration_error))


def batches(task, given, extra, ignored):
    "Predictions and labels, of which some in each batch are to be ignored."
    draw = torch.Generator().manual_seed(1)
    shape, classes = (BATCHES, SIZE), (K,) if task == "multiclass" else ()
    logits = 2*torch.randn(*shape, *classes, *extra, generator=draw)
    target = torch.randint(K if classes else 2, (*shape, *extra), generator=draw)
    if ignored is not None:
        target[torch.rand(target.shape, generator=draw) < .1] = ignored
    to_probs = torch.sigmoid if task == "binary" else lambda z: z.softmax(2)
    return list(zip(to_probs(logits) if given == "probabilities" else logits, target))


@pytest.mark.parametrize("extra", [(), (EXTRA,)], ids=["one label a row", "several labels a row"])
@pytest.mark.parametrize("given", ["probabilities", "logits"])
@pytest.mark.parametrize("task", OURS)
def test_our_errors_behind_their_names(task, given, extra):
    for ignored, norm, n_bins in product([None, -1, 0], ["l1", "max"], [10, 15, 20]):
        options = dict(n_bins=n_bins, norm=norm, ignore_index=ignored)
        if task == "multiclass":
            options["num_classes"] = K
        data = batches(task, given, extra, ignored)
        found, want = [], []
        for (kind, function), values in (OURS[task], found), (THEIRS[task], want):
            metric = kind(**options)
            values += [metric(*batch) for batch in data]  # of the batch
            values.append(metric.compute())               # of all of them
            values += [function(*batch, **options) for batch in data[:1]]
        near = rounding(BATCHES*SIZE*EXTRA, torch.float32)  # theirs sum in float32
        found, want = torch.stack(found).float(), torch.stack(want)
        torch.testing.assert_close(found, want, rtol=0, atol=near, msg=f"{options}: {found}, want {want}")
