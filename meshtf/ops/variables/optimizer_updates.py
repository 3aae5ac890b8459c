"""Optimizers' updates: one fused TensorFlow op for each slice, in place.

An update written in arithmetic reads and writes the variable's memory about a dozen
times; fused, it takes a quarter of the time. A fused one changes slices of the variable
and its slots together: where slots are cut otherwise than the variable, it changes the
part of the variable beside them.

    op = AdamUpdate(w, m, v, 0.9, 0.999, 1e-8)
    apply_all(op, dw, rate)                                 # in place
    new = apply(PartUpdate(op), dw, rate, w.tensor())       # m and v in place; lies as they do

A fused op takes one data type. Slots of a variable of half floats are float32, so the
second form is the one for it: of its value in float32, and what comes out is rounded
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import At, Op, Sample, Spec, Store
from meshtf.names import dtype_name, wide


class Finish(Op):
    """The input without unfinished sums: not linear, so they are finished here, for all
    that follows.

    Where the layout cuts the result they are scattered. What is cut already stays so.
    """

    samples = (Sample((), ("b:4;d:6",)), Sample((), ("int d:6;b:4",), gradient=False))

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def local(self, at: At, *xs: Any) -> tuple[Any, ...]:
        return xs

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        return [dy]


class Change(Op):
    """Base of ops that change a variable in place."""

    variable: Store
    effect = "write"

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.variable,)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return ()


class Update(Change):
    """Base of updates: inputs are a gradient with the variable's names, in its order,
    and scalars.
    """

    @property
    def dtype(self) -> str:
        """What it computes in, and takes its inputs in: the data type of the slots."""
        _, *slots = self.stores
        return slots[0].spec.dtype if slots else wide(self.variable.spec.dtype)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        self.check(*xs)
        for slot in self.stores[1:]:
            if (
                slot.spec.dtype != self.variable.spec.dtype
            ):  # TensorFlow would end the process
                raise DTypeError(
                    f"variable {self.variable.name!r} is {self.variable.spec.dtype} "
                    f"and its slot {slot.name!r} {slot.spec.dtype}: no update changes "
                    "both in place."
                )
        return ()

    def check(self, *xs: Spec) -> None:
        """Refuses inputs of another shape or data type. Raises ShapeError or
        DTypeError.
        """
        shape = self.variable.spec.shape
        if xs[0].shape != shape:
            raise ShapeError(
                f"a gradient of {xs[0].shape!r} does not fit variable "
                f"{self.variable.name!r} of {shape!r}."
            )
        for x in xs:
            if x.dtype != self.dtype:
                raise DTypeError(
                    f"the update of variable {self.variable.name!r} is computed in "
                    f"{self.dtype}; an input of {x.dtype} needs mtf.cast."
                )

    def formula(self, gradient: Any, rate: Any, *values: Any) -> tuple[Any, ...]:
        """Returns the next values of slices of the stores, from the present ones, for
        XLA.
        """
        raise NotImplementedError


class AdamUpdate(Update):
    """Adam: gradient, and the rate with the bias correction in it."""

    m: Store
    v: Store
    beta_1: float
    beta_2: float
    epsilon: float

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.variable, self.m, self.v)

    def update(self, slices: Sequence[Any], *xs: Any) -> None:
        gradient, rate = xs
        none, beta_1, beta_2, epsilon = (
            tf.constant(x, gradient.dtype)
            for x in (0.0, self.beta_1, self.beta_2, self.epsilon)
        )
        tf.raw_ops.ResourceApplyAdam(
            var=slices[0].handle,
            m=slices[1].handle,
            v=slices[2].handle,
            grad=gradient,
            lr=rate,
            beta1_power=none,
            beta2_power=none,  # the rate has the correction in it
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
        )

    def formula(self, gradient: Any, rate: Any, *values: Any) -> tuple[Any, ...]:
        variable, m, v = values
        m = m + (gradient - m) * (1 - self.beta_1)
        v = v + (tf.square(gradient) - v) * (1 - self.beta_2)
        return variable - m * rate / (tf.sqrt(v) + self.epsilon), m, v


class DescentUpdate(Update):
    """Gradient descent: gradient and rate."""

    def update(self, slices: Sequence[Any], *xs: Any) -> None:
        held = dtype_name(slices[0].dtype)
        if held != self.dtype:
            new = tf.cast(slices[0], self.dtype) - xs[0] * xs[1]
            slices[0].assign(tf.cast(new, held), read_value=False)
            return
        tf.raw_ops.ResourceApplyGradientDescent(
            var=slices[0].handle, delta=xs[0], alpha=xs[1]
        )


class MomentumUpdate(Update):
    """Gradient descent with momentum: gradient and rate."""

    velocity: Store
    momentum: float
    nesterov: bool

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.variable, self.velocity)

    def update(self, slices: Sequence[Any], *xs: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=slices[0].handle,
            accum=slices[1].handle,
            grad=xs[0],
            lr=xs[1],
            momentum=tf.constant(self.momentum, xs[0].dtype),
            use_nesterov=self.nesterov,
        )

    def formula(self, gradient: Any, rate: Any, *values: Any) -> tuple[Any, ...]:
        variable, velocity = values
        velocity = velocity * self.momentum + gradient
        step = velocity * self.momentum + gradient if self.nesterov else velocity
        return variable - step * rate, velocity


class Decay(Change):
    """Takes a share of a variable away; input: the share."""

    def update(self, slices: Sequence[Any], *xs: Any) -> None:
        slices[0].assign(slices[0] * (1 - xs[0]), read_value=False)


class PartUpdate(Op):
    """An update of slots, and of that part of the variable that lies as they do: the
    output.

    Inputs: those of the update, and the variable's value.
    """

    whole: Update
    effect = "write"

    @property
    def display_name(self) -> str:
        return self.whole.display_name

    @property
    def stores(self) -> tuple[Store, ...]:
        return self.whole.stores[1:]

    @property
    def in_place(self) -> Op:
        return self.whole

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        *others, value = xs
        self.whole.check(*others)
        if value.dtype != self.whole.dtype:
            raise DTypeError(
                f"the update of variable {self.whole.variable.name!r} is computed in "
                f"{self.whole.dtype}; its value in {value.dtype} needs mtf.cast."
            )
        return (value,)

    def update(self, slices: Sequence[Any], *xs: Any) -> Sequence[Any]:
        *others, value = xs
        new, *slots = self.whole.formula(*others, value, *slices)
        for held, slot in zip(slices, slots, strict=True):
            held.assign(slot, read_value=False)
        return [new]
