"""stop_gradient, and recompute (activation checkpointing).

y = mtf.stop_gradient(x)          # a constant for gradients
y = mtf.recompute(layer)(x)       # the backward pass computes the layer again
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import tensorflow as tf

from meshtf.errors import PlanError, explain_error, near_misses
from meshtf.graph import (
    Cotangents,
    GradientBarrier,
    LocalTensors,
    Op,
    Role,
    Sample,
    Source,
    Spec,
    Specs,
    Tensor,
    apply,
    context,
    register_operator,
)
from meshtf.graph.recorder import RecomputeGroup
from meshtf.names import Names, Shape, names_of
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


def recompute(fn: Callable[P, R], stored: Names = ()) -> Callable[P, R]:
    """Returns fn, changed so that its intermediate tensors are recomputed in the backward
    pass instead of stored, which saves device memory.

    It is like `jax.checkpoint`. Random ops in fn draw the same numbers again.

    Args:
      fn: a function of tensors.
      stored: the names of modules, such as "attention; feed_forward", whose matrix products are
        stored all the same: most of the time of recomputation for some of the memory.
    """
    fn = as_callable("fn", fn)
    stored_names = names_of(stored, argument="stored")

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        # `apply` adds the nodes (applied ops) of fn to the group of the current context, and
        # the backward pass recomputes the nodes of a group.
        with recomputed_ops(stored_names):
            return fn(*args, **kwargs)

    wrapped.recomputes = Recomputed(fn, stored_names)  # type: ignore[attr-defined]
    return wrapped


@contextlib.contextmanager
def recomputed_ops(stored: Sequence[str]) -> Iterator[None]:
    """Within this context, ops belong to what the backward pass computes again.

    Args:
      stored: see `recompute`.

    Raises:
      PlanError: a name of `stored` is none of a module with matrix products.
    """
    group = RecomputeGroup(stored=stored)
    with context(recompute_group=group):
        yield
    for name in stored:
        if name not in group.modules:
            raise PlanError(
                explain_error(
                    f"no module called {name!r} has matrix products to be stored.",
                    close_to=near_misses(name, group.modules) or "none of its modules",
                    source=Source.of_caller(),
                    way_out="Name modules in mtf.recompute(fn, stored=...).",
                )
            )


class Recomputed(NamedTuple):
    """The arguments of `recompute`."""

    fn: Callable[..., Any]
    stored: tuple[str, ...]


def recomputed_function(fn: Callable[..., Any]) -> Recomputed | None:
    """Returns the arguments of `recompute`, if it has returned fn."""
    recomputes: Recomputed | None = getattr(fn, "recomputes", None)
    return recomputes
