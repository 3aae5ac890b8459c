"""A profile of this machine: tiny tables, on positions that share one device."""

from __future__ import annotations

from meshtf.calibration import calibrate
from meshtf.calibration.calibrate import num_positions
from meshtf.hardware import as_hardware

TINY = ((1, 8, 16, 8),)


def test_a_profile_is_measured_and_read_again(tmp_path):
    lines = []
    hardware = calibrate(
        None,
        2,
        matmuls=TINY,
        bfloat16=(),
        sizes=(8, 64),
        rows=(2, 4),
        rounds=1,
        step_sizes={"batch": 8, "d": 4, "d_ff": 8, "vocab": 8},
        report=lines.append,
    )
    hardware.save(tmp_path / "machine.json")
    again = as_hardware(str(tmp_path / "machine.json"))
    assert again.as_json() == hardware.as_json()
    assert {(m.n, m.k) for m in again.matmuls} == {(16, 8), (8, 16)}
    (link,) = again.links
    assert link.collectives["all_reduce"]["devices"] == [2]
    assert again.memory_bandwidth > 0 and again.call_seconds > 0
    assert not again.fuses and not again.overlaps and again.shares_equal_work
    assert again.work_factor("matmul") == again.work_factors["all"] > 0
    assert "measured on" in again.sources["all values"]
    assert any("GFLOP/s" in line for line in lines)


def test_the_count_of_positions_is_that_of_the_devices():
    assert num_positions("spmd:cpu:4", 8) == 4
    assert num_positions("spmd", 8) == 8
    assert num_positions(None, 2) == 2
