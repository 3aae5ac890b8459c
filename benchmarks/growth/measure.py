"""Measures a panel of `benchmarks.growth` (cases of several sizes, such as numbers of layers),
and prints it as a table.

rows = measure_panel("layers", [1, 2, 4], rounds=5, starts=1)
print(table("layers", rows))
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from benchmarks.growth.cases import GROUPS, SIZE_LABELS, Case
from benchmarks.harness.rounds import Process

Row = dict[str, Any]  # "series" and "size" of a case, and its measurements by column
WORKER = "benchmarks.growth.worker"


class Column(NamedTuple):
    """A column of the table.

    Attributes:
      title: the title, with the unit.
      scale: what a value is multiplied by to be in this unit; 0: the value is a count.
    """

    title: str
    scale: float


# The columns in order, by the key of their values in a row. Keys with "_cpu" are processor
# times, those with "_ratio" are ratios to the first case of the same size.
COLUMNS = {
    "first": Column("first, s", scale=1.0),
    "first_ratio": Column("ratio", scale=1.0),
    "first_cpu": Column("cpu, s", scale=1.0),
    "first_cpu_ratio": Column("ratio", scale=1.0),
    "build_cpu": Column("build", scale=1.0),
    "run_cpu": Column("trace+run", scale=1.0),
    "step": Column("step, ms", scale=1e3),
    "step_ratio": Column("ratio", scale=1.0),
    "step_cpu": Column("cpu, ms", scale=1e3),
    "step_cpu_ratio": Column("ratio", scale=1.0),
    "record_cpu": Column("record, ms", scale=1e3),
    "plan_cpu": Column("plan, ms", scale=1e3),
    "explain_cpu": Column("explain, ms", scale=1e3),
    "memory": Column("memory, MB", scale=1e-6),
    "nodes": Column("nodes", scale=0),
    "steps": Column("steps", scale=0),
    "collectives": Column("collectives", scale=0),
    "outer": Column("outer ops", scale=0),
    "calls": Column("calls", scale=0),
    "segments": Column("segments", scale=0),
    "traced": Column("ops traced", scale=0),
}


def measure_panel(
    panel: str,
    sizes: Sequence[int],
    rounds: int,
    starts: int,
) -> list[Row]:
    """Returns the rows of a panel; each case runs in a separate process.

    Args:
      panel: the name of the panel.
      sizes: the sizes of the cases.
      rounds: the number of steps of each case that are timed.
      starts: the number of starts of each case; the fastest first step counts.
    """
    rows = []
    for group in GROUPS[panel](sizes):
        rows += measure_group(group, rounds, starts)
    return rows


def measure_group(group: Sequence[Case], rounds: int, starts: int) -> list[Row]:
    """Returns a row for each case of one size. Ratios are to the first case.

    Args:
      group: the cases.
      rounds: the number of steps of each case that are timed.
      starts: the number of starts of each case; the fastest first step counts.
    """
    first_steps_of_starts = [
        [_measure_first_step(case) for case in group] for _ in range(starts)
    ]
    rows: list[Row] = []
    for i, case in enumerate(group):
        first_steps = [steps_of_cases[i] for steps_of_cases in first_steps_of_starts]
        fastest = min(first_steps, key=lambda first_step: first_step["first"])
        rows.append({"series": case.series, "size": case.size, **fastest})
    steps_of_rounds = _take_steps(group, rounds)
    for suffix, clock in (("", "wall"), ("_cpu", "cpu")):
        times_of_cases = _times_of_cases(steps_of_rounds, clock)
        base_times = times_of_cases[0]
        for row, times in zip(rows, times_of_cases, strict=True):
            ratios = [seconds / base for seconds, base in zip(times, base_times)]
            first_step = f"first{suffix}"
            row[f"{first_step}_ratio"] = row[first_step] / rows[0][first_step]
            row[f"step{suffix}"] = statistics.median(times)
            row[f"step{suffix}_ratio"] = statistics.median(ratios)
    return rows


def _times_of_cases(
    steps_of_rounds: list[list[dict[str, Any]]], clock: str
) -> list[list[float]]:
    """Returns the seconds of each case's step in each round, [cases][rounds].

    Args:
      steps_of_rounds: the result of `_take_steps`.
      clock: the clock, "wall" or "cpu".
    """
    num_cases = len(steps_of_rounds[0])
    times_of_cases = []
    for i in range(num_cases):
        # An answer has a list of seconds, here of one step.
        times_of_cases.append([steps[i][clock][0] for steps in steps_of_rounds])
    return times_of_cases


def _take_steps(group: Sequence[Case], rounds: int) -> list[list[dict[str, Any]]]:
    """Takes a step of each case in each round, all cases being alive. Returns the answers of
    the workers, [rounds][cases]: lists with the seconds of the one step, by clock.
    """
    with ThreadPoolExecutor(2) as pool:  # two processes import TensorFlow at a time
        workers = list(pool.map(lambda case: Process(case, WORKER), group))
    try:
        for worker in workers:
            # The answer, the costs of the first step, is not used here.
            worker.ask("first", argument=1)
        answers = []
        for _ in range(rounds + 1):
            answers.append([worker.ask("steps", argument=1) for worker in workers])
    finally:
        for worker in workers:
            worker.stop()
    return answers[1:]  # the first round warms up


def _measure_first_step(case: Case) -> Row:
    """Returns the costs of a case's first step, while no other case is alive."""
    worker = Process(case, WORKER)
    try:
        return dict(worker.ask("first", argument=1))
    finally:
        worker.stop()


def table(panel: str, rows: Sequence[Row]) -> str:
    """Returns the rows of a panel as a table. Ratios are to the first row of a size."""
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    series_width = max(len(row["series"]) for row in rows)
    header = f"{SIZE_LABELS[panel]:>13}  {'':{series_width}}"
    for name in names:
        header += f"{COLUMNS[name].title:>{_width(name)}}"
    lines = [header]
    for row in rows:
        line = f"{row['size']:13,}  {row['series']:{series_width}}"
        for name in names:
            line += f"{_value(row, name):>{_width(name)}}"
        lines.append(line)
    return "\n".join(lines)


def _width(name: str) -> int:
    """Returns the width of a column."""
    return len(COLUMNS[name].title) + 4


def _value(row: Row, name: str) -> str:
    """Returns a value of the table as text; "" if the row has no such value."""
    if name not in row:
        return ""
    scale = COLUMNS[name].scale
    return f"{row[name] * scale:.2f}" if scale else f"{row[name]:,}"
