"""Sums of the cotangents that a tensor gets from the ops that use it.

Most tensors have few uses: up to four half floats are added in their own type. More are
added in float32 and rounded once: in bfloat16 a sum of ones stops at 256.
"""

from __future__ import annotations

from meshtf.graph.context import context
from meshtf.graph.operators import OPERATORS
from meshtf.graph.tensor import Tensor
from meshtf.names import accumulation_dtype

# Up to so many uses are added in the type of the tensor, such as its uses as queries, keys,
# values and residual connection of attention.
_FEW = 4


class Cotangents:
    """The sum so far of the cotangents of each tensor."""

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}

    def add(self, x: Tensor, dx: Tensor) -> None:
        """Adds dx, with the dimensions of x in any order, to the cotangent of x."""
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
            if count > _FEW and dtype != x.dtype:
                total = OPERATORS["cast"](total, dtype)
                dx = OPERATORS["cast"](dx, dtype)
            self._sums[x] = total + dx

    def get(self, x: Tensor) -> Tensor | None:
        """Returns the cotangent of x, in its data type; None if there is none."""
        total = self._sums.get(x)
        if total is not None and total.dtype == accumulation_dtype(x.dtype) != x.dtype:
            with context(primals=(x,)):
                total = OPERATORS["cast"](total, x.dtype)
            self._sums[x] = total
        return total
