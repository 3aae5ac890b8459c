"""Clipping of gradients by their global norm.

    grads, norm = clip_by_global_norm(grads, 1.0)

Gradients are first resharded to the layout of the optimizer's slots: its variables, such as
moving averages. So each gradient is all-reduced or reduce-scattered once, for both the norm
and the update. The norm itself only adds an all-reduce of one scalar. The gradient of a table
of which few rows were looked up stays a sum of rows (`meshtf.ops.indexing.row_sums`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

from meshtf.errors import PlanError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_float, as_sequence, refuse
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.unary import is_finite, sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.optimizers.checks import as_gradients
from meshtf.optimizers.slot_layout import to_slot_layout
from meshtf.optimizers.tables.touched_rows import few_rows


def global_norm(tensors: Sequence[Tensor | None]) -> Tensor:
    """Returns the square root of the sum of the squares of all elements of all tensors.

    The result is a scalar: float64 if a tensor is float64, otherwise float32.

    Args:
      tensors: tensors of any shapes [...]; None is skipped.

    Raises:
      PlanError: all tensors are None.
    """
    entries = as_sequence("tensors", tensors, "a list of tensors")
    present_tensors = [as_tensor("tensors", x) for x in entries if x is not None]
    if not present_tensors:
        raise PlanError(
            "there is no tensor to take the norm of: every gradient is None, so the "
            "loss depends on none of the variables."
        )
    dtype = "float32"
    if any(x.dtype == "float64" for x in present_tensors):
        dtype = "float64"
    square_sums = []
    for x in present_tensors:
        rows = few_rows(x)
        if rows is not None:
            x = rows.summed().values
        squares = square(cast(x, accumulation_dtype(x.dtype)))
        square_sums.append(cast(reduce_sum(squares), dtype))
    return sqrt(functools.reduce(operator.add, square_sums))


def clip_by_global_norm(
    grads: Sequence[Tensor | None], clip_norm: float | None
) -> tuple[list[Tensor | None], Tensor]:
    """Scales gradients by one factor so that their global norm is at most `clip_norm`.

    Args:
      grads: gradients of any shapes [...]; None stays None.
      clip_norm: the maximum global norm, above 0; None: gradients are not scaled.

    Returns:
      The scaled gradients, and their global norm before scaling: a scalar. If the norm is
      not finite, all gradients are NaN, as in TensorFlow: an infinite gradient, or one whose
      square is, has no direction, and must not pass for a small one.
    """
    grads = as_gradients(grads)
    if clip_norm is not None:
        # Zero would make all gradients vanish; a negative norm would reverse them.
        if not as_float("clip_norm", clip_norm) > 0:
            refuse("clip_norm", clip_norm, "a number above 0, or None")
    grads = [None if x is None else to_slot_layout(_unique_rows(x)) for x in grads]
    norm = global_norm(grads)
    if clip_norm is None:
        return grads, norm
    factor = clip_norm / maximum(norm, clip_norm)  # 1 for a norm of at most clip_norm
    factor = where(is_finite(norm), factor, math.nan)
    scaled_grads = []
    for x in grads:
        scaled_grads.append(None if x is None else x * cast(factor, x.dtype))
    return scaled_grads, norm


def _unique_rows(grad: Tensor) -> Tensor:
    """Returns a gradient [...]; if it is a sum of few rows, as one in which no row comes twice, so
    that these are found once for the norm and the update.
    """
    rows = few_rows(grad)
    if rows is None or rows.table is None:
        return grad
    return rows.with_unique_rows()
