"""A mesh as an HTML table with one coloured entry for each position.

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

from meshtf.display.tables import html_rows

MAX_POSITIONS = 256  # positions that are drawn
PARTIAL = {"+": "partial sum", "max": "partial maximum", "min": "partial minimum"}
_STAGE = "stage "
_ENTRY = "padding:4px 8px;border:1px solid #888;text-align:center;color:#000;"


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
    remarks = [title]
    for axis, state in states.items():
        if state in PARTIAL:
            remarks.append(f"{PARTIAL[state]} over {axis}")
    return _grid(", ".join(remarks), axes, labels)


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
    return list(itertools.islice(positions, MAX_POSITIONS))


def _shard_label(
    position: Mapping[str, int],
    axes: Mapping[str, int],
    states: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str:
    """Returns the entries that a position holds, such as "batch 0:4"; "" for nothing."""
    shards: dict[str, tuple[int, int]] = {}  # by dimension: index and count of shards
    for axis, state in states.items():
        index = position[axis]
        if state.startswith(_STAGE) and state != f"{_STAGE}{index}":
            return ""
        if state in sizes:  # axes of one dimension: the first is the major one
            outer_index, outer_count = shards.get(state, (0, 1))
            axis_size = axes[axis]
            shards[state] = (outer_index * axis_size + index, outer_count * axis_size)
    ranges = []
    for dim, (index, count) in shards.items():
        local_size = sizes[dim] // count
        start = index * local_size
        stop = start + local_size
        ranges.append(f"{dim} {start}:{stop}")
    return ", ".join(ranges) or "all"


def _grid(title: str, axes: Mapping[str, int], labels: Sequence[str]) -> str:
    """Returns an HTML table with one entry for each position, coloured by its label."""
    num_positions = math.prod(axes.values())
    num_rows = next(iter(axes.values()), 1)
    num_columns = num_positions // num_rows
    labels = labels[:MAX_POSITIONS]
    colours = _colours(labels)
    entries = []
    for label in labels:
        style = f"{_ENTRY}background:{colours[label]}"
        entries.append(f'<td style="{style}">{html.escape(label)}</td>')
    rows = []
    for start in range(0, len(entries), num_columns):
        row = "".join(entries[start : start + num_columns])
        rows.append(f"<tr>{row}</tr>")
    if num_positions > len(labels):
        left_out = num_positions - len(labels)
        rows.append(f"<tr><td>... and {left_out} more positions</td></tr>")
    return html_rows(title, rows)


def _colours(labels: Sequence[str]) -> dict[str, str]:
    """Returns a light colour of a different hue for each label, and grey for ""."""
    distinct = list(dict.fromkeys(label for label in labels if label))
    colours = {"": "#e8e8e8"}
    for i, label in enumerate(distinct):
        hue = 360 * i // len(distinct)
        colours[label] = f"hsl({hue},65%,80%)"
    return colours
