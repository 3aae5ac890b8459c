"""Running sums, products, maxima, minima and log-sum-exps along a dimension.

    x           [1 2] [3 4]    on two devices
    totals       3     7       each shard sends its total to all shards
    cumsum(x)   [1 3] [6 10]   the local running sum, plus the totals of the earlier shards

Where the dimension is not sharded, the method `local` of the op runs. Where it is, `statistics`
runs on each shard, then an all-gather of the totals, then `reduced` and `outputs`; the residuals
are tensors that a shard keeps in between.

The gradients of prod, max, min and logsumexp are linear recurrences. float16 and bfloat16 are
computed in float32 and rounded once, at the end: in bfloat16 a sum of ones would stop at 256.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
)
from meshtf.names import accumulation_dtype, is_floating, is_integer, lowest_float
from meshtf.names.arguments import as_bool
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import (
    require_dim,
    require_floating,
    tensor_along,
)
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.arithmetic import greater, less
from meshtf.ops.elementwise.computed_once import computed_once
from meshtf.ops.elementwise.fused_formulas import logaddexp_kernel
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.reductions.logsumexp import log_sum_exp
from meshtf.ops.scans.linear_recurrence import (
    LinearRecurrence,
    is_earlier_shard,
    last_element,
)
from meshtf.ops.scans.scan_kernels import IDENTITIES, running
from meshtf.ops.windows.shift import shift


class Scan(_ExchangesAlongDim):
    """The running sum, product, maximum, minimum or log-sum-exp along a dimension.

    Attributes:
      dim: the name of the dimension.
      kind: "sum", "prod", "max", "min" or "logsumexp".
      reverse: whether the scan runs from the end.
      exclusive: whether the sum at an index leaves out the element at that index; of other
        kinds, False.
    """

    kind: str
    reverse: bool = False
    exclusive: bool = False
    # Each sample: the attributes (dim, kind, reverse, exclusive), and the shape of x.
    conformance_samples = (
        Sample(("d", "sum"), ("b:4;d:6",)),
        Sample(("b", "sum", False, True), ("b:4;d:6",)),
        Sample(("d", "sum", True), ("c:2;d:4;b:3",)),
        Sample(("d", "sum", True, True), ("b:4;d:8",)),
        Sample(("d", "sum"), ("b:3;d:5",)),
        Sample(("d", "sum", False, True), ("int b:4;d:8",), gradient=False),
        Sample(("d", "prod"), ("b:4;d:8",)),
        Sample(("d", "prod", True), ("positive d:6;b:2",)),
        Sample(("d", "max"), ("ties b:2;d:8",)),
        Sample(("d", "max", True), ("int b:3;d:4",)),
        Sample(("d", "min", True), ("ties d:4;b:5",)),
        Sample(("d", "logsumexp"), ("b:4;d:6",)),
        Sample(("d", "logsumexp", True), ("d:4;b:2",)),
        Sample(("d", "prod", True), ("b:3;d:5",)),
        Sample(("d", "max", True), ("ties b:3;d:5",)),
        Sample(("d", "min"), ("int d:7;b:3",)),
        Sample(("d", "logsumexp", True), ("b:3;d:5",)),
    )

    @property
    def display_name(self) -> str:
        return "cumsum" if self.kind == "sum" else "scan"

    @property
    def linearity(self) -> Any:
        # op(a + b) = op(a) + op(b): partial sums stay partial sums
        return "joint" if self.kind == "sum" else None

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, self.dim)
        if self.kind == "sum" and x.dtype == "bool":
            raise DTypeError(
                'cumsum does not take bool: count with mtf.cast(x, "int32").'
            )
        if self.kind == "logsumexp":
            require_floating(x, "cumulative_logsumexp")
        if self.kind != "sum" and not (is_floating(x.dtype) or is_integer(x.dtype)):
            raise DTypeError(
                explain_error(
                    f"cum{self.kind} does not take {x.dtype}.",
                    way_out='Make numbers of it: mtf.cast(x, "int32").',
                )
            )
        return (x,)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return IDENTITIES[self.kind](tf.float32) if factor == self.dim else None

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(self._running(context, widen(x)), x.dtype),)

    def statistics(self, context: LocalContext, x: Any) -> Statistics:
        axis = context.axis(0, self.dim)  # in the shape of input 0
        x = widen(x)
        local_results = self._running(context, x)
        total = last_element(local_results, axis, self.reverse)
        if self.exclusive:
            total = total + last_element(x, axis, self.reverse)
        return Statistics(exchanged=(total,), residuals=(local_results,))

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        (totals,) = gathered
        # The total of all earlier shards; 1 for a product if there are none.
        identity = tf.constant(IDENTITIES[self.kind](totals.dtype), totals.dtype)
        is_earlier = is_earlier_shard(context, self.dim, self.reverse, totals)
        reduce = _REDUCE[self.kind]
        return (reduce(tf.where(is_earlier, totals, identity), [0]),)

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, x: Any
    ) -> LocalTensors:
        (earlier_total,) = statistics
        (local_results,) = residuals
        return (tf.cast(_COMBINE[self.kind](earlier_total, local_results), x.dtype),)

    def _running(self, context: LocalContext, x: Any) -> Any:
        """Returns the running result of x, the local shard."""
        axis = context.axis(0, self.dim)
        return running(self.kind, x, axis, self.reverse, exclusive=self.exclusive)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        if self.kind == "sum":
            backward = Scan(self.dim, "sum", not self.reverse, self.exclusive)
            return [apply(backward, dy)]
        if self.kind in ("max", "min"):
            # XLA may have computed x for y with other roundings: then no element would equal y.
            x = computed_once(x)
            y = apply(self, x)
        return [_GRADIENT[self.kind](dy, y, x, self.dim, self.reverse)]


# By kind, a function (x, axes) that reduces a TensorFlow tensor.
_REDUCE = {
    "sum": tf_function("reduce_sum"),
    "prod": tf_function("reduce_prod"),
    "max": tf_function("reduce_max"),
    "min": tf_function("reduce_min"),
    "logsumexp": log_sum_exp,
}
# By kind, a function of two tensors that reduces them to one.
_COMBINE = {
    "sum": tf_function("add"),
    "prod": tf_function("multiply"),
    "max": tf_function("maximum"),
    "min": tf_function("minimum"),
    "logsumexp": logaddexp_kernel,
}


def _prod_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Returns the gradient of cumprod, without a division by x: dx[i] = y[i - 1] * h[i],
    where h[i] = x[i + 1] * h[i + 1] + dy[i].
    """
    offset_of_next = 1 if reverse else -1
    next_x = shift(x, dim, offset_of_next)
    h = apply(LinearRecurrence(dim, reverse=not reverse), next_x, dy)
    previous_y = shift(y, dim, -offset_of_next, fill=1)
    return previous_y * h


def _extreme_gradient(
    dy: Any, y: Any, x: Any, dim: str, reverse: bool, misses: Callable[..., Tensor]
) -> Any:
    """Returns the gradient of cummax or cummin: dy[i] is added to dx of the last element up
    to i that equals the extreme y[i]. `misses` tells whether x falls short of y.

    dx[i] = h[i] where x[i] = y[i], and 0 elsewhere, with h[i] = decay[i] * h[i + 1] + dy[i].
    decay[i] is 0 if x[i + 1] = y[i + 1], since element i + 1 then gets the cotangents after
    i; otherwise it is 1.
    """
    offset_of_next = 1 if reverse else -1
    is_extreme = ~misses(x, y)  # also where y is NaN: these elements get their own dy
    next_is_extreme = shift(is_extreme, dim, offset_of_next)
    decay = cast(~next_is_extreme, x.dtype)
    h = apply(LinearRecurrence(dim, reverse=not reverse), decay, dy)
    return where(is_extreme, h, 0.0)


def _logsumexp_gradient(dy: Any, y: Any, x: Any, dim: str, reverse: bool) -> Any:
    """Returns the gradient of cumulative_logsumexp: dx[i] = exp(x[i] - y[i]) * h[i], where
    h[i] = exp(y[i] - y[i + 1]) * h[i + 1] + dy[i].
    """
    # Without -inf, since -inf minus -inf would give NaN. The last decay is exp(-inf) = 0.
    y = clip(y, low=lowest_float(y.dtype))
    offset_of_next = 1 if reverse else -1
    next_y = shift(y, dim, offset_of_next, fill=float("inf"))
    decay = exp(y - next_y)
    weight = exp(x - y)
    h = apply(LinearRecurrence(dim, reverse=not reverse), decay, dy)
    return weight * h


# By kind, the gradient rule (dy, y, x, dim, reverse) -> dx.
_GRADIENT: dict[str, Callable[..., Any]] = {
    "prod": _prod_gradient,
    "max": functools.partial(_extreme_gradient, misses=less),
    "min": functools.partial(_extreme_gradient, misses=greater),
    "logsumexp": _logsumexp_gradient,
}


def cumsum(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running sum of x [..., dim, ...] along `dim`, in the shape of x.

    Args:
      x: a tensor of numbers.
      dim: the name of the dimension along which x is summed.
      exclusive: whether the sum at an index leaves out the element at that index.
      reverse: whether the sum runs from the end.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is bool.
    """
    x, dim = tensor_along(x, dim)
    return apply(Scan(dim, "sum", reverse=reverse, exclusive=exclusive), x)


def cumprod(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running product of x along `dim`, in the shape of x. Arguments and errors
    are those of `cumsum`.
    """
    return _scan("prod", x, dim, exclusive=exclusive, reverse=reverse)


def cummax(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running maximum of x along `dim`, in the shape of x. Arguments and errors
    are those of `cumsum`.

    If several elements equal the maximum, the last of them gets the gradient. If
    `exclusive`, the first element is the smallest value of the data type (-inf for floats).
    """
    return _scan("max", x, dim, exclusive=exclusive, reverse=reverse)


def cummin(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns the running minimum of x along `dim`, in the shape of x: see `cummax`."""
    return _scan("min", x, dim, exclusive=exclusive, reverse=reverse)


def cumulative_logsumexp(
    x: Tensor, dim: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Returns log(cumsum(exp(x))) along `dim` without overflow, in the shape of x.
    Arguments are those of `cumsum`.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x is not floating.
    """
    return _scan("logsumexp", x, dim, exclusive=exclusive, reverse=reverse)


def _scan(kind: str, x: Tensor, dim: str, exclusive: bool, reverse: bool) -> Tensor:
    """Returns the running result of a kind of `Scan`; other arguments are as in `cumsum`."""
    x, dim = tensor_along(x, dim)
    exclusive = as_bool("exclusive", exclusive)
    dtype = x.dtype
    if kind == "logsumexp":
        # The gradient is exp(x - y): float16 and bfloat16 are too coarse for this y.
        dtype = accumulation_dtype(x.dtype)
    y = apply(Scan(dim, kind, reverse=reverse), cast(x, dtype))
    y = cast(y, x.dtype)
    if exclusive:
        # Element i is the result up to i - 1.
        identity = IDENTITIES[kind](tf.as_dtype(x.dtype))
        offset = -1 if reverse else 1
        return shift(y, dim, offset, fill=identity)
    return y
