"""Names of TensorFlow devices: their types, hosts and indices. A host is a process that has
devices, here task 1 of the job "worker":

    host_of("/job:worker/replica:0/task:1/device:GPU:2")     # "/job:worker/replica:0/task:1"
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from meshtf.runtime.devices.processes import is_process

LOCAL_CPU = "/device:CPU:0"  # the CPU of this process


def only_cpus(devices: Sequence[str]) -> bool:
    """Returns whether all devices are CPUs, of any process."""
    return all("CPU" in device_zero(device).upper() for device in set(devices))


@functools.cache
def host_of(name: str) -> str:
    """Returns the host (the process) of a device: the full name up to the task."""
    spec = tf.DeviceSpec.from_string(name)
    host = tf.DeviceSpec(job=spec.job, replica=spec.replica, task=spec.task)
    return str(host.to_string())


@functools.cache
def host_cpu(name: str) -> str:
    """Returns the name of the CPU of a device's host."""
    spec = tf.DeviceSpec.from_string(name)
    cpu = spec.replace(device_type="CPU", device_index=0)
    return str(cpu.to_string())


def cpu_of_host(host: str) -> str:
    """Returns TensorFlow's name of the CPU of a host (see `Slot.host`): of a host that is a
    process of a live mesh, the CPU of this process.
    """
    return LOCAL_CPU if is_process(host) else host


def short_name(name: str) -> str:
    """Returns a device's name without the process: "/device:GPU:1"."""
    spec = tf.DeviceSpec.from_string(name)
    return f"/device:{spec.device_type}:{spec.device_index}"


@functools.cache
def device_zero(device: str) -> str:
    """Returns the name of device 0 of the same type in the same process."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_index=0).to_string()
