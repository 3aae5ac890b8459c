"""Positions to devices: which host an axis stays in, and what is refused."""

from __future__ import annotations

import pytest
import tensorflow as tf

from meshtf.errors import MeshError
from meshtf.mesh import Mesh
from meshtf.runtime.devices.resolve import devices_of, keep_within_host


def names(*counts, kind="GPU"):
    """Returns the devices of some hosts of an invented cluster, host by host."""
    return [
        f"/job:worker/replica:0/task:{task}/device:{kind}:{i}"
        for task, count in enumerate(counts)
        for i in range(count)
    ]


def dealt(mesh, devices):
    """Returns "task/index" of each position's device."""
    specs = [
        tf.DeviceSpec.from_string(devices[i]) for i in keep_within_host(mesh, devices)
    ]
    return [f"{spec.task}/{spec.device_index}" for spec in specs]


def hosts_along(mesh, devices, *axes):
    """Returns the number of hosts of each group of positions that differ only along
    some axes.
    """
    tasks = [device.split("/")[0] for device in dealt(mesh, devices)]
    return [len({tasks[p] for p in group}) for group in mesh.groups(*axes)]


@pytest.mark.parametrize("axes", ["model:2;data:4", "data:4;model:2"])
def test_an_axis_stays_within_a_host_whatever_the_order_of_axes(axes):
    mesh = Mesh(axes, within_host="model")
    for devices in (names(4, 4), names(2, 2, 2, 2), names(8), names(4, 4)[::-1]):
        assert hosts_along(mesh, devices, "model") == [1] * 4
        assert sorted(keep_within_host(mesh, devices)) == list(range(8))


def test_without_it_the_list_is_an_order():
    mesh = Mesh("model:2;data:4")
    assert keep_within_host(mesh, names(4, 4)) == list(range(8))
    assert (
        hosts_along(mesh, names(4, 4), "model") == [2] * 4
    )  # so the tests here can fail


def test_groups_take_the_devices_of_one_host_after_the_other():
    mesh = Mesh("model:2;data:4", within_host="model")
    assert dealt(mesh, names(4, 4)) == [
        "0/0",
        "0/2",
        "1/0",
        "1/2",
        "0/1",
        "0/3",
        "1/1",
        "1/3",
    ]


def test_hosts_come_as_the_list_first_names_them():
    mesh = Mesh("model:2;data:2", within_host="model")
    zero = names(2, 2)[:2]
    one = names(2, 2)[2:]
    assert dealt(mesh, [*one, *zero]) == ["1/0", "0/0", "1/1", "0/1"]
    assert dealt(mesh, [one[1], zero[1], zero[0], one[0]]) == [
        "1/1",
        "0/1",
        "1/0",
        "0/0",
    ]


def test_a_list_that_fits_stays_as_it_is():
    mesh = Mesh("data:2;model:2", within_host="model")
    listed = [names(2, 2)[i] for i in (3, 2, 0, 1)]
    assert keep_within_host(mesh, listed) == [0, 1, 2, 3]
    assert keep_within_host(mesh, names(4, kind="CPU")[::-1]) == [0, 1, 2, 3]


def test_hosts_of_unlike_size():
    mesh = Mesh("model:2;data:3", within_host="model")
    assert hosts_along(mesh, names(4, 2), "model") == [1, 1, 1]


def test_several_axes_stay_within_a_host_together():
    mesh = Mesh("a:2;data:2;b:2", within_host=["b", "a"])
    assert hosts_along(mesh, names(4, 4), "a", "b") == [1, 1]
    with pytest.raises(
        MeshError, match="(?s)^b:2 x a:2 cannot stay.*a multiple of 4 devices"
    ):
        keep_within_host(mesh, names(2, 2, 2, 2))


def test_hosts_that_are_too_small_are_refused_with_the_way_out():
    mesh = Mesh("data:2;model:4", within_host="model")
    with pytest.raises(MeshError) as error:
        keep_within_host(mesh, names(6, 2))
    text = str(error.value)
    assert text.startswith(
        "model:4 cannot stay within a host: each host would need a multiple of 4"
    )
    assert (
        "/job:worker/replica:0/task:0: 6 devices" in text
        and "task:1: 2 devices" in text
    )
    assert "make the size along it 2, which" in text


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(
        MeshError, match="(?s)'modle', which the mesh lacks.*close to *model"
    ):
        Mesh("data:2;model:2", within_host="modle")


@pytest.mark.parametrize(
    "devices, last",
    [
        (None, "/device:CPU:0"),
        ("logical:4", "/device:CPU:3"),
        (["CPU:3", "CPU:1", "CPU:0", "CPU:2"], "/device:CPU:2"),
    ],
)
def test_on_one_host_nothing_changes(devices, last):
    plain, within = (
        devices_of(Mesh("model:2;data:2", devices=devices, within_host=axes))
        for axes in ((), "model")
    )
    assert plain == within and plain[-1] == last


def test_a_name_with_a_host_keeps_it():
    full = tf.config.list_logical_devices("CPU")[1].name
    found = devices_of(Mesh("data:2", devices=[full, "CPU:1"]))
    assert found == (full, "/device:CPU:1")
