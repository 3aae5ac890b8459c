"""Inputs as partial results: the same value as a sum, maximum or minimum over a mesh axis.

    for variant in variants_of(xs):         # no input partial, one of them, several, ...
      ys = apply_all(op, *variant.apply(xs))    # must equal the results for xs

A planner or an op's rule may wrongly use a partial sum as if it were the sum. To detect
this, also where the rule would be correct for equal addends, addends differ: the first
mesh position has 0.75 of the value, and the others share the rest equally. As max(x, y) is
still the sum of the maxima of such addends, one variant, "uneven", also adds amounts that
cancel in the sum and that differ between elements and between inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.graph import ShardedValue, Tensor
from meshtf.mesh import Partial, Replicated
from meshtf.mesh.state import Kind
from meshtf.names import has_gradient, is_complex


class Variant(NamedTuple):
    """A choice of inputs that are partial results.

    Attributes:
      description: the choice in words, for messages; "": no input is partial.
      indices: the indices of the inputs that are partial.
      axes: the mesh axes along which they are partial.
      kind: how the partial results are reduced.
      uneven: whether amounts are added that cancel in the sum.
    """

    description: str
    indices: Sequence[int] = ()
    axes: Sequence[str] = ()
    kind: Kind = "sum"
    uneven: bool = False

    def apply(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Returns the inputs, those at `indices` as partial results."""
        inputs = list(xs)
        for i in self.indices:
            pattern = i + 1 if self.uneven else 0  # another one for each input
            for axis in self.axes:
                inputs[i] = as_partial(inputs[i], axis, kind=self.kind, pattern=pattern)
        return inputs


def variants_of(xs: Sequence[Tensor]) -> Iterator[Variant]:
    """Yields variants: first no input is partial. Then, along each axis, each input is
    partial, and all together; all inputs are uneven partial sums along all axes; all are
    partial maxima along the first axis, and partial minima along the last.
    """
    yield Variant(description="")
    mesh = xs[0].mesh if xs else None
    if mesh is None:
        return
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
    for axis in axes:
        candidates = _candidates(xs, [axis])
        groups = [[i] for i in candidates]
        if len(candidates) > 1:
            groups.append(candidates)
        for indices in groups:
            yield Variant(f"inputs {indices} partial on {axis}", indices, [axis])
    if not axes:
        return
    indices = _candidates(xs, axes)
    if indices:
        description = f"inputs {indices} uneven partial on all axes"
        yield Variant(description, indices, axes, uneven=True)
    kinds: list[tuple[Kind, str]] = [
        ("max", axes[0]),
        ("min", axes[-1]),
    ]
    for kind, axis in kinds:
        # Complex numbers have no order.
        indices = [i for i in _candidates(xs, [axis]) if not is_complex(xs[i].dtype)]
        if indices:
            description = f"inputs {indices} {kind} partial on {axis}"
            yield Variant(description, indices, [axis], kind=kind)


def _candidates(xs: Sequence[Tensor], axes: Sequence[str]) -> list[int]:
    """Returns the indices of the inputs that can be partial along all of `axes`."""
    indices = []
    for i, x in enumerate(xs):
        if all(can_be_partial(x, axis) for axis in axes):
            indices.append(i)
    return indices


def as_partial(
    x: Tensor,
    axis: str,
    kind: Kind = "sum",
    pattern: int = 0,
) -> Tensor:
    """Returns the value of x as a partial result along a mesh axis.

    Args:
      x: an eager tensor that is replicated along `axis`.
      axis: the name of the mesh axis.
      kind: how the partial results are reduced.
      pattern: the number of a pattern of amounts that are added and cancel in a sum; 0:
        nothing is added.
    """
    mesh = x.mesh
    sharded = x.sharded_value
    assert mesh is not None and sharded is not None
    axis_index = mesh.axis_index[axis]
    axis_size = mesh.axes[axis]
    values = []
    for value, coord in zip(sharded.values, mesh.coords, strict=True):
        axis_coord = coord[axis_index]
        partial_value = _partial_value(value, axis_coord, axis_size, kind)
        values.append(partial_value + _cancelling_amounts(value, axis_coord, pattern))
    placement = sharded.placement.with_state(axis, Partial(kind), tuple(mesh.axes))
    y = Tensor(x.node, x.index, x.spec)
    y.sharded_value = ShardedValue(placement, values)
    return y


def _cancelling_amounts(value: Any, coord: int, pattern: int) -> Any:
    """Returns amounts for each element of a value, whose sum over the mesh axis is zero.

    They are multiples of 0.75, as the values of "ties" samples are, negative at coordinate
    0 of the axis and positive at 1; at other coordinates they are zero.
    """
    if not pattern or coord > 1:
        return tf.zeros([], value.dtype)
    # From -2 to 2, in another order for each pattern.
    steps = (_element_indices(value) * pattern + pattern) % 5 - 2
    amounts = tf.cast(steps, value.dtype)
    sign = 1 if coord == 1 else -1
    return amounts * (sign * 0.75)


def _element_indices(value: Any) -> tf.Tensor:
    """Returns the row-major index of each element of a value, with the value's shape."""
    num_elements = int(np.prod(value.shape))
    return tf.reshape(tf.range(num_elements), value.shape)


def _partial_value(
    value: Any,
    coord: int,
    axis_size: int,
    kind: Kind,
) -> Any:
    """Returns the partial result at one coordinate of the mesh axis."""
    if kind == "sum":
        weight = 0.75 if coord == 0 else 0.25 / (axis_size - 1)
        return value * tf.cast(weight, value.dtype)
    # Each element has its true value at one coordinate, and a worse one at the others.
    is_worse = _element_indices(value) % axis_size != coord
    offset = -1 if kind == "max" else 1
    return tf.where(is_worse, value + offset, value)


def can_be_partial(x: Tensor, axis: str) -> bool:
    """Returns whether an eager tensor of floats or complex numbers is replicated along a
    mesh axis.
    """
    assert x.mesh is not None and x.sharded_value is not None
    state = x.sharded_value.placement[axis]
    return has_gradient(x.dtype) and state == Replicated
