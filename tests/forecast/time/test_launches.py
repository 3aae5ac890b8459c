"""Ops that the host launches one after another."""

from __future__ import annotations

import dataclasses

import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link

LINK = Link("all", None, 1e12, 0.0)
FAST = Hardware("fast", {"float32": 1e18}, 1e18, (LINK,), fuses=False)


def seconds(hardware: Hardware, ops: int) -> float:
    """Returns the seconds of a program of some elementwise ops."""
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract")

    @mtf.function(mesh=mesh, x="batch; d")
    def step(x):
        for _ in range(ops):
            x = mtf.exp(x)
        return x

    forecast = mtf.explain(step, mtf.zeros(mesh, "batch:8; d:8"), hardware=hardware)
    return forecast.time.seconds


def test_small_ops_take_the_time_of_the_host():
    launched = dataclasses.replace(FAST, launch_seconds=1e-3)
    difference = seconds(launched, ops=7) - seconds(launched, ops=3)
    assert difference == pytest.approx(4e-3, rel=1e-6)


def test_the_host_launches_while_the_device_computes():
    slow = dataclasses.replace(FAST, op_seconds=1e-2)
    launched = dataclasses.replace(slow, launch_seconds=1e-3)
    # Only the launch of the earliest op is not hidden.
    assert seconds(launched, ops=5) - seconds(slow, ops=5) == pytest.approx(1e-3)


def test_without_a_time_to_launch_nothing_changes():
    assert FAST.launch_seconds == 0
    assert seconds(FAST, ops=5) < 1e-9
