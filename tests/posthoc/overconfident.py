"Logits that are too large, and small helpers of the tests of calibrators."
import warnings

import torch

from calibnb.posthoc import make_calibrator


def overconfident(N=2000, K=5, scale=2.5, seed=0, dtype=torch.float32):
    "Logits that are `scale` times too large, and labels."
    draw = torch.Generator().manual_seed(seed)
    logits = 2*scale*torch.randn(N, K, generator=draw)
    return logits.to(dtype), torch.multinomial((logits/scale).softmax(1), 1, generator=draw)[:, 0]


def skewed(N=3000, K=6, seed=0):
    "Logits that are too large, and larger for some classes."
    logits, target = overconfident(N, K, seed=seed)
    return logits + torch.linspace(0, 3, K), target


def binary(N=800, seed=0):
    "Log-odds that are too large, and too large for class 1, and labels."
    draw = torch.Generator().manual_seed(seed)
    odds = 4*torch.randn(N, generator=draw, dtype=torch.float64)
    return odds + 1, (torch.rand(N, generator=draw) < (odds/2).sigmoid()).long()


def quiet(calibrator, *data, **options):
    "Fit a calibrator, or one by name, without warnings."
    calibrator = make_calibrator(calibrator) if isinstance(calibrator, str) else calibrator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return calibrator.fit(*data, **options)


def confidence(calibrator, logits):
    "Calibrated probabilities of the classes that the network predicts."
    return calibrator.transform(logits).gather(1, logits.argmax(1)[:, None])[:, 0]
