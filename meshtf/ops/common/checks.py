"""Checks of shapes and data types that several families of ops share."""

from __future__ import annotations

from typing import Any

from meshtf.errors import DTypeError, ShapeError, explain_error, near_misses
from meshtf.graph import (
    Source,
    Spec,
    Tensor,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Dimension,
    Shape,
    ShapeLike,
    is_complex,
    is_floating,
)
from meshtf.names.arguments import as_dim


def require_floating(x: Spec, function: str) -> None:
    """Refuses tensors that are not of floats. Raises DTypeError."""
    require_order(x.dtype, function)
    if not is_floating(x.dtype):
        raise DTypeError(
            explain_error(
                f"{function} does not take {x.dtype}.",
                way_out='Convert it first: mtf.cast(x, "float32").',
            )
        )


def same_dtype(*xs: Spec) -> str:
    """Returns the common data type. Raises DTypeError if there is none."""
    for x in xs:
        if x.dtype != xs[0].dtype:
            raise DTypeError(
                explain_error(
                    f"the data types {xs[0].dtype} and {x.dtype} do not mix.",
                    way_out=f"Convert one of them, as in mtf.cast(x, {xs[0].dtype!r}).",
                )
            )
    return xs[0].dtype


def require_order(dtype: str, what: str) -> None:
    """Refuses complex numbers, none of which is greater than another. Raises
    DTypeError.
    """
    if is_complex(dtype):
        raise DTypeError(
            explain_error(
                f"{what} does not take {dtype}: complex numbers have no order.",
                way_out="Take a part of them: abs(x), mtf.real(x) or mtf.imag(x).",
            )
        )


def single_dim(dim: ShapeLike) -> Dimension:
    """Returns the one dimension in "rows:16". Raises ShapeError where there are more or
    none.
    """
    dims = tuple(Shape(dim))
    if len(dims) != 1:
        raise ShapeError(
            f'one dimension is wanted here, such as "rows:16", not {dim!r}.'
        )
    return dims[0]


def require_dim(shape: Shape, *names: str) -> None:
    """Refuses names that a shape lacks. Raises ShapeError."""
    for name in names:
        as_dim("dim", name, shape)
        if name not in shape:
            raise ShapeError(_absent(name, shape))


def _absent(name: str, shape: Shape) -> str:
    close = near_misses(name.partition(":")[0], shape.names)
    return f'there is no dimension "{name}" in {shape!r}.' + (
        f" Did you mean {close}?" if close else ""
    )


def tensor_along(
    x: Any, dim: Any, name: str = "x", dim_name: str = "dim"
) -> tuple[Tensor, str]:
    """Returns a tensor and the name of one of its dimensions, of what a public function
    was given.

    Raises:
      ArgumentError: x is no tensor, or `dim` neither a name nor a dimension.
      ShapeError: x has no such dimension, or another size of it.
    """
    x = as_tensor(name, x)
    found = as_dim(dim_name, dim, x.shape)
    if found not in x.shape:
        raise ShapeError(
            explain_error(_absent(found, x.shape), **{"from": Source.here()})
        )
    if isinstance(dim, Dimension) and x.shape[found] != dim.size:
        raise ShapeError(
            explain_error(
                f"there is no dimension {dim!r} in {x.shape!r}.",
                **{"from": Source.here()},
                way_out=f'Take its size there, or its name alone: "{found}".',
            )
        )
    return x, found
