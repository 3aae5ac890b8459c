"""Pipelines are estimated from the program without stages."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link, as_hardware
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.bounds import LowerBounds
from meshtf.layout_search.candidates import plan_in_full
from meshtf.layout_search.pipelines import can_be_estimated, estimate
from meshtf.layout_search.pricing import make_grid, record
from meshtf.layout_search.problem import Problem, names_of_program
from meshtf.layout_search.search import Search
from meshtf.layout_search.space import STORAGES, Structure, structures
from tests.layout_search.programs import (
    STACK_ARGUMENTS,
    drawn_hardware,
    headed,
    pipeline,
    staged,
)

MICROBATCHES = [1, 2, 4, 8]
CHUNKS = [1, 2]
# Hardware on which latencies do not count.
SLOW = Hardware(
    "slow",
    {"float32": 1e9},
    memory_bandwidth=1e9,
    links=(Link("network", None, bandwidth=1e9, latency=0.0),),
)
# Besides, sends take no time.
FAST_LINKS = dataclasses.replace(
    SLOW, links=(Link("network", None, bandwidth=1e15, latency=0.0),)
)
LARGE = (np.zeros([4096, 16], "float32"), np.int32(0))


def estimated(problem, all_stages=(2, 4), max_axes=2):
    """Yields (structure, grid, estimated prices) of the pipelines of a program."""
    names = names_of_program(problem.record("", {}, {}))
    for structure in structures(names.sets(), max_axes, names.variables, names.scanned):
        for stages in all_stages:
            chosen = Structure(**{**vars(structure), "stages": stages})
            grid = make_grid(chosen, problem, names, MICROBATCHES, {}, CHUNKS)
            if grid is not None and grid.is_estimated:
                recorded = record(chosen, problem, grid)
                yield chosen, grid, estimate(chosen, problem, grid, recorded)


def estimate_of(structure, problem, microbatches, chunks=(1,)):
    """Returns (grid, estimated prices) of one structure."""
    names = names_of_program(problem.record("", {}, {}))
    grid = make_grid(structure, problem, names, microbatches, {}, chunks)
    recorded = record(structure, problem, grid)
    return grid, estimate(structure, problem, grid, recorded)


def ratios_to_plans(build, storage):
    """Returns (seconds, peak bytes, numbers of chunks) of pipelines: those of plans, over
    estimates.
    """
    problem = Problem(build, LARGE, 8, SLOW, memory=2**40)
    ratios = []
    for structure, grid, prices in estimated(problem, max_axes=1):
        if structure.storage != storage:
            continue
        is_tried = (grid.microbatches >= structure.stages) & (prices.seconds < np.inf)
        for index in np.flatnonzero(is_tried):
            candidate = plan_in_full(Recordings(problem), prices, int(index))
            ratios.append(
                (
                    candidate.seconds / float(prices.seconds[index]),
                    candidate.peak / float(prices.memory[index]),
                    int(grid.chunks[index]),
                )
            )
    assert len(ratios) >= 5
    return np.array(ratios).T


@pytest.mark.parametrize("storage", STORAGES)
def test_an_estimate_is_close_to_the_plan(storage):
    seconds, peaks, chunks = ratios_to_plans(pipeline, storage)
    assert 1.0 <= seconds.min() <= seconds[chunks == 1].max() < 1.06
    assert seconds[chunks > 1].max() < 1.15
    assert 0.9 < peaks.min() <= peaks.max() < 1.1


@pytest.mark.parametrize("storage", STORAGES)
def test_a_large_head_moves_layers_to_other_stages(storage):
    seconds, peaks, _chunks = ratios_to_plans(headed, storage)
    assert 0.9 < seconds.min() <= seconds.max() < 1.06
    # Variables are estimated as if stages had equal ones.
    assert 0.9 < peaks.min() <= peaks.max() < 1.35


def test_weights_are_gathered_once_for_all_microbatches():
    # Gathers of weights along "data" take as long as all the rest.
    links = (Link("host", 4, bandwidth=1e8, latency=0.0), *SLOW.links)
    hardware = dataclasses.replace(SLOW, links=links)
    examples = np.zeros([1024, 16], "float32")
    problem = Problem(pipeline, (examples, np.int32(0)), 8, hardware, memory=2**40)
    structure = Structure(
        (("data", ("batch",)),), "variables", "d_model", ("data",), stages=2
    )
    grid, prices = estimate_of(structure, problem, [2, 4, 8])
    for index in range(len(grid)):
        candidate = plan_in_full(Recordings(problem), prices, index)
        ratio = candidate.seconds / float(prices.seconds[index])
        assert 0.97 < ratio < 1.03


def test_slow_links_between_stages():
    # Sends make a step up to a third longer.
    links = (
        Link("host", 4, bandwidth=1e9, latency=0.0),
        Link("network", None, bandwidth=2e7, latency=0.0),
    )
    hardware = dataclasses.replace(SLOW, links=links)
    problem = Problem(pipeline, LARGE, 8, hardware, memory=2**40)
    structure = Structure((("data", ("batch",)),), stages=2)
    grid, prices = estimate_of(structure, problem, [2, 4, 8], CHUNKS)
    for index, chunks in enumerate(grid.chunks):
        candidate = plan_in_full(Recordings(problem), prices, index)
        ratio = candidate.seconds / float(prices.seconds[index])
        assert 0.95 < ratio < (1.05 if chunks == 1 else 1.15)


@pytest.mark.parametrize("index", range(20))
@pytest.mark.sampled(2)
def test_no_bound_exceeds_an_estimate(index):
    hardware = drawn_hardware(random.Random(index))
    build = (pipeline, headed)[index % 2]
    problem = Problem(build, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    bounds = LowerBounds(Recordings(problem), {}, MICROBATCHES)
    number = 0
    for structure, grid, prices in estimated(problem):
        by_gradient, _ = bounds.of_gradient(structure, grid)
        for bound in (bounds.of_forward(structure, grid), by_gradient):
            assert (bound > 0).all()
            assert (bound <= prices.seconds * (1 + 1e-9)).all(), structure
        number += len(grid)
    assert number > 100


def searched(
    build,
    hardware,
    prune=True,
    memory=2**40,
    stages=(1, 2, 4),
    microbatches=MICROBATCHES,
    devices=8,
):
    """Returns the result of a search with stages."""
    problem = Problem(build, STACK_ARGUMENTS, devices, hardware, memory=memory)
    return Search(
        problem,
        max_axes=2,
        axes={},
        layout=None,
        storages=STORAGES,
        choices={"microbatches": microbatches, "chunks": CHUNKS},
        stages=stages,
        prune=prune,
    ).run()


@pytest.mark.parametrize("index", range(20))
@pytest.mark.sampled(2)
def test_what_bounds_leave_out_is_not_among_the_best(index):
    hardware = drawn_hardware(random.Random(index))
    pruned = searched(pipeline, hardware)
    unpruned = searched(pipeline, hardware, prune=False)
    assert unpruned.num_pruned == 0
    best = [(c.axes, c.layout, c.choices, c.seconds) for c in unpruned.best]
    assert [(c.axes, c.layout, c.choices, c.seconds) for c in pruned.best] == best


def test_the_first_choice_is_planned_and_a_pipeline_after_it_is_an_estimate():
    result = searched(pipeline, as_hardware("h100"), stages=(2, 4))
    first, *others = result.best
    assert first.axes.startswith("stage:")
    assert first.outline is not None
    assert first.seconds == first.forecast.time.seconds
    assert any(candidate.outline is None for candidate in others)
    assert "~" in str(result)
    assert first.seconds <= min(candidate.seconds for candidate in others)
    # The front is corrected as these are.
    assert result.front[0].seconds == pytest.approx(first.seconds)


def test_all_devices_may_be_stages():
    best, *_ = searched(pipeline, as_hardware("h100"), stages=(4,), devices=4).best
    assert (best.axes, best.layout) == ("stage:4", "")
    assert best.seconds == best.forecast.time.seconds


def test_pipelines_store_no_dimension_of_layers():
    # With both of its dimensions sharded, a layer has only that of layers left.
    rules = {"axes": "data:2;a:2;b:2", "layout": "batch:data; d_model:a; d_ff:b"}
    build, args = pipeline, STACK_ARGUMENTS
    with_one = mtf.search(build, *args, devices=8, hardware="h100", **rules)
    assert any(c.optimizer_layout == "layers:data" for c in with_one.best)
    with_two = mtf.search(
        build,
        *args,
        devices=16,
        hardware="h100",
        stages=[2],
        choices={"microbatches": [2, 4]},
        **rules,
    )
    assert not any(c.optimizer_layout or c.variable_layout for c in with_two.best)


def test_a_pipeline_also_without_stages_has_plans_of_its_own():
    problem = Problem(staged, STACK_ARGUMENTS, 8, as_hardware("h100"), memory=2**40)
    assert not can_be_estimated(problem, MICROBATCHES, {})
    result = searched(staged, problem.hardware, stages=(2,), microbatches=[1, 2])
    assert all(candidate.outline is not None for candidate in result.best)
    assert len({c.choices["microbatches"] for c in result.best}) > 1
    assert len({c.choices["chunks"] for c in result.best}) > 1


def test_the_memory_of_an_estimate_decides_whether_it_fits():
    hardware = as_hardware("h100")
    roomy = searched(pipeline, hardware, stages=(4,))
    peaks = sorted(candidate.peak for candidate in roomy.best)
    limit = peaks[len(peaks) // 2]
    tight = searched(pipeline, hardware, stages=(4,), memory=limit)
    assert all(candidate.peak <= limit for candidate in tight.best)
    assert tight.best[0].outline is not None


def refusing(mesh, microbatches=1, chunks=1):
    """Returns what `pipeline` does; no pipelines are allowed."""
    if mesh.num_stages > 1:
        raise mtf.PlanError("this model has no pipeline.")
    return pipeline(mesh, microbatches, chunks)


def test_refused_pipelines_are_named():
    hardware = as_hardware("h100")
    result = searched(refusing, hardware)
    assert all(candidate.outline is not None for candidate in result.best)
    with pytest.raises(mtf.LayoutError, match="this model has no pipeline"):
        searched(refusing, hardware, stages=(2, 4))


def without_chunks(mesh, microbatches=1, chunks=1):
    """Returns what `pipeline` does; no stage has several chunks."""
    if chunks > 1:
        raise mtf.PlanError("one chunk on each stage.")
    return pipeline(mesh, microbatches)


def test_where_chunks_are_refused_pipelines_without_them_are_shown():
    result = searched(without_chunks, FAST_LINKS, stages=(2,))
    assert result.refused
    assert len(result.best) == 10
    assert all("chunks" not in candidate.choices for candidate in result.best)


def test_chunks_are_interleaved_where_stages_wait_for_each_other():
    problem = Problem(pipeline, LARGE, 8, FAST_LINKS, memory=2**40)
    structure = Structure((("data", ("batch",)),), stages=2)
    grid, prices = estimate_of(structure, problem, [2], CHUNKS)
    one, two = (plan_in_full(Recordings(problem), prices, index) for index in range(2))
    assert list(grid.chunks) == CHUNKS
    # (M + (S - 1) / v) / M: 3 / 2 and 2.5 / 2.
    assert two.seconds / one.seconds == pytest.approx(2.5 / 3, rel=0.02)
    assert prices.seconds[1] / prices.seconds[0] == pytest.approx(2.5 / 3, rel=0.02)


def test_one_recording_serves_all_numbers_of_stages():
    problem = Problem(pipeline, LARGE, 8, SLOW, memory=2**40)
    names = names_of_program(problem.record("", {}, {}))
    structures_by_stages = {
        stages: Structure((("data", ("batch",)),), stages=stages) for stages in (2, 4)
    }
    grids = {
        stages: make_grid(structure, problem, names, MICROBATCHES, {})
        for stages, structure in structures_by_stages.items()
    }
    bounds = LowerBounds(Recordings(problem), {}, MICROBATCHES)
    for stages, structure in structures_by_stages.items():
        _, durations = bounds.of_gradient(structure, grids[stages])
        by_recording = [
            estimate(
                structure,
                problem,
                grids[stages],
                record(structures_by_stages[other], problem, grids[other]),
                durations,
            )
            for other in (2, 4)
        ]
        first, second = by_recording
        np.testing.assert_allclose(first.seconds, second.seconds)
        np.testing.assert_allclose(first.memory, second.memory)


def test_there_may_be_more_stages_than_layers_in_the_loop():
    problem = Problem(pipeline, LARGE, 16, FAST_LINKS, memory=2**40)
    structure = Structure((("data", ("batch",)),), stages=8)
    _, prices = estimate_of(structure, problem, [8], CHUNKS)
    one, two = prices.seconds
    assert one < np.inf
    assert two == np.inf
