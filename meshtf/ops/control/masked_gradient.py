"""The identity, whose gradient counts only where a condition holds.

w = apply(MaskedGradient(), w, is_busy)      # w; its cotangent is 0 where is_busy is false
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    Cotangents,
    LocalTensors,
    RenamingOp,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    context,
)
from meshtf.graph.recorder import RecomputeGroup
from meshtf.names import has_gradient
from meshtf.ops.elementwise.scalar_op import apply_binary
from meshtf.ops.elementwise.where_cast_clip import cast


class MaskedGradient(RenamingOp):
    """x [...], with the gradient 0 where a scalar condition is false, in place of NaN as well."""

    linearity = "first"
    conformance_samples = (
        Sample(inputs=("b:4;h:8", "bool "), gradient=False),
        Sample(inputs=("half b:4", "bool "), gradient=False),
    )

    def output_specs(self, x: Spec, condition: Spec) -> Specs:
        if condition.dtype != "bool":
            raise DTypeError(f"a condition is bool, not {condition.dtype}.")
        if condition.shape.names:
            raise ShapeError(f"the condition is a scalar, not {condition.shape!r}.")
        return (x,)

    def local(self, context: Any, x: Any, condition: Any) -> LocalTensors:
        return (x,)

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, condition: Tensor
    ) -> Cotangents:
        return [where_true(condition, dy), None]


def masked(x: Tensor, condition: Tensor) -> Tensor:
    """Returns x [...], with the gradient 0 where a scalar condition is false."""
    if not has_gradient(x.dtype):
        return x
    # Else the forward pass of a loop would store a copy of x for each iteration.
    with context(recompute_group=RecomputeGroup(in_loops=True)):
        return apply(MaskedGradient(), x, condition)


def where_true(condition: Tensor, x: Tensor) -> Tensor:
    """Returns x [...], and 0 where a condition is false; bool as 0 and 1. Unlike `where` it is
    linear in x, so partial sums stay partial sums.
    """
    if x.dtype == "bool":
        x = cast(x, "int32")
    fn = "multiply_no_nan" if has_gradient(x.dtype) else "multiply"
    return apply_binary(fn, x, cast(condition, x.dtype))
