"""Clipping of gradients by the norm that all of them have together.

    grads, norm = clip_by_global_norm(grads, 1.0)

Gradients are first brought to where the optimizer's slots lie. So each is reduced or
scattered once, for the norm and for the update, and the norm needs one more number from
each position.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.errors import PlanError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor
from meshtf.names import accumulation_dtype
from meshtf.names.arguments import as_float, as_sequence, refuse
from meshtf.ops.elementwise.arithmetic import maximum
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.optimizers.placing import beside_slots


def global_norm(tensors: Sequence[Tensor | None]) -> Tensor:
    """Returns the square root of the sum of all squares, a scalar, float64 if one of
    them is.

    Raises PlanError: all are None.
    """
    tensors = [
        None if x is None else as_tensor("tensors", x)
        for x in as_sequence("tensors", tensors, "a list of tensors")
    ]
    dtype = (
        "float64"
        if any(x is not None and x.dtype == "float64" for x in tensors)
        else "float32"
    )
    squares = [
        cast(reduce_sum(square(cast(x, accumulation_dtype(x.dtype)))), dtype)
        for x in tensors
        if x is not None
    ]
    if not squares:
        raise PlanError(
            "there is no tensor to take the norm of: every gradient is None, so the "
            "loss depends on none of the variables."
        )
    total = squares[0]
    for more in squares[1:]:
        total = total + more
    return sqrt(total)


def clip_by_global_norm(
    grads: Sequence[Tensor | None], clip_norm: float | None
) -> tuple[list[Tensor | None], Tensor]:
    """Returns the gradients, made shorter together so that their norm is at most
    `clip_norm`, and the norm that they had. Missing ones stay None; without a
    `clip_norm` all stay as they are."""
    grads = [
        None if x is None else as_tensor("grads", x)
        for x in as_sequence("grads", grads, "a list of gradients")
    ]
    if clip_norm is not None:
        if (
            not as_float("clip_norm", clip_norm) > 0
        ):  # gradients would vanish, or point back
            refuse("clip_norm", clip_norm, "a number above 0, or None")
    grads = [None if x is None else beside_slots(x) for x in grads]
    norm = global_norm(grads)
    if clip_norm is None:
        return grads, norm
    factor = clip_norm / maximum(norm, clip_norm)
    return [None if x is None else x * cast(factor, x.dtype) for x in grads], norm
