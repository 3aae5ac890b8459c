"""The peak of a list of allocations, and what is live at it, against sums step by step."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.memory.allocations import Allocation, Bytes, beyond, timeline_of
from meshtf.forecast.memory.peak_memory import Timelines, scheduled_steps
from meshtf.partition import build


def program_of(fn, mesh, *arrays, **shapes):
    """Returns the planned program of a function."""
    function = mtf.function(fn, mesh=mesh, **shapes)
    recorded = function.record_call(arrays, {}).recorded
    return build(recorded.nodes, recorded.results, mesh)


def exponentials(x):
    for _ in range(6):
        x = mtf.exp(x)
    return x


def test_the_peak_is_the_largest_sum_of_a_step(rng):
    mesh = mtf.Mesh("", devices="abstract")
    program = program_of(exponentials, mesh, np.zeros([4], "float32"), x="d")
    steps = scheduled_steps(program)
    allocations = []
    for _ in range(20):
        first, last = sorted(rng.integers(0, len(steps), 2).tolist())
        everything, part = map(float, rng.integers(1, 100, 2))
        size = Bytes(everything, activations=min(part, everything))
        step = steps[first]
        allocations.append(
            Allocation(first, last, size, step, None, mesh.replicated, title="drawn")
        )
    timeline = timeline_of(steps, allocations)
    live = [
        [x for x in allocations if x.first <= i <= x.last] for i in range(len(steps))
    ]
    sums = [sum(x.bytes for x in at_step) for at_step in live]
    assert timeline.peak.everything == max(sums)
    assert timeline.peak.activations == max(
        sum(x.size.activations for x in at_step) for at_step in live
    )
    assert timeline.peak_step == sums.index(max(sums))
    assert list(timeline.live()) == live[timeline.peak_step]


def test_a_buffer_needs_what_is_beyond_its_results():
    step = None
    result = Allocation(0, 1, Bytes(5.0, 2.0), step, None, ())
    assert beyond(Bytes(9.0, 1.0), [result]) == Bytes(4.0, 0.0)
    assert beyond(Bytes(9.0, 1.0), []) == Bytes(9.0, 1.0)


@pytest.mark.parametrize("under_xla", [False, True])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_live_values_add_up_where_results_of_calls_are_not_read(
    microbatches, under_xla
):
    mesh = mtf.Mesh("stage:2", devices="abstract")
    norms = [mtf.layers.BatchNorm(mesh, "d:8", name=f"norm_{k}") for k in range(2)]
    pipe = mtf.pipeline.GPipe(
        [lambda x, norm=norm: norm(x, training=True) for norm in norms],
        stages=2,
        microbatches=microbatches,
        cost=[1, 1],
    )

    def loss(x):
        return pipe.loss(lambda y: mtf.reduce_sum(y * y), x)

    x = np.zeros([16, 8], "float32")
    timelines = Timelines(program_of(loss, mesh, x, x="batch;d"), set(), under_xla)
    for stage, peak in enumerate(timelines.peaks()):
        assert sum(x.bytes for x in timelines.live(stage)) == peak.everything > 0
