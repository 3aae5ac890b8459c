"""Measures a panel of `benchmarks.growth`, and prints it as a table.

rows = measured("layers", [1, 2, 4], rounds=5, starts=1)
print(table("layers", rows))
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.growth.cases import COUNTED, GROUPS, Case
from benchmarks.harness.rounds import Process

Row = dict[str, Any]
WORKER = "benchmarks.growth.worker"
COLUMNS = {
    "first": ("first, s", 1.0),
    "first_ratio": ("ratio", 1.0),
    "first_cpu": ("cpu, s", 1.0),
    "first_cpu_ratio": ("ratio", 1.0),
    "build_cpu": ("build", 1.0),
    "run_cpu": ("trace+run", 1.0),
    "step": ("step, ms", 1e3),
    "step_ratio": ("ratio", 1.0),
    "step_cpu": ("cpu, ms", 1e3),
    "step_cpu_ratio": ("ratio", 1.0),
    "record_cpu": ("record, ms", 1e3),
    "plan_cpu": ("plan, ms", 1e3),
    "explain_cpu": ("explain, ms", 1e3),
    "memory": ("memory, MB", 1e-6),
    "nodes": ("nodes", 0),
    "steps": ("steps", 0),
    "collectives": ("collectives", 0),
    "outer": ("outer ops", 0),
    "calls": ("calls", 0),
    "segments": ("segments", 0),
    "traced": ("ops traced", 0),
}


def measured(
    panel: str,
    sizes: Sequence[int],
    rounds: int,
    starts: int,
) -> list[Row]:
    """Returns the points of a part whose cases run in processes of their own."""
    return [
        row for group in GROUPS[panel](sizes) for row in measure(group, rounds, starts)
    ]


def measure(group: Sequence[Case], rounds: int, starts: int) -> list[Row]:
    """Returns a point for each case of one size; the first is what others are divided
    by.

    Args:
      group: the cases.
      rounds: how many steps of each are timed.
      starts: how many first steps of each; the fastest counts.
    """
    firsts = [[_first(case) for case in group] for _ in range(starts)]
    rows: list[Row] = [
        {
            "series": case.series,
            "size": case.size,
            **min(first_steps, key=lambda first_step: first_step["first"]),
        }
        for case, *first_steps in zip(group, *firsts)
    ]
    with ThreadPoolExecutor(2) as pool:  # they import TensorFlow side by side
        workers = list(pool.map(lambda case: Process(case, WORKER), group))
    try:
        for worker in workers:
            worker.ask("first", 1)
        timed = [
            [worker.ask("steps", 1) for worker in workers] for _ in range(rounds + 1)
        ][1:]
    finally:
        for worker in workers:
            worker.stop()
    for i, row in enumerate(rows):
        for name, clock in (("", "wall"), ("_cpu", "cpu")):
            row[f"first{name}_ratio"] = row[f"first{name}"] / rows[0][f"first{name}"]
            times = [answers[i][clock][0] for answers in timed]
            base_times = [answers[0][clock][0] for answers in timed]
            ratios = [x / y for x, y in zip(times, base_times)]
            row[f"step{name}"] = statistics.median(times)
            row[f"step{name}_ratio"] = statistics.median(ratios)
    return rows


def _first(case: Case) -> Row:
    """Returns what a case's first step takes with no other case alive."""
    worker = Process(case, WORKER)
    try:
        return dict(worker.ask("first", 1))
    finally:
        worker.stop()


def table(panel: str, rows: Sequence[Row]) -> str:
    """Returns the points of a part as a table; ratios are to the first of a size."""
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    wide = max(len(row["series"]) for row in rows)
    lines = [
        f"{COUNTED[panel]:>13}  {'':{wide}}"
        + "".join(f"{COLUMNS[name][0]:>{_width(name)}}" for name in columns)
    ]
    for row in rows:
        lines.append(
            f"{row['size']:13,}  {row['series']:{wide}}"
            + "".join(f"{_cell(row, name):>{_width(name)}}" for name in columns)
        )
    return "\n".join(lines)


def _width(name: str) -> int:
    return len(COLUMNS[name][0]) + 4


def _cell(row: Row, name: str) -> str:
    if name not in row:
        return ""
    scale = COLUMNS[name][1]
    return f"{row[name] * scale:.2f}" if scale else f"{row[name]:,}"
