"""Broadcasting by names, and the rules for data types that elementwise ops share.

Dimensions are matched by name: [batch d] + [d] and [d batch] * [batch] both work. One operand
must have all names of the other operands. So [batch] * [d] is an error, since a misspelt name
would otherwise give an outer product; `mtf.outer` computes outer products. `align` transposes
and reshapes an operand so that TensorFlow's broadcasting does the rest. It adds an op only if
it must:

    [d batch] with the output [batch d]                 a transpose
    [batch] with the output [batch d]                   a reshape to [batch, 1] without a copy
    [d] or [batch d] with the output [batch d]          no op

TensorFlow's kernels broadcast at most five groups of adjacent axes: in a group are axes of
which each operand has either all or none. `broadcast_call` calls a function of aligned
operands that have no more.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import OPERATORS, Source, Tensor, current
from meshtf.names import Shape, is_complex, is_integer
from meshtf.names.public_path import public_path
from meshtf.ops.common.checks import did_you_mean
from meshtf.ops.common.local_reshape import (
    MAX_GROUPS,
    broadcast_to,
    reshape,
    transpose,
)


def align(x: Any, shape: Shape, out: Shape) -> Any:
    """Returns x in a form that TensorFlow broadcasts to another shape.

    The axes of the result are in the order of `out`, with size 1 for dimensions that x
    lacks. Axes of size 1 at the start are left out, since TensorFlow adds them.

    Args:
      x: a TensorFlow tensor.
      shape: the named shape of x.
      out: the named shape to which the result broadcasts.
    """
    order = out.names
    names_in_order = tuple(name for name in order if name in shape)
    if names_in_order != shape.names:
        x = transpose(x, [shape.index(name) for name in names_in_order])
    trailing_names = order[len(order) - len(names_in_order) :]
    if names_in_order == trailing_names:
        return x
    start = out.index(names_in_order[0])
    # `get` returns 1 for a name that the shape lacks.
    sizes = [shape.get(name) for name in order[start:]]
    return reshape(x, sizes)


def broadcast_call(
    function: Callable[..., Any], xs: Sequence[Any], shapes: Sequence[Shape], out: Shape
) -> Any:
    """Returns what an elementwise function of TensorFlow returns for operands that broadcast
    to a shape: a tensor, or a tuple of tensors, of this shape.

    Args:
      function: the function, of as many tensors as there are operands.
      xs: the operands, TensorFlow tensors.
      shapes: the named shape of each operand; `out` has all of their names.
      out: the named shape of the results.
    """
    aligned = [align(x, shape, out) for x, shape in zip(xs, shapes, strict=True)]
    if len(out) <= MAX_GROUPS:
        return function(*aligned)
    names_of_operands = [set(shape.names) for shape in shapes]
    groups = _groups(names_of_operands, out)
    while len(groups) > MAX_GROUPS:
        # The operand with most boundaries between groups gets all of its axes.
        boundaries = [len(_groups([names], out)) for names in names_of_operands]
        k = boundaries.index(max(boundaries))
        aligned[k] = broadcast_to(aligned[k], out.sizes)
        names_of_operands[k] = set(out.names)
        groups = _groups(names_of_operands, out)
    merged = []
    for x, names in zip(aligned, names_of_operands, strict=True):
        sizes = [
            math.prod(out[name] if name in names else 1 for name in group)
            for group in groups
        ]
        merged.append(reshape(x, sizes))
    results = function(*merged)
    if isinstance(results, tuple):
        return tuple(tf.reshape(y, out.sizes) for y in results)
    return tf.reshape(results, out.sizes)


def _groups(names_of_operands: Sequence[set[str]], out: Shape) -> list[list[str]]:
    """Returns the names of `out` in groups: adjacent names that the same operands have.

    Args:
      names_of_operands: the names of each operand.
      out: the shape to which the operands broadcast.
    """
    groups: list[list[str]] = []
    owners_before = None
    for name in out.names:
        owners = [name in names for names in names_of_operands]
        if owners != owners_before:
            groups.append([])
        groups[-1].append(name)
        owners_before = owners
    return groups


def broadcast_shape(*shapes: Shape) -> Shape:
    """Returns the shape to which shapes broadcast by name.

    Raises:
      ShapeError: a dimension has two sizes.
    """
    for name, known_size, size in conflicting_sizes(shapes):
        raise ShapeError(
            explain_error(
                f"dimension {name!r} has the sizes {known_size} and {size}.",
                way_out="Dimensions are matched by name: mtf.rename one of them if they "
                "are different dimensions.",
            )
        )
    return functools.reduce(Shape.union, shapes)


def conflicting_sizes(shapes: Iterable[Shape]) -> Iterator[tuple[str, int, int]]:
    """Yields each name that has two sizes, and these sizes."""
    sizes: dict[str, int] = {}
    for shape in shapes:
        for dim in shape:
            known_size = sizes.setdefault(dim.name, dim.size)
            if known_size != dim.size:
                yield dim.name, known_size, dim.size


class _OuterBroadcast(threading.local):
    """The state of `allow_outer_broadcast` in one thread.

    Attributes:
      allowed: whether operands may broadcast if none of them has all names.
    """

    allowed = False


_outer_broadcast = _OuterBroadcast()


@contextlib.contextmanager
def allow_outer_broadcast() -> Iterator[None]:
    """Lets operands broadcast in a `with` block even if none of them has all names."""
    before = _outer_broadcast.allowed
    _outer_broadcast.allowed = True
    try:
        yield
    finally:
        _outer_broadcast.allowed = before


def broadcast_operands(function: str, *xs: Any) -> list[Any]:
    """Returns the operands of an elementwise function: variables are read, and all other
    operands stay as they are.

    One of the operands must have all names, unless outer broadcasting is allowed. Gradient
    rules are not checked, since the forward pass was. Variables are read before the check,
    since their values may have other names: in a layer of a Repeat, a value lacks the
    dimension along which the variable stacks the layers.

    Args:
      function: the public name of the function, for the error.
      *xs: tensors, variables and Python numbers.

    Raises:
      ShapeError: no operand has all names.
    """
    operands = [x.tensor() if hasattr(x, "tensor") else x for x in xs]
    # `primals`, of the context in which ops are applied: the tensors of the forward node that
    # a gradient rule differentiates; empty outside of gradient rules.
    in_gradient_rule = bool(current().primals)
    if _outer_broadcast.allowed or in_gradient_rule:
        return operands
    shapes = [x.shape for x in operands if isinstance(x, Tensor)]
    names: set[str] = set()
    for shape in shapes:
        names.update(shape.names)
    if shapes and all(len(shape) < len(names) for shape in shapes):
        raise _no_common_shape(function, shapes, names)
    return operands


def _no_common_shape(
    function: str, shapes: Sequence[Shape], names: Iterable[str]
) -> ShapeError:
    """Returns the error for operands of `shapes`, none of which has all `names`."""
    longest = max(shapes, key=len)
    absent_name = next(name for name in names if name not in longest)
    suggestion = did_you_mean(absent_name, longest.names)
    return ShapeError(
        explain_error(
            f"{function} takes tensors of which one has the dimensions of all others; "
            f'here none does: {longest!r} lacks "{absent_name}".{suggestion}',
            inputs=" ".join(map(repr, shapes)),
            source=Source.of_caller(),
            way_out=f"For all pairs of elements write mtf.outer(x, y, "
            f"{public_path(function)}), "
            "or mtf.einsum for products; mtf.broadcast adds dimensions, "
            "mtf.rename renames them.",
        )
    )


def sum_to_shape(dy: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns the cotangent of an operand x that was broadcast, in the shape of x: dy summed
    over the names that x lacks, and transposed to x's order.

    Args:
      dy: the cotangent of the broadcast result, or None.
      x: the operand.
    """
    if dy is None or dy.shape == x.shape:
        return dy
    broadcast_names = [name for name in dy.shape.names if name not in x.shape]
    # The functions are looked up by name, since importing them here would be circular.
    if broadcast_names:
        dy = OPERATORS["reduce_sum"](dy, broadcast_names)
    if dy.shape == x.shape:
        return dy
    return OPERATORS["transpose"](dy, list(x.shape.names))


def is_scalar(x: Any) -> bool:
    """Returns whether x is a Python or NumPy scalar.

    Such a value becomes an attribute of an op, and not an input.
    """
    if isinstance(x, np.ndarray):
        return x.ndim == 0
    return isinstance(x, (bool, int, float, complex, np.generic))


def python_scalar(x: Any) -> Any:
    """Returns a NumPy scalar as a Python number, so that equal ops compare as equal."""
    if isinstance(x, (np.generic, np.ndarray)):
        return x.item()
    return x


def check_scalar(value: Any, dtype: str) -> None:
    """Raises DTypeError if a tensor of type `dtype` cannot hold `value`."""
    if isinstance(value, bool) and dtype != "bool":
        way_out = "Write 0 or 1 instead of a boolean."
    elif not isinstance(value, bool) and dtype == "bool":
        way_out = 'Convert the tensor to integers, with mtf.cast(x, "int32").'
    elif isinstance(value, complex) and not is_complex(dtype):
        way_out = 'Convert the tensor to complex, with mtf.cast(x, "complex64").'
    elif isinstance(value, float) and is_integer(dtype):
        way_out = 'Convert the tensor with mtf.cast(x, "float32"), or write an integer.'
    elif is_integer(dtype) and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        way_out = 'Convert the tensor to a wider type, with mtf.cast(x, "int64").'
    else:
        return
    raise DTypeError(
        explain_error(f"{value!r} is no value of the type {dtype}.", way_out=way_out)
    )
