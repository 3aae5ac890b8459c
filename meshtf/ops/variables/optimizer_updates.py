"""Optimizers' updates: one fused TensorFlow op for each shard, in place.

An update written in arithmetic reads and writes the variable's memory about a dozen
times; fused, it takes a quarter of the time. An update changes shards of the variable
and of its slots together. Where slots are sharded otherwise than the variable, it takes
the part of the variable that lies as they do, and returns its next value:

    op = AdamUpdate(w, m, v, 0.9, 0.999, 1e-8)
    apply_all(op, dw, rate)                                 # writes w, m and v
    new = apply(op.of_slots(), dw, rate, w.tensor())        # writes m and v

A fused op takes one data type. Slots of a variable of half floats are float32, so the
second form is the one for it: of its value in float32, and what comes out is rounded
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import LocalContext, Op, Sample, Spec, Store, WriteOp
from meshtf.names import accumulation_dtype
from meshtf.ops.common.trace_cache import constant


class ReducePartialSums(Op):
    """The input without unfinished sums: not linear, so they are finished here, for all
    that follows.

    Where the layout cuts the result they are scattered. What is cut already stays so.
    """

    samples = (Sample((), ("b:4;d:6",)), Sample((), ("int d:6;b:4",), gradient=False))

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def local(self, context: LocalContext, *xs: Any) -> tuple[Any, ...]:
        return xs

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        return [dy]


class OptimizerUpdate(WriteOp):
    """Base of updates: inputs are a gradient with the variable's names, in its order,
    and the rate; with `slots_only` the variable's value comes last, and its next value
    is the output.
    """

    variable: Store
    slots_only: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def slots(self) -> tuple[Store, ...]:
        """The optimizer's variables that it writes beside `variable`."""
        return ()

    @property
    def variables(self) -> tuple[Store, ...]:
        return self.slots if self.slots_only else (self.variable, *self.slots)

    @property
    def dtype(self) -> str:
        """What it computes in, and takes its inputs in: the data type of the slots."""
        if self.slots:
            return self.slots[0].spec.dtype
        return accumulation_dtype(self.variable.spec.dtype)

    def slots_update(self) -> OptimizerUpdate:
        """Returns the update of the slots alone, which takes the value of the variable
        and returns the next one.
        """
        return dataclasses.replace(self, slots_only=True)  # type: ignore[type-var]

    def output_specs(
        self, gradient: Spec, rate: Spec, *value: Spec
    ) -> tuple[Spec, ...]:
        shape = self.variable.spec.shape
        if gradient.shape != shape:
            raise ShapeError(
                f"a gradient of {gradient.shape!r} does not fit variable "
                f"{self.variable.name!r} of {shape!r}."
            )
        what = "an input of", "an input of", "its value in"
        for x, label in zip((gradient, rate, *value), what):
            if x.dtype != self.dtype:
                raise DTypeError(
                    f"the update of variable {self.variable.name!r} is computed in "
                    f"{self.dtype}; {label} {x.dtype} needs mtf.cast."
                )
        if not self.slots_only:
            self._check_slots()
        return value

    def _check_slots(self) -> None:
        dtype = self.variable.spec.dtype
        for slot in self.slots:
            if slot.spec.dtype != dtype:  # TensorFlow would end the process
                raise DTypeError(
                    f"variable {self.variable.name!r} is {dtype} and its slot "
                    f"{slot.name!r} {slot.spec.dtype}: no update changes both in place."
                )


class AdamUpdate(OptimizerUpdate):
    """Adam: gradient, and the rate with the bias correction in it."""

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
    ) -> tuple[Any, ...]:
        m = m + (gradient - m) * (1 - self.beta_1)
        v = v + (tf.square(gradient) - v) * (1 - self.beta_2)
        return variable - m * rate / (tf.sqrt(v) + self.epsilon), m, v

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        variable, m, v = handles
        none, beta_1, beta_2, epsilon = (
            constant(x, gradient.dtype)
            for x in (0.0, self.beta_1, self.beta_2, self.epsilon)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=variable,
            m=m,
            v=v,
            grad=gradient,
            lr=rate,
            beta1_power=none,
            beta2_power=none,  # the rate has the correction in it
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
        )
        return True


class DescentUpdate(OptimizerUpdate):
    """Gradient descent: gradient and rate."""

    def new_values(self, gradient: Any, rate: Any, variable: Any) -> tuple[Any, ...]:
        new = tf.cast(variable, gradient.dtype) - gradient * rate
        return (tf.cast(new, variable.dtype),)

    def write_in_place(self, handles: Sequence[Any], gradient: Any, rate: Any) -> bool:
        if self.variable.spec.dtype != self.dtype:
            return False
        tf.raw_ops.ResourceApplyGradientDescent(
            var=handles[0], delta=gradient, alpha=rate
        )
        return True


class MomentumUpdate(OptimizerUpdate):
    """Gradient descent with momentum: gradient and rate."""

    velocity: Store
    momentum: float
    nesterov: bool

    @property
    def slots(self) -> tuple[Store, ...]:
        return (self.velocity,)

    def new_values(
        self, gradient: Any, rate: Any, variable: Any, velocity: Any
    ) -> tuple[Any, ...]:
        velocity = velocity * self.momentum + gradient
        step = velocity * self.momentum + gradient if self.nesterov else velocity
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


class WeightDecay(WriteOp):
    """Takes a share of a variable away; input: the share."""

    variable: Store

    @property
    def variables(self) -> tuple[Store, ...]:
        return (self.variable,)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return ()

    def new_values(self, share: Any, variable: Any) -> tuple[Any, ...]:
        return (variable * (1 - share),)
