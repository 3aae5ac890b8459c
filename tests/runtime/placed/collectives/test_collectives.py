"""Collectives: ring and alias agree, on every device, and are chosen by where devices
are.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from meshtf.runtime.devices.resolve import share_memory
from meshtf.runtime.placed.collectives import collectives_for, ring, shared_memory

NUMPY = {"sum": np.sum, "max": np.max, "min": np.min}


def put(arrays, dtype):
    """Returns a tensor on each of the first devices, and their names."""
    devices = tuple(f"/device:CPU:{i}" for i in range(len(arrays)))
    tensors = []
    for array, device in zip(arrays, devices, strict=True):
        with tf.device(device):
            tensors.append(tf.identity(tf.constant(array, dtype)))
    return tensors, devices


def check(results, expected, devices):
    """Each device has its own result."""
    for y, w, device in zip(results, expected, devices, strict=True):
        assert y.device.endswith(device)
        np.testing.assert_array_equal(y.numpy(), w)


@pytest.mark.parametrize("how", [shared_memory, ring], ids=["alias", "ring"])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_all_reduce(how, num_devices, dtype, rng):
    for kind, reduce in NUMPY.items():
        for shape in ((), (5,), (3, 7)):
            arrays = rng.integers(-9, 9, (num_devices, *shape))
            xs, devices = put(arrays, dtype)
            ys = how.all_reduce(xs, devices, kind)
            assert {y.dtype.name for y in ys} == {dtype}
            check(
                ys,
                [reduce(arrays, 0).astype(ys[0].dtype.as_numpy_dtype)] * num_devices,
                devices,
            )


@pytest.mark.parametrize("how", [shared_memory, ring], ids=["alias", "ring"])
def test_all_reduce_of_truth(how, rng):
    arrays = rng.integers(0, 2, (3, 5)).astype(bool)
    xs, devices = put(arrays, "bool")
    check(how.all_reduce(xs, devices, "max"), [arrays.any(0)] * 3, devices)
    check(how.all_reduce(xs, devices, "min"), [arrays.all(0)] * 3, devices)


@pytest.mark.parametrize("how", [shared_memory, ring], ids=["alias", "ring"])
@pytest.mark.parametrize("num_devices", [2, 3, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_scatter_and_all_gather(how, num_devices, axis, rng):
    arrays = rng.integers(-9, 9, (num_devices, 24, 24))
    xs, devices = put(arrays, "int32")
    for kind, reduce in NUMPY.items():
        check(
            how.reduce_scatter(xs, devices, kind, axis),
            np.split(reduce(arrays, 0), num_devices, axis),
            devices,
        )
    check(
        how.all_gather(xs, devices, axis),
        [np.concatenate(list(arrays), axis)] * num_devices,
        devices,
    )


@pytest.mark.parametrize("how", [shared_memory, ring], ids=["alias", "ring"])
@pytest.mark.parametrize("split_axis, concat_axis", [(0, 1), (1, 0)])
def test_all_to_all(how, split_axis, concat_axis, rng):
    arrays = rng.integers(-9, 9, (3, 6, 6))
    xs, devices = put(arrays, "int32")
    expected = [
        np.concatenate([np.split(x, 3, split_axis)[j] for x in arrays], concat_axis)
        for j in range(3)
    ]
    check(how.all_to_all(xs, devices, split_axis, concat_axis), expected, devices)


@pytest.mark.parametrize("how", [shared_memory, ring], ids=["alias", "ring"])
def test_stack(how, rng):
    arrays = rng.integers(-9, 9, (3, 2))
    xs, devices = put(arrays, "int32")
    check(how.stack(xs, devices), [arrays] * 3, devices)


def test_on_one_device_everybody_gets_the_same_tensor():
    xs = [tf.constant([1.0]), tf.constant([2.0])]
    first, second = shared_memory.all_reduce(xs, ("/device:CPU:0",) * 2, "sum")
    assert first is second


@pytest.mark.parametrize("size", [1, 3, 12, 13])
def test_a_ring_sends_only_what_is_needed_and_to_the_right_neighbour(monkeypatch, size):
    sent = sends(monkeypatch)
    xs, devices = put(np.zeros((4, size)), "float32")
    ring.all_reduce(xs, devices, "sum")
    assert all(target == (source + 1) % 4 for source, target, _ in sent)
    assert sum(n for _, _, n in sent) == 2 * 3 * size  # over all devices
    if size == 12:
        assert sum(n for source, _, n in sent if source == 0) == 2 * 3 * size // 4


def test_an_all_to_all_sends_pieces(monkeypatch):
    sent = sends(monkeypatch)
    xs, devices = put(np.zeros((4, 8, 4)), "float32")
    ring.all_to_all(xs, devices, 0, 1)
    assert {(s, t) for s, t, _ in sent if s != t} == {
        (s, t) for s in range(4) for t in range(4) if s != t
    }
    assert {n for _, _, n in sent} == {8}


def sends(monkeypatch):
    """Returns a list that fills with (source, target, elements) of all that a ring
    sends.
    """
    sent = []

    def send(x, source, target):
        sent.append((int(source[-1]), int(target[-1]), x.shape.num_elements()))
        return x

    monkeypatch.setattr(ring, "send", send)
    return sent


@pytest.mark.parametrize(
    "devices, how",
    [
        (["/device:CPU:0"] * 2, shared_memory),
        (["/device:CPU:0", "/device:CPU:1"], shared_memory),
        (["/device:GPU:0", "/device:GPU:1"], ring),
        (["/device:TPU:0", "/device:TPU:1"], ring),
        (["/device:CPU:0", "/device:GPU:0"], ring),
        (
            [
                "/job:worker/replica:0/task:0/device:CPU:0",
                "/job:worker/replica:0/task:1/device:CPU:0",
            ],
            ring,
        ),
    ],
)
def test_algorithms_are_chosen_by_where_devices_are(devices, how):
    assert collectives_for(devices) is how
    assert collectives_for(devices, separate=True) is ring
    assert share_memory(devices) is (how is shared_memory)
