"""Time of recording and planning for any number of positions; nothing is executed.

    rows = planning([8, 2048], rounds=3)         # one row for each layout and number of positions

Meshes are abstract: they have positions (virtual devices), but no real ones. Measures the
processor time of recording the ops of a step; of planning the program, and its schedule in
segments (sequences of computations without communication); and of `mtf.explain`, which
records, plans and derives a forecast. Sizes are measured in turn; rows have medians over
rounds.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from benchmarks.growth.cases import SMALL, Case, positions
from benchmarks.growth.worker import GrowthModel
from benchmarks.step.cases.sizes import Config
from meshtf.partition import build, schedule, walk


def planning(
    sizes: Sequence[int], rounds: int, config: Config = SMALL
) -> list[dict[str, Any]]:
    """Returns a row for each number of positions and each layout.

    Args:
      sizes: the numbers of positions.
      rounds: the number of times that each case is measured.
      config: the sizes of the model, and the batch of one position.
    """
    cases = []
    for group in positions(sizes, config):
        for case in group:
            if case.meshed and case.devices is None:
                layout_name = case.series.removeprefix("one device, ")
                cases.append(dataclasses.replace(case, series=layout_name))
    # Not used: the first measurement also imports modules that are loaded at first use.
    measure_plan(cases[0])
    costs_of_rounds = [[measure_plan(case) for case in cases] for _ in range(rounds)]
    rows = []
    for i, case in enumerate(cases):
        costs = [costs_of_cases[i] for costs_of_cases in costs_of_rounds]
        row: dict[str, Any] = {"series": case.series, "size": case.size}
        for key in costs[0]:
            row[key] = statistics.median(cost[key] for cost in costs)
        rows.append(row)
    return rows


def measure_plan(case: Case) -> dict[str, float]:
    """Returns the processor seconds of recording, planning and explaining a case, and the sizes
    of the result.
    """
    model = GrowthModel(case, devices="abstract")
    step = model.make_train_function()
    ids = tf.TensorSpec([case.config.batch, case.config.length], tf.int32)
    arguments = ({"tokens": ids, "targets": ids}, np.int32(0))
    start = time.process_time()
    recorded = step.record_on(model.mesh, args=arguments, kwargs={}).recorded
    after_recording = time.process_time()
    program = build(recorded.nodes, recorded.results, model.mesh)
    segments = schedule(program)
    after_planning = time.process_time()
    forecast = mtf.explain(step, *arguments)
    after_explaining = time.process_time()
    return {
        "record_cpu": after_recording - start,
        "plan_cpu": after_planning - after_recording,
        "explain_cpu": after_explaining - after_planning,
        "nodes": len(recorded.nodes),
        "steps": sum(1 for _ in walk(program)),  # those of loops and branches, too
        "segments": len(segments),
        "collectives": len(forecast.collectives),
    }
