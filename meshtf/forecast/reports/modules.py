"""Costs by module: FLOPs, bytes received and bytes at the peak of memory, summed by
module path.

    for row in module_costs(forecast, depth=3):
        row.path, row.flops, row.received, row.live      # "lm/stack/block_*", ...

A path is truncated to its first `depth` names. Modules whose paths differ only in an
index, such as the blocks of a stack, share one row.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator

from meshtf.forecast.report_data import ForecastData, without_indices
from meshtf.forecast.reports.totals import UserLine

DEFAULT_DEPTH = 3
_VARIABLE_KINDS = ("parameter", "optimizer state", "other variable")
# The paths of rows for ops outside of modules, and for arguments of the function.
NO_MODULE = "(outside of modules)"
ARGUMENTS = "(arguments)"


@dataclasses.dataclass
class ModuleCosts:
    """Costs of one module, or of equal modules, for one device and one call."""

    path: str  # "stack/block_*/feed_forward"
    count: int = 1  # how many modules share this row
    flops: float = 0.0
    received: float = 0.0  # the bytes that collectives receive
    live: float = 0.0  # the bytes at the peak of memory, variables included
    # The line of the module with the most FLOPs, and the function that it calls.
    function: str = ""
    file: str = ""
    line: int = 0


def module_costs(
    forecast: ForecastData, depth: int = DEFAULT_DEPTH
) -> list[ModuleCosts]:
    """Returns the costs of each module, the module with the most FLOPs first.

    Args:
      forecast: the forecast.
      depth: how many names of a module path are distinguished.
    """
    rows: dict[str, ModuleCosts] = {}
    # For each row: its module paths with indices, and the FLOPs of each of its lines.
    paths: dict[str, set[str]] = collections.defaultdict(set)
    flops_of_lines: dict[str, collections.Counter[UserLine]] = {}
    for op in forecast.ops:
        prefix = _prefix(op.path, depth)
        key = without_indices(prefix)
        _row(rows, key).flops += op.total
        paths[key].add(prefix)
        lines = flops_of_lines.setdefault(key, collections.Counter())
        # Plus one, so that a module without FLOPs has a line as well.
        lines[UserLine(op.file, op.line, op.function)] += int(op.total) + 1
    for collective in forecast.collectives:
        key = without_indices(_prefix(collective.path, depth))
        _row(rows, key).received += collective.total
    for key, size in _live_bytes(forecast, depth):
        _row(rows, key).live += size
    for key, lines in flops_of_lines.items():
        costliest_line = max(lines, key=lines.__getitem__)
        rows[key] = dataclasses.replace(
            rows[key],
            count=len(paths[key]),
            function=costliest_line.function,
            file=costliest_line.file,
            line=costliest_line.line,
        )

    def sort_key(row: ModuleCosts) -> tuple[float, float, float]:
        return row.flops, row.received, row.live

    return sorted(rows.values(), key=sort_key, reverse=True)


def _row(rows: dict[str, ModuleCosts], key: str) -> ModuleCosts:
    """Returns the row of a module, a new one if it has none yet."""
    if key not in rows:
        rows[key] = ModuleCosts(key)
    return rows[key]


def has_modules(forecast: ForecastData) -> bool:
    """Returns whether any op belongs to a module."""
    return any(op.path for op in forecast.ops)


@functools.lru_cache(maxsize=10_000)  # a module has many ops
def _prefix(path: str, depth: int) -> str:
    """Returns the first `depth` names of a module path."""
    return "/".join(path.split("/")[:depth]) if path else NO_MODULE


def _live_bytes(forecast: ForecastData, depth: int) -> Iterator[tuple[str, float]]:
    """Yields (module path, bytes) of the tensors that are live at the peak of memory."""
    for tensors in forecast.live:
        path = tensors.path
        if tensors.kind == "argument":
            yield ARGUMENTS, tensors.total
            continue
        if tensors.kind in _VARIABLE_KINDS:
            # The last name of the path is the variable.
            path = path.rpartition("/")[0]
        yield _prefix(path, depth), tensors.total
