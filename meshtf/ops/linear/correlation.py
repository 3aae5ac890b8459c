"""Statistics of tensors that names pair: Pearson's correlation, the root mean square.

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
    """Returns the root of the mean of squares over `dims`, by default all: x without
    `dims`.
    """
    check_tensors(x=x)
    return cast(
        sqrt(reduce_mean(square(cast(x, accumulation_dtype(x.dtype))), dims)), x.dtype
    )


def correlation(x: Tensor, y: Tensor, dims: Names, epsilon: float = 1e-20) -> Tensor:
    """Returns Pearson's correlation of x and y over `dims`, in [-1, 1]: both without
    `dims`.

    Names that both have besides pair their rows, and names that one has alone make all
    pairs.

    Args:
      x: floats.
      y: floats.
      dims: the names of the observations, which both have.
      epsilon: the least sum of squares; what does not vary has the correlation 0.
    """
    x, y = as_tensor("x", x), as_tensor("y", y)
    check_floats(epsilon=epsilon)
    dtype = x.dtype
    x, y = (
        _normalized(cast(t, accumulation_dtype(t.dtype)), dims, epsilon) for t in (x, y)
    )
    shape = (x.shape + y.shape.without(*x.shape.names)).without(
        *names_of(dims, x.shape, y.shape)
    )
    return cast(einsum([x, y], shape), dtype)


def _normalized(x: Tensor, dims: Names, epsilon: float) -> Tensor:
    centred = x - reduce_mean(x, dims)
    return centred * rsqrt(maximum(reduce_sum(square(centred), dims), epsilon))
