"""Costs by module: FLOPs, bytes received and bytes at the peak of memory, summed by
module path.

    for row in module_costs(forecast, depth=3):
        row.path, row.flops, row.received, row.live      # "lm/stack/block_*", ...

A path is truncated to `depth` names. Modules that differ only in an index, such as the
blocks of a stack, are one row.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from meshtf.forecast.report_data import Facts, without_indices

DEFAULT_DEPTH = 3
_VARIABLES = ("parameter", "optimizer state", "other variable")
OUTSIDE = "(outside of modules)"
ARGUMENTS = "(arguments)"


@dataclasses.dataclass
class ModuleCosts:
    """Costs of one module, or of equal modules, for one device and one call."""

    path: str  # "stack/block_*/feed_forward"
    count: int = 1  # how many modules have this path
    flops: float = 0.0
    received: float = 0.0  # bytes of all collectives
    live: float = 0.0  # bytes at the peak of memory, variables included
    function: str = ""  # the user's line with the most FLOPs of the module
    file: str = ""
    line: int = 0


def module_costs(forecast: Facts, depth: int = DEFAULT_DEPTH) -> list[ModuleCosts]:
    """Returns the costs of each module, those with the most FLOPs first."""
    rows: dict[str, ModuleCosts] = {}
    paths: dict[str, set[str]] = collections.defaultdict(set)
    flops_of_lines: dict[str, collections.Counter[tuple[str, str, int]]] = {}
    for op in forecast.ops:
        prefix = _prefix(op.path, depth)
        key = without_indices(prefix)
        row = rows.setdefault(key, ModuleCosts(key))
        paths[key].add(prefix)
        row.flops += op.total
        lines = flops_of_lines.setdefault(key, collections.Counter())
        lines[op.function, op.file, op.line] += int(op.total) + 1
    for collective in forecast.collectives:
        key = without_indices(_prefix(collective.path, depth))
        rows.setdefault(key, ModuleCosts(key)).received += collective.total
    for key, size in _live_bytes(forecast, depth):
        rows.setdefault(key, ModuleCosts(key)).live += size
    for key, lines in flops_of_lines.items():
        ((source, _),) = lines.most_common(1)
        function, file, line = source
        rows[key] = dataclasses.replace(
            rows[key], count=len(paths[key]), function=function, file=file, line=line
        )
    return sorted(rows.values(), key=lambda row: (-row.flops, -row.received, -row.live))


def has_modules(forecast: Facts) -> bool:
    """Returns whether any op belongs to a module."""
    return any(op.path for op in forecast.ops)


def _prefix(path: str, depth: int) -> str:
    return "/".join(path.split("/")[:depth]) if path else OUTSIDE


def _live_bytes(forecast: Facts, depth: int) -> Iterator[tuple[str, float]]:
    """Yields a module path, and the bytes of tensors of this module at the peak."""
    for tensors in forecast.live:
        path = tensors.path
        if tensors.kind == "argument":
            yield ARGUMENTS, tensors.total
            continue
        if tensors.kind in _VARIABLES:  # the last name is that of the variable
            path = path.rpartition("/")[0]
        yield _prefix(path, depth), tensors.total
