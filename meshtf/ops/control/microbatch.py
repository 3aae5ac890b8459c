"""Microbatches: a batch in several parts, which together draw the numbers of the whole.

    parts = unstack(in_microbatches(x, "batch", 4), MICROBATCH)     # rows 0, 4, 8..; 1, 5, 9..; ...
    with microbatch("batch", 4, number):
      h = mtf.dropout(layer(parts[number]), 0.1)                    # the masks of these very rows

Each part has every so-many-th row, so rows of a batch that is cut over devices stay
where they are.
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
from meshtf.ops.common.batch_dimensions import Digits, MicrobatchState, Strided
from meshtf.ops.common.checks import require_dim
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.shapes.reshape import merge, split_dim
from meshtf.ops.variables.read_write import number as numbered

MICROBATCH = "microbatch"  # the dimension of the parts


def split_into_microbatches(x: Tensor, dim: str, number: int) -> Tensor:
    """Returns x with rows of `dim` as [dim, microbatch], the latter of size `number`.

    Raises:
      ShapeError: x lacks `dim`, or `number` does not divide it.
    """
    number = as_int("microbatches", number)
    require_dim(x.shape, dim)
    size = x.shape[dim]
    if number < 1 or size % number:
        raise ShapeError(
            explain_error(
                f'{number} microbatches do not divide dimension "{dim}" of size '
                f"{size}.",
                tensor=repr(x.shape),
                **{"from": Source.of_caller()},
                way_out="Take one of "
                f"{[n for n in range(1, size + 1) if size % n == 0][:12]}.",
            )
        )
    return split_dim(
        x, dim, [Dimension(dim, size // number), Dimension(MICROBATCH, number)]
    )


def merge_microbatches(x: Tensor, dim: str) -> Tensor:
    """Returns x[..., dim, microbatch, ...] with the rows of the whole batch again."""
    return merge(x, (dim, MICROBATCH), dim)


def once_per_batch(fn: Callable[..., None], *tensors: Tensor) -> None:
    """Calls fn(*tensors), which writes what a layer keeps of a batch, such as moving
    averages.

    Where the batch comes in microbatches (a pipeline, gradient accumulation), fn is
    called once for all of them, with the means of the tensors over them.
    """
    as_callable("fn", fn)
    tensors = tuple(as_tensors("tensors", tensors))
    later = current().later
    if later is None:
        fn(*tensors)
    else:
        later.append(
            DeferredCall(fn, tuple(stop_gradient(x) for x in tensors), current())
        )


class DeferredCall(NamedTuple):
    """What is to be called when all microbatches are through."""

    fn: Callable[..., None]
    tensors: tuple[Tensor, ...]
    around: Context  # in force where `once_per_batch` was called


@contextlib.contextmanager
def deferred_calls() -> Iterator[list[DeferredCall]]:
    """Collects what `once_per_batch` is asked for within, instead of calling it."""
    later: list[DeferredCall] = []
    with context(later=later):
        yield later


def call_with_means(
    later: Sequence[DeferredCall], sums: Iterable[Tensor], microbatches: int
) -> None:
    """Calls all that was collected, with sums over microbatches of its tensors in their
    order.
    """
    means = iter([x * (1.0 / microbatches) for x in sums])
    for fn, tensors, around in later:
        with context(region=around.region, stage=around.stage, path=around.path):
            fn(*(next(means) for _ in tensors))


@contextlib.contextmanager
def microbatch(
    dim: str,
    microbatches: int,
    number: Any,
    known: dict[tuple[str, int], Digits] | None = None,
) -> Iterator[None]:
    """Says that `dim` has the rows number, number + microbatches, ... of a batch.

    Random ops count rows so, whatever parts a batch is cut into, also where the batch
    has another name, is merged with another dimension, or was split and merged again.

    Args:
      dim: the dimension.
      microbatches: how many there are.
      number: of this one: an int, or a scalar int32 tensor.
      known: what is known of dimensions that were made of it, of an earlier use of this
        microbatch.
    """
    around = current().part or MicrobatchState({}, {})
    with context(
        part=around.nested(dim, microbatches, number, {} if known is None else known)
    ):
        yield


def microbatches_of(dim: str) -> int:
    """Returns how many microbatches rows of `dim` are parted into where this is called,
    mostly 1.
    """
    dim = as_dim("dim", dim)
    part = current().part
    return 1 if part is None else part.num_microbatches(dim)


class MicrobatchInputs(NamedTuple):
    """Where the elements of a shape lie in the whole batch, for random ops."""

    strided: tuple[Strided, ...]  # dimensions with a place
    numbers: tuple[Tensor, ...]  # of the microbatches, one for each of them
    seeds: tuple[Tensor, ...]  # more of them, for dimensions without a place


def microbatch_inputs(mesh: Mesh | None, shape: Shape) -> MicrobatchInputs:
    """Returns where elements lie. A shape without rows of the batch is the same in each
    microbatch.

    Raises:
      PlanError: the name of a dimension has two meanings.
    """
    part = current().part
    if part is None:
        return MicrobatchInputs((), (), ())

    def tensor(n: Any) -> Tensor:
        return n if isinstance(n, Tensor) else numbered(mesh, n, "int32")

    dims = [dim for dim in shape if part.has_examples(dim)]
    places = [(part.strided(dim), dim) for dim in dims]
    strided = [
        (place, part.index_of(dim)) for place, dim in places if place is not None
    ]
    return MicrobatchInputs(
        tuple(place for place, _ in strided),
        tuple(tensor(n) for _, n in strided),
        tuple(map(tensor, part.indices if len(strided) < len(dims) else [])),
    )
