"""Without the structures that bounds leave out, the best candidates are the same."""

from __future__ import annotations

import random

import pytest

import meshtf as mtf
from meshtf.layout_search.problem import Problem
from meshtf.layout_search.search import Search
from tests.layout_search.programs import STACK_ARGUMENTS, drawn_hardware, stack


def results(problem, stages=(1,)):
    """Returns the results of searches with and without bounds."""
    return [
        Search(
            problem,
            max_axes=2,
            axes={},
            layout=None,
            storages=["replicated", "slots", "variables"],
            choices={"microbatches": [1, 2, 4], "recompute": [False, True]},
            stages=stages,
            num_best=3,
            prune=prune,
        ).run()
        for prune in (True, False)
    ]


def table(result):
    """Returns what a table shows of the candidates."""
    return [(c.seconds, c.mesh_settings, dict(c.choices)) for c in result.best]


@pytest.mark.parametrize("stages", [(1,), (1, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("index", range(50))
@pytest.mark.sampled(2, each="stages")
def test_the_best_are_those_of_a_search_without_bounds(index, stages):
    hardware = drawn_hardware(random.Random(index))
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    pruned, every = results(problem, stages)
    assert table(pruned) == table(every)
    assert pruned.num_priced == every.num_priced
    assert pruned.num_planned + pruned.num_pruned == every.num_planned
    assert not every.num_pruned


def test_bounds_leave_out_structures_and_the_table_says_so():
    hardware = drawn_hardware(random.Random(3))
    problem = Problem(stack, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    pruned, every = results(problem)
    assert pruned.num_planned < every.num_planned
    assert "a lower bound of their times exceeds those" in str(pruned)
    assert "a lower bound" not in str(every)


def longer_without_axes(mesh, **choices):
    """Returns a training step that does more where the mesh has no axes, as no program should
    do: the bounds, which are of a program on such a mesh, are too high.
    """
    step = stack(mesh, **choices)
    if mesh.axes:
        return step

    @mtf.function(mesh=mesh, x="batch;d_model", index="")
    def longer_step(x, index):
        for _ in range(50):
            x = mtf.softmax(x, "d_model")
        return step(x, index)

    return longer_step


def test_a_program_that_depends_on_its_mesh_is_priced_without_bounds():
    hardware = drawn_hardware(random.Random(0))
    problem = Problem(longer_without_axes, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    pruned, every = results(problem)
    assert table(pruned) == table(every)
    assert not pruned.num_pruned


def test_a_program_that_depends_on_one_rule_is_priced_without_bounds():
    """The op that is there where d_ff is sharded makes no plan faster, and is noticed."""

    def build(mesh, **choices):
        return stack(mesh, **choices, is_longer=bool(mesh.layout.axes("d_ff")))

    hardware = drawn_hardware(random.Random(1))
    problem = Problem(build, STACK_ARGUMENTS, 8, hardware, memory=2**40)
    pruned, every = results(problem)
    assert table(pruned) == table(every)
    assert not pruned.num_pruned
