"""What `benchmarks.spmd` prints."""

from __future__ import annotations

from benchmarks.harness.report import Row, table
from benchmarks.spmd.ratios import live_ratios


def row(name, seconds, **start):
    """Returns measurements of a case."""
    start = {"compile": seconds, "first": 2 * seconds, "memory": 100.0, **start}
    start |= {"compile_cpu": seconds, "first_cpu": seconds}
    steps = {"wall": [seconds] * 3, "cpu": [seconds] * 3}
    return Row(name, "lm", losses=[2.0, 1.0], step=steps, start=start)


def test_ratios_are_those_of_the_live_mesh_to_all_others():
    rows = [
        row("JAX", 2.0, device_memory=40.0),
        row("meshtf, live SPMD", 3.0, device_memory=50.0),
        row("meshtf, 8 logical devices", 1.0),
    ]
    assert live_ratios(rows).split("\n") == [
        "meshtf, live SPMD / JAX: step 1.50, compile 1.50, first 1.50, "
        "memory of a device 1.25",
        "meshtf, live SPMD / meshtf, 8 logical devices: step 3.00, compile 3.00, "
        "first 3.00",
    ]
    assert "compile" in table(rows, start_time="compile")
