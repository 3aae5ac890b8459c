"""A mesh as an HTML table with one coloured entry for each position (virtual device).

Coordinates of the first axis increase from row to row, all other coordinates within a row.
Positions of one colour hold the same shard. The state of a tensor along an axis says what the
axis does to it: it shards a dimension, replicates the tensor, or has partial sums.

>>> placement_text({"data": "batch", "model": "+"})
'batch/data +model'
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence

from meshtf.display.tables import html_rows

MAX_POSITIONS = 256  # the maximum number of positions that are drawn
# The state of a partial result -> its name in the title of a table.
PARTIAL = {"+": "partial sum", "max": "partial maximum", "min": "partial minimum"}
_STAGE = "stage "  # prefix of the state of a tensor on one pipeline stage, as "stage 2"
_ENTRY_STYLE = "padding:4px 8px;border:1px solid #888;text-align:center;color:#000;"


def placement_text(states: Mapping[str, str]) -> str:
    """Returns a placement in short: "batch/data" if axis data shards dimension batch, and
    "+model" for a partial sum along axis model.

    Args:
      states: for each axis, the state of the tensor: the name of the dimension that the
        axis shards; "+", "max" or "min" for a partial result; "stage 2" for a tensor on one
        pipeline stage; "" for replicated. Of the axes that shard one dimension, the major one
        comes first.
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
    """Returns an HTML table of the positions of a mesh, each with its shard of a tensor.

    Args:
      title: the title of the table.
      axes: the names and sizes of the mesh axes.
      states: for each axis, the state of the tensor, see `placement_text`.
      sizes: the names and sizes of the tensor's dimensions.
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
    """Returns an HTML table of the positions of a mesh, each with its device.

    Args:
      title: the title of the table.
      axes: the names and sizes of the mesh axes.
      devices: a text for each position, such as the name of its device.
    """
    return _grid(title, axes, devices)


def _coordinates(axes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Returns the coordinates of the positions that are drawn, in row-major order."""
    indices = [range(size) for size in axes.values()]
    positions = itertools.product(*indices)
    return list(itertools.islice(positions, MAX_POSITIONS))


def _shard_label(
    position: Mapping[str, int],
    axes: Mapping[str, int],
    states: Mapping[str, str],
    sizes: Mapping[str, int],
) -> str:
    """Returns the elements that a position holds, such as "batch 0:4"; "" if it holds none.

    Args:
      position: the coordinate of the position along each axis.
      axes: the names and sizes of the mesh axes.
      states: for each axis, the state of the tensor.
      sizes: the names and sizes of the tensor's dimensions.
    """
    # {dimension: (first element, element after the last, size of the shard with padding)}
    shards: dict[str, tuple[int, int, int]] = {}
    for axis, state in states.items():
        index = position[axis]
        if state.startswith(_STAGE) and state != f"{_STAGE}{index}":
            return ""  # the tensor is on another stage
        if state in sizes:
            # If several axes shard a dimension, the first of them is the major one.
            size = sizes[state]
            start, stop, shard_size = shards.get(state, (0, size, size))
            shard_size = math.ceil(shard_size / axes[axis])
            start = min(start + index * shard_size, stop)
            shards[state] = (start, min(start + shard_size, stop), shard_size)
    ranges = [f"{dim} {start}:{stop}" for dim, (start, stop, _) in shards.items()]
    return ", ".join(ranges) or "all"


def _grid(title: str, axes: Mapping[str, int], labels: Sequence[str]) -> str:
    """Returns an HTML table with one entry for each position, coloured by its label.

    Args:
      title: the title of the table.
      axes: the names and sizes of the mesh axes.
      labels: a text for each position that is drawn.
    """
    num_positions = math.prod(axes.values())
    # A row for each coordinate of the first axis; one row if there are no axes.
    num_rows = next(iter(axes.values()), 1)
    num_columns = num_positions // num_rows
    labels = labels[:MAX_POSITIONS]
    colours = _colours(labels)
    entries = []
    for label in labels:
        style = f"{_ENTRY_STYLE}background:{colours[label]}"
        entries.append(f'<td style="{style}">{html.escape(label)}</td>')
    rows = []
    for start in range(0, len(entries), num_columns):
        row = "".join(entries[start : start + num_columns])
        rows.append(f"<tr>{row}</tr>")
    if num_positions > len(labels):
        num_omitted = num_positions - len(labels)
        rows.append(f"<tr><td>... and {num_omitted} more positions</td></tr>")
    return html_rows(title, rows)


def _colours(labels: Sequence[str]) -> dict[str, str]:
    """Returns a light colour of a different hue for each label, and grey for ""."""
    distinct_labels = list(dict.fromkeys(label for label in labels if label))
    colours = {"": "#e8e8e8"}
    for i, label in enumerate(distinct_labels):
        hue = 360 * i // len(distinct_labels)
        colours[label] = f"hsl({hue},65%,80%)"
    return colours
