"""Sums of the cotangents that a tensor gets from the ops that use it.

Up to four cotangents in bfloat16 or float16 are added in this dtype: most tensors have no
more. Further cotangents are added in float32, and the sum is rounded at the end, since in
bfloat16 a sum of ones stops at 256.
"""

from __future__ import annotations

from meshtf.graph.context import context
from meshtf.graph.op_kinds import ConversionOp
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.tensor import Tensor
from meshtf.names import accumulation_dtype

# The number of cotangents that are added in bfloat16 or float16, the narrow dtypes: enough
# for an input of attention, which queries, keys, values and the residual connection use.
_MAX_ADDED_NARROW = 4


def cast_cotangent(dx: Tensor, dtype: str, x: Tensor) -> Tensor:
    """Returns `dx`, the cotangent of x, in another dtype and in the placement of x.

    A cotangent that was converted from that dtype is taken from before: what an inner loop has
    summed in float32 is not rounded before an outer loop sums it.
    """
    is_converted = isinstance(dx.node.op, ConversionOp)
    if is_converted and dx.node.inputs[0].dtype == dtype:
        return dx.node.inputs[0]
    with context(primals=(x,)):
        return OPERATORS["cast"](dx, dtype)


class Cotangents:
    """The sum of the cotangents of each tensor so far."""

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}

    def add(self, x: Tensor, dx: Tensor) -> None:
        """Adds `dx` to the cotangent of x.

        Args:
          x: the tensor.
          dx: has the dimensions of x in any order.
        """
        total = self._sums.get(x)
        count = self._counts.get(x, 0) + 1
        self._counts[x] = count
        with context(primals=(x,)):
            if dx.shape != x.shape:
                dx = OPERATORS["transpose"](dx, x.shape.names)
            if total is None:
                self._sums[x] = dx
                return
            dtype = accumulation_dtype(x.dtype)
            if count > _MAX_ADDED_NARROW and dtype != x.dtype:
                total = OPERATORS["cast"](total, dtype)
                dx = OPERATORS["cast"](dx, dtype)
            self._sums[x] = total + dx

    def get(self, x: Tensor) -> Tensor | None:
        """Returns the cotangent of x, in the dtype of x; None if there is none."""
        total = self._sums.get(x)
        if total is None:
            return None
        sum_dtype = accumulation_dtype(x.dtype)
        if sum_dtype != x.dtype and total.dtype == sum_dtype:
            with context(primals=(x,)):
                total = OPERATORS["cast"](total, x.dtype)
            self._sums[x] = total
        return total
