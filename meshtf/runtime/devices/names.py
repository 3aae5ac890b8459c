"""Names of TensorFlow devices: their types, hosts and indices."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

LOCAL_CPU = "/device:CPU:0"  # of this process


def only_cpus(devices: Sequence[str]) -> bool:
    """Returns whether all devices are CPUs, of any process."""
    return all("CPU" in device_zero(device).upper() for device in set(devices))


@functools.cache
def host_of(name: str) -> str:
    """Returns the process that a device belongs to: the full name up to the task."""
    spec = tf.DeviceSpec.from_string(name)
    return str(
        tf.DeviceSpec(job=spec.job, replica=spec.replica, task=spec.task).to_string()
    )


@functools.cache
def host_cpu(name: str) -> str:
    """Returns the name of the CPU of a device's host."""
    return str(
        tf.DeviceSpec.from_string(name)
        .replace(device_type="CPU", device_index=0)
        .to_string()
    )


def short_name(name: str) -> str:
    """Returns a device's name without the process: "/device:GPU:1"."""
    spec = tf.DeviceSpec.from_string(name)
    return f"/device:{spec.device_type}:{spec.device_index}"


@functools.cache
def device_zero(device: str) -> str:
    """Returns device 0 of the same type in the same process."""
    return tf.DeviceSpec.from_string(device).replace(device_index=0).to_string()
