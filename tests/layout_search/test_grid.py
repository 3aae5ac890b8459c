"""One plan of a pipeline stands for all numbers of stages and microbatches."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from meshtf.hardware import Hardware, Link
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.candidates import plan_in_full
from meshtf.layout_search.grid import make_grid
from meshtf.layout_search.pricing import price, record
from meshtf.layout_search.problem import Problem, names_of_program
from tests.layout_search.programs import stack, stages_of

# Hardware on which latencies do not count.
SLOW = Hardware(
    "slow",
    {"float32": 1e9},
    memory_bandwidth=1e9,
    links=(Link("network", None, bandwidth=1e9, latency=0.0),),
)
# With slow links between the stages.
FAR = Hardware(
    "far",
    {"float32": 1e9},
    memory_bandwidth=1e9,
    links=(
        Link("host", 2, bandwidth=1e9, latency=0.0),
        Link("network", None, bandwidth=2e7, latency=0.0),
    ),
)
LARGE = (np.zeros([4096, 16], "float32"), np.int32(0))


def priced(hardware, recompute, microbatches):
    """Yields (recordings, prices) of the pipelines of a stack with a head."""
    build = functools.partial(stack, with_head=True)
    problem = Problem(build, LARGE, 8, hardware, memory=2**40)
    recordings = Recordings(problem)
    names = names_of_program(problem.record("", {}, {}))
    for structure in stages_of(names, max_axes=1):
        chosen = structure.with_choices((("recompute", recompute),))
        grid = make_grid(chosen, problem, names, microbatches, {})
        if grid is not None:
            recorded = record(chosen, problem, grid, recordings)
            yield recordings, price(chosen, problem, grid, recorded)


@pytest.mark.parametrize("hardware", [SLOW, FAR], ids=lambda x: x.name)
@pytest.mark.parametrize("recompute", [False, True])
def test_prices_of_pipelines_are_those_of_their_own_plans(hardware, recompute):
    number = 0
    for recordings, prices in priced(hardware, recompute, [4, 8, 16]):
        for index in range(len(prices.grid)):
            candidate = plan_in_full(recordings, prices, index)
            assert candidate.seconds == pytest.approx(prices.seconds[index], rel=0.01)
            # It is the memory at the moment of another plan's peak.
            assert candidate.peak >= 0.97 * prices.memory[index]
            number += 1
    assert number > 50


def test_sizes_of_a_pipeline():
    (_, prices), *_ = priced(SLOW, False, None)
    grid = prices.grid
    of_each_stage = [x / s for x, s in zip(grid.microbatches, grid.stages)]
    assert {int(s) for s in grid.stages} == {2, 4}  # of four layers
    assert set(of_each_stage) == {1, 2, 4}
    assert all(order[0] == "stage" for order in grid.orders)
    assert grid.axes_text(0).startswith("stage:")
