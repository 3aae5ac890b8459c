"""Reductions that do not wait for each other have one latency."""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf.hardware import Hardware, Link

LATENCY = 1e-3


def seconds(fn, count, fuses):
    """Returns the predicted time of collectives of a function of x [batch]."""
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract", bucket_bytes=0)
    link = Link("all", None, bandwidth=1e15, latency=LATENCY / 3)
    hardware = Hardware("machine", {"float32": 1e10}, 1e10, (link,), fuses=fuses)

    @mtf.function(mesh=mesh, x="batch")
    def run(x):
        return fn(x, count)

    x = mtf.zeros(mesh, "batch:8")
    forecast = mtf.explain(run, x, hardware=hardware)
    return sum(s for _, s in forecast.time.collectives)


def independent(x, count):
    return [mtf.reduce_max(x * float(i + 2)) for i in range(count)]


def chained(x, count):
    for _ in range(count):
        x = x * mtf.reduce_max(x)
    return mtf.reduce_max(x)


def test_independent_reductions_have_one_latency_under_xla():
    assert seconds(independent, 4, fuses=True) == pytest.approx(LATENCY, rel=1e-3)
    assert seconds(independent, 4, fuses=False) == pytest.approx(4 * LATENCY, rel=1e-3)


def test_reductions_that_wait_for_each_other_have_their_own():
    assert seconds(chained, 2, fuses=True) == pytest.approx(3 * LATENCY, rel=1e-3)
