"""Sorted along a dimension: sort and argsort, equals in the order in which they came.

    y = mtf.sort(x, "length")                            # the smallest first
    order = mtf.argsort(scores, "items", descending=True)
    z = mtf.take_along(x, order, "items")

Where the dimension is cut, one of two ways is taken, and no device ever holds the
whole:

    another dimension can be cut in its place   all_to_all, each device sorts whole rows of its own,
                                                and all_to_all back: see
                                                  `partition.plan`
    no other can                                each device sorts its slice; then neighbours merge
                                                theirs in turns (`ops.merging`), once for each slice

The second moves about as much as gathering the whole would, and waits for a neighbour
in each turn; but a device holds three slices at most. To sort many rows, leave a
dimension for the first.
"""

from __future__ import annotations

import math

from meshtf.graph import Tensor, apply_all, current
from meshtf.mesh import Sharded
from meshtf.names.arguments import as_bool
from meshtf.ops.common.checks import tensor_along
from meshtf.ops.sorting.merge_sort import merge_sorted
from meshtf.ops.sorting.sort_op import Sort


def sort(x: Tensor, dim: str, descending: bool = False) -> Tensor:
    """Returns x in order along `dim`, the smallest first; the gradient goes where
    elements came from.

    The place of a NaN is not defined.

    Args:
      x: floats or integers.
      dim: the name along which rows are sorted.
      descending: whether the largest comes first.

    Raises:
      ShapeError: x lacks `dim`.
      DTypeError: x has no order.
    """
    return _sorted(x, dim, descending)[0]


def argsort(x: Tensor, dim: str, descending: bool = False) -> Tensor:
    """Returns the row of x from which each element of `sort` comes, the lowest first
    among equals.

    Arguments and errors are those of `sort`.
    """
    return _sorted(x, dim, descending)[1]


def _sorted(x: Tensor, dim: str, descending: bool) -> tuple[Tensor, ...]:
    x, dim = tensor_along(x, dim)
    as_bool("descending", descending)
    slices = _slices_to_merge(x, dim)
    return (
        merge_sorted(x, dim, slices, descending)
        if slices > 1
        else apply_all(Sort(dim, descending), x)
    )


def _slices_to_merge(x: Tensor, dim: str) -> int:
    """Returns how many slices of `dim` the layout makes, if no other dimension can be
    cut instead.
    """
    if x.mesh is None:
        return 1
    placement, _ = x.mesh.place(x.shape, x.mesh.layout_in(current().region))
    slices = math.prod(
        size
        for state, size in zip(placement, x.mesh.axes.values())
        if state == Sharded(dim)
    )
    free = [d for d in x.shape if Sharded(d.name) not in placement]
    return 1 if any(d.size % slices == 0 for d in free) else slices
