"""Layers that are about the way back: reversible residuals, and gradients that are held
short.

Example:

    blocks = Reversible([attention_0, feed_forward_0, attention_1, feed_forward_1])
    y1, y2 = blocks(x1, x2)            # each: x1, x2 = x2, x1 + f(x2)

    h = clip_gradient(h, 1.0)          # the identity, whose gradient has no larger root mean square
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshtf.graph import Tensor, context, current, gradients
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.module import Module
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_callable, as_sequence, check_floats
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.correlation import rms

Rule = Callable[..., list[Any]]


class Reversible(Module):
    """Residual layers that keep nothing for the backward pass (Gomez et al., 2017,
    arXiv 1707.04585).

    For each function in turn x1, x2 = x2, x1 + f(x2). The backward pass finds what each
    one saw from what the next one saw, so memory does not grow with their number, and f
    runs twice.

    Args:
      functions: modules, of a tensor and of the keyword arguments of the call; each
        returns a tensor of the same shape. Gradients flow to the variables of modules
        alone.
      name: the last part of the path of its random ops.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Tensor]], name: str = "reversible"
    ) -> None:
        functions = as_sequence("functions", functions, "a list of functions")
        for f in functions:
            as_callable("functions", f)
        super().__init__(name)
        self.functions = list(functions)

    def __call__(self, x1: Tensor, x2: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns both streams after all functions, each of the shape that it came in.

        Args:
          x1: the stream that the first function adds to.
          x2: the stream that the first function sees.
          kwargs: for all functions, such as training=True.
        """
        x1, x2 = as_tensor("x1", x1), as_tensor("x2", x2)

        @custom_gradient
        def run(
            y1: Tensor, y2: Tensor, *variables: Tensor
        ) -> tuple[tuple[Tensor, Tensor], Rule]:
            for f in self.functions:
                y1, y2 = y2, y1 + f(y2, **kwargs)
            return (y1, y2), self._back(y1, y2, kwargs)

        return run(x1, x2, *self.trainable_variables)

    def _back(self, y1: Tensor, y2: Tensor, kwargs: dict[str, Any]) -> Rule:
        forward = current()
        rows = forward.rows or {}  # of layers in a Repeat
        variables = [rows.get(id(v), v) for v in self.trainable_variables]

        def rule(d1: Tensor, d2: Tensor) -> list[Any]:
            totals: list[Any] = [None] * len(variables)
            seen, total = y1, y2
            for f in reversed(self.functions):
                # Cut off from the way it came: else its history would count for the
                # variables, too.
                seen = stop_gradient(seen)
                with context(
                    path=forward.path,
                    seeds=forward.seeds,
                    seeded=set(),
                    iterations=forward.iterations,
                    rows=forward.rows,
                ):
                    made = f(seen, **kwargs)
                dx, *more = gradients([made], [seen, *variables], [d2])
                totals = [
                    b if a is None else a if b is None else a + b
                    for a, b in zip(totals, more)
                ]
                seen, total = total - made, seen
                d1, d2 = d2, d1 if dx is None else d1 + dx
            return [d1, d2, *totals]

        return rule


def clip_gradient(x: Tensor, limit: float) -> Tensor:
    """Returns x, whose gradient is made shorter where its root mean square is above
    `limit`.

    Args:
      x: floats.
      limit: the greatest root mean square, over all dimensions.
    """
    check_tensors(x=x)
    check_floats(limit=limit)

    def rule(dy: Tensor) -> list[Tensor]:
        return [
            dy
            * cast(
                limit / maximum(rms(cast(dy, accumulation_dtype(dy.dtype))), limit),
                dy.dtype,
            )
        ]

    return custom_gradient(lambda x: (x, rule))(x)
