"""Ratios of a live mesh, whose devices jax drives, to the other cases of `benchmarks.spmd`.

print(live_ratios(rows))
"""

from __future__ import annotations

from benchmarks.harness.report import Row, ratio


def live_ratios(rows: list[Row]) -> str:
    """Returns lines with the ratios of the live mesh's step, compile time and memory to those
    of all other rows.
    """
    (live,) = (row for row in rows if row.name.endswith("live SPMD"))
    lines = []
    for row in rows:
        if row is live:
            continue
        line = f"{live.name} / {row.name}: step {ratio(live, row, 'wall'):.2f}"
        for key in ("compile", "first", "device_memory"):
            if key in row.start:
                line += f", {key} {live.start[key] / row.start[key]:.2f}"
        lines.append(line.replace("device_memory", "memory of a device"))
    return "\n".join(lines)
