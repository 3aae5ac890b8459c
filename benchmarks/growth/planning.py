"""Time of recording and planning for any number of positions; nothing is executed.

    rows = planning([8, 2048], rounds=3)         # one row for each layout and number of positions

On abstract meshes. Measures processor time: of recording, of planning (program and
schedule), and of `mtf.explain`, which does both and derives a forecast. Sizes are measured
in turn; rows have medians over rounds.
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
from benchmarks.growth.worker import Meshed
from benchmarks.step.cases.sizes import Config
from meshtf.partition import build, schedule, walk


def planning(
    sizes: Sequence[int], rounds: int, config: Config = SMALL
) -> list[dict[str, Any]]:
    """Returns a row for each number of positions and each layout."""
    cases = [
        dataclasses.replace(case, series=case.series.removeprefix("one device, "))
        for group in positions(sizes, config)
        for case in group
        if case.meshed and case.devices is None
    ]
    plan(cases[0])  # what is loaded at first use
    rounds_of_costs = [[plan(case) for case in cases] for _ in range(rounds)]
    return [
        {"series": case.series, "size": case.size}
        | {
            key: statistics.median(costs[i][key] for costs in rounds_of_costs)
            for key in rounds_of_costs[0][i]
        }
        for i, case in enumerate(cases)
    ]


def plan(case: Case) -> dict[str, float]:
    """Returns the processor seconds of recording, planning and explaining a case, and the sizes
    of the result.
    """
    own = Meshed(case, "abstract")
    step = own.recorded()
    ids = tf.TensorSpec([case.config.batch, case.config.length], tf.int32)
    arguments = {"tokens": ids, "targets": ids}, np.int32(0)
    marks = [time.process_time()]
    recorded = step.record_on(own.mesh, arguments, {}).recorded
    marks.append(time.process_time())
    program = build(recorded.nodes, recorded.results, own.mesh)
    segments = schedule(program)
    marks.append(time.process_time())
    forecast = mtf.explain(step, *arguments)
    marks.append(time.process_time())
    return {
        "record_cpu": marks[1] - marks[0],
        "plan_cpu": marks[2] - marks[1],
        "explain_cpu": marks[3] - marks[2],
        "nodes": len(recorded.nodes),
        "steps": sum(1 for _ in walk(program)),
        "segments": len(segments),
        "collectives": len(forecast.collectives),
    }
