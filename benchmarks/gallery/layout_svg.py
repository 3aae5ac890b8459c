"""A layout as an SVG picture: which shard of each tensor each mesh position has.

    Path("fsdp.svg").write_text(picture(forecast, "Fully sharded", rows))

A tensor is a box with an edge for each dimension. Each position has a box; its shard is
solid, and shards of other positions are outlines. Placements are those of a forecast.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from meshtf.forecast import Forecast, PlacedTensor
from meshtf.forecast.reports.svg import MARGIN, document, text
from meshtf.forecast.reports.units import bytes_text

# columns
WHOLE = 218
FIRST = 344
STEP = 115
RIGHT = 804
WIDTH = 1000
HEAD = 94
ROW = 112
# front, depth
CUBE = ((56.0, 44.0), (34.0, -26.0))
PLATE = ((78.0, 46.0), (5.0, -4.0))
GAP = 4.0

LIGHT = """\
    .cut { fill: #a64b00; font-weight: bold } .edge { font-size: 11px; fill: #6b7784 }
    .other { fill: #7b8794; fill-opacity: .05; stroke: #7b8794; stroke-opacity: .5 }
    .all { fill: #7b8794; fill-opacity: .22; stroke: #7b8794 }
    .held { stroke-width: .6; stroke-linejoin: round }
    .top { fill: #ffffff; fill-opacity: .38 } .side { fill: #000000; fill-opacity: .22 }
"""
DARK = """\
      .cut { fill: #ffae66 } .edge { fill: #8d99a6 }
"""


class Row(NamedTuple):
    """A tensor of the picture."""

    name: str
    note: str
    tensor: PlacedTensor
    dims: tuple[str, ...]  # into the depth (of tensors with three), down, to the right
    collectives: tuple[str, ...] = ()  # what is moved of it, in words


def picture(forecast: Forecast, title: str, rows: Sequence[Row]) -> str:
    """Returns a layout as an SVG document."""
    levels = len(forecast.axes)
    top = HEAD + 24 * (levels - 1)
    height = top + ROW * len(rows) + 46
    foot = (
        "Solid: held by this position. Outline: held by others only. On the right: the "
        "part that each holds; what is moved of it, or of its gradient."
    )
    body = [
        *_positions(forecast),
        *(
            line
            for i, row in enumerate(rows)
            for line in _row(forecast, row, top + ROW * i)
        ),
        text(MARGIN, height - 18, "note", foot),
    ]
    return document(title, WIDTH, height, body, LIGHT, DARK)


def _positions(forecast: Forecast) -> Iterator[str]:
    """Yields the head of the columns: the axes of the mesh, the coordinates of
    positions.
    """
    count = forecast.positions
    for level, (axis, size) in enumerate(forecast.axes):
        count //= size
        groups = forecast.positions // count
        for i in range(groups):
            left = FIRST + STEP * count * i
            right = left + STEP * count - 22
            y = HEAD - 14 + 24 * level
            yield f'  <path class="rule" d="M{left} {y}H{right}"/>'
            yield text(
                (left + right) / 2, y - 7, "code", f"{axis} {i % size}", "middle"
            )


def _row(forecast: Forecast, row: Row, y: int) -> Iterator[str]:
    yield f'  <path class="rule" d="M{MARGIN} {y}H{WIDTH - MARGIN}"/>'
    yield text(MARGIN, y + 26, "name", row.name)
    yield text(MARGIN, y + 43, "note", row.note)
    axes = [axis for axis, _ in forecast.axes]
    for i, (dim, size) in enumerate(row.tensor.shape):
        over = "".join(
            f"/{a}" for a, state in zip(axes, row.tensor.states) if state == dim
        )
        yield text(
            MARGIN,
            y + 61 + 15 * i,
            "code cut" if over else "code",
            f"{dim}:{size}{over}",
        )
    box = _Box(row)
    yield from box.global_box(WHOLE, y)
    sizes = [size for _, size in forecast.axes]
    for position, coords in enumerate(itertools.product(*map(range, sizes))):
        shard_of_axis = {state: i for i, state in zip(coords, row.tensor.states)}
        yield from box.shards(
            FIRST + STEP * position, y, shard_of_axis, f"p{position % 4}"
        )
    yield text(RIGHT, y + 26, "name", _share(row.tensor, forecast.positions))
    yield text(RIGHT, y + 43, "note", f"{bytes_text(row.tensor.bytes)} each")
    for i, collective in enumerate(row.collectives):
        yield text(RIGHT, y + 63 + 15 * i, "code", collective)


def _share(tensor: PlacedTensor, positions: int) -> str:
    """Returns the fraction of a tensor on a position, and how many positions have the same."""
    fraction = Fraction(1)
    for (_, size), local in zip(tensor.shape, tensor.local):
        fraction *= Fraction(local, size)
    copies = fraction * positions
    return (f"{fraction}" if fraction < 1 else "all of it") + (
        f", {copies} copies" if copies > 1 else ""
    )


class _Box:
    """A tensor as a box, or as a plate if it has two dimensions."""

    def __init__(self, row: Row) -> None:
        self.dims = row.dims if len(row.dims) == 3 else ("", *row.dims)
        self.front, self.depth = CUBE if self.dims[0] else PLATE
        shape = dict(row.tensor.shape)
        local = dict(zip(shape, row.tensor.local))
        self.num_shards = [shape[d] // local[d] if d else 1 for d in self.dims]

    def global_box(self, x: float, y: float) -> Iterator[str]:
        """Yields the box as one, with the names of its edges."""
        y = self._base(y)
        (width, height), (dx, dy) = self.front, self.depth
        yield from _faces((x, y), self.front, self.depth, "all")
        yield text(x + width / 2, y + height + 13, "edge", self.dims[2], "middle")
        yield text(x - 5, y + height / 2 + 4, "edge", self.dims[1], "end")
        if self.dims[0]:
            yield text(
                x + width + dx / 2 + 7, y + height + dy / 2 + 8, "edge", self.dims[0]
            )

    def shards(
        self,
        x: float,
        y: float,
        shard_of_axis: dict[str, int],
        kind: str,
    ) -> Iterator[str]:
        """Yields the shards of the box; those of this position are solid."""
        y = self._base(y)
        size = [
            (global_box - GAP * (n - 1)) / n
            for global_box, n in zip(reversed(self.front), self.num_shards[1:])
        ]
        length = (1 - 0.11 * (self.num_shards[0] - 1)) / self.num_shards[
            0
        ]  # of a part, of the depth
        depth = self.depth[0] * length, self.depth[1] * length
        back_to_front = itertools.product(
            range(self.num_shards[0] - 1, -1, -1),
            range(self.num_shards[1] - 1, -1, -1),
            range(self.num_shards[2]),
        )
        for index in back_to_front:
            shift = index[0] * (length + 0.11)
            corner = (
                x + self.depth[0] * shift + index[2] * (size[1] + GAP),
                y + self.depth[1] * shift + index[1] * (size[0] + GAP),
            )
            is_present = all(
                shard_of_axis.get(dim, i) == i for dim, i in zip(self.dims, index)
            )
            yield from _faces(
                corner,
                (size[1], size[0]),
                depth,
                f"held {kind}" if is_present else "other",
            )

    def _base(self, y: float) -> float:
        return y + (46 if self.dims[0] else 36)


def _faces(
    corner: tuple[float, float],
    size: tuple[float, float],
    depth: tuple[float, float],
    kind: str,
) -> Iterator[str]:
    """Yields the three faces of a box that are seen."""
    (x, y), (w, h), (dx, dy) = corner, size, depth
    top = [(x, y), (x + dx, y + dy), (x + w + dx, y + dy), (x + w, y)]
    side = [(x + w, y), (x + w + dx, y + dy), (x + w + dx, y + h + dy), (x + w, y + h)]
    front = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
    for points, shade in ((front, ""), (top, "top"), (side, "side")):
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) + "Z"
        yield f'  <path class="{kind}" d="{path}"/>'
        if shade and kind.startswith("held"):
            yield f'  <path class="{shade}" d="{path}"/>'
