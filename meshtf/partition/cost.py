"""Sizes of slices and bytes of moves.

`bytes_received` counts what one device receives, by the formulas of ring algorithms (p
devices, n bytes held before the move): all_reduce 2n(p-1)/p, reduce_scatter and
all_to_all n(p-1)/p, all_gather n(p-1), slice and drop nothing; in a collective_permute
one of p positions has what it needs. Of a send one of p stages receives n, of a
broadcast all but one: here their mean.

>>> from meshtf.mesh import Mesh, Partial, Sharded, Replicated
>>> from meshtf.names import Shape
>>> mesh = Mesh("data:4")
>>> local_shape(Shape("batch:8;d:3"), (Sharded("batch"),), mesh)
[batch:2 d:3]
>>> bytes_received("all_reduce", 400, 4)
600.0
"""

from __future__ import annotations

import math

from meshtf.graph import Spec, Window
from meshtf.mesh import Mesh, Placement, Sharded
from meshtf.names import Dimension, Shape, dtype_bytes


def local_shape(shape: Shape, placement: Placement, mesh: Mesh) -> Shape:
    """Returns the shape of one slice."""
    parts: dict[str, int] = {}
    for state, size in zip(placement, mesh.axes.values()):
        if isinstance(state, Sharded):
            parts[state.dim] = parts.get(state.dim, 1) * size
    return (
        Shape(Dimension(d.name, d.size // parts.get(d.name, 1)) for d in shape)
        if parts
        else shape
    )


def local_size(shape: Shape, placement: Placement, mesh: Mesh) -> float:
    """Returns the number of elements of one slice."""
    cut = (
        size for s, size in zip(placement, mesh.axes.values()) if isinstance(s, Sharded)
    )
    return shape.size / math.prod(cut)


def local_bytes(spec: Spec, placement: Placement, mesh: Mesh) -> float:
    """Returns the bytes of one slice."""
    return local_size(spec.shape, placement, mesh) * dtype_bytes(spec.dtype)


def spans(
    start: int, stop: int, size: int, parts: int, wrap: bool = False
) -> list[tuple[int, int, int]]:
    """Returns where rows [start, stop) of the whole lie, in order: (slice, low and high
    row in it).

    Rows that are not there are left out; if they wrap, those of the other end take
    their place.

    >>> spans(2, 9, size=4, parts=2)
    [(0, 2, 4), (1, 0, 4)]
    >>> spans(2, 9, size=4, parts=2, wrap=True)
    [(0, 2, 4), (1, 0, 4), (0, 0, 1)]
    """
    if not wrap:
        start, stop = max(start, 0), min(stop, size * parts)
    return [
        (q % parts, max(start - q * size, 0), min(stop - q * size, size))
        for q in range(start // size, -(-stop // size))
        if start < stop
    ]


def elements_received(window: Window, size: int, rows: int, parts: int) -> float:
    """Returns the rows that one slice receives from others, on average.

    Args:
      window: which rows of an input a slice of the factor reads.
      size: of the factor.
      rows: of the input in one slice.
      parts: how many slices there are.
    """
    each = size // parts
    ends = [(window.low(j * each), window.high((j + 1) * each)) for j in range(parts)]
    length = max(
        high - low for low, high in ends
    )  # the same for all: see `runtime.placed`
    total = sum(
        stop - start
        for j, (low, _) in enumerate(ends)
        for q, start, stop in spans(low, low + length, rows, parts, window.wrap)
        if q != j
    )
    return total / parts


def reads_local_only(window: Window, size: int, rows: int, parts: int) -> bool:
    """Returns whether each slice reads just the rows that it has; arguments of
    `elements_received`.
    """
    each = size // parts
    return all(
        (window.low(j * each), window.high((j + 1) * each))
        == (j * rows, (j + 1) * rows)
        for j in range(parts)
    )


def bytes_received(kind: str, held: float, devices: int) -> float:
    """Returns what one device receives in a move of `held` bytes (or elements) over
    `devices`.
    """
    share = (devices - 1) / devices
    return (
        held
        * {
            "slice": 0.0,
            "all_reduce": 2 * share,
            "reduce_scatter": share,
            "all_to_all": share,
            "collective_permute": share,
            "all_gather": devices - 1.0,
            "drop": 0.0,
            "send": 1 / devices,
            "broadcast": share,
        }[kind]
    )
