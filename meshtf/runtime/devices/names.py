"""What the names of devices say: kinds, hosts, numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

LOCAL_CPU = "/device:CPU:0"  # of this process


def only_cpus(devices: Sequence[str]) -> bool:
    """Whether all devices are CPUs, of whatever processes."""
    return all("CPU" in _first_beside(device).upper() for device in set(devices))


@functools.cache
def host_of(name: str) -> str:
    """Returns the process to which a device belongs: its full name up to the task."""
    spec = tf.DeviceSpec.from_string(name)
    return str(
        tf.DeviceSpec(job=spec.job, replica=spec.replica, task=spec.task).to_string()
    )


@functools.cache
def host_cpu(name: str) -> str:
    """Returns the CPU that a device's host computes with."""
    return str(
        tf.DeviceSpec.from_string(name)
        .replace(device_type="CPU", device_index=0)
        .to_string()
    )


def _short(name: str) -> str:
    spec = tf.DeviceSpec.from_string(name)
    return f"/device:{spec.device_type}:{spec.device_index}"


@functools.cache
def _first_beside(device: str) -> str:
    """Returns the first device of the same type in the same process."""
    return tf.DeviceSpec.from_string(device).replace(device_index=0).to_string()
