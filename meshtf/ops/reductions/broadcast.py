"""Broadcasting: a tensor repeated along new dimensions. Its gradient is a sum.

y = mtf.broadcast(x, "batch:8;d:4")          # [d] -> [batch d]
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import ShapeError, explain_error
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
from meshtf.graph.arguments import as_tensor
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import (
    Shape,
    ShapeLike,
)
from meshtf.ops.common.broadcasting import align, sum_to_shape
from meshtf.ops.common.local_reshape import broadcast_to


class Broadcast(ElementwiseOp):
    """x repeated along the names of `shape` that it lacks, in the order of `shape`."""

    shape: Shape

    # If x is a partial sum (one addend on each device), so is the output.
    linearity = "joint"
    # Test inputs: the attribute `shape`, then the input's kind of values and shape.
    conformance_samples = (
        Sample((Shape("b:4;d:6"),), ("b:4",)),
        Sample((Shape("b:4;d:6"),), ("d:6",)),
        Sample((Shape("c:2;d:3;b:5"),), ("b:5;c:2",)),
        Sample((Shape("b:4"),), ("",)),
        Sample((Shape("d:6;b:4"),), ("int b:4",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        for dim in x.shape:
            if self.shape.get(dim.name, -1) != dim.size:
                raise ShapeError(
                    explain_error(
                        f"a tensor with dimension {dim!r} cannot be broadcast to "
                        f"{self.shape!r}.",
                        way_out="The new shape must have all dimensions of the old "
                        "one, in any order.",
                    )
                )
        return (Spec(self.shape, x.dtype),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        (input_shape,) = context.inputs
        (output_shape,) = context.outputs
        aligned_x = align(x, input_shape, output_shape)
        return (broadcast_to(aligned_x, output_shape.sizes),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [sum_to_shape(dy, x)]


def broadcast(x: Any, shape: ShapeLike) -> Tensor:
    """Returns x repeated to [*shape], which has all dimensions of x, in any order.

    Raises:
      ShapeError: `shape` lacks a dimension of x, or has it with another size.
    """
    x = as_tensor("x", x)
    shape = Shape(shape)
    if isinstance(x, Tensor) and x.shape == shape:
        return x
    return apply(Broadcast(shape), x)
