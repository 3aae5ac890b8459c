"""How many stages, microbatches and ticks a pipelined scan has."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.ops.loops.schedule import schedule_of

LAYERS = mtf.Dimension("layers", 6)


def of(axes, layout, *shapes, **settings):
    mesh = mtf.Mesh(axes, layout, **settings)
    carry = []
    for shape in shapes or ("batch:24; d:3",):
        sizes = mtf.Shape(shape).sizes
        carry.append(mtf.asarray(mesh, np.zeros(sizes), mtf.Shape(shape)))
    return schedule_of(mesh, mesh.layout, carry, LAYERS)


def test_sizes():
    schedule = of("stage:4; data:2", "layers:stage; batch:data", microbatches=6)
    assert (schedule.num_stages, schedule.axes) == (4, ("stage",))
    assert schedule.layers_of_group == 2  # the last stage has no layer
    assert schedule.num_slots == 2
    assert schedule.num_ticks == 9
    assert schedule.microbatch_dim == mtf.Dimension("batch", 4)


@pytest.mark.parametrize(
    "axes, layout, num_microbatches",
    [
        ("stage:2", "layers:stage", 8),
        ("stage:4", "layers:stage", 12),
        ("stage:2; data:4", "layers:stage; batch:data", 6),
        ("stage:2; data:8", "layers:stage; batch:data", 3),
        ("stage:2; data:5", "layers:stage; batch:data", 8),
        ("stage:2; data:2", "layers:stage; batch:stage+data", 6),
    ],
)
def test_default_number_of_microbatches(axes, layout, num_microbatches):
    assert of(axes, layout).num_microbatches == num_microbatches


def test_no_pipeline():
    assert of("data:2", "batch:data") is None
    assert of("stage:2", "d:stage") is None
    assert of("stage:2", "layers:stage", "") is None
    assert of("stage:2", "layers:stage", "batch:4", "d:3") is None


def test_the_batch_is_what_the_carry_has_in_common():
    schedule = of("stage:2", "layers:stage", "d:3; batch:4", "batch:4; e:2")
    assert schedule.batch == mtf.Dimension("batch", 4)


def test_a_carry_without_a_common_dimension_is_refused():
    with pytest.raises(mtf.PlanError, match="no dimension that could be divided") as e:
        of("stage:2", "layers:stage", "batch:4", "d:3", microbatches=2)
    assert 'mtf.layout("layers:")' in str(e.value)


def test_microbatches_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(mtf.ShapeError, match="5 microbatches do not divide") as e:
        of("stage:2", "layers:stage", microbatches=5)
    assert "[1, 2, 3, 4, 6, 8, 12, 24]" in str(e.value)


def test_repeats():
    settings = {"microbatches": 8, "repeats": 3}
    schedule = of("stage:2; data:2", "layers:stage; batch:data", **settings)
    assert (schedule.num_groups, schedule.layers_of_group) == (6, 1)
    assert (schedule.period, schedule.num_ticks) == (8, 3 * 8 + 1)


def test_repeats_of_microbatches_that_stages_do_not_divide():
    schedule = of("stage:4", "layers:stage", microbatches=6, repeats=2)
    assert (schedule.period, schedule.num_ticks) == (8, 8 + 6 + 3)


def test_repeats_without_layers_are_refused():
    with pytest.raises(mtf.ShapeError, match="3 repeats are too many") as e:
        of("stage:4", "layers:stage", repeats=3)
    assert "repeats=) may be at most 2" in str(e.value)
