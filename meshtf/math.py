"""Mathematical functions that are used less often than those of `mtf` itself: special
functions, complex numbers, Fourier transforms, cumulative and segment reductions.

    >>> import meshtf as mtf
    >>> mesh = mtf.Mesh("")
    >>> x = mtf.asarray(mesh, [0.0, 1.0, 3.0], "d")
    >>> mtf.math.cummax(x, "d").numpy().tolist()
    [0.0, 1.0, 3.0]
"""

from meshtf.ops.elementwise.arithmetic import (
    atan2,
    divide_no_nan,
    floormod,
    logaddexp,
    logical_xor,
    squared_difference,
)
from meshtf.ops.elementwise.complex import complex, conj, imag, real
from meshtf.ops.elementwise.unary import (
    acos,
    angle,
    asin,
    atan,
    cosh,
    digamma,
    erf,
    erfinv,
    expm1,
    lgamma,
    log1p,
    reciprocal,
    sinh,
    tan,
)
from meshtf.ops.indexing.scatter import segment_max, segment_mean, segment_min
from meshtf.ops.indexing.top_k import nth_largest, nth_smallest
from meshtf.ops.linear.fourier import fft, ifft, irfft, rfft
from meshtf.ops.scans.cumulative import (
    cummax,
    cummin,
    cumprod,
    cumulative_logsumexp,
)
from meshtf.ops.scans.linear_recurrence import linear_recurrence

__all__ = [
    "acos",
    "angle",
    "asin",
    "atan",
    "atan2",
    "complex",
    "conj",
    "cosh",
    "cummax",
    "cummin",
    "cumprod",
    "cumulative_logsumexp",
    "digamma",
    "divide_no_nan",
    "erf",
    "erfinv",
    "expm1",
    "fft",
    "floormod",
    "ifft",
    "imag",
    "irfft",
    "lgamma",
    "linear_recurrence",
    "log1p",
    "logaddexp",
    "logical_xor",
    "nth_largest",
    "nth_smallest",
    "real",
    "reciprocal",
    "rfft",
    "segment_max",
    "segment_mean",
    "segment_min",
    "sinh",
    "squared_difference",
    "tan",
]


def __dir__() -> list[str]:
    return sorted(__all__)
