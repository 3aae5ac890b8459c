"""A mesh as a grid of coloured cells, one for each position, as an HTML table.

The first axis runs down, all others run to the right. Positions of one colour hold the same
shard.

>>> placement_text({"data": "batch", "model": "+"})
'batch/data +model'
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence

MAX_CELLS = 256  # positions that are drawn
PARTIAL = {"+": "partial sum", "max": "partial maximum", "min": "partial minimum"}
_STAGE = "stage "
_CELL = "padding:4px 8px;border:1px solid #888;text-align:center;color:#000;"
_ABSENT = "#e8e8e8"


def placement_text(states: Mapping[str, str]) -> str:
    """Returns a placement in short: dimension/axis where sharded, +axis for a partial sum.

    Args:
      states: by axis: the name of the dimension that the axis shards; "+", "max" or "min"
        for a partial result; "stage 2" for a tensor on one stage; "" where replicated.
    """
    words = []
    for axis, state in states.items():
        if state == "+":
            words.append(f"+{axis}")
        elif state in PARTIAL or state.startswith(_STAGE):
            words.append(f"{state} of {axis}")
        elif state:
            words.append(f"{state}/{axis}")
    return " ".join(words) or "replicated"


def html_placement(
    title: str,
    axes: Mapping[str, int],
    states: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str:
    """Returns the positions of a mesh with the shard of a tensor that each holds.

    Args:
      title: of the drawing.
      axes: names and sizes of the axes.
      states: of the tensor, by axis, as of `placement_text`.
      sizes: of its dimensions, by name.
    """
    labels = []
    for coordinates in _coordinates(axes):
        position = dict(zip(axes, coordinates))
        labels.append(_shard_label(position, axes, states, sizes))
    partial = [
        f"{PARTIAL[state]} over {axis}"
        for axis, state in states.items()
        if state in PARTIAL
    ]
    return _grid(", ".join([title, *partial]), axes, labels)


def html_mesh(title: str, axes: Mapping[str, int], devices: Sequence[str]) -> str:
    """Returns the positions of a mesh with their devices.

    Args:
      title: of the drawing.
      axes: names and sizes of the axes.
      devices: a text for each position.
    """
    return _grid(title, axes, devices)


def _coordinates(axes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Returns the coordinates of all positions that are drawn."""
    indices = [range(size) for size in axes.values()]
    positions = itertools.product(*indices)
    return list(itertools.islice(positions, MAX_CELLS))


def _shard_label(
    position: Mapping[str, int],
    axes: Mapping[str, int],
    states: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str:
    """Returns the entries that a position holds, such as "batch 0:4"; "" for nothing."""
    shard_index: dict[str, int] = {}
    num_shards: dict[str, int] = {}
    for axis, state in states.items():
        if state.startswith(_STAGE) and state != f"{_STAGE}{position[axis]}":
            return ""
        if state in sizes:  # axes of one dimension: the first is the major one
            index = shard_index.get(state, 0)
            shard_index[state] = index * axes[axis] + position[axis]
            num_shards[state] = num_shards.get(state, 1) * axes[axis]
    ranges = []
    for dim, index in shard_index.items():
        local_size = sizes[dim] // num_shards[dim]
        start = index * local_size
        ranges.append(f"{dim} {start}:{start + local_size}")
    return ", ".join(ranges) or "all"


def _grid(title: str, axes: Mapping[str, int], labels: Sequence[str]) -> str:
    """Returns an HTML table with one cell for each position, coloured by its label."""
    sizes = list(axes.values())
    num_columns = math.prod(sizes[1:])
    distinct = [label for label in dict.fromkeys(labels) if label]
    rows = []
    for start in range(0, min(len(labels), MAX_CELLS), num_columns):
        cells = []
        for label in labels[start : min(start + num_columns, MAX_CELLS)]:
            colour = _colour(distinct.index(label), len(distinct)) if label else _ABSENT
            text = html.escape(label)
            cells.append(f'<td style="{_CELL}background:{colour}">{text}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    left_out = math.prod(sizes) - MAX_CELLS
    if left_out > 0:
        rows.append(f"<tr><td>... and {left_out} more positions</td></tr>")
    caption = f"<caption>{html.escape(title)}</caption>"
    return f'<table style="border-collapse:collapse">{caption}{"".join(rows)}</table>'


def _colour(index: int, count: int) -> str:
    """Returns one of `count` light colours of different hues."""
    return f"hsl({360 * index // max(count, 1)},65%,80%)"
