"""Reductions over named dimensions, and broadcasting, their transpose.

    mtf.reduce_sum(x, "length;d_model")       # x[batch, length, d_model] -> [batch]
    mtf.reduce_max(x)                         # over all dimensions

Each device reduces its own slice, which leaves partial results still to be summed,
maxed or minned. The log-sum-exp is no such sum: there each slice tells the others its
own, one number a row.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import OPERATORS, At, Op, Role, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    Shape,
    ShapeLike,
    has_gradient,
    is_floating,
    names_of,
    wide,
)
from meshtf.ops.common.broadcasting import align, is_scalar, onto, require_order, widen
from meshtf.ops.common.sum_kernels import sum_over
from meshtf.ops.elementwise.arithmetic import (
    divide,
    equal,
    logaddexp,
    maximum,
    multiply,
    subtract,
)
from meshtf.ops.elementwise.unary import exp
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.shapes.reshape import require_dim

_ROLES = {
    "sum": Role.SUM,
    "mean": Role.SUM,
    "max": Role.MAX,
    "any": Role.MAX,
    "min": Role.MIN,
    "all": Role.MIN,
}
_KERNELS = {kind: getattr(tf, "reduce_" + kind) for kind in _ROLES}
# TensorFlow adds up float16 in float16.
_KERNELS["mean"] = lambda x, axes: tf.cast(tf.reduce_mean(widen(x), axes), x.dtype)


def _samples() -> tuple[Sample, ...]:
    floats = [
        Sample((kind, ("d",)), ("b:4;d:6",)) for kind in ("sum", "mean", "max", "min")
    ]
    floats += [Sample((kind, ("b", "c")), ("b:4;d:6;c:2",)) for kind in ("sum", "mean")]
    floats += [Sample((kind, ("d",)), ("complex b:4;d:6",)) for kind in ("sum", "mean")]
    ties = [
        Sample((kind, dims), (text,))
        for kind in ("max", "min")
        for dims, text in ((("b",), "ties b:4;d:6"), (("b", "d"), "ties d:3;b:5;c:2"))
    ]
    ints = [
        Sample((kind, ("d",)), ("int d:6;b:4",), gradient=False)
        for kind in ("sum", "max")
    ]
    bools = [
        Sample((kind, dims), (text,), gradient=False)
        for kind in ("any", "all")
        for dims, text in ((("d",), "bool b:8;d:2"), (("b", "d"), "bool b:3;c:4;d:2"))
    ]
    return (*floats, Sample(("mean", ("d",)), ("b:3;d:5",)), *ties, *ints, *bools)


class Reduce(Op):
    """Sum, mean, max, min, any or all over `dims`.

    Any and all give int32, 0 or 1: partial results of bool could not be maxed over
    devices.
    """

    kind: str
    dims: tuple[str, ...]

    samples = _samples()

    @property
    def linear(self) -> Any:
        """Sums and means of unfinished sums are unfinished sums."""
        return "joint" if self.kind in ("sum", "mean") else None

    def out(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, *self.dims)
        truth = self.kind in ("any", "all")
        if truth != (x.dtype == "bool"):
            raise DTypeError(
                explain_error(
                    f"reduce_{self.kind} does not take {x.dtype}.",
                    way_out="Compare it with something first, as in x != 0."
                    if truth
                    else "Use mtf.reduce_any or mtf.reduce_all, or count with "
                    'mtf.cast(x, "int32").',
                )
            )
        if self.kind in ("max", "min"):
            require_order(x.dtype, f"reduce_{self.kind}")
        if self.kind == "mean" and not has_gradient(x.dtype):
            raise DTypeError(
                f'the mean of {x.dtype} is no integer: mtf.cast(x, "float32") first.'
            )
        return (Spec(x.shape.without(*self.dims), "int32" if truth else x.dtype),)

    def role(self, factor: str) -> Role:
        return _ROLES[self.kind] if factor in self.dims else Role.MAP

    def local(self, at: At, x: Any) -> tuple[Any, ...]:
        axes = [at.axis(0, d) for d in self.dims]
        y = (
            sum_over(x, axes, at)
            if self.kind == "sum"
            else _KERNELS[self.kind](x, axes)
        )
        if y.dtype == tf.bool:
            y = tf.cast(y, tf.int32)
        parts = math.prod(at.parts(d) for d in self.dims)
        return (y * (1 / parts) if self.kind == "mean" and parts > 1 else y,)

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        if self.kind == "sum":
            return [broadcast(dy, x.shape)]
        if self.kind == "mean":
            return [broadcast(multiply(dy, 1 / x.shape.only(self.dims).size), x.shape)]
        mask = equal(x, y)  # all that are equal share, as in TensorFlow
        count = reduce_sum(cast(mask, x.dtype), self.dims)
        return [where(mask, divide(dy, count), 0.0)]

    def flops(self, *xs: Spec) -> int:
        return xs[0].shape.size


class Broadcast(Op):
    """x repeated along the names of `shape` that it lacks, in the order of `shape`."""

    shape: Shape

    linear = "joint"
    samples = (
        Sample((Shape("b:4;d:6"),), ("b:4",)),
        Sample((Shape("b:4;d:6"),), ("d:6",)),
        Sample((Shape("c:2;d:3;b:5"),), ("b:5;c:2",)),
        Sample((Shape("b:4"),), ("",)),
        Sample((Shape("d:6;b:4"),), ("int b:4",), gradient=False),
    )

    def out(self, x: Spec) -> tuple[Spec, ...]:
        for d in x.shape:
            if self.shape.get(d.name, -1) != d.size:
                raise ShapeError(
                    explain_error(
                        f"a tensor with dimension {d!r} cannot be broadcast to "
                        f"{self.shape!r}.",
                        way_out="The new shape must have all dimensions of the old "
                        "one, in any order.",
                    )
                )
        return (Spec(self.shape, x.dtype),)

    def local(self, at: At, x: Any) -> tuple[Any, ...]:
        return (
            tf.broadcast_to(align(x, at.inputs[0], at.outputs[0]), at.outputs[0].sizes),
        )

    def gradient(self, dy: Any, y: Any, x: Any) -> list[Any]:
        return [onto(dy, x)]


class LogSumExp(Op):
    """log(sum(exp(x))) over `dims`."""

    dims: tuple[str, ...]

    samples = (
        Sample((("d",),), ("b:4;d:6",)),
        Sample((("b",),), ("b:4;d:6",)),
        Sample((("d", "b"),), ("b:4;c:2;d:6",)),
        Sample((("d",),), ("ties d:5;b:3",)),
        Sample((("d",),), ("half b:2;d:4",)),
    )

    def out(self, x: Spec) -> tuple[Spec, ...]:
        require_dim(x.shape, *self.dims)
        require_floating(x, "reduce_logsumexp")
        return (Spec(x.shape.without(*self.dims), x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.SAME if factor in self.dims else Role.MAP

    def shared(self, factor: str) -> bool:
        return factor in self.dims

    def tells(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.shape.without(*self.dims), wide(x.dtype)),)

    def share(self, at: At, x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (log_sum_exp(widen(x), [at.axis(0, d) for d in self.dims]),), ()

    def local(self, at: At, x: Any) -> tuple[Any, ...]:
        y = self.share(at, x)[0][0] if at.told is None else log_sum_exp(at.told[0], [0])
        return (tf.cast(y, x.dtype),)

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
    powers, top = powers_below_top(x, axes)
    return tf.math.log(tf.reduce_sum(powers, axes)) + top


def powers_below_top(x: Any, axes: list[int]) -> tuple[Any, Any]:
    """Returns exp(x - top) and top, the largest along axes, but finite, without these
    axes.
    """
    top = tf.reduce_max(x, axes, keepdims=True)
    top = tf.raw_ops.ClipByValue(
        t=top, clip_value_min=top.dtype.min, clip_value_max=top.dtype.max
    )
    return tf.exp(x - top), tf.squeeze(top, axes)


def require_floating(x: Spec, function: str) -> None:
    """Refuses tensors that are not of floats. Raises DTypeError."""
    require_order(x.dtype, function)
    if not is_floating(x.dtype):
        raise DTypeError(
            explain_error(
                f"{function} does not take {x.dtype}.",
                way_out='Convert it first: mtf.cast(x, "float32").',
            )
        )


def reduce_sum(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the sum over `dims`, by default all: x without `dims`."""
    return _reduce("sum", x, dims)


def reduce_mean(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the mean over `dims`, by default all; of integers and truth values as
    float32.
    """
    x = as_tensor("x", x)
    return _reduce("mean", x if has_gradient(x.dtype) else cast(x, "float32"), dims)


def reduce_max(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the largest over `dims`, by default all; equal ones share the
    gradient.
    """
    return _reduce("max", x, dims)


def reduce_min(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the smallest over `dims`, by default all; equal ones share
    the gradient.
    """
    return _reduce("min", x, dims)


def reduce_any(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns whether any is true over `dims`, by default all."""
    return cast(_reduce("any", x, dims), "bool")


def reduce_all(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns whether all are true over `dims`, by default all."""
    return cast(_reduce("all", x, dims), "bool")


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
    names = _names(x, dims)
    # Its gradient is exp(x - y), for which a y in half floats is too coarse.
    y = cast(apply(LogSumExp(names), cast(x, wide(x.dtype))), x.dtype)
    if extra_logit is None:
        return y
    require_extra(y.shape, extra_logit)
    return logaddexp(y, extra_logit)


def require_extra(rows: Shape, extra_logit: Any) -> None:
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


def broadcast(x: Any, shape: ShapeLike) -> Tensor:
    """Returns x repeated to `shape`, which has all dimensions of x, in any order.

    Raises:
      ShapeError: `shape` lacks a dimension of x, or has it with another size.
    """
    x = as_tensor("x", x)
    shape = Shape(shape)
    return (
        x if isinstance(x, Tensor) and x.shape == shape else apply(Broadcast(shape), x)
    )


def _reduce(kind: str, x: Tensor, dims: Names | None) -> Tensor:
    return apply(Reduce(kind, _names(x, dims)), x)


def _names(x: Tensor, dims: Names | None) -> tuple[str, ...]:
    x = as_tensor("x", x)
    return x.shape.names if dims is None else names_of(dims, x.shape)


OPERATORS["reduce_sum"] = reduce_sum
