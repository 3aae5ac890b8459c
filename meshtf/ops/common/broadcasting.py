"""Broadcasting by names, and the rules for data types that pointwise ops share.

Tensors meet by names: [batch d] + [d] and [d batch] * [batch] both work. One of them
has all names of the others: [batch] * [d] is refused, since a name that is misspelt
would pair all with all, too; `mtf.outer` does that. `align` turns the axes of
a tensor so that TensorFlow broadcasts the rest by itself; where nothing must turn it
adds no op:

    [d batch] with the output [batch d]                 a transposition
    [batch] with the output [batch d]                   a reshape to [batch, 1], which moves nothing
    [d] or [batch d] with the output [batch d]          nothing
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshtf.errors import DTypeError, ShapeError, explain_error, near_misses
from meshtf.graph import OPERATORS, Source, Tensor, current
from meshtf.names import Shape, is_complex, is_integer
from meshtf.ops.common.local_reshape import reshape, transpose


def align(x: Any, shape: Shape, out: Shape) -> Any:
    """Returns the TensorFlow tensor x[shape] with its axes where broadcasting to `out`
    finds them.
    """
    names, order = shape.names, out.names
    present = [n for n in order if n in shape]
    if tuple(present) != names:
        x = transpose(x, [shape.index(n) for n in present])
    if tuple(present) == order[len(order) - len(present) :]:
        return x
    return reshape(x, [shape.get(n) for n in order[out.index(present[0]) :]])


def broadcast_shape(*shapes: Shape) -> Shape:
    """Returns the shape that broadcasting by names gives. Raises ShapeError where sizes
    clash.
    """
    sizes: dict[str, int] = {}
    for shape in shapes:
        for d in shape:
            if sizes.setdefault(d.name, d.size) != d.size:
                raise ShapeError(
                    explain_error(
                        f"dimension {d.name!r} has the sizes {sizes[d.name]} and "
                        f"{d.size}.",
                        way_out="Tensors meet by names: mtf.rename one of the "
                        "dimensions if they are different things.",
                    )
                )
    return functools.reduce(Shape.union, shapes)


class _Pairs(threading.local):
    """Whether tensors may meet of which none has all names: see `allow_outer_broadcast`."""

    allowed = False


_pairs = _Pairs()


@contextlib.contextmanager
def allow_outer_broadcast() -> Iterator[None]:
    """Lets tensors meet in a `with` block of which none has all names."""
    before, _pairs.allowed = _pairs.allowed, True
    try:
        yield
    finally:
        _pairs.allowed = before


def broadcast_operands(function: str, *xs: Any) -> list[Any]:
    """Returns tensors, of which one has the names of all others unless that is not
    wanted.

    Variables are read: in a loop over them a read has fewer names than the variable.
    Rules of gradients combine again what was combined before: they are not asked.

    Raises:
      ShapeError: no shape has all names.
    """
    xs = tuple(x.tensor() if hasattr(x, "tensor") else x for x in xs)
    shapes = [x.shape for x in xs if isinstance(x, Tensor)]
    names = {n for shape in shapes for n in shape.names}
    if (
        not shapes
        or any(len(shape) == len(names) for shape in shapes)
        or _pairs.allowed
        or current().primals
    ):
        return list(xs)
    longest = max(shapes, key=len)
    lacking = [n for n in names if n not in longest]
    close = near_misses(lacking[0], longest.names)
    raise ShapeError(
        explain_error(
            f"{function} takes tensors of which one has the dimensions of all others; "
            f'here none does: {longest!r} lacks "{lacking[0]}".'
            + (f" Did you mean {close}?" if close else ""),
            inputs=" ".join(map(repr, shapes)),
            **{"from": Source.here()},
            way_out=f"For all pairs of elements write mtf.outer(x, y, mtf.{function}), "
            "or mtf.einsum for products; mtf.broadcast makes more dimensions, "
            "mtf.rename others.",
        )
    )


def sum_to_shape(dy: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns a broadcast cotangent summed over the names that x lacks, in
    x's order.
    """
    if dy is None or dy.shape == x.shape:
        return dy
    extra = [n for n in dy.shape.names if n not in x.shape]
    if extra:
        dy = OPERATORS["reduce_sum"](dy, extra)
    return (
        dy if dy.shape == x.shape else OPERATORS["transpose"](dy, list(x.shape.names))
    )


def is_scalar(x: Any) -> bool:
    """Whether x is a plain number, which becomes an attribute of an op instead of a
    tensor.
    """
    return (
        isinstance(x, (bool, int, float, complex, np.generic))
        or isinstance(x, np.ndarray)
        and not x.ndim
    )


def python_scalar(x: Any) -> Any:
    """Returns a number as a Python number, which is the same in every op that
    holds it.
    """
    return x.item() if isinstance(x, (np.generic, np.ndarray)) else x


def check_scalar(value: Any, dtype: str) -> None:
    """Raises DTypeError if `value` is no number of this type."""
    if isinstance(value, bool) and dtype != "bool":
        way_out = "Write 0 or 1 instead of a truth value."
    elif not isinstance(value, bool) and dtype == "bool":
        way_out = 'Turn the tensor into numbers first, with mtf.cast(x, "int32").'
    elif isinstance(value, complex) and not is_complex(dtype):
        way_out = (
            'Make complex numbers of the tensor first, with mtf.cast(x, "complex64").'
        )
    elif isinstance(value, float) and is_integer(dtype):
        way_out = 'Make floats of the tensor with mtf.cast(x, "float32"), or write an integer.'
    elif is_integer(dtype) and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        way_out = 'Turn the tensor into a wider type first, with mtf.cast(x, "int64").'
    else:
        return
    raise DTypeError(
        explain_error(f"{value!r} is no value of the type {dtype}.", way_out=way_out)
    )
