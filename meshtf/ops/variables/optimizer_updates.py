"""Optimizer updates: one fused TensorFlow op for each shard, in place.

An update written in arithmetic ops reads and writes the variable's memory about a dozen
times; a fused op takes a quarter of the time. It updates the shards of the variable and of
its slots, the optimizer's variables, in one step. If the slots are sharded differently from
the variable (ZeRO-1), the second form below takes the variable's value, sharded like the
slots, and returns its next value:

    op = AdamUpdate(w, m, v, beta_1=0.9, beta_2=0.999, epsilon=1e-8)
    apply_all(op, dw, rate)                                     # writes w, m and v
    new_w = apply(op.slots_update(), dw, rate, w.tensor())      # writes m and v

A fused op takes a single data type, and the slots of a float16 or bfloat16 variable are
float32. So the second form is also used for such a variable: it takes the value in float32,
and the caller rounds the result once.

Each update defines its arithmetic (`new_values`). `write_in_place` runs the fused op and
returns True; if it returns False, or is not defined, the caller assigns the new values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    Cotangents,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Store,
    WriteOp,
)
from meshtf.names import accumulation_dtype
from meshtf.ops.common.op_bases import _Identity
from meshtf.ops.common.trace_cache import constant


class ReducePartialSums(_Identity):
    """The identity, whose input the planner reduces if it is a partial sum.

    The op does not declare itself linear, so the planner reduces partial sums before it,
    once for all uses of the result: by a reduce-scatter if the layout shards the result.
    Sharded inputs stay sharded.
    """

    # Test inputs: no attributes, then the input's kind of values and shape.
    conformance_samples = (
        Sample((), ("b:4;d:6",)),
        Sample((), ("int d:6;b:4",), gradient=False),
    )

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return [dy]


class OptimizerUpdate(WriteOp):
    """The base of updates.

    The inputs are a gradient in the variable's shape, and the learning rate, a scalar. With
    `slots_only`, the variable's value is a third input, and its next value is the output.

    Attributes:
      variable: the variable that is updated; `Store` is the interface of variables for ops.
      slots_only: whether only the slots are written, and not the variable.
      lazy: whether rows of a table that no lookup has touched keep their value and slots, where
        the rule would change them: see `RowsUpdate`.
      keeps_untouched: whether the rule itself changes nothing where the gradient is zero.
    """

    variable: Store
    slots_only: bool = dataclasses.field(default=False, kw_only=True)
    lazy: bool = dataclasses.field(default=False, kw_only=True)
    keeps_untouched: ClassVar[bool] = False

    @property
    def slots(self) -> tuple[Store, ...]:
        """The optimizer's variables that the op writes in addition to `variable`."""
        return ()

    @property
    def variables(self) -> tuple[Store, ...]:
        if self.slots_only:
            return self.slots
        return (self.variable, *self.slots)

    @property
    def dtype(self) -> str:
        """The data type of the computation and of the inputs: that of the slots, if any."""
        if self.slots:
            return self.slots[0].spec.dtype
        return accumulation_dtype(self.variable.spec.dtype)

    def slots_update(self) -> OptimizerUpdate:
        """Returns an update that writes only the slots, takes the variable's value as a
        third input, and returns its next value.
        """
        return dataclasses.replace(self, slots_only=True)  # type: ignore[type-var]

    @property
    def is_linear(self) -> bool:
        """Whether the op adds to the variable what is linear in the gradient, and has no slots:
        the gradients of a row need not be summed before.
        """
        return False

    def output_specs(self, gradient: Spec, rate: Spec, *value: Spec) -> Specs:
        shape = self.variable.spec.shape
        if gradient.shape != shape:
            raise ShapeError(
                f"a gradient of {gradient.shape!r} does not fit variable "
                f"{self.variable.name!r} of {shape!r}."
            )
        # The start of the message for the gradient, the rate and the value.
        labels = ("an input of", "an input of", "its value in")
        for x, label in zip((gradient, rate, *value), labels):
            if x.dtype != self.dtype:
                raise DTypeError(
                    f"the update of variable {self.variable.name!r} is computed in "
                    f"{self.dtype}; {label} {x.dtype} needs mtf.cast."
                )
        if not self.slots_only:
            self._check_slots()
        return value

    def _check_slots(self) -> None:
        """Raises DTypeError if a slot has another data type than the variable."""
        dtype = self.variable.spec.dtype
        for slot in self.slots:
            if slot.spec.dtype != dtype:
                # Otherwise TensorFlow would abort the process.
                raise DTypeError(
                    f"variable {self.variable.name!r} is {dtype} and its slot "
                    f"{slot.name!r} {slot.spec.dtype}: no update changes both in place."
                )


class AdamUpdate(OptimizerUpdate):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980).

    The inputs are the gradient, and the learning rate times the bias correction,
    sqrt(1 - beta_2**t) / (1 - beta_1**t).

    Attributes:
      m: the slot of the moving average of gradients.
      v: the slot of the moving average of squared gradients.
      beta_1: the decay of m in one step.
      beta_2: the decay of v in one step.
      epsilon: a small number that is added to the square root of v.
    """

    m: Store
    v: Store
    beta_1: float
    beta_2: float
    epsilon: float

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.m, self.v)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, m: Any, v: Any
    ) -> LocalTensors:
        m = m + (gradient - m) * (1 - self.beta_1)
        v = v + (tf.square(gradient) - v) * (1 - self.beta_2)
        return variable - m * rate / (tf.sqrt(v) + self.epsilon), m, v

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        variable, m, v = handles
        dtype = gradient.dtype
        # The op's own bias correction is 1 for powers of 0: the learning rate includes it.
        no_correction = constant(0.0, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable,
            m=m,
            v=v,
            grad=gradient,
            lr=rate,
            beta1_power=no_correction,
            beta2_power=no_correction,
            beta1=constant(self.beta_1, dtype),
            beta2=constant(self.beta_2, dtype),
            epsilon=constant(self.epsilon, dtype),
        )
        return True


class DescentUpdate(OptimizerUpdate):
    """Gradient descent; the inputs are the gradient and the learning rate."""

    keeps_untouched = True

    @property
    def is_linear(self) -> bool:
        # The steps of a half float are summed in float32, and rounded once.
        return self.variable.spec.dtype == self.dtype

    def new_values(self, gradient: Any, rate: Any, variable: Any) -> LocalTensors:
        new_value = tf.cast(variable, gradient.dtype) - gradient * rate
        return (tf.cast(new_value, variable.dtype),)

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        if self.variable.spec.dtype != self.dtype:
            return False  # the fused op takes a single data type
        (variable,) = handles
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable, delta=gradient, alpha=rate
        )
        return True


class MomentumUpdate(OptimizerUpdate):
    """Gradient descent with momentum; the inputs are the gradient and the learning rate.

    Attributes:
      velocity: the slot of the velocity, the decaying sum of gradients.
      momentum: the decay of the velocity in one step.
      nesterov: whether the step is Nesterov's: momentum * velocity + gradient, with the
        new velocity.
    """

    velocity: Store
    momentum: float
    nesterov: bool

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.velocity,)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, velocity: Any
    ) -> LocalTensors:
        velocity = velocity * self.momentum + gradient
        step = velocity
        if self.nesterov:
            step = velocity * self.momentum + gradient
        return variable - step * rate, velocity

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        variable, velocity = handles
        tf.raw_ops.ResourceApplyMomentum(
            var=variable,
            accum=velocity,
            grad=gradient,
            lr=rate,
            momentum=tf.constant(self.momentum, gradient.dtype),
            use_nesterov=self.nesterov,
        )
        return True


class AdagradUpdate(OptimizerUpdate):
    """Adagrad (Duchi et al. 2011); the inputs are the gradient and the learning rate.

    Attributes:
      accumulator: the slot of the sum of squared gradients.
      epsilon: a small number that is added to the square root of the sum.
    """

    accumulator: Store
    epsilon: float
    keeps_untouched = True

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.accumulator,)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, accumulator: Any
    ) -> LocalTensors:
        accumulator = accumulator + tf.square(gradient)
        step = gradient * rate / (tf.sqrt(accumulator) + self.epsilon)
        return variable - step, accumulator

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        variable, accumulator = handles
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable,
            accum=accumulator,
            grad=gradient,
            lr=rate,
            epsilon=constant(self.epsilon, gradient.dtype),
        )
        return True


class RowwiseAdagradUpdate(OptimizerUpdate):
    """Adagrad with one accumulator for each row, which sums the means of squared gradients over
    the row; the inputs are the gradient and the learning rate.

    Attributes:
      accumulator: the slot of the sums: the variable's shape without `num_row_dims` last
        dimensions, those of a row, which are not sharded.
      epsilon: a small number that is added to the square root of the sum.
      num_row_dims: the number of dimensions of a row.
    """

    accumulator: Store
    epsilon: float
    num_row_dims: int
    keeps_untouched = True

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.accumulator,)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, accumulator: Any
    ) -> LocalTensors:
        axes = list(range(-self.num_row_dims, 0))
        accumulator = accumulator + tf.reduce_mean(tf.square(gradient), axes)
        step_size = rate / (tf.sqrt(accumulator) + self.epsilon)
        ones = [1] * self.num_row_dims
        step_size = tf.reshape(step_size, tf.concat([tf.shape(step_size), ones], 0))
        return variable - gradient * step_size, accumulator


class FtrlUpdate(OptimizerUpdate):
    """FTRL-Proximal (McMahan et al. 2013); the inputs are the gradient and the learning rate.

    Attributes:
      accumulator: the slot of the sum of squared gradients.
      linear: the slot of the gradients' sum, less what the steps so far stand for.
      l1, l2: the weights of the penalties |variable| and variable**2.
    """

    accumulator: Store
    linear: Store
    l1: float
    l2: float

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.accumulator, self.linear)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, accumulator: Any, linear: Any
    ) -> LocalTensors:
        old_root = tf.sqrt(accumulator)
        accumulator = accumulator + tf.square(gradient)
        root = tf.sqrt(accumulator)
        linear = linear + gradient - (root - old_root) / rate * variable
        is_zero = tf.abs(linear) <= self.l1
        quadratic = tf.where(is_zero, 1.0, root / rate + 2.0 * self.l2)
        value = (tf.sign(linear) * self.l1 - linear) / quadratic
        return tf.where(is_zero, 0.0, value), accumulator, linear

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        variable, accumulator, linear = handles
        dtype = gradient.dtype
        tf.raw_ops.ResourceApplyFtrl(
            var=variable,
            accum=accumulator,
            linear=linear,
            grad=gradient,
            lr=rate,
            l1=constant(self.l1, dtype),
            l2=constant(self.l2, dtype),
            lr_power=constant(-0.5, dtype),
        )
        return True


class WeightDecay(WriteOp):
    """Multiplies a variable by 1 - share; the input is the share to subtract, a scalar."""

    variable: Store

    @property
    def variables(self) -> tuple[Store, ...]:
        return (self.variable,)

    def output_specs(self, *xs: Spec) -> Specs:
        return ()

    def new_values(self, share: Any, variable: Any) -> LocalTensors:
        return (variable * (1 - share),)
