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

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import OPERATORS, LocalContext, Op, Role, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    has_gradient,
    names_of,
)
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_order
from meshtf.ops.common.sum_kernels import sum_over
from meshtf.ops.elementwise.arithmetic import (
    divide,
    equal,
    multiply,
)
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.broadcast import broadcast

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
    def linearity(self) -> Any:
        """Sums and means of unfinished sums are unfinished sums."""
        return "joint" if self.kind in ("sum", "mean") else None

    def output_specs(self, x: Spec) -> tuple[Spec, ...]:
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

    def local(self, context: LocalContext, x: Any) -> tuple[Any, ...]:
        axes = [context.axis(0, d) for d in self.dims]
        y = (
            sum_over(x, axes, context)
            if self.kind == "sum"
            else _KERNELS[self.kind](x, axes)
        )
        if y.dtype == tf.bool:
            y = tf.cast(y, tf.int32)
        parts = math.prod(context.num_shards(d) for d in self.dims)
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


def _reduce(kind: str, x: Tensor, dims: Names | None) -> Tensor:
    return apply(Reduce(kind, names_or_all(x, dims)), x)


def names_or_all(x: Tensor, dims: Names | None) -> tuple[str, ...]:
    """Returns the names that `dims` says, all of x by default."""
    x = as_tensor("x", x)
    return x.shape.names if dims is None else names_of(dims, x.shape)


OPERATORS["reduce_sum"] = reduce_sum
