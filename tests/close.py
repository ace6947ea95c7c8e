"Compare numbers: up to rounding where they were computed in two ways, bit by bit only where bits are promised."
import math

import numpy as np
import torch


def rounding(terms, dtype=torch.float64, size=1.):
    """Return the error that rounding may leave in a sum of `terms` numbers, in any order and on any processor.

    4 eps sqrt(terms) times `size`, the sum of their magnitudes; of a mean, the magnitude of one.
    """
    return 4*torch.finfo(dtype).eps*math.sqrt(terms)*size


def close(got, want, terms=1, dtype=None, size=None):
    """Return True if `got` and `want` have one shape and differ by what rounding explains; nan equals nan.

    `terms` numbers were summed in `dtype` (the coarser of the two by default), of magnitude `size` (of `want`).
    """
    dtypes = [torch.as_tensor(v).dtype for v in (got, want) if hasattr(v, "dtype")]
    floats = [d for d in dtypes if d.is_floating_point]
    dtype = dtype or max(floats, default=torch.float64, key=lambda d: torch.finfo(d).eps)
    got, want = _float64(got), _float64(want)
    if got.shape != want.shape:
        return False
    finite = want[np.isfinite(want)]
    size = np.abs(finite).max(initial=0.) if size is None else size
    return np.allclose(got, want, rtol=0., atol=rounding(terms, dtype, size), equal_nan=True)


def within(got, want, case):
    "Assert |got - want| <= atol + rtol |want|: a golden number, and the tolerance written beside it."
    got, want = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(want, dtype=torch.float64)
    assert got.shape == want.shape
    worst = ((got - want).abs() - case["rtol"]*want.abs()).max().item()
    assert worst <= case["atol"], f"{case['id']}: off by {worst:.3g} more than rtol allows"


def _float64(x):
    return x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.float64)
