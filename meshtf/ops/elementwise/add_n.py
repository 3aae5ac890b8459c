"""Sums of several tensors in one pass over memory.

mtf.add_n([a, b, c])          # one pass, while a + b + c takes two
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_sequence
from meshtf.ops.common.broadcasting import align, sum_to_shape
from meshtf.ops.common.checks import same_dtype


class AddN(ElementwiseOp):
    """The elementwise sum of tensors that have the same names, in any order."""

    # op(a + b, c + d) = op(a, c) + op(b, d): if all inputs are partial sums, so is the output.
    linearity = "joint"
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (
        Sample(inputs=("b:4;d:6", "d:6;b:4", "b:4;d:6")),
        Sample(inputs=("complex b:4", "complex b:4")),
        Sample(inputs=("int b:3;d:4", "int b:3;d:4"), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        shape = xs[0].shape
        if same_dtype(*xs) == "bool":
            raise DTypeError(
                explain_error(
                    "add_n does not take the type bool.",
                    way_out='Count with mtf.cast(x, "int32").',
                )
            )
        for x in xs:
            if set(x.shape) != set(shape):
                raise ShapeError(
                    explain_error(
                        f"add_n adds tensors of the same dimensions, not {shape!r} and "
                        f"{x.shape!r}.",
                        way_out="Use x + y, which broadcasts, or mtf.broadcast before.",
                    )
                )
        return (xs[0],)

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        dtype = xs[0].dtype
        (output_shape,) = context.outputs
        terms = []
        for x, shape in zip(xs, context.inputs, strict=True):
            if len(xs) > 2:
                # In float32: TensorFlow rounds float16 and bfloat16 after each addition.
                x = tf.cast(x, accumulation_dtype(dtype.name))
            terms.append(align(x, shape, output_shape))
        return (tf.cast(tf.add_n(terms), dtype),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return [sum_to_shape(dy, x) for x in xs]

    def flops(self, *xs: Spec) -> int:
        return (len(xs) - 1) * xs[0].shape.size


def add_n(xs: Sequence[Any]) -> Tensor:
    """Returns the elementwise sum of tensors, in the shape of the first one.

    Args:
      xs: a list of tensors or variables that have the same names, in any order.

    Raises:
      ShapeError: the dimensions of the tensors differ, or there is no tensor.
      DTypeError: their data types differ, or are bool.
    """
    xs = as_sequence("xs", xs, "a list of tensors")
    if not xs:
        raise ShapeError("add_n of no tensors: the shape of the sum is unknown.")
    if len(xs) == 1 and isinstance(xs[0], Tensor):
        return xs[0]
    return apply(AddN(), *xs)
