"""Gradients of a batch in several microbatches, one after another, to reduce the peak
memory.

    loss, grads = accumulate_gradients(loss_of, variables, {"ids": ids, "targets": targets},
                                       "batch", microbatches=8)

The microbatches run in one loop, whose body is traced once. Each device accumulates its
gradients, half floats in float32; gradients are reduced across devices once, after the
last microbatch, unless their slots are sharded (FSDP, ZeRO).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Tensor, context, current, gradients
from meshtf.graph.arguments import as_scalar, as_variables, check_nest
from meshtf.names import Dimension, accumulation_dtype
from meshtf.names.arguments import as_callable, as_dim, as_int
from meshtf.ops.control.loops import scan_and_sum
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    DeferredCall,
    call_with_means,
    deferred_calls,
    microbatch,
    split_into_microbatches,
)
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.one_hot_and_range import range


def accumulate_gradients(
    loss_of: Callable[[Any], Tensor],
    variables: Sequence[Any],
    inputs: Any,
    dim: str,
    microbatches: int,
) -> tuple[Tensor, list[Tensor | None]]:
    """Returns the mean loss of all microbatches and its gradients.

    The result equals the loss of the full batch if loss_of is a mean over the examples
    of `dim` with equal weights. Each microbatch takes examples at a constant stride, so
    that a sharded batch needs no communication. Random ops index examples as in the full
    batch, so the dropout masks are the same.

    Args:
      loss_of: takes the inputs of one microbatch, returns a scalar.
      variables: the variables to differentiate with respect to; the gradient is None for
        a variable that the loss does not depend on.
      inputs: tensors with `dim`, in any nesting.
      dim: the dimension to divide into microbatches, such as "batch".
      microbatches: the number of microbatches; 1 runs the full batch at once.

    Raises:
      ShapeError: an input lacks `dim`, or `microbatches` does not divide it.
    """
    as_callable("loss_of", loss_of)
    variables = as_variables("variables", variables)
    dim = as_dim("dim", dim)
    microbatches = as_int("microbatches", microbatches)
    check_nest("inputs", inputs, missing=False)
    if microbatches == 1:
        loss = as_scalar("the loss", loss_of(inputs))
        return loss, gradients([loss], list(variables))
    reached: list[bool] = []
    dtypes: list[str] = []  # of the loss and of the gradients
    deferred: list[DeferredCall] = []

    outer = current()  # random ops must not count microbatches as iterations

    def body(_: None, xs: Any) -> tuple[None, Any, None]:
        index, examples = xs
        with (
            microbatch(dim, microbatches, index),
            context(iterations=outer.iterations, random_paths=set()),
            deferred_calls() as calls,
        ):
            loss = as_scalar("the loss", loss_of(examples))
        all_grads = gradients([loss], list(variables))
        deferred[:] = calls
        reached[:] = [dx is not None for dx in all_grads]
        collected = [x for call in calls for x in call.tensors]
        grads = [dx for dx in all_grads if dx is not None]
        dtypes[:] = [x.dtype for x in (loss, *grads)]
        return None, (_widened(loss), collected, [_widened(dx) for dx in grads]), None

    split_inputs = tf.nest.map_structure(
        lambda x: split_into_microbatches(x, dim, microbatches), inputs
    )
    mesh = tf.nest.flatten(split_inputs)[0].mesh
    indices = range(mesh, Dimension(MICROBATCH, microbatches))
    _, sums, _ = scan_and_sum(body, None, (indices, split_inputs), MICROBATCH)
    loss, collected, grads = sums
    call_with_means(deferred, collected, microbatches)
    loss, *mean_grads = (
        cast(x * (1.0 / microbatches), dtype)
        for x, dtype in zip((loss, *grads), dtypes, strict=True)
    )
    remaining = iter(mean_grads)
    return loss, [next(remaining) if is_reached else None for is_reached in reached]


def _widened(x: Tensor) -> Tensor:
    """Returns half floats as float32: their sum over many microbatches would stop
    growing.
    """
    return cast(x, accumulation_dtype(x.dtype))
