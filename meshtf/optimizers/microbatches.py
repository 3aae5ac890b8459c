"""Gradient accumulation: the gradients of a batch are computed in several microbatches, one
after another, to reduce the peak memory.

    loss, grads = accumulate_gradients(loss_of, variables, {"ids": ids, "targets": targets},
                                       "batch", microbatches=8)

The microbatches run in one loop, whose body is traced once. Each device accumulates its
local gradients, those of 16-bit types in float32. The sums are reduced across devices once,
after the last microbatch, unless the optimizer's slots (its variables, such as moving
averages) are sharded (FSDP, ZeRO). Deferred calls, such as updates of running means, are
made once, with the means of their tensors over the microbatches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.graph import Tensor, context, current, gradients
from meshtf.graph.arguments import as_scalar, as_variables, check_nest
from meshtf.names import Dimension, accumulation_dtype, nested
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
from meshtf.ops.indexing.one_hot_and_range import range as index_range


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
      loss_of: a function of the inputs of one microbatch that returns its loss, a scalar.
      variables: the variables to differentiate with respect to; the gradient is None for
        a variable that the loss does not depend on.
      inputs: tensors with `dim`, in any nesting.
      dim: the name of the dimension to divide into microbatches, such as "batch".
      microbatches: the count of microbatches; 1 runs the full batch at once.

    Returns:
      The mean loss, a scalar, and the gradient of each variable, with the shape of the
      variable.

    Raises:
      ShapeError: an input lacks `dim`, or `microbatches` does not divide it.
    """
    loss_of = as_callable("loss_of", loss_of)
    variables = as_variables("variables", variables)
    dim = as_dim("dim", dim)
    microbatches = as_int("microbatches", microbatches)
    check_nest("inputs", inputs, missing=False)
    if microbatches == 1:
        loss = as_scalar("the loss", loss_of(inputs))
        return loss, gradients([loss], list(variables))
    # The body can only return tensors: recording it fills in these facts.
    facts = _BodyFacts()
    caller = current()

    def body(_: None, xs: Any) -> tuple[None, Any, None]:
        """Returns (no carry, the terms of sums over microbatches, no stacked outputs)."""
        index, examples = xs
        with (
            microbatch(dim, num_microbatches=microbatches, index=index),
            # Random ops use the caller's iterations, not that of the microbatch: they
            # index examples as in the full batch.
            context(iterations=caller.iterations, random_paths=set()),
            deferred_calls() as calls,
        ):
            loss = as_scalar("the loss", loss_of(examples))
        all_grads = gradients([loss], list(variables))
        grads = [dx for dx in all_grads if dx is not None]
        facts.deferred_calls = calls
        facts.has_grad = [dx is not None for dx in all_grads]
        facts.dtypes = [x.dtype for x in (loss, *grads)]
        deferred_tensors = [x for call in calls for x in call.tensors]
        wide_grads = [_in_accumulation_dtype(dx) for dx in grads]
        terms = (_in_accumulation_dtype(loss), deferred_tensors, wide_grads)
        return None, terms, None

    split_inputs = nested.map_structure(
        lambda x: split_into_microbatches(x, dim, microbatches), inputs
    )
    mesh = nested.flatten(split_inputs)[0].mesh
    indices = index_range(mesh, Dimension(MICROBATCH, microbatches))
    _, sums, _ = scan_and_sum(
        body, init=None, xs=(indices, split_inputs), dim=MICROBATCH
    )
    loss_sum, deferred_sums, grad_sums = sums
    call_with_means(facts.deferred_calls, deferred_sums, microbatches)
    means = []
    for total, dtype in zip((loss_sum, *grad_sums), facts.dtypes, strict=True):
        means.append(cast(total * (1.0 / microbatches), dtype))
    loss, *mean_grads = means
    remaining = iter(mean_grads)
    return loss, [next(remaining) if present else None for present in facts.has_grad]


@dataclasses.dataclass
class _BodyFacts:
    """Facts about the results of the loop's body.

    Attributes:
      has_grad: whether the loss depends on each variable.
      dtypes: the data types of the loss, and then of each gradient.
      deferred_calls: the calls to be made once, after the last microbatch.
    """

    has_grad: list[bool] = dataclasses.field(default_factory=list)
    dtypes: list[str] = dataclasses.field(default_factory=list)
    deferred_calls: list[DeferredCall] = dataclasses.field(default_factory=list)


def _in_accumulation_dtype(x: Tensor) -> Tensor:
    """Returns x with 16-bit floats as float32. In 16 bits a sum over many microbatches
    stops growing, since each addend is smaller than the rounding of the sum.
    """
    return cast(x, accumulation_dtype(x.dtype))
