"""No lower bound exceeds what it is a bound of."""

from __future__ import annotations

import contextlib
import functools
import random

import numpy as np
import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link
from meshtf.layout_search.beginning import Recordings
from meshtf.layout_search.bounds import LowerBounds
from meshtf.layout_search.candidates import plan_in_full
from meshtf.layout_search.grid import make_grid
from meshtf.layout_search.pricing import price, record
from meshtf.layout_search.problem import Problem, names_of_program
from meshtf.layout_search.space import structures
from tests.layout_search.programs import (
    STACK_ARGUMENTS,
    drawn_hardware,
    stack,
    stages_of,
)

MICROBATCHES = [1, 2, 4]
RECOMPUTE = (("recompute", False),), (("recompute", True),)


def priced(problem, max_axes):
    """Yields (structure, grid, bounds, prices) of the structures of a program."""
    names = names_of_program(problem.record("", {}, {}))
    bounds = {}
    for choices in RECOMPUTE:
        bounds[choices] = LowerBounds(Recordings(problem), dict(choices), MICROBATCHES)
        bounds[choices].share_forward(bounds.values())
    for structure in structures(names.sets(), max_axes, names.variables, names.scanned):
        grid = make_grid(structure, problem, names, MICROBATCHES, {})
        if grid is None or not grid.has_microbatches:
            continue
        for choices in RECOMPUTE:
            chosen = structure.with_choices(choices)
            recorded = record(chosen, problem, grid)
            assert bounds[choices].hold_for(recorded)
            prices = price(chosen, problem, grid, recorded)
            yield chosen, grid, bounds[choices], prices


@pytest.mark.parametrize("index", range(100))
@pytest.mark.sampled(2)
def test_no_bound_exceeds_the_price(index):
    draw = random.Random(index)
    hardware = drawn_hardware(draw)
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    number = 0
    for structure, grid, bounds, prices in priced(problem, max_axes=2):
        by_gradient, _ = bounds.of_gradient(structure, grid)
        for bound in (bounds.of_forward(structure, grid), by_gradient):
            assert (bound > 0).all()
            assert (bound <= prices.seconds * (1 + 1e-9)).all(), structure
        number += len(grid)
    assert number > 100


@pytest.mark.parametrize("index", range(40))
@pytest.mark.sampled(2)
def test_no_bound_exceeds_the_price_of_a_pipeline(index):
    draw = random.Random(index)
    build = functools.partial(stack, with_head=draw.random() < 0.5)
    problem = Problem(
        build,
        STACK_ARGUMENTS,
        8,
        drawn_hardware(draw),
        memory=draw.choice((2**17, 2**40)),
    )
    names = names_of_program(problem.record("", {}, {}))
    recordings = Recordings(problem)
    number = 0
    for choices in RECOMPUTE:
        bounds = LowerBounds(Recordings(problem), dict(choices), [1])
        for structure in stages_of(names, max_axes=1):
            chosen = structure.with_choices(choices)
            grid = make_grid(chosen, problem, names, [2, 4, 8, 16], {})
            if grid is None:
                continue
            recorded = record(chosen, problem, grid, recordings)
            prices = price(chosen, problem, grid, recorded)
            forward = bounds.of_forward(chosen, grid)
            fits = np.isfinite(forward)
            by_gradient, _ = bounds.of_gradient(chosen, grid)
            for bound in (forward, by_gradient):
                assert (bound > 0).all()
                within = bound <= prices.seconds * (1 + 1e-9)
                assert within[fits].all(), chosen
            for left_out in np.flatnonzero(~fits):
                assert not plan_in_full(recordings, prices, int(left_out)).fits
            number += len(grid)
    assert number > 50


def test_what_bounds_leave_out_for_its_memory_does_not_fit():
    hardware = drawn_hardware(random.Random(0))
    roomy = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    memory = [prices.memory for *_, prices in priced(roomy, max_axes=1)]
    limit = float(np.median(np.concatenate(memory)))
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=limit)
    left_out = 0
    for structure, grid, bounds, prices in priced(problem, max_axes=1):
        infinite = np.isinf(bounds.of_forward(structure, grid))
        infinite |= ~bounds.fits(structure, grid)
        for index in np.flatnonzero(infinite):
            with contextlib.suppress(mtf.MeshtfError):
                assert not plan_in_full(Recordings(problem), prices, int(index)).fits
            left_out += 1
    assert left_out


def test_sharded_slots_have_the_bounds_of_their_own_plans():
    """Where they share those of replicated variables."""
    hardware = drawn_hardware(random.Random(0))
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    names = names_of_program(problem.record("", {}, {}))
    shared = LowerBounds(Recordings(problem), {}, MICROBATCHES)
    durations_of_replicated = {}
    num_shared = 0
    for structure in structures(names.sets(), 2, names.variables):
        grid = make_grid(structure, problem, names, MICROBATCHES, {})
        if grid is None or not grid.has_microbatches:
            continue
        forward = shared.of_forward(structure, grid)
        seconds, durations = shared.of_gradient(structure, grid)
        if structure.storage == "replicated":
            durations_of_replicated[structure.axes] = durations
        if structure.storage != "slots":
            continue
        num_shared += durations is durations_of_replicated[structure.axes]
        own = LowerBounds(Recordings(problem), {}, MICROBATCHES)
        np.testing.assert_array_equal(own.of_forward(structure, grid), forward)
        np.testing.assert_array_equal(own.of_gradient(structure, grid)[0], seconds)
        np.testing.assert_array_equal(
            own.fits(structure, grid), shared.fits(structure, grid)
        )
    assert num_shared


def test_each_device_starts_all_ops():
    """Where starts take all the time, the bound by the forward pass is the price, but for what
    only the whole plan has.
    """
    hardware = Hardware(
        "starts",
        {"float32": 1e15},
        memory_bandwidth=1e15,
        op_seconds=1.0,
        links=(Link("network", None, 1e15, 1e-9),),
    )
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    for structure, grid, bounds, prices in priced(problem, max_axes=1):
        bound = bounds.of_forward(structure, grid)
        assert (bound <= prices.seconds * (1 + 1e-9)).all()
        assert (bound > 0.8 * prices.seconds).all(), structure
