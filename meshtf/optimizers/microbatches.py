"""Gradients of a batch in several parts, one after another, to need less memory at
once.

    loss, grads = accumulate_gradients(loss_of, variables, {"ids": ids, "targets": targets},
                                       "batch", microbatches=8)

The parts run in one loop, whose body is traced once. Gradients of different parts are
added where they are made, half floats in float32; devices add up once, after the last
part, unless their slots are cut (FSDP, ZeRO).
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
from meshtf.ops.indexing.gather import range


def accumulate_gradients(
    loss_of: Callable[[Any], Tensor],
    variables: Sequence[Any],
    inputs: Any,
    dim: str,
    microbatches: int,
) -> tuple[Tensor, list[Tensor | None]]:
    """Returns the mean loss of all microbatches and its gradients.

    That is the loss of the whole batch if loss_of is a mean over the rows of `dim`,
    each with equal weight. Each microbatch takes every so-many-th row, so that a cut
    batch stays where it is. Random ops count rows as in the whole batch, so dropout's
    masks are the same.

    Args:
      loss_of: takes inputs with fewer rows of `dim`, returns a scalar.
      variables: what gradients are taken of; None stands for one that the loss does not
        depend on.
      inputs: tensors with `dim`, in any nesting.
      dim: the dimension that is parted, such as "batch".
      microbatches: how many parts; 1: the whole at once.

    Raises:
      ShapeError: an input lacks `dim`, or `microbatches` does not divide it.
    """
    as_callable("loss_of", loss_of)
    variables = as_variables("variables", variables)
    dim, microbatches = as_dim("dim", dim), as_int("microbatches", microbatches)
    check_nest("inputs", inputs, missing=False)
    if microbatches == 1:
        loss = as_scalar("the loss", loss_of(inputs))
        return loss, gradients([loss], list(variables))
    reached: list[bool] = []
    dtypes: list[str] = []  # of the loss and of the gradients
    later: list[DeferredCall] = []

    around = current()  # to random ops, parts of a batch are no iterations

    def part(_: None, rows: Any) -> tuple[None, Any, None]:
        number, rows = rows
        with (
            microbatch(dim, microbatches, number),
            context(iterations=around.iterations, seeded=set()),
            deferred_calls() as found,
        ):
            loss = as_scalar("the loss", loss_of(rows))
        made = gradients([loss], list(variables))
        later[:], reached[:] = found, [dx is not None for dx in made]
        collected = [x for entry in found for x in entry.tensors]
        grads = [dx for dx in made if dx is not None]
        dtypes[:] = [x.dtype for x in (loss, *grads)]
        return None, (_widened(loss), collected, [_widened(dx) for dx in grads]), None

    parts = tf.nest.map_structure(
        lambda x: split_into_microbatches(x, dim, microbatches), inputs
    )
    mesh = tf.nest.flatten(parts)[0].mesh
    number = range(mesh, Dimension(MICROBATCH, microbatches))
    _, sums, _ = scan_and_sum(part, None, (number, parts), MICROBATCH)
    loss, collected, grads = sums
    call_with_means(later, collected, microbatches)
    loss, *left = (
        cast(x * (1.0 / microbatches), dtype)
        for x, dtype in zip((loss, *grads), dtypes, strict=True)
    )
    means = iter(left)
    return loss, [next(means) if there else None for there in reached]


def _widened(x: Tensor) -> Tensor:
    """Returns half floats as float32: their sum over many microbatches would stop
    growing.
    """
    return cast(x, accumulation_dtype(x.dtype))
