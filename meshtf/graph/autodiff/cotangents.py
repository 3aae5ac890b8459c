"""Sums of the cotangents that a tensor gets from the ops that use it.

A few half floats are added in their own type, as most tensors have few uses. Many are
added in float32 and rounded once: in bfloat16 a sum of ones stops at 256.
"""

from __future__ import annotations

from meshtf.graph.context import context
from meshtf.graph.operators import OPERATORS
from meshtf.graph.tensor import Tensor
from meshtf.names import accumulation_dtype

_FEW = 4  # uses, such as queries, keys, values and the residual connection of attention


class Cotangents:
    """The sum so far of the cotangents of each tensor."""

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}

    def add(self, x: Tensor, dx: Tensor) -> None:
        """Adds to the cotangent of x, which has the order of dimensions of x."""
        total = self._sums.get(x)
        count = self._counts[x] = self._counts.get(x, 0) + 1
        with context(primals=(x,)):
            if dx.shape != x.shape:
                dx = OPERATORS["transpose"](dx, x.shape.names)
            if (
                total is not None
                and count > _FEW
                and accumulation_dtype(x.dtype) != x.dtype
            ):
                total, dx = (
                    OPERATORS["cast"](d, accumulation_dtype(x.dtype))
                    for d in (total, dx)
                )
            self._sums[x] = dx if total is None else total + dx

    def get(self, x: Tensor) -> Tensor | None:
        """Returns the cotangent of x, in its type; None if there is none."""
        total = self._sums.get(x)
        if total is not None and total.dtype == accumulation_dtype(x.dtype) != x.dtype:
            with context(primals=(x,)):
                total = self._sums[x] = OPERATORS["cast"](total, x.dtype)
        return total
