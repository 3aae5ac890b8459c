"""The identity, whose gradient counts only where a condition holds.

w = apply(MaskedGradient(), w, is_busy)      # w; its cotangent is 0 where is_busy is false
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import Cotangents, LocalTensors, Op, Sample, Spec, Specs, Tensor
from meshtf.names import has_gradient
from meshtf.ops.elementwise.scalar_op import apply_binary
from meshtf.ops.elementwise.where_cast_clip import cast, where


class MaskedGradient(Op):
    """x [...], with the gradient 0 where a scalar condition is false, in place of NaN as well."""

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


def where_true(condition: Tensor, x: Tensor) -> Tensor:
    """Returns x [...], and 0 where a condition is false. Unlike `where` it is linear in x, so
    partial sums stay partial sums.
    """
    if not has_gradient(x.dtype):
        return where(condition, x, 0)
    return apply_binary("multiply_no_nan", x, cast(condition, x.dtype))
