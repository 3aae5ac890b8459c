"""Measured local steps change the time of ops, by the sizes that a device computes with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.local_sizes import durations_of, local_sizes
from meshtf.forecast.time.schedule import Schedule
from meshtf.hardware import Hardware, Link, MeasuredLocalStep
from meshtf.partition import build

PLAIN = Hardware(
    "plain",
    {"float32": 1e9},
    memory_bandwidth=1e30,
    links=(Link("all", None, 1e9, 0.0),),
)
SLOW = dataclasses.replace(
    PLAIN,
    local_steps=(
        MeasuredLocalStep({"batch": 16, "d": 4, "d_ff": 8}, factor=2.0),
        MeasuredLocalStep({"batch": 4, "d": 4, "d_ff": 32}, factor=8.0),
    ),
)


def planned(axes, layout):
    """Returns the plan of two matmuls."""
    mesh = mtf.Mesh(axes, layout, devices="abstract")

    @mtf.function(mesh=mesh, x="batch;d", w="d;d_ff", v="d_ff;d")
    def two_matmuls(x, w, v):
        return mtf.matmul(mtf.relu(mtf.matmul(x, w)), v)

    arrays = [np.zeros(sizes, "float32") for sizes in ((16, 4), (4, 32), (32, 4))]
    recorded = two_matmuls.record_call(tuple(arrays), {}).recorded
    return build(recorded.nodes, recorded.results, recorded.mesh)


def test_local_sizes_are_those_of_the_shards():
    program = planned("a:4", "d_ff:a")
    durations = Durations(PLAIN, program.mesh)
    assert local_sizes(program, durations) == {"batch": 16, "d": 4, "d_ff": 8}


def test_ops_take_the_measured_factor_longer_and_collectives_do_not():
    program = planned("a:4", "d_ff:a")
    before = Schedule(program, durations_of(program, PLAIN)).totals
    after = Schedule(program, durations_of(program, SLOW)).totals
    assert after.matmuls == pytest.approx(2 * before.matmuls, rel=1e-4)
    assert after.collectives == before.collectives


def test_sizes_between_measured_ones_get_a_factor_between():
    program = planned(
        "a:2", "d_ff:a"
    )  # one doubling from the first, three from the other
    before = Schedule(program, durations_of(program, PLAIN)).totals
    after = Schedule(program, durations_of(program, SLOW)).totals
    ratio = float(after.matmuls / before.matmuls)
    assert 2 < ratio < 4
    assert ratio == pytest.approx(2 ** ((1 + 3 / 5) / (1 + 1 / 5)))


def test_many_meshes_at_once_get_the_factors_of_each():
    program = planned("a:2", "d_ff:a")
    sizes = Sizes({"a": np.array([1, 2, 4])}, strides={"a": np.array([1, 1, 1])})
    many = Schedule(program, durations_of(program, SLOW, sizes)).totals.matmuls
    for i, size in enumerate((1, 2, 4)):
        own = planned(f"a:{size}", "d_ff:a")
        one = Schedule(own, durations_of(own, SLOW)).totals.matmuls
        assert many[i] == pytest.approx(float(one))
