"""Collectives over hosts: they agree with NumPy, and send over the network once for
each host.

Hosts are invented: devices of this process get the names of two or three workers, and
what is sent is written down.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from meshtf.runtime.devices.names import host_of
from meshtf.runtime.placed.collectives import collectives_for, hierarchical, ring

NUMPY = {"sum": np.sum, "max": np.max, "min": np.min}
HOSTS = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (1, 0, 0, 2, 1, 2)]


def name(task, index):
    return f"/job:worker/replica:0/task:{task}/device:CPU:{index}"


@pytest.fixture
def crossing(monkeypatch):
    """Returns a list that fills with the elements of all that is sent from host to
    host.
    """
    crossed = []

    def send(x, source, target):
        if host_of(source) != host_of(target):
            crossed.append(int(x.shape.num_elements()))
        return x

    monkeypatch.setattr(ring, "send", send)
    monkeypatch.setattr(hierarchical, "send", send)
    monkeypatch.setattr(tf, "device", lambda device: tf.name_scope("here"))
    return crossed


def inputs_of(rng, tasks, shape):
    """Returns arrays, tensors of them, and devices of the hosts `tasks`."""
    arrays = rng.integers(-9, 9, (len(tasks), *shape))
    return (
        arrays,
        [tf.constant(x, tf.int32) for x in arrays],
        [name(task, i) for i, task in enumerate(tasks)],
    )


def check(results, expected):
    for y, w in zip(results, expected, strict=True):
        np.testing.assert_array_equal(y.numpy(), w)


@pytest.mark.parametrize("tasks", HOSTS)
def test_all_reduce(tasks, crossing, rng):
    hosts = len(set(tasks))
    for kind, reduce in NUMPY.items():
        arrays, xs, devices = inputs_of(rng, tasks, (3, 4))
        crossing.clear()
        check(
            hierarchical.all_reduce(xs, devices, kind), [reduce(arrays, 0)] * len(tasks)
        )
        assert sum(crossing) == 2 * (hosts - 1) * 12


def test_a_ring_would_send_more_over_the_network(crossing, rng):
    _, xs, devices = inputs_of(rng, (0, 1, 0, 1), (3, 4))
    ring.all_reduce(xs, devices, "sum")
    assert sum(crossing) == 2 * (4 - 1) * 12


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("tasks", HOSTS)
def test_reduce_scatter_and_all_gather(tasks, axis, crossing, rng):
    num_devices = len(tasks)
    hosts = len(set(tasks))
    arrays, xs, devices = inputs_of(rng, tasks, (12, 12))
    check(
        hierarchical.reduce_scatter(xs, devices, "sum", axis),
        np.split(arrays.sum(0), num_devices, axis),
    )
    assert sum(crossing) == (hosts - 1) * 144
    crossing.clear()
    check(
        hierarchical.all_gather(xs, devices, axis),
        [np.concatenate(list(arrays), axis)] * num_devices,
    )
    assert sum(crossing) == (hosts - 1) * 144 * num_devices


@pytest.mark.parametrize("tasks", HOSTS)
def test_stack_and_all_to_all(tasks, crossing, rng):
    arrays, xs, devices = inputs_of(rng, tasks, (12, 12))
    check(hierarchical.stack(xs, devices), [arrays] * len(tasks))
    expected = [
        np.concatenate([np.split(x, len(tasks))[j] for x in arrays], 1)
        for j in range(len(tasks))
    ]
    check(hierarchical.all_to_all(xs, devices, 0, 1), expected)


@pytest.mark.parametrize(
    "tasks, how",
    [
        ((0, 0, 1, 1), hierarchical),
        ((0, 1), ring),
        ((0, 1, 2), ring),
        ((0, 1, 1), hierarchical),
    ],
)
def test_it_is_taken_where_a_group_has_several_devices_of_several_hosts(tasks, how):
    assert collectives_for([name(task, i) for i, task in enumerate(tasks)]) is how
    assert collectives_for([name(task, 0) for task in tasks]) is how
