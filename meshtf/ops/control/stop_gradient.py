"""stop_gradient, and recompute (activation checkpointing).

y = mtf.stop_gradient(x)          # a constant for gradients
y = mtf.recompute(layer)(x)       # the backward pass computes the layer again
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    GradientBarrier,
    LocalTensors,
    Op,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
    context,
    register_operator,
)
from meshtf.graph.recorder import RecomputeGroup
from meshtf.names import Shape
from meshtf.names.arguments import as_callable
from meshtf.ops.common.op_bases import _Identity

P = ParamSpec("P")
R = TypeVar("R")


class StopGradient(_Identity, GradientBarrier):
    """The identity, through which no gradient flows."""

    linearity = "joint"  # op(a + b) = op(a) + op(b): partial sums stay partial sums
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (Sample(inputs=("b:4;h:8",), gradient=False),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return [None]


class OrderingToken(Op):
    """A scalar zero that is available only after the input is, so that ops of other
    pipeline stages can wait for it instead of for the input.
    """

    # op(a + b) = 0 = op(a) + op(b): if the input is a partial sum (one addend on each
    # device), so is the output. The input needs no all-reduce.
    linearity = "each"
    conformance_samples = (Sample(inputs=("b:4;h:8",), gradient=False),)

    def output_specs(self, *xs: Spec) -> Specs:
        return (Spec(Shape(), xs[0].dtype),)

    def role(self, factor: str) -> Role:
        # Sharded along any dimension of the input (a factor), each device computes the same
        # zero from its shard, without communication.
        return Role.SAME

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        with tf.control_dependencies(xs):
            return (tf.zeros([], xs[0].dtype),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return [None]


def stop_gradient(x: Any) -> Tensor:
    """Returns x [...], through which no gradient flows."""
    return apply(StopGradient(), x)


def _ordering_token(x: Tensor) -> Tensor:
    """Returns a scalar zero that is available only after x is."""
    return apply(OrderingToken(), x)


# For the backward pass in `meshtf.graph`, which must not import `meshtf.ops`.
register_operator("ordering_token", _ordering_token)


def recompute(fn: Callable[P, R]) -> Callable[P, R]:
    """Returns fn, changed so that its intermediate tensors are recomputed in the backward
    pass instead of stored, which saves device memory.

    It is like `jax.checkpoint`. Random ops in fn draw the same numbers again.
    """
    fn = as_callable("fn", fn)

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        # `apply` adds the nodes (applied ops) of fn to the group of the current context, and
        # the backward pass recomputes the nodes of a group.
        with context(recompute_group=RecomputeGroup()):
            return fn(*args, **kwargs)

    wrapped.recomputes = fn  # type: ignore[attr-defined]
    return wrapped


def recomputed_function(fn: Callable[P, R]) -> Callable[P, R] | None:
    """Returns the function that `recompute` was called with, if it has returned fn."""
    recomputes: Callable[P, R] | None = getattr(fn, "recomputes", None)
    return recomputes
