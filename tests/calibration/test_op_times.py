"""Seconds of an element of ops, on small tensors."""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf.calibration.op_times import measure_ops
from meshtf.hardware import Hardware, Link


def test_each_op_has_a_time_and_its_gradient_the_same():
    mesh = mtf.Mesh("position:2", "position:position")
    lines = []
    seconds = measure_ops(mesh, lines.append, rows=(2, 4), rounds=1)
    assert seconds["softmax"] == seconds["softmaxgrad"]
    assert all(x > 0 for x in seconds["elementwise"])
    assert {"normalize", "gelu", "crossentropy"} < set(seconds)
    assert all("ns" in line for line in lines)


def test_a_forecast_counts_the_elements():
    link = Link("all", None, bandwidth=1e9, latency=0.0)
    hardware = Hardware(
        "machine",
        {"float32": 1e10},
        1e12,
        (link,),
        element_counts=(8, 32),
        element_seconds={"softmax": [1e-6, 2e-6], "elementwise": [1e-9, 1e-9]},
    )
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract")

    @mtf.function(mesh=mesh, x="batch;d")
    def run(x):
        return mtf.softmax(x, "d")

    forecast = mtf.explain(run, mtf.zeros(mesh, "batch:8;d:4"), hardware=hardware)
    assert dict(forecast.time.work)["softmax"] == pytest.approx(8 * 4 / 2 * 1.5e-6)
