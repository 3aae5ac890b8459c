"""Rates of collectives, by size of the group, on positions that share one device."""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf.calibration import collectives
from meshtf.calibration.collectives import BODIES, COUNTS, measure_collectives
from meshtf.hardware import CollectiveTimes, Hardware, Link

KINDS = {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "reduce_scatter",
}


def test_each_kind_has_rates_for_each_size_of_a_group():
    lines = []
    rates = measure_collectives(None, 2, lines.append, sizes=(8, 64), rounds=1)
    assert set(rates) == KINDS
    for values in rates.values():
        assert values["devices"] == [2]
        assert all(x >= 0 for x in values["latency"])
        assert all(x > 0 for x in values["bandwidth"])
    assert len(lines) == len(KINDS) + 1


def test_latencies_are_those_after_matmuls(monkeypatch):
    def rates(delay):
        def seconds_of(key):
            if key.kind == "nothing":
                return 1e-3 * key.has_matmul
            seconds = 1e-5 * COUNTS.get(key.kind, 1) * (1 + key.elements / 8)
            return seconds * delay + 1e-3 if key.has_matmul else seconds

        monkeypatch.setattr(collectives, "_work", lambda _, __, key, clock: key)
        monkeypatch.setattr(
            collectives, "measure", lambda works, _: list(map(seconds_of, works))
        )
        return measure_collectives(None, 2, lambda line: None, sizes=(8, 64))

    after = rates(3.0)
    for kind, values in rates(0.5).items():
        assert after[kind]["latency"] == pytest.approx([3 * values["latency"][0]])
        assert after[kind]["bandwidth"] == values["bandwidth"]


def test_a_matmul_comes_before_its_collective():
    mesh = mtf.Mesh("outer:1;inner:4", "outer:outer;inner:inner", devices="abstract")
    x = mtf.zeros(mesh, "outer:1;inner:4;block:4;elements:16")
    left = mtf.zeros(mesh, "outer:1;inner:4;m:8;k:8")
    right = mtf.zeros(mesh, "outer:1;inner:4;k:8;n:8")
    body = collectives._after_matmul(BODIES["all_gather"])
    forecast = mtf.explain(body, x, left, right)
    assert [c.kind for c in forecast.collectives if c.bytes] == ["all_gather"]
    assert "einsum" in [op.title for op in forecast.ops]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_work_has_the_collective_that_it_is_named_after_and_no_other(kind):
    mesh = mtf.Mesh("outer:2;inner:4", "outer:outer;inner:inner", devices="abstract")
    x = mtf.zeros(mesh, "outer:2;inner:4;block:4;elements:16")
    forecast = mtf.explain(BODIES[kind], x)
    received = [c for c in forecast.collectives if c.bytes]
    # A permute exchanges the windows of neighbours.
    names = {"window" if kind == "collective_permute" else kind}
    assert {c.kind for c in received} == names
    assert len(received) == COUNTS.get(kind, 1)


def test_times_follow_the_size_of_the_group():
    rates = {
        "all_reduce": {
            "devices": [2, 8],
            "latency": [1e-5, 3e-5],
            "bandwidth": [2e9, 1e9],
        }
    }
    link = Link("all", None, bandwidth=1e12, latency=1.0, collectives=rates)
    hardware = Hardware("machine", {"float32": 1e10}, 1e10, (link,))
    times = CollectiveTimes(hardware, {"a": 2, "b": 4, "c": 8})

    def seconds(axis, merged=False):
        return float(times.seconds("all_reduce", (axis,), 1e6, merged))

    assert seconds("a") == pytest.approx(1e-5 + 5e-4)
    assert seconds("b") == pytest.approx(2e-5 + 7.5e-4)
    assert seconds("c") == pytest.approx(3e-5 + 1e-3)
    assert seconds("c", merged=True) == pytest.approx(1e-3)
