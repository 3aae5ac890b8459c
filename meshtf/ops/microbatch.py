"""Microbatches: a batch in several parts, which together draw the numbers of the whole.

    parts = unstack(in_microbatches(x, "batch", 4), MICROBATCH)     # rows 0, 4, 8..; 1, 5, 9..; ...
    with microbatch("batch", 4, number):
      h = mtf.dropout(layer(parts[number]), 0.1)                    # the masks of these very rows

Each part has every so-many-th row, so rows of a batch that is cut over devices stay where they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Context, Source, Tensor, context, current
from meshtf.names import Dimension, Shape
from meshtf.ops.control import stop_gradient
from meshtf.ops.reshape import merge, require_dim, split_dim

MICROBATCH = "microbatch"       # the dimension of the parts


def in_microbatches(x: Tensor, dim: str, number: int) -> Tensor:
  """Returns x with rows of `dim` as [dim, microbatch], the latter of size `number`.

  Raises:
    ShapeError: x lacks `dim`, or `number` does not divide it.
  """
  require_dim(x.shape, dim)
  size = x.shape[dim]
  if number < 1 or size % number:
    raise ShapeError(explain_error(
        f'{number} microbatches do not divide dimension "{dim}" of size {size}.',
        tensor=repr(x.shape), **{"from": Source.here()},
        way_out=f"Take one of {[n for n in range(1, size + 1) if size % n == 0][:12]}."))
  return split_dim(x, dim, [Dimension(dim, size // number), Dimension(MICROBATCH, number)])


def together(x: Tensor, dim: str) -> Tensor:
  """Returns x[..., dim, microbatch, ...] with the rows of the whole batch again."""
  return merge(x, (dim, MICROBATCH), dim)


def once_per_batch(fn: Callable[..., None], *tensors: Tensor) -> None:
  """Calls fn(*tensors), which writes what a layer keeps of a batch, such as moving averages.

  Where the batch comes in microbatches (a pipeline, gradient accumulation), fn is called once for
  all of them, with the means of the tensors over them.
  """
  later = current().later
  if later is None:
    fn(*tensors)
  else:
    later.append(Later(fn, tuple(stop_gradient(x) for x in tensors), current()))


class Later(NamedTuple):
  """What is to be called when all microbatches are through."""

  fn: Callable[..., None]
  tensors: tuple[Tensor, ...]
  around: Context          # in force where `once_per_batch` was called


@contextlib.contextmanager
def collecting() -> Iterator[list[Later]]:
  """Collects what `once_per_batch` is asked for within, instead of calling it."""
  later: list[Later] = []
  with context(later=later):
    yield later


def call_with_means(later: Sequence[Later], sums: Iterable[Tensor], microbatches: int) -> None:
  """Calls all that was collected, with sums over microbatches of its tensors in their order."""
  means = iter([x * (1.0 / microbatches) for x in sums])
  for fn, tensors, around in later:
    with context(region=around.region, stage=around.stage, path=around.path):
      fn(*(next(means) for _ in tensors))


@contextlib.contextmanager
def microbatch(dim: str, microbatches: int, number: Any) -> Iterator[None]:
  """Says that `dim` has the rows number, number + microbatches, ... of a batch.

  Random ops count rows so, whatever parts a batch is cut into.
  """
  with context(part=(dim, microbatches, number)):
    yield


def microbatches_of(dim: str) -> int:
  """Returns how many microbatches rows of `dim` are parted into where this is called, mostly 1."""
  part = current().part
  return part[1] if part is not None and part[0] == dim else 1


def part_of(shape: Shape) -> tuple[tuple[str, int] | None, tuple[Tensor, ...]]:
  """Returns (dim, microbatches) and the number of the microbatch, where a shape has its rows."""
  part = current().part
  if part is None or part[0] not in shape:
    return None, ()
  return part[:2], (part[2],)
