"""Factors by kind of work, from steps whose times are known."""

from __future__ import annotations

import dataclasses

import pytest

import meshtf as mtf
from meshtf.calibration import MeasuredStep, adjust
from meshtf.hardware import Hardware, Link, MeasuredLocalStep


def forecast(hardware, batch):
    """Returns the forecast of a product and a sum of its result."""
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract")

    @mtf.function(mesh=mesh, x="batch;d", w="d;h")
    def run(x, w):
        return mtf.reduce_sum(mtf.einsum([x, w], "batch;h"))

    x = mtf.zeros(mesh, f"batch:{batch};d:64")
    w = mtf.zeros(mesh, "d:64;h:256")
    return mtf.explain(run, x, w, hardware=hardware)


@pytest.fixture(name="hardware")
def make_hardware():
    link = Link("all", None, bandwidth=1e9, latency=1e-5)
    return Hardware("machine", {"float32": 1e10}, 1e10, (link,), overlaps=False)


def test_factors_are_those_of_the_work_that_takes_longer(hardware):
    slow = dataclasses.replace(hardware, work_factors={"matmul": 2.0})
    batches = (512, 4096, 65536)
    steps = [
        MeasuredStep(forecast(hardware, b), forecast(slow, b).time.seconds)
        for b in batches
    ]
    adjusted = adjust(hardware, steps)
    assert adjusted.work_factors["matmul"] == pytest.approx(2.0, rel=0.1)
    for step, batch in zip(steps, batches):
        seconds = forecast(adjusted, batch).time.seconds
        assert seconds == pytest.approx(step.seconds, rel=0.05)


def test_latencies_have_a_factor_that_may_be_large(hardware):
    waits = dataclasses.replace(hardware, work_factors={"latency": 4.0})
    steps = [
        MeasuredStep(forecast(hardware, b), forecast(waits, b).time.seconds)
        for b in (8, 64, 512)
    ]
    factors = adjust(hardware, steps).work_factors
    # What the steps have in common is a factor of all.
    assert factors["latency"] / factors["matmul"] > 2.5
    assert factors["latency"] == pytest.approx(4.0, rel=0.2)


def test_steps_as_predicted_leave_the_factors_at_one(hardware):
    known = forecast(hardware, 4096)
    adjusted = adjust(hardware, [MeasuredStep(known, known.time.seconds)])
    assert all(f == pytest.approx(1.0) for f in adjusted.work_factors.values())


def test_ops_of_measured_local_steps_get_one_factor(hardware):
    local = MeasuredLocalStep({"batch": 2048, "d": 64, "h": 256}, factor=1.5)
    hardware = dataclasses.replace(hardware, local_steps=(local,))
    slow = dataclasses.replace(hardware, work_factors={"matmul": 1.4, "reduce": 0.8})
    steps = [
        MeasuredStep(forecast(hardware, batch), forecast(slow, batch).time.seconds)
        for batch in (512, 4096, 65536)
    ]
    factors = adjust(hardware, steps).work_factors
    assert 1.0 < factors["matmul"] < 1.4
    assert factors["matmul"] == factors["reduce"]
    assert factors["all_reduce"] != factors["matmul"]
