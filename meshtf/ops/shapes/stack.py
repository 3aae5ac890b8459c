"""Tensors stacked along a new dimension, and back: stack, unstack.

    s = mtf.stack([x, y], "pair")             # [pair:2 batch length]
    x, y = mtf.unstack(s, "pair")

The new dimension is replicated, since a device has its shard of each of the tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    OPERATORS,
    Cotangents,
    LocalContext,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    apply_all,
)
from meshtf.graph.arguments import as_tensors
from meshtf.names import Dimension, Shape, name_of
from meshtf.names.arguments import as_dim, as_int
from meshtf.ops.common.checks import require_dim, tensor_along
from meshtf.ops.common.op_bases import _NeedsWholeDim
from meshtf.ops.shapes.reshape import arrange, transpose


@dataclasses.dataclass(frozen=True)
class Stack(_NeedsWholeDim):
    """Tensors of one shape, stacked along a new dimension.

    Attributes:
      dim: the name of the new dimension.
      axis: the index of the new dimension in the shape of the output.
    """

    dim: str
    axis: int = 0
    # A partial sum consists of one addend on each device. If all inputs are partial sums, so
    # is the output.
    linearity = "joint"
    # Test inputs: the attributes (dim, axis), then each input's kind of values and shape.
    conformance_samples = (
        Sample(("n",), ("a:4;b:3", "b:3;a:4")),
        Sample(("n", 2), ("a:4;b:2",) * 4),
        Sample(("n", 1), ("int a:4", "int a:4", "int a:4")),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        require_alike(xs, "stack", self.dim)
        dims = list(xs[0].shape)
        dims.insert(self.axis, Dimension(self.dim, len(xs)))
        return (Spec(Shape(dims), xs[0].dtype),)

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        names = context.inputs[0].names
        arranged_xs = [
            arrange(x, shape.names, names) for x, shape in zip(xs, context.inputs)
        ]
        return (tf.stack(arranged_xs, context.outputs[0].index(self.dim)),)

    def gradient(self, dy: Tensor, y: Tensor, *xs: Tensor) -> Cotangents:
        return [transpose(dx, x.shape) for dx, x in zip(unstack(dy, self.dim), xs)]


class Unstack(_NeedsWholeDim):
    """A tensor for each index of one dimension."""

    linearity = "joint"  # if all inputs are partial sums, so is the output
    conformance_samples = (
        Sample(("n",), ("n:3;a:4",)),
        Sample(("n",), ("a:4;n:2;b:3",)),
        Sample(("n",), ("int a:2;n:4",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        shape = x.shape.without(self.dim)
        element = Spec(shape, x.dtype)
        return (element,) * x.shape[self.dim]

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        return tuple(tf.unstack(x, axis=axis))

    def gradient(self, dy: Any, y: Any, x: Tensor) -> Cotangents:
        has_several_outputs = isinstance(y, tuple)
        dys = fill_gaps(dy, y) if has_several_outputs else [dy]
        dx = stack(dys, self.dim, x.shape.index(self.dim))
        return [transpose(dx, x.shape)]


def fill_gaps(dys: Sequence[Tensor | None], ys: Sequence[Tensor]) -> list[Tensor]:
    """Returns the cotangents of ys [...], with zeros in place of those that are None."""
    # Looked up by its name: folders of ops import in one direction, and `variables` comes
    # after `shapes`.
    zeros_like = OPERATORS["zeros_like"]
    cotangents = []
    for dy, y in zip(dys, ys):
        cotangents.append(zeros_like(y) if dy is None else dy)
    return cotangents


def require_alike(xs: Sequence[Spec], op_name: str, dim: str) -> None:
    """Checks that tensors differ only in the size of `dim` and the order of names.

    Args:
      xs: the specs of the tensors.
      op_name: the name of the op, for errors.
      dim: the dimension along which they are stacked or concatenated.

    Raises:
      ShapeError: other sizes or names differ.
      DTypeError: data types differ.
    """
    reference = xs[0]
    for x in xs[1:]:
        if set(x.shape.without(dim)) != set(reference.shape.without(dim)):
            raise ShapeError(
                f'{op_name} along "{dim}" takes tensors that have all other dimensions in '
                f"common, not {reference.shape!r} and {x.shape!r}."
            )
        if x.dtype != reference.dtype:
            raise DTypeError(
                explain_error(
                    f"{op_name} takes tensors of one data type, not {reference.dtype} and "
                    f"{x.dtype}.",
                    way_out=f'Convert one of them: mtf.cast(x, "{reference.dtype}").',
                )
            )


def stack(xs: Sequence[Tensor], dim: str, axis: int = 0) -> Tensor:
    """Returns tensors [...] stacked along a new dimension: [dim, ...] for axis 0.

    Args:
      xs: the tensors, with dimensions in any order; the result has the order of the first.
      dim: the name of the new dimension.
      axis: the index of the new dimension in the shape of the result; negative indices
        count from the end.

    Raises:
      ShapeError: there are no tensors, their dimensions differ, or they have `dim`
        already.
      DTypeError: their data types differ.
    """
    xs = as_tensors("xs", xs)
    dim = as_dim("dim", dim)
    axis = as_int("axis", axis)
    if not xs:
        raise ShapeError("stack takes at least one tensor.")
    axis %= len(xs[0].shape) + 1
    return apply(Stack(name_of(dim, len(xs)), axis), *xs)


def unstack(x: Tensor, dim: str) -> tuple[Tensor, ...]:
    """Returns a tensor [...] for each index of a dimension of x [..., dim, ...].

    Raises:
      ShapeError: x lacks `dim`.
    """
    x, dim = tensor_along(x, dim)
    return apply_all(Unstack(dim), x)
