"""Statistics over named dimensions: Pearson's correlation and the root mean square.

Example:

    r = correlation(x, y, "batch")                                    # of two variables
    matrix = correlation(x, mtf.rename(x, "d", "other"), "batch")     # of all pairs: [d other]
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.names import Names, accumulation_dtype, names_of
from meshtf.names.arguments import check_floats
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.unary import rsqrt, sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum


def rms(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the root mean square over `dims`, by default all: x [..., dims] -> [...]."""
    check_tensors(x=x)
    mean_square = reduce_mean(square(cast(x, accumulation_dtype(x.dtype))), dims)
    return cast(sqrt(mean_square), x.dtype)


def correlation(x: Tensor, y: Tensor, dims: Names, epsilon: float = 1e-20) -> Tensor:
    """Returns Pearson's correlation of x and y over `dims`, in [-1, 1]: the names of
    both without `dims`.

    Other names that both have are batch dimensions. For names of only one of them, the
    result has all pairs.

    Args:
      x: floats.
      y: floats.
      dims: the names of the observations, which both have.
      epsilon: the smallest sum of squares to divide by; constant inputs have the correlation 0.
    """
    x = as_tensor("x", x)
    y = as_tensor("y", y)
    check_floats(epsilon=epsilon)
    observations = names_of(dims, x.shape, y.shape)
    shape = x.shape + y.shape.without(*x.shape.names)
    normalized_x = _normalize(x, dims, epsilon)
    normalized_y = _normalize(y, dims, epsilon)
    r = einsum([normalized_x, normalized_y], shape.without(*observations))
    return cast(r, x.dtype)


def _normalize(x: Tensor, dims: Names, epsilon: float) -> Tensor:
    """Returns x with mean 0 and sum of squares 1 over `dims`, in the type of
    statistics.
    """
    x = cast(x, accumulation_dtype(x.dtype))
    centered = x - reduce_mean(x, dims)
    sum_of_squares = reduce_sum(square(centered), dims)
    return centered * rsqrt(maximum(sum_of_squares, epsilon))
