"""Statistics over named dimensions: Pearson's correlation and the root mean square.

r = correlation(x, y, "batch")                                    # [batch], twice -> []
matrix = correlation(x, mtf.rename(x, "d", "e"), "batch")         # all pairs: [d e]
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
    """Returns Pearson's correlation of x and y over observations, in [-1, 1].

    The result has the names of x and those of y, without `dims`. Other names that both
    have are batch dimensions. Entries along a name that only x has are correlated with all
    entries along a name that only y has.

    Args:
      x: a tensor of floats.
      y: a tensor of floats.
      dims: the names of the dimensions of observations, which both have.
      epsilon: the smallest sum of squares by which a tensor is divided, so that the
        correlation of a constant is 0.
    """
    x = as_tensor("x", x)
    y = as_tensor("y", y)
    check_floats(epsilon=epsilon)
    observation_dims = names_of(dims, x.shape, y.shape)
    all_dims = x.shape + y.shape.without(*x.shape.names)
    normalized_x = _normalize(x, dims, epsilon)
    normalized_y = _normalize(y, dims, epsilon)
    r = einsum([normalized_x, normalized_y], all_dims.without(*observation_dims))
    return cast(r, x.dtype)


def _normalize(x: Tensor, dims: Names, epsilon: float) -> Tensor:
    """Returns x with mean 0 and sum of squares 1 over `dims`, in the data type of
    accumulation.
    """
    x = cast(x, accumulation_dtype(x.dtype))
    centered_x = x - reduce_mean(x, dims)
    sum_of_squares = reduce_sum(square(centered_x), dims)
    return centered_x * rsqrt(maximum(sum_of_squares, epsilon))
