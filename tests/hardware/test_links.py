"""Times of collectives against numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshtf.hardware import CollectiveTimes, Hardware, Link

NVLINK = Link("NVLink", 8, 400e9, 5e-6)
NETWORK = Link("network", None, 50e9, 1e-5)


def times(links=(NVLINK, NETWORK), within_host=(), **axes) -> CollectiveTimes:
    """Returns the times of collectives on a mesh of hosts of 8 devices."""
    hardware = Hardware("gpu", {"bfloat16": 1e15}, 3e12, links)
    return CollectiveTimes(hardware, axes, within_host)


def test_within_a_host_an_all_reduce_takes_its_bytes_and_its_rounds():
    # All-reduce: 1 + 2 log2(8) = 7 latencies. Bytes are those that a device receives.
    expected = 7 * 5e-6 + 1e9 / 400e9
    assert times(model=8).seconds("all_reduce", ["model"], 1e9) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    "kind, rounds", [("all_gather", 4), ("reduce_scatter", 4), ("send", 1)]
)
def test_other_kinds_have_fewer_rounds(kind, rounds):
    expected = rounds * 5e-6 + 2e8 / 400e9
    assert times(model=8).seconds(kind, ["model"], 2e8) == pytest.approx(expected)


def test_slices_and_single_devices_take_no_time():
    assert times(model=8).seconds("slice", ["model"], 1e9) == 0
    assert times(model=1).seconds("all_reduce", ["model"], 1e9) == 0


def test_one_device_of_each_host_has_the_bandwidth_of_one():
    # Neighbours along "data" are 8 apart: each group has one device in a host.
    expected = (1 + 2 * 2) * 1e-5 + 1e9 / 50e9
    mesh = times(data=4, model=8)
    assert mesh.seconds("all_reduce", ["data"], 1e9) == pytest.approx(expected)


def test_devices_of_a_group_in_one_host_share_what_the_host_receives():
    # 4 devices of a host are in one group: together they have 4 x 50 GB/s.
    mesh = times(data=16, model=2)
    expected = (1 + 2 * 4) * 1e-5 + 1e9 / 200e9
    assert mesh.seconds("all_reduce", ["data"], 1e9) == pytest.approx(expected)
    # 8 x 50 GB/s are as fast as NVLink, and never faster.
    mesh = times(data=32)
    expected = (1 + 2 * 5) * 1e-5 + 1e9 / 400e9
    assert mesh.seconds("all_reduce", ["data"], 1e9) == pytest.approx(expected)


def test_an_all_to_all_shares_nothing():
    mesh = times(data=16, model=2)
    expected = (1 + 4) * 1e-5 + 1e9 / 50e9
    assert mesh.seconds("all_to_all", ["data"], 1e9) == pytest.approx(expected)


def test_axes_within_a_host_are_the_nearest():
    far = times(model=8, data=4).seconds("all_gather", ["model"], 1e9)
    near = times(model=8, data=4, within_host=["model"]).seconds(
        "all_gather", ["model"], 1e9
    )
    assert near == pytest.approx(4 * 5e-6 + 1e9 / 400e9)
    assert far > 2 * near


def test_two_axes_are_one_group():
    mesh = times(data=2, model=4)
    expected = 7 * 5e-6 + 1e9 / 400e9
    assert mesh.seconds("all_reduce", ["data", "model"], 1e9) == pytest.approx(expected)


def test_a_measured_kind_replaces_both_values():
    link = Link("all", None, 1e9, 1e-3, {"all_reduce": {"bandwidth": 2e9}})
    mesh = times(links=(link,), model=2)
    assert mesh.seconds("all_reduce", ["model"], 1e9) == pytest.approx(3e-3 + 0.5)
    assert mesh.seconds("all_gather", ["model"], 1e9) == pytest.approx(2e-3 + 1)


def test_in_a_ring_each_device_adds_a_round():
    ring = Link("ring", 8, 400e9, 5e-6, ring=True)
    mesh = times(links=(ring, NETWORK), data=2, model=8)
    # All-reduce: 1 + 2 (8 - 1) = 15 latencies.
    expected = 15 * 5e-6 + 1e9 / 400e9
    assert mesh.seconds("all_reduce", ["model"], 1e9) == pytest.approx(expected)
    across = 3 * 1e-5 + 1e9 / 50e9
    assert mesh.seconds("all_reduce", ["data"], 1e9) == pytest.approx(across)


def test_statistics_are_gathered_and_windows_permuted():
    mesh = times(model=8)
    gathered = mesh.seconds("all_gather", ["model"], 1e6)
    assert mesh.seconds("gather_statistics", ["model"], 1e6) == gathered
    window = mesh.seconds("window", ["model"], 1e6)
    assert window == mesh.seconds("collective_permute", ["model"], 1e6)


def test_sizes_may_be_arrays_of_many_meshes():
    sizes = np.array([1, 2, 8, 64])
    mesh = times(data=64 // sizes, model=sizes)
    values = mesh.seconds("all_reduce", ["model"], 1e9)
    for i, size in enumerate(sizes):
        one = times(data=64 // size, model=size)
        assert values[i] == one.seconds("all_reduce", ["model"], 1e9)
