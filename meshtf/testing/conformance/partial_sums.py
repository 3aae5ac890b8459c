"""Inputs as partial results: the same value, spread unequally over the positions along
an axis.

A planner or a rule that takes a partial sum for the sum must be found out, so the
weights differ (0.75, and the rest in equal shares), and rules that hold only for equal
shares fail as well. The maximum of x and y is still that of their weighted parts, so in
one variant the parts also differ by amounts that cancel in the sum, other ones for each
element and input ("uneven").
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
    """A way in which inputs are given: some of them partial, or all as they are."""

    how: str  # in words; "" for as they are
    chosen: Sequence[int] = ()  # which inputs are partial
    axes: Sequence[str] = ()
    kind: Kind = "sum"
    uneven: bool = False

    def of(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Returns inputs, given in this way."""
        out = list(xs)
        for i in self.chosen:
            for axis in self.axes:
                out[i] = as_partial(
                    out[i], axis, self.kind, i + 1 if self.uneven else 0
                )
        return out


def variants(xs: Sequence[Tensor]) -> Iterator[Variant]:
    """Yields ways to give inputs: as they are, then partial by axis, singly and
    jointly.
    """
    yield Variant("")
    mesh = next((x.mesh for x in xs), None)
    axes = [a for a, size in mesh.axes.items() if size > 1] if mesh else []
    for axis in axes:
        able = [i for i, x in enumerate(xs) if can_be_partial(x, axis)]
        for chosen in [[i] for i in able] + ([able] if len(able) > 1 else []):
            yield Variant(f"inputs {chosen} partial on {axis}", chosen, [axis])
    everywhere = [
        i for i, x in enumerate(xs) if axes and all(can_be_partial(x, a) for a in axes)
    ]
    if everywhere:
        yield Variant(
            f"inputs {everywhere} uneven partial on all axes",
            everywhere,
            axes,
            uneven=True,
        )
    kinds: list[tuple[Kind, str]] = (
        [("max", axes[0]), ("min", axes[-1])] if axes else []
    )
    for kind, axis in kinds:
        able = [
            i
            for i, x in enumerate(xs)
            if can_be_partial(x, axis) and not is_complex(x.dtype)
        ]
        if able:
            yield Variant(f"inputs {able} {kind} partial on {axis}", able, [axis], kind)


def as_partial(x: Tensor, axis: str, kind: Kind = "sum", uneven: int = 0) -> Tensor:
    """Returns `x`, whole along `axis`, as an unfinished result along it.

    Args:
      x: an eager tensor.
      axis: an axis of its mesh.
      kind: how the parts make up the value.
      uneven: the number of a pattern of amounts that cancel in a sum; 0: none.
    """
    mesh, held = x.mesh, x.sharded_value
    assert mesh is not None and held is not None
    place, size = mesh.axis_index[axis], mesh.axes[axis]
    values = [
        _share(v, coord[place], size, kind) + _pattern(v, coord[place], uneven)
        for v, coord in zip(held.values, mesh.coords, strict=True)
    ]
    placement = tuple(
        Partial(kind) if i == place else s for i, s in enumerate(held.placement)
    )
    y = Tensor(x.node, x.index, x.spec)
    y.sharded_value = ShardedValue(placement, values)
    return y


def _pattern(value: Any, coord: int, number: int) -> Any:
    """Returns multiples of 0.75, as "ties" are, that cancel between the first two
    positions.
    """
    if not number or coord > 1:
        return tf.zeros([], value.dtype)
    places = tf.reshape(tf.range(int(np.prod(value.shape))), value.shape)
    return tf.cast((places * number + number) % 5 - 2, value.dtype) * (
        0.75 if coord else -0.75
    )


def _share(value: Any, coord: int, size: int, kind: Kind) -> Any:
    if kind == "sum":
        weight = 0.75 if coord == 0 else 0.25 / (size - 1)
        return value * tf.cast(weight, value.dtype)
    count = int(
        np.prod(value.shape)
    )  # each element has its true value on one position only
    elsewhere = tf.reshape(tf.range(count) % size != coord, value.shape)
    return tf.where(elsewhere, value + (-1 if kind == "max" else 1), value)


def can_be_partial(x: Tensor, axis: str) -> bool:
    """Whether an eager tensor is whole along `axis`, and of floats or
    complex numbers.
    """
    assert x.mesh is not None and x.sharded_value is not None
    return (
        has_gradient(x.dtype)
        and x.sharded_value.placement[x.mesh.axis_index[axis]] == Replicated
    )
