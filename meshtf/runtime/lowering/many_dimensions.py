"""Ops on tensors of many dimensions, for TensorFlow's kernels, most of which take at most
eight axes on CPUs and GPUs. (XLA takes any number.)

Dimensions that stand side by side in all tensors of an op that have them, and that the op
does not name, are one axis while it runs:

    Softmax("j") of [a b c d e f g h i j]       runs on [a*b*c*d*e*f*g*h*i, j]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Op
from meshtf.names import Dimension, Shape
from meshtf.ops.slicewise.slicewise import Slicewise
from meshtf.runtime.lowering.local_context import DeviceContext

# The largest number of axes that TensorFlow's kernels take: of slices, padding, selections,
# activations.
MAX_AXES = 8


def with_few_axes(
    op: Op, context: DeviceContext, xs: Sequence[Any]
) -> tuple[DeviceContext, list[Any]]:
    """Returns the context and the inputs with which `Op.local` runs: with merged dimensions
    if there are too many for TensorFlow's kernels, else as they are.

    Args:
      op: the op.
      context: the shapes of its shards on one device.
      xs: the shards of its inputs.
    """
    shapes = [*context.inputs, *context.outputs]
    longest = max([len(shape) for shape in shapes], default=0)
    if longest <= MAX_AXES or context.compiled or isinstance(op, Slicewise):
        # (What a user's function does with its axes is unknown.)
        return context, list(xs)
    groups = _groups(shapes, set(_texts(op)))
    inputs = [_merged(shape, groups) for shape in context.inputs]
    outputs = [_merged(shape, groups) for shape in context.outputs]
    merged_xs = [tf.reshape(x, shape.sizes) for x, shape in zip(xs, inputs)]
    return context.with_shapes(inputs, outputs), merged_xs


def _groups(shapes: Sequence[Shape], fixed: set[str]) -> dict[str, str]:
    """Returns {name: the name before it}, for names that are one axis with the one before.

    Args:
      shapes: the shapes of all tensors.
      fixed: names that are axes of their own.
    """
    # The names before and after a name in all shapes; None: it is the first or the last.
    before: dict[str, set[str | None]] = {}
    after: dict[str, set[str | None]] = {}
    for shape in shapes:
        names = [None, *shape.names, None]
        for previous, name, following in zip(names, shape.names, names[2:]):
            before.setdefault(name, set()).add(previous)
            after.setdefault(name, set()).add(following)
    groups: dict[str, str] = {}
    for name in before.keys() - fixed:
        previous = next(iter(before[name]))
        if previous is None or previous in fixed:
            continue
        if before[name] == {previous} and after[previous] == {name}:
            groups[name] = previous
    return groups


def _merged(shape: Shape, groups: Mapping[str, str]) -> Shape:
    """Returns a shape in which names of a group are one dimension, with the name of the first."""
    dims: list[list[Dimension]] = []
    for dim in shape:
        if dim.name in groups:
            dims[-1].append(dim)
        else:
            dims.append([dim])
    return Shape((group[0].name, math.prod(d.size for d in group)) for group in dims)


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts in the attributes of an op: names of dimensions are among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Dimension):
        yield value.name
    elif isinstance(value, Shape):
        yield from value.names
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
