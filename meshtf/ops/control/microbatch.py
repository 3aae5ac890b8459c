"""Microbatches: divisions of a batch, in which random ops draw the numbers of the batch.

    split = split_into_microbatches(x, "batch", num_microbatches=4)
    microbatches = unstack(split, MICROBATCH)       # examples 0, 4, 8, ...; 1, 5, 9, ...; ...
    with microbatch("batch", num_microbatches=4, index=index):
      h = mtf.dropout(layer(microbatches[index]), 0.1)      # the batch's mask of these examples

If there are n microbatches, each has every n-th example of the batch. So each device has
examples of every microbatch, and a sharded batch is divided without communication.

A random op's numbers depend on the index of each element in the batch. How indices of a
dimension map to the batch is kept as the digits of these indices: see `batch_dimensions`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Context, Source, Tensor, context, current
from meshtf.graph.arguments import as_tensors
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape
from meshtf.names.arguments import as_callable, as_dim, as_int
from meshtf.ops.common.batch_dimensions import DigitsByDim, MicrobatchState, Strided
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.shapes.reshape import flatten, unflatten
from meshtf.ops.variables.read_write import scalar_input

MICROBATCH = "microbatch"  # the dimension along which microbatches are stacked


def split_into_microbatches(x: Tensor, dim: str, num_microbatches: int) -> Tensor:
    """Returns x[..., dim, ...] as [..., dim, microbatch, ...].

    Example i of the batch becomes example i // n of microbatch i % n, where n is
    `num_microbatches`.

    Args:
      x: a tensor.
      dim: the name of the batch's dimension.
      num_microbatches: the number of microbatches.

    Raises:
      ShapeError: x lacks `dim`, or `num_microbatches` does not divide it.
    """
    num_microbatches = as_int("microbatches", num_microbatches)
    require_dim_of_caller(x.shape, dim)
    size = x.shape[dim]
    if num_microbatches < 1 or size % num_microbatches:
        divisors = [divisor for divisor in range(1, size + 1) if size % divisor == 0]
        raise ShapeError(
            explain_error(
                f'{num_microbatches} microbatches do not divide dimension "{dim}" of '
                f"size {size}.",
                tensor=repr(x.shape),
                source=Source.of_caller(),
                way_out=f"Take one of {divisors[:12]}.",
            )
        )
    new_dims = [
        Dimension(dim, size // num_microbatches),
        Dimension(MICROBATCH, num_microbatches),
    ]
    return unflatten(x, dim, new_dims)


def merge_microbatches(x: Tensor, dim: str) -> Tensor:
    """Returns x[..., dim, microbatch, ...] as [..., dim, ...], in the batch's order."""
    return flatten(x, (dim, MICROBATCH), dim)


def once_per_batch(fn: Callable[..., None], *tensors: Tensor) -> None:
    """Calls fn(*tensors), which updates statistics of a layer, such as moving averages.

    Where the batch is divided into microbatches (a pipeline, gradient accumulation), fn is
    called once, after the last microbatch. It gets the mean of each tensor over the
    microbatches, in the shape of the tensor.

    Args:
      fn: a function that writes variables and returns nothing.
      *tensors: the arguments of fn, for the current microbatch or batch.
    """
    fn = as_callable("fn", fn)
    tensors = tuple(as_tensors("tensors", tensors))
    calls = current().deferred_calls
    if current().runs_again:
        return
    if calls is None:
        fn(*tensors)
    else:
        constants = tuple(stop_gradient(x) for x in tensors)
        calls.append(DeferredCall(fn, tensors=constants, context=current()))


class DeferredCall(NamedTuple):
    """A call of `once_per_batch`, which is executed after the last microbatch.

    Attributes:
      fn: the function to call.
      tensors: the tensors of one microbatch.
      context: the context in which `once_per_batch` was called.
    """

    fn: Callable[..., None]
    tensors: tuple[Tensor, ...]
    context: Context


@contextlib.contextmanager
def deferred_calls() -> Iterator[list[DeferredCall]]:
    """Yields a list, to which `once_per_batch` appends its calls in the `with` block."""
    calls: list[DeferredCall] = []
    with context(deferred_calls=calls):
        yield calls


def call_with_means(
    calls: Sequence[DeferredCall], sums: Iterable[Tensor], num_microbatches: int
) -> None:
    """Executes deferred calls with the means of their tensors over the microbatches.

    Args:
      calls: the deferred calls of one microbatch.
      sums: the sum over the microbatches of each tensor [...] of all calls, in order.
      num_microbatches: the number of microbatches, the divisor of the sums.
    """
    remaining_means = iter([x * (1.0 / num_microbatches) for x in sums])
    for fn, tensors, caller in calls:
        means = [next(remaining_means) for _ in tensors]
        # The caller's layout rules, pipeline stage and path of module names.
        with context(region=caller.region, stage=caller.stage, path=caller.path):
            fn(*means)


@contextlib.contextmanager
def microbatch(
    dim: str,
    num_microbatches: int,
    index: Any,
    digits_by_dim: DigitsByDim | None = None,
) -> Iterator[None]:
    """Declares that, in a `with` block, dimension `dim` has the examples of one microbatch:
    examples index, index + num_microbatches, ... of the batch.

    Random ops in the block draw the numbers that they would draw for these examples of the
    batch.

    Args:
      dim: the name of the batch's dimension.
      num_microbatches: the number of microbatches of the batch.
      index: the index of this microbatch: an int, or a scalar int32 tensor.
      digits_by_dim: the digits of dimensions that were made of the batch in an earlier block
        of the same microbatch, such as an earlier stage of a pipeline; this block adds those
        of its dimensions. None: there is no earlier block.
    """
    outer = current().microbatches
    if outer is None:
        outer = MicrobatchState(microbatches={}, digits_by_dim={})
    if digits_by_dim is None:
        digits_by_dim = {}
    state = outer.nested(
        dim, num_microbatches, index=index, digits_by_dim=digits_by_dim
    )
    with context(microbatches=state):
        yield


def microbatches_of(dim: str) -> int:
    """Returns the number of microbatches into which the examples of `dim` are divided in
    the current context: 1 outside of pipelines and gradient accumulation.
    """
    dim = as_dim("dim", dim)
    state = current().microbatches
    if state is None:
        return 1
    return state.num_microbatches(dim)


class MicrobatchInputs(NamedTuple):
    """The attributes and inputs of a random op that depend on microbatches.

    Attributes:
      strided: for each dimension with known indices in the batch, how its indices map to
        the batch.
      indices: for each entry of `strided`, the index of its microbatch, int32 [].
      seeds: further seeds, int32 [] each, if a dimension has examples without known
        indices: the numbers then differ by microbatch.
    """

    strided: tuple[Strided, ...]
    indices: tuple[Tensor, ...]
    seeds: tuple[Tensor, ...]


def microbatch_inputs(mesh: Mesh | None, shape: Shape) -> MicrobatchInputs:
    """Returns how a random op finds the indices of its elements in the batch.

    If no dimension of the shape has examples, all attributes of the result are empty, and
    the op draws equal numbers in all microbatches.

    Args:
      mesh: the mesh of the op.
      shape: the shape of its output.

    Raises:
      PlanError: a dimension is ambiguous: it was made of the batch in two ways.
    """
    state = current().microbatches
    if state is None:
        return MicrobatchInputs(strided=(), indices=(), seeds=())

    example_dims = [dim for dim in shape if state.has_examples(dim)]
    strided = []
    indices = []
    for dim in example_dims:
        mapping = state.strided(dim)
        if mapping is not None:
            strided.append(mapping)
            indices.append(scalar_input(mesh, state.index_of(dim), "int32"))
    all_have_indices = len(strided) == len(example_dims)
    if all_have_indices:
        seeds = []
    else:
        seeds = [scalar_input(mesh, index, "int32") for index in state.indices]
    return MicrobatchInputs(
        strided=tuple(strided), indices=tuple(indices), seeds=tuple(seeds)
    )
