"""The log-sum-exp over named dimensions.

Each shard sends its own to the others, one number for each of the sums.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    OpWithStatistics,
    Role,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    Shape,
    accumulation_dtype,
)
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import is_scalar
from meshtf.ops.common.checks import require_dim, require_floating
from meshtf.ops.elementwise.arithmetic import (
    logaddexp,
    maximum,
    multiply,
    subtract,
)
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.reductions.reduce import names_or_all


class LogSumExp(OpWithStatistics):
    """log(sum(exp(x))) over `dims`."""

    dims: tuple[str, ...]

    samples = (
        Sample((("d",),), ("b:4;d:6",)),
        Sample((("b",),), ("b:4;d:6",)),
        Sample((("d", "b"),), ("b:4;c:2;d:6",)),
        Sample((("d",),), ("ties d:5;b:3",)),
        Sample((("d",),), ("half b:2;d:4",)),
    )

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, *self.dims)
        require_floating(x, "reduce_logsumexp")
        return (Spec(x.shape.without(*self.dims), x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.SAME if factor in self.dims else Role.MAP

    def statistics_dims(self) -> tuple[str, ...]:
        return self.dims

    def statistics_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(*self.dims), accumulation_dtype(x.dtype)),)

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        return (tf.cast(self._of(context, x), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        return Statistics(exchanged=(self._of(context, x),))

    def local_sharded(
        self, context: LocalContext, gathered: Any, residuals: Any, x: Any
    ) -> tuple[Any, ...]:
        return (tf.cast(log_sum_exp(gathered[0], [0]), x.dtype),)

    def _of(self, context: LocalContext, x: Any) -> Any:
        return log_sum_exp(widen(x), [context.axis(0, d) for d in self.dims])

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        finite = maximum(
            y, tf.as_dtype(x.dtype).min
        )  # a row of nothing but -inf has gradient 0
        return [multiply(exp(subtract(x, finite)), dy)]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


def log_sum_exp(x: Any, axes: list[int]) -> Any:
    """Returns the log-sum-exp of a TensorFlow tensor; infinities give infinities, not
    NaN.
    """
    powers, top = shifted_exponentials(x, axes)
    return tf.math.log(tf.reduce_sum(powers, axes)) + top


def shifted_exponentials(x: Any, axes: list[int]) -> tuple[Any, Any]:
    """Returns exp(x - top) and top, the largest along axes, but finite, without these
    axes.
    """
    top = tf.reduce_max(x, axes, keepdims=True)
    top = tf.raw_ops.ClipByValue(
        t=top, clip_value_min=top.dtype.min, clip_value_max=top.dtype.max
    )
    return tf.exp(x - top), tf.squeeze(top, axes)


def reduce_logsumexp(
    x: Tensor, dims: Names | None = None, extra_logit: Any = None
) -> Tensor:
    """Returns log(sum(exp(x))) over `dims`, by default all; -inf where all x are.

    Args:
      x: floats.
      dims: the names to sum over.
      extra_logit: what counts as one more element of each sum: a number, or a tensor of
        some of the names that stay, such as one number for each of an attention's
        heads.

    Raises:
      ShapeError: x lacks a name of `dims` or of `extra_logit`, or both of these have
        it.
    """
    x = as_tensor("x", x)
    names = names_or_all(x, dims)
    # Its gradient is exp(x - y), for which a y in half floats is too coarse.
    y = cast(apply(LogSumExp(names), cast(x, accumulation_dtype(x.dtype))), x.dtype)
    if extra_logit is None:
        return y
    check_extra_logit(y.shape, extra_logit)
    return logaddexp(y, extra_logit)


def check_extra_logit(rows: Shape, extra_logit: Any) -> None:
    """Refuses an extra logit that has names besides those of the rows. Raises
    ShapeError.
    """
    if not is_scalar(extra_logit):
        extra_logit = as_tensor("extra_logit", extra_logit)
    names = () if is_scalar(extra_logit) else extra_logit.shape.names
    wrong = [n for n in names if n not in rows]
    if wrong:
        raise ShapeError(
            explain_error(
                f'the extra logit has the dimension "{wrong[0]}", which is summed or '
                "not there.",
                extra_logit=repr(extra_logit.shape),
                sums=repr(rows),
                way_out="Give it names of the sums alone.",
            )
        )
