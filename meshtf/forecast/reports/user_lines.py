"""Lines of the user's program as text: "mlp.py:3", with the shortest clear path of the file.

The functions take the fields "file", "line" and "function" of an op, of live tensors, or of a
sum of `totals`, and the result of `short_paths`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from meshtf.forecast.report_data import ForecastData


def line_text(source: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Returns the user's line as "file:line"; "" if it is unknown."""
    if not source["file"]:
        return ""
    path = paths.get(source["file"], source["file"])
    return f"{path}:{source['line']}"


def call_text(source: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Returns the function that the user's line calls, and the line."""
    if not source["file"]:  # a layer; reshards of what the function returns have none
        return str(source["function"] or "the results")
    return f"{source['function']} at {line_text(source, paths)}"


def seconds_by_line(
    forecast: ForecastData, paths: Mapping[str, str]
) -> dict[str, float]:
    """Returns the seconds of one device for each line of the user: those of its ops, and those
    of their collectives by kind and axis.
    """
    sums: dict[str, float] = collections.defaultdict(float)
    for op in forecast.ops:
        line = call_text(vars(op), paths)
        sums[line] += op.seconds * op.times
        for collective in op.collectives:
            label = f"{collective.kind} {collective.axis} for {line}"
            sums[label] += collective.seconds * collective.times
    return sums


def short_paths(forecast: ForecastData) -> dict[str, str]:
    """Returns a short path for each of the user's files: the shortest end of the path that
    no other file has.
    """
    files = {op.file for op in forecast.ops if op.file}
    counts: collections.Counter[str] = collections.Counter()
    for file in files:
        counts.update(_path_ends(file))

    def shortest(file: str) -> str:
        *ends, full_path = _path_ends(file)
        return next((end for end in ends if counts[end] == 1), full_path)

    return {file: shortest(file) for file in sorted(files)}


def _path_ends(file: str) -> list[str]:
    """Returns ["c.py", "b/c.py", "a/b/c.py"] for "a/b/c.py"."""
    names = PurePath(file).parts
    return ["/".join(names[-k:]) for k in range(1, len(names) + 1)]
