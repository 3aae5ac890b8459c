"""Inputs as partial results: the same value, distributed unequally along a mesh axis.

To detect a planner or a rule that uses a partial sum as if it were the sum, the addends
differ: the first position has 0.75 of the value, the others equal fractions of the rest. So
rules that are correct only for equal addends fail as well. max(x, y) still equals the sum
of the maxima of such addends, so one variant ("uneven") also adds amounts that cancel in
the sum, and differ by element and input.
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
    """Which inputs are partial, along which axes, and how."""

    description: str  # "": no input is partial
    indices: Sequence[int] = ()  # of the inputs that are partial
    axes: Sequence[str] = ()
    kind: Kind = "sum"
    uneven: bool = False

    def of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Returns inputs with those of this variant as partial results."""
        inputs = list(xs)
        for i in self.indices:
            pattern = i + 1 if self.uneven else 0
            for axis in self.axes:
                inputs[i] = as_partial(
                    inputs[i],
                    axis,
                    self.kind,
                    pattern,
                )
        return inputs


def variants_of(xs: Sequence[Tensor]) -> Iterator[Variant]:
    """Yields variants: no input partial; then partial along each axis, singly and jointly;
    along all axes, uneven; and partial maxima and minima.
    """
    yield Variant("")
    mesh = next((x.mesh for x in xs), None)
    axes = [a for a, size in mesh.axes.items() if size > 1] if mesh else []
    for axis in axes:
        candidates = _candidates(xs, [axis])
        groups = [[i] for i in candidates]
        if len(candidates) > 1:
            groups.append(candidates)
        for indices in groups:
            yield Variant(f"inputs {indices} partial on {axis}", indices, [axis])
    if not axes:
        return
    if indices := _candidates(xs, axes):
        description = f"inputs {indices} uneven partial on all axes"
        yield Variant(description, indices, axes, uneven=True)
    kinds: list[tuple[Kind, str]] = [("max", axes[0]), ("min", axes[-1])]
    for kind, axis in kinds:
        indices = [i for i in _candidates(xs, [axis]) if not is_complex(xs[i].dtype)]
        if indices:
            description = f"inputs {indices} {kind} partial on {axis}"
            yield Variant(
                description,
                indices,
                [axis],
                kind,
            )


def _candidates(xs: Sequence[Tensor], axes: Sequence[str]) -> list[int]:
    """Returns the indices of the inputs that can be partial along all of these axes."""
    return [
        i for i, x in enumerate(xs) if all(can_be_partial(x, axis) for axis in axes)
    ]


def as_partial(
    x: Tensor,
    axis: str,
    kind: Kind = "sum",
    uneven: int = 0,
) -> Tensor:
    """Returns `x`, replicated along `axis`, as a partial result along it.

    Args:
      x: an eager tensor.
      axis: an axis of its mesh.
      kind: how the partial results are reduced.
      uneven: the index of a pattern of amounts that cancel in a sum; 0: none.
    """
    mesh = x.mesh
    sharded = x.sharded_value
    assert mesh is not None and sharded is not None
    axis_index = mesh.axis_index[axis]
    axis_size = mesh.axes[axis]
    values = [
        _addend(
            value,
            coord[axis_index],
            axis_size,
            kind,
        )
        + _pattern(value, coord[axis_index], uneven)
        for value, coord in zip(sharded.values, mesh.coords, strict=True)
    ]
    placement = list(sharded.placement)
    placement[axis_index] = Partial(kind)
    y = Tensor(x.node, x.index, x.spec)
    y.sharded_value = ShardedValue(tuple(placement), values)
    return y


def _pattern(value: Any, coord: int, pattern: int) -> Any:
    """Returns multiples of 0.75, as those of "ties" samples, that cancel between the first
    two positions.
    """
    if not pattern or coord > 1:
        return tf.zeros([], value.dtype)
    indices = tf.reshape(tf.range(int(np.prod(value.shape))), value.shape)
    amounts = tf.cast((indices * pattern + pattern) % 5 - 2, value.dtype)
    return amounts * (0.75 if coord else -0.75)


def _addend(
    value: Any,
    coord: int,
    axis_size: int,
    kind: Kind,
) -> Any:
    """Returns the partial result of one position."""
    if kind == "sum":
        weight = 0.75 if coord == 0 else 0.25 / (axis_size - 1)
        return value * tf.cast(weight, value.dtype)
    # Each element has its true value on one position only.
    count = int(np.prod(value.shape))
    is_other = tf.reshape(tf.range(count) % axis_size != coord, value.shape)
    return tf.where(is_other, value + (-1 if kind == "max" else 1), value)


def can_be_partial(x: Tensor, axis: str) -> bool:
    """Returns whether an eager tensor is replicated along `axis`, and of floats or complex
    numbers.
    """
    assert x.mesh is not None and x.sharded_value is not None
    state = x.sharded_value.placement[x.mesh.axis_index[axis]]
    return has_gradient(x.dtype) and state == Replicated
