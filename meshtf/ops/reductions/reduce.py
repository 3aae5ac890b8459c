"""Reductions over named dimensions: sum, mean, maximum, minimum, any and all.

    mtf.reduce_sum(x, "length;d_model")       # x[batch, length, d_model] -> [batch]
    mtf.reduce_max(x)                         # over all dimensions

Each device reduces its shard, which gives a partial sum, maximum or minimum. Reductions
that are none of these, such as the log-sum-exp (`reductions/logsumexp.py`), exchange
statistics instead.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import (
    OPERATORS,
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    has_gradient,
    names_of,
)
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_order
from meshtf.ops.common.sum_kernels import sum_over
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.arithmetic import (
    equal,
)
from meshtf.ops.elementwise.computed_once import computed_once
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.reductions.broadcast import broadcast

# What sharding a reduced dimension does: shards get partial sums, maxima or minima. True and
# false are 1 and 0.
_ROLES = {
    "sum": Role.SUM,
    "mean": Role.SUM,
    "max": Role.MAX,
    "any": Role.MAX,
    "min": Role.MIN,
    "all": Role.MIN,
}
# The value that changes no result, for padding; None: elements do not meet.
_IDENTITIES = {
    Role.MAP: None,
    Role.SUM: 0.0,
    Role.MAX: -math.inf,
    Role.MIN: math.inf,
}
_LOGICAL = ("any", "all")
# The TensorFlow function of each kind, with the arguments (x, axes).
_KERNELS = {kind: tf_function("reduce_" + kind) for kind in _ROLES}
# The mean is accumulated in float32, since TensorFlow adds up float16 in float16.
_KERNELS["mean"] = lambda x, axes: tf.cast(tf.reduce_mean(widen(x), axes), x.dtype)


def _samples() -> tuple[Sample, ...]:
    """Returns test inputs for all kinds of reductions and data types.

    A `Sample` has the attributes (kind, dims), and the input's kind of values and shape.
    """
    floats = [
        *(
            Sample((kind, ("d",)), ("b:4;d:6",))
            for kind in ("sum", "mean", "max", "min")
        ),
        *(Sample((kind, ("b", "c")), ("b:4;d:6;c:2",)) for kind in ("sum", "mean")),
        *(Sample((kind, ("d",)), ("complex b:4;d:6",)) for kind in ("sum", "mean")),
        Sample(("mean", ("d",)), ("b:3;d:5",)),
    ]
    ties = []
    for kind in ("max", "min"):
        ties.append(Sample((kind, ("b",)), ("ties b:4;d:6",)))
        ties.append(Sample((kind, ("b", "d")), ("ties d:3;b:5;c:2",)))
    integers = [
        Sample((kind, ("d",)), ("int d:6;b:4",), gradient=False)
        for kind in ("sum", "max")
    ]
    booleans = []
    for kind in ("any", "all"):
        booleans.append(Sample((kind, ("d",)), ("bool b:8;d:2",), gradient=False))
        booleans.append(
            Sample((kind, ("b", "d")), ("bool b:3;c:4;d:2",), gradient=False)
        )
    return (*floats, *ties, *integers, *booleans)


class Reduce(Op):
    """A reduction of x over dimensions.

    The kinds "any" and "all" return int32, 0 or 1, since collectives cannot reduce bool.

    Attributes:
      kind: "sum", "mean", "max", "min", "any" or "all".
      dims: the dimensions.
    """

    kind: str
    dims: tuple[str, ...]

    conformance_samples = _samples()

    @property
    def linearity(self) -> Any:
        """Whether a partial sum x gives a partial sum ("joint"), or never does (None)."""
        if self.kind in ("sum", "mean"):
            return "joint"
        return None

    def output_specs(self, x: Spec) -> Specs:
        require_dim(x.shape, *self.dims)
        _check_dtype(self.kind, x.dtype)
        dtype = x.dtype
        if self.kind in _LOGICAL:
            dtype = "int32"
        return (Spec(x.shape.without(*self.dims), dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x, does.
        if factor in self.dims:
            return _ROLES[self.kind]
        return Role.MAP  # the output is sharded too

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return _IDENTITIES[self.role(factor)]

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        axes = [context.axis(0, dim) for dim in self.dims]  # in the shape of input 0
        if self.kind == "sum":
            y = sum_over(x, axes, context)
        else:
            y = _KERNELS[self.kind](x, axes)
        if y.dtype == tf.bool:
            y = tf.cast(y, tf.int32)
        num_shards = math.prod(context.num_shards(dim) for dim in self.dims)
        if self.kind == "mean" and num_shards > 1:
            # The sum of these over shards is the global mean. A shard counts with its padding,
            # which is 0.
            local_size = math.prod(map(context.local_size, self.dims))
            global_size = math.prod(map(context.global_size, self.dims))
            if global_size:  # otherwise y is NaN, the mean of nothing
                y = y * (local_size / global_size)
        return (y,)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        if self.kind == "sum":
            return [broadcast(dy, x.shape)]
        if self.kind == "mean":
            count = x.shape.only(self.dims).size
            return [broadcast(dy * (1 / max(count, 1)), x.shape)]
        # Maximum or minimum: if several elements are equal to it, each gets an equal share
        # of the cotangent, as in TensorFlow. The extreme is taken again, since XLA may have
        # computed the elements for y with other roundings: then none would equal y.
        x = computed_once(x)
        is_extreme = equal(x, apply(self, x))
        num_equal = reduce_sum(cast(is_extreme, x.dtype), self.dims)
        return [where(is_extreme, dy / num_equal, 0.0)]

    def flops(self, *xs: Spec) -> int:
        return xs[0].shape.size


def _check_dtype(kind: str, dtype: str) -> None:
    """Raises DTypeError if this kind of reduction does not take the data type."""
    if (kind in _LOGICAL) != (dtype == "bool"):
        if kind in _LOGICAL:
            way_out = "Compare it with something first, as in x != 0."
        else:
            way_out = (
                "Use mtf.reduce_any or mtf.reduce_all, or count with "
                'mtf.cast(x, "int32").'
            )
        message = f"reduce_{kind} does not take {dtype}."
        raise DTypeError(explain_error(message, way_out=way_out))
    if kind in ("max", "min"):
        require_order(dtype, f"reduce_{kind}")
    if kind == "mean" and not has_gradient(dtype):
        raise DTypeError(
            f'the mean of {dtype} is no integer: mtf.cast(x, "float32") first.'
        )


def reduce_sum(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the sum over `dims`, by default all: x [..., dims] -> [...]."""
    return _reduce("sum", x, dims)


def reduce_mean(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the mean over `dims`, by default all: x [..., dims] -> [...]. The mean of
    integers and booleans is float32.
    """
    x = as_tensor("x", x)
    if not has_gradient(x.dtype):
        x = cast(x, "float32")
    return _reduce("mean", x, dims)


def reduce_max(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the maximum over `dims`, by default all: x [..., dims] -> [...]. Equal
    largest elements share the gradient. It is NaN if an element is, under every layout.
    """
    return _reduce("max", x, dims)


def reduce_min(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns the minimum over `dims`, by default all: x [..., dims] -> [...]. Equal
    smallest elements share the gradient. It is NaN if an element is, under every layout.
    """
    return _reduce("min", x, dims)


def reduce_any(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns whether any element is true over `dims`, by default all:
    x [..., dims] -> bool [...]."""
    return cast(_reduce("any", x, dims), "bool")


def reduce_all(x: Tensor, dims: Names | None = None) -> Tensor:
    """Returns whether all elements are true over `dims`, by default all:
    x [..., dims] -> bool [...]."""
    return cast(_reduce("all", x, dims), "bool")


def _reduce(kind: str, x: Tensor, dims: Names | None) -> Tensor:
    """Returns a reduction of x over `dims`, by default all; `kind` as in `Reduce`."""
    return apply(Reduce(kind, names_or_all(x, dims)), x)


def names_or_all(x: Tensor, dims: Names | None) -> tuple[str, ...]:
    """Returns the names in `dims`; if it is None, all names of x [...]."""
    x = as_tensor("x", x)
    if dims is None:
        return x.shape.names
    return names_of(dims, x.shape)


# For modules of folders that come before this one in the order of imports.
for _function in (reduce_sum, reduce_mean, reduce_max, reduce_min):
    OPERATORS[_function.__name__] = _function
