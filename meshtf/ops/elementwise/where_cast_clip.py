"""Elementwise ops that select, convert or bound: where, cast, clip.

mtf.where(x > 0, x, 0.0)          # a number is an attribute of the op, not a tensor
mtf.cast(x, "bfloat16")
mtf.clip(x, low=0.0)              # the same as mtf.maximum(x, 0.0)
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
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    register_operator,
)
from meshtf.graph.arguments import as_tensor
from meshtf.graph.op_kinds import ConversionOp, ElementwiseOp
from meshtf.names import dtype_name, has_gradient, is_complex
from meshtf.names.arguments import as_float
from meshtf.ops.common.broadcasting import (
    broadcast_call,
    broadcast_operands,
    broadcast_shape,
    check_scalar,
    is_scalar,
    python_scalar,
    sum_to_shape,
)
from meshtf.ops.common.checks import require_order, same_dtype
from meshtf.ops.common.trace_cache import constant


class Where(ElementwiseOp):
    """x where the condition holds, and y elsewhere; x and y are tensors or numbers.

    The inputs are the condition, x if it is a tensor, and y if it is a tensor.

    Attributes:
      x: the number where the condition holds; None: x is an input.
      y: the number elsewhere; None: y is an input.
      dtype: the data type of the result if both are numbers; "" if not.
    """

    x: bool | int | float | complex | None = None
    y: bool | int | float | complex | None = None
    dtype: str = ""

    # Inputs for the conformance suite: see `Sample`, also for words such as "bool". Each
    # sample has the attributes (x, y, dtype) and the shapes of the inputs.
    conformance_samples = (
        Sample(inputs=("bool b:4;d:6", "b:4;d:6", "b:4;d:6")),
        Sample(inputs=("bool b:4", "b:4;d:6", "d:6;b:4")),
        Sample(inputs=("bool d:6;b:4", "b:4", "d:6")),
        Sample((None, 0.0), ("bool b:3;d:5", "b:3;d:5")),
        Sample((-1.5, None), ("bool d:6", "b:4;d:6")),
        Sample((1.0, 0.0, "float32"), ("bool b:4;d:6",), gradient=False),
        Sample((None, 1j), ("bool d:5", "complex b:3;d:5")),
        Sample((None, 7), ("bool b:4", "int d:6;b:4"), gradient=False),
    )

    # `branches`: the inputs after the condition, which are x, y or both.

    def output_specs(self, condition: Spec, *branches: Spec) -> Specs:
        if condition.dtype != "bool":
            raise DTypeError(
                explain_error(
                    f"the condition of where has the type {condition.dtype}, not bool.",
                    way_out="Compare it with something, as in x != 0.",
                )
            )
        dtype = self.dtype
        if branches:
            dtype = same_dtype(*branches)
        for value in (self.x, self.y):
            if value is not None:
                check_scalar(value, dtype)
        branch_shapes = [branch.shape for branch in branches]
        shape = broadcast_shape(condition.shape, *branch_shapes)
        return (Spec(shape, dtype),)

    def local(
        self, context: LocalContext, condition: Any, *branches: Any
    ) -> LocalTensors:
        xs = [condition, *branches]
        return (broadcast_call(self._select, xs, context.inputs, context.outputs[0]),)

    def _select(self, condition: Any, *branches: Any) -> Any:
        """Returns the result of operands that TensorFlow broadcasts."""
        tensors = list(branches)
        dtype = tensors[0].dtype if tensors else self.dtype
        x_and_y = []
        for scalar in (self.x, self.y):
            if scalar is None:
                x_and_y.append(tensors.pop(0))
            else:
                x_and_y.append(constant(scalar, dtype))
        return tf.where(condition, *x_and_y)

    def gradient(self, dy: Any, y: Any, condition: Any, *branches: Any) -> Cotangents:
        # Cotangents are selected, not multiplied by 0 and 1: 0 times a NaN would be NaN.
        selections = []
        if self.x is None:
            selections.append(Where(y=0.0))  # dy where the condition holds, else 0
        if self.y is None:
            selections.append(Where(x=0.0))  # 0 where the condition holds, else dy
        gradients = []
        for selection, branch in zip(selections, branches, strict=True):
            gradients.append(sum_to_shape(apply(selection, condition, dy), branch))
        return [None, *gradients]


# Pairs of a data type and a type that represents all its values.
_EXACT_CASTS = {
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("float32", "float64"),
    ("bfloat16", "float64"),
    ("float16", "float64"),
    ("float32", "complex64"),
    ("float64", "complex128"),
    ("complex64", "complex128"),
}


class Cast(ConversionOp):
    """x converted from the data type `old` to `new`.

    Attributes:
      old: the data type of x.
      new: that of the output.
      rounds_terms: whether each partial sum of x may be rounded, in place of their sum.
    """

    old: str
    new: str
    rounds_terms: bool = False

    # Each sample: the attributes (old, new), and the shape of x.
    conformance_samples = (
        Sample(("float32", "float64"), ("ties b:4;d:6",)),
        Sample(("float32", "bfloat16"), ("b:4;d:6",)),
        Sample(("float32", "int32"), ("ties b:3;d:5",), gradient=False),
        Sample(("float32", "complex64"), ("b:4;d:6",)),
        Sample(("int32", "float32"), ("int b:4",), gradient=False),
        Sample(("bool", "float32"), ("bool b:4;d:6",), gradient=False),
    )

    @property
    def linearity(self) -> Any:
        if self.rounds_terms or (self.old, self.new) in _EXACT_CASTS:
            return "joint"  # partial sums may be converted before they are added up
        # The narrower type would round each partial sum.
        return None

    def output_specs(self, x: Spec) -> Specs:
        if is_complex(self.old) and not is_complex(self.new):
            raise DTypeError(
                explain_error(
                    f"{self.new} cannot hold complex numbers.",
                    way_out="Convert them to real numbers: mtf.math.real(x), mtf.math.imag(x), "
                    "abs(x) or mtf.math.angle(x).",
                )
            )
        return (Spec(x.shape, self.new),)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.cast(x, self.new),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        if not (has_gradient(self.old) and has_gradient(self.new)):
            return [None]
        if is_complex(self.new) and not is_complex(self.old):
            # `mtf.math.real`, by the table, since its module imports this one.
            dy = OPERATORS["real"](dy)
        return [cast(dy, self.old)]


class Clip(ElementwiseOp):
    """x bounded by `low` and `high`: min(max(x, low), high). None is no bound."""

    low: int | float | None = None
    high: int | float | None = None

    # Each sample: the attributes (low, high), and the shape of x.
    conformance_samples = (
        Sample((-0.5, 0.75), ("b:4;d:6",)),
        Sample((0.25, None), ("b:3;d:5",)),
        Sample((None, 0.25), ("d:5",)),
        Sample((2, 5), ("int b:4",), gradient=False),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_order(x.dtype, "clip")
        for bound in (self.low, self.high):
            if bound is not None:
                check_scalar(bound, x.dtype)
        return (x,)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        if self.low is None:
            return (tf.minimum(x, constant(self.high, x.dtype)),)
        if self.high is None:
            return (tf.maximum(x, constant(self.low, x.dtype)),)
        # One kernel; `tf.clip_by_value` runs two, minimum and maximum.
        return (_clip_by_value(x, self.low, self.high),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(ClipGrad(self.low, self.high), dy, x)]


class ClipGrad(Op):
    """The gradient of `Clip`: dy where low <= x <= high, and 0 elsewhere; the inputs are dy
    and x.
    """

    low: int | float | None = None
    high: int | float | None = None

    conformance_samples = (Sample((-0.5, 0.75), ("b:4;d:6", "b:4;d:6")),)

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return (dy,)

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        # Only floats have gradients, so the absence of a bound can be an infinite bound.
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        is_inside = tf.equal(x, _clip_by_value(x, low, high))
        return (tf.where(is_inside, dy, tf.zeros([], dy.dtype)),)

    def gradient(self, dz: Any, z: Any, dy: Any, x: Any) -> Cotangents:
        return [apply(self, dz, x), None]


def _clip_by_value(x: Any, low: float, high: float) -> Any:
    """Returns a TensorFlow tensor bounded by two numbers, by one kernel."""
    return tf.raw_ops.ClipByValue(
        t=x,
        clip_value_min=constant(low, x.dtype),
        clip_value_max=constant(high, x.dtype),
    )


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """Returns x where the condition holds and y elsewhere, broadcast by names.

    An element that is not selected has a gradient of zero, even if it is NaN or infinite.
    At a singular point (of log, sqrt, 1 / x and others), the gradient for a cotangent of
    zero is zero, not 0 * inf = NaN. So mtf.where(x > 0, mtf.log(x), 0.0) has no NaN in its
    gradient, and needs no second `where` around the argument.

    Args:
      condition: a tensor of booleans.
      x: a tensor or a number.
      y: a tensor or a number.

    Raises:
      ShapeError: none of the tensors has the names of all others, or sizes conflict.
      DTypeError: the condition is not bool, or x and y are of different types.
    """
    tensors = [operand for operand in (x, y) if not is_scalar(operand)]
    x_number = python_scalar(x) if is_scalar(x) else None
    y_number = python_scalar(y) if is_scalar(y) else None
    dtype = "" if tensors else _dtype_of_numbers(x_number, y_number)
    op = Where(x=x_number, y=y_number, dtype=dtype)
    return apply(op, *broadcast_operands("where", condition, *tensors))


def _dtype_of_numbers(x: Any, y: Any) -> str:
    """Returns the data type of the wider one of two Python numbers."""
    types_by_width = [bool, int, float, complex]
    wider_type = max(type(x), type(y), key=types_by_width.index)
    return dtype_name(wider_type)


def cast(x: Any, dtype: Any) -> Tensor:
    """Returns x as another data type, elementwise."""
    x = as_tensor("x", x)
    new = dtype_name(dtype)
    if x.dtype == new:
        return x
    return apply(Cast(x.dtype, new), x)


def clip(x: Any, low: float | None = None, high: float | None = None) -> Tensor:
    """Returns x bounded by `low` and `high`, elementwise: min(max(x, low), high).

    Args:
      x: a tensor or variable [*shape].
      low: the minimum of the result; None: no minimum.
      high: the maximum of the result; None: no maximum.
    """
    # `as_float` returns ints as ints, so tensors of integers can be clipped.
    if low is not None:
        low = as_float("low", low)
    if high is not None:
        high = as_float("high", high)
    return apply(Clip(low, high), x)


register_operator("cast", cast)
register_operator("where", where)
