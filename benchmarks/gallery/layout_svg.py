"""A layout as an SVG picture: which shard of each tensor each mesh position has.

    Path("fsdp.svg").write_text(picture(forecast, "Fully sharded", rows))

A position is one of the virtual devices of a mesh. A tensor is a box with an edge for each
dimension. Each position has a box; its shard is solid, and shards of other positions are
outlines. Placements are those of a forecast.

Functions yield SVG elements as text. `text(x, y, kind, words)` is a text element, whose CSS
class is `kind`; all coordinates are pixels from the upper left corner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from meshtf.display.svg import MARGIN, document, text
from meshtf.forecast import Forecast, PlacedTensor
from meshtf.forecast.reports.units import bytes_text

# The x coordinates of the columns: the box of the tensor, the boxes of positions, which are
# POSITION_STEP apart, and the text at the right.
TENSOR_X = 218
FIRST_POSITION_X = 344
POSITION_STEP = 115
RIGHT_TEXT_X = 804
WIDTH = 1000
# The height of the header with one mesh axis, of each further axis, and of a row.
HEADER_HEIGHT = 94
AXIS_HEIGHT = 24
ROW_HEIGHT = 112
FOOTER_HEIGHT = 46


class BoxShape(NamedTuple):
    """The shape of a drawn box, in pixels.

    Attributes:
      front: the width and the height of the front.
      depth: the vector (x, y) from the front to the back.
    """

    front: tuple[float, float]
    depth: tuple[float, float]


# The boxes of tensors with three and with two dimensions.
CUBE = BoxShape(front=(56.0, 44.0), depth=(34.0, -26.0))
PLATE = BoxShape(front=(78.0, 46.0), depth=(5.0, -4.0))
GAP = 4.0  # between shards
DEPTH_GAP = 0.11  # between shards along the depth, as a fraction of the depth

# CSS rules: LIGHT for all colour schemes, DARK in addition for dark ones. Faces of boxes
# have the class "all" (the global tensor), "held" (a shard on the position) or "other" (a
# shard that only other positions have).
LIGHT = """\
    .sharded { fill: #a64b00; font-weight: bold } .edge { font-size: 11px; fill: #6b7784 }
    .other { fill: #7b8794; fill-opacity: .05; stroke: #7b8794; stroke-opacity: .5 }
    .all { fill: #7b8794; fill-opacity: .22; stroke: #7b8794 }
    .held { stroke-width: .6; stroke-linejoin: round }
    .top { fill: #ffffff; fill-opacity: .38 } .side { fill: #000000; fill-opacity: .22 }
"""
DARK = """\
      .sharded { fill: #ffae66 } .edge { fill: #8d99a6 }
"""


class Row(NamedTuple):
    """A row of the picture: a tensor.

    Attributes:
      name: the name of the tensor.
      note: a line of text below the name.
      tensor: the shape of the tensor and its placement.
      dims: the dimensions along the depth (of tensors with three dimensions), the height
        and the width of the box.
      collectives: the collectives on the tensor or its gradient, such as "forward
        all_reduce".
    """

    name: str
    note: str
    tensor: PlacedTensor
    dims: tuple[str, ...]
    collectives: tuple[str, ...] = ()


def picture(forecast: Forecast, title: str, rows: Sequence[Row]) -> str:
    """Returns a layout as an SVG document.

    Args:
      forecast: the forecast of a step under the layout.
      title: the title of the picture.
      rows: the tensors to draw.
    """
    top = HEADER_HEIGHT + AXIS_HEIGHT * (len(forecast.axes) - 1)
    height = top + ROW_HEIGHT * len(rows) + FOOTER_HEIGHT
    footnote = (
        "Solid: shards on this position. Outline: shards on others only. Right: the shard "
        "of each position; collectives on the tensor or its gradient."
    )
    body = list(_header(forecast))
    for i, row in enumerate(rows):
        body += _row(forecast, row, top + ROW_HEIGHT * i)
    body.append(text(MARGIN, height - 18, "note", footnote))
    return document(title, WIDTH, height, body, light=LIGHT, dark=DARK)


def _header(forecast: Forecast) -> Iterator[str]:
    """Yields the header of the columns: a line for each mesh axis, with the coordinates of
    positions along it.
    """
    group_size = forecast.positions  # positions with equal coordinates up to this axis
    for level, (axis, size) in enumerate(forecast.axes):
        group_size //= size
        for i in range(forecast.positions // group_size):
            left = FIRST_POSITION_X + POSITION_STEP * group_size * i
            right = left + POSITION_STEP * group_size - 22
            y = HEADER_HEIGHT - 14 + AXIS_HEIGHT * level
            yield f'  <path class="rule" d="M{left} {y}H{right}"/>'
            coordinate = f"{axis} {i % size}"
            middle = (left + right) / 2
            yield text(middle, y - 7, "code", coordinate, anchor="middle")


def _row(forecast: Forecast, row: Row, y: int) -> Iterator[str]:
    """Yields the elements of a row, whose upper border is at y."""
    yield f'  <path class="rule" d="M{MARGIN} {y}H{WIDTH - MARGIN}"/>'
    yield text(MARGIN, y + 26, "name", row.name)
    yield text(MARGIN, y + 43, "note", row.note)
    axes = [axis for axis, _ in forecast.axes]
    for i, (dim, size) in enumerate(row.tensor.shape):
        # "batch:16/data": the dimension is sharded along the axis.
        sharding = "".join(f"/{axis}" for axis in row.tensor.axes_of(dim, axes))
        css_class = "code sharded" if sharding else "code"
        yield text(MARGIN, y + 61 + 15 * i, css_class, f"{dim}:{size}{sharding}")
    box = _Box(row)
    yield from box.global_box(TENSOR_X, y)
    sizes = dict(forecast.axes)
    all_coordinates = itertools.product(*map(range, sizes.values()))
    for position, coordinates in enumerate(all_coordinates):
        coordinate_of = dict(zip(axes, coordinates))
        shard_of_dim = {
            dim: _shard_index(row.tensor.axes_of(dim, axes), sizes, coordinate_of)
            for dim, _size in row.tensor.shape
            if row.tensor.axes_of(dim, axes)
        }
        x = FIRST_POSITION_X + POSITION_STEP * position
        colour = f"p{position % 4}"  # the CSS class of one of four colours
        yield from box.shards(x, y, shard_of_dim, colour)
    yield text(RIGHT_TEXT_X, y + 26, "name", _share(row.tensor, forecast.positions))
    yield text(RIGHT_TEXT_X, y + 43, "note", f"{bytes_text(row.tensor.bytes)} each")
    for i, collective in enumerate(row.collectives):
        yield text(RIGHT_TEXT_X, y + 63 + 15 * i, "code", collective)


def _shard_index(
    axes: Sequence[str], sizes: Mapping[str, int], coordinate_of: Mapping[str, int]
) -> int:
    """Returns the index of the shard of a position.

    Args:
      axes: the axes that shard the dimension, the major one first.
      sizes: the size of each axis.
      coordinate_of: the coordinate of the position along each axis.
    """
    index = 0
    for axis in axes:
        index = index * sizes[axis] + coordinate_of[axis]
    return index


def _share(tensor: PlacedTensor, positions: int) -> str:
    """Returns the fraction of a tensor on each position, and the number of positions with
    equal shards, such as "1/2, 2 copies".
    """
    fraction = Fraction(1)
    num_shards = 1
    is_uneven = False
    for (_, size), local_size in zip(tensor.shape, tensor.local):
        fraction *= Fraction(local_size, size)
        num_shards *= -(-size // local_size)
        is_uneven |= size % local_size > 0
    copies = positions // num_shards
    result = f"{fraction}" if fraction < 1 else "all of it"
    if is_uneven:
        result = f"up to {result}"
    if copies > 1:
        result += f", {copies} copies"
    return result


class _Box:
    """A tensor as a box, or as a plate if it has two dimensions.

    Args:
      row: the row of the tensor.

    Attributes:
      dims: the dimensions along depth, height and width; "" for the depth of a plate.
      front: the width and the height of the front.
      depth: the vector from the front to the back.
      fractions: along depth, height and width, the part of the dimension that each shard
        has. The last one is shorter where the axis does not divide the size.
    """

    def __init__(self, row: Row) -> None:
        shape = PLATE if len(row.dims) == 2 else CUBE
        self.dims = ("", *row.dims) if len(row.dims) == 2 else row.dims
        self.front = shape.front
        self.depth = shape.depth
        global_sizes = dict(row.tensor.shape)
        local_sizes = dict(zip(global_sizes, row.tensor.local))
        self.fractions = [
            _fractions(global_sizes[dim], local_sizes[dim]) if dim else [1.0]
            for dim in self.dims
        ]

    def global_box(self, x: float, y: float) -> Iterator[str]:
        """Yields the box of the global tensor, with the names of its edges."""
        y = self._front_top(y)
        width, height = self.front
        dx, dy = self.depth
        depth_dim, height_dim, width_dim = self.dims
        yield from _faces((x, y), self.front, self.depth, css_class="all")
        yield text(x + width / 2, y + height + 13, "edge", width_dim, anchor="middle")
        yield text(x - 5, y + height / 2 + 4, "edge", height_dim, anchor="end")
        if depth_dim:
            yield text(
                x + width + dx / 2 + 7, y + height + dy / 2 + 8, "edge", depth_dim
            )

    def shards(
        self,
        x: float,
        y: float,
        shard_of_dim: dict[str, int],
        colour: str,
    ) -> Iterator[str]:
        """Yields the shards of the box; the shards on the position are solid.

        Args:
          x: the left border of the box.
          y: the upper border of the row.
          shard_of_dim: the index of the position's shard along each sharded dimension.
          colour: the CSS class of solid shards.
        """
        y = self._front_top(y)
        full_width, full_height = self.front
        dx, dy = self.depth
        depths = _intervals(self.fractions[0], 1.0, DEPTH_GAP)
        heights = _intervals(self.fractions[1], full_height, GAP)
        widths = _intervals(self.fractions[2], full_width, GAP)
        # From back to front, so that nearer shards hide those behind them.
        shard_indices = itertools.product(
            reversed(range(len(depths))),
            reversed(range(len(heights))),
            range(len(widths)),
        )
        for shard_index in shard_indices:
            deep, high, wide = shard_index
            shift, depth = depths[deep]
            top, height = heights[high]
            left, width = widths[wide]
            corner = (x + dx * shift + left, y + dy * shift + top)
            # A dimension that is not sharded has one shard, which all positions have.
            is_present = all(
                shard_of_dim.get(dim, index) == index
                for dim, index in zip(self.dims, shard_index)
            )
            yield from _faces(
                corner,
                size=(width, height),
                depth=(dx * depth, dy * depth),
                css_class=f"held {colour}" if is_present else "other",
            )

    def _front_top(self, y: float) -> float:
        """Returns the upper border of the front of a box in the row at y."""
        return y + (46 if self.dims[0] else 36)


def _fractions(size: int, local_size: int) -> list[float]:
    """Returns the part of a dimension that each of its shards has."""
    starts = range(0, size, local_size)
    return [min(local_size, size - start) / size for start in starts]


def _intervals(
    fractions: Sequence[float], length: float, gap: float
) -> list[tuple[float, float]]:
    """Returns the start and the length of each shard along an edge.

    Args:
      fractions: the part of the edge that each shard has.
      length: the length of the edge.
      gap: the length between two shards.
    """
    filled = length - gap * (len(fractions) - 1)
    intervals = []
    start = 0.0
    for fraction in fractions:
        intervals.append((start, fraction * filled))
        start += fraction * filled + gap
    return intervals


def _faces(
    corner: tuple[float, float],
    size: tuple[float, float],
    depth: tuple[float, float],
    css_class: str,
) -> Iterator[str]:
    """Yields the three visible faces of a box.

    Args:
      corner: the upper left corner of the front.
      size: the width and height of the front.
      depth: the vector from the front to the back.
      css_class: the CSS class of the faces; "held" adds shades to the top and the side.
    """
    x, y = corner
    w, h = size
    dx, dy = depth
    top = [(x, y), (x + dx, y + dy), (x + w + dx, y + dy), (x + w, y)]
    side = [(x + w, y), (x + w + dx, y + dy), (x + w + dx, y + h + dy), (x + w, y + h)]
    front = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
    for points, shade in ((front, ""), (top, "top"), (side, "side")):
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) + "Z"
        yield f'  <path class="{css_class}" d="{path}"/>'
        if shade and css_class.startswith("held"):
            yield f'  <path class="{shade}" d="{path}"/>'
