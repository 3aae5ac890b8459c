"""Seconds of collectives: their bytes and their latencies have factors of their own."""

from __future__ import annotations

import dataclasses

import pytest

from meshtf.forecast.time.exchanges import collective_seconds
from meshtf.hardware import CollectiveTimes, Hardware, Link

LINK = Link("all", None, bandwidth=1e9, latency=1e-5)
PLAIN = Hardware("plain", {"float32": 1e9}, memory_bandwidth=1e9, links=(LINK,))


def seconds(received, merged=False, copies=0.0, **factors):
    """Returns the seconds of an all_gather of four devices."""
    hardware = dataclasses.replace(PLAIN, work_factors=factors)
    times = CollectiveTimes(hardware, {"a": 4})
    return collective_seconds(
        hardware, times, "all_gather", ["a"], received, merged, copies
    )


def test_bytes_and_latency_add_up():
    latency = seconds(0)
    assert latency >= LINK.latency
    assert seconds(1e6) == pytest.approx(latency + 1e-3)
    assert seconds(1e6, merged=True) == pytest.approx(1e-3)


def test_each_has_its_factor():
    latency = seconds(0)
    both = {"all_gather": 2.0, "latency": 5.0}
    assert seconds(1e6, **both) == pytest.approx(5 * latency + 2e-3)
    assert seconds(1e6, merged=True, **both) == pytest.approx(2e-3)
    assert seconds(0, copies=1.0, **both) == pytest.approx(5 * latency + 2)


def test_without_a_factor_of_latency_that_of_the_kind_is_for_both():
    assert seconds(1e6, all_gather=2.0) == pytest.approx(2 * seconds(1e6))
    assert seconds(1e6, all=3.0) == pytest.approx(3 * seconds(1e6))
