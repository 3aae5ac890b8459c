"""The devices of the local machine that TensorFlow lists, and a check that ops run on the
device that they are placed on.

>>> kinds = device_kinds()
>>> kinds["CPU"][0]
'/device:CPU:0'
>>> print(check_placement(kinds["CPU"][:1]))
placement: 1 cases, 0 refused, 0 left out, 0 failures (seed 0)

TensorFlow may silently run an op on the CPU if a device does not support it. A check of the
device would then test only the CPU.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.ops.linear.einsum import einsum
from meshtf.runtime.spmd.live.jax_host import devices_of_platform
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.storage.asarray import asarray
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.conformance.report import Report

KINDS = ("CPU", "GPU", "TPU")


def device_kinds() -> dict[str, list[str]]:
    """Returns the names of the devices of each kind; kinds without devices have []."""
    names = {}
    for kind in KINDS:
        count = len(tf.config.list_logical_devices(kind))
        names[kind] = [f"/device:{kind}:{i}" for i in range(count)]
    return names


def describe(kind: str, devices: Sequence[str]) -> str:
    """Returns one line about the devices of a kind: their count and, where TensorFlow
    knows it, the model of the hardware.
    """
    if not devices:
        return "none that TensorFlow lists"
    physical_devices = tf.config.list_physical_devices(kind)
    descriptions = set()
    if kind == "CPU":
        descriptions.add(f"{platform.machine()}, {os.cpu_count()} cores")
        if len(devices) > len(physical_devices):
            descriptions.add("logical devices, in one memory")
    else:
        for device in physical_devices:
            details = tf.config.experimental.get_device_details(device)
            descriptions.add(str(details.get("device_name", "")))
        descriptions.discard("")
    if not descriptions:
        return str(len(devices))
    return f"{len(devices)} ({', '.join(sorted(descriptions))})"


def describe_live(devices: str) -> tuple[int, str]:
    """Returns how many devices live meshes have, and the names of their models, with the
    version of jax.

    Args:
      devices: the devices of a live mesh, such as "spmd:cuda".

    Raises:
      MeshError: jax is missing, or has no such devices.
    """
    live_devices = devices_of_platform(Mesh("", devices=devices))
    models = {str(device.device_kind) for device in live_devices}
    version = load_jax().__version__
    return len(live_devices), f"{', '.join(sorted(models))}; jax {version}"


def check_placement(devices: Sequence[str]) -> Report:
    """Multiplies matrices on each device, and returns a report whose failures are results
    that are wrong or on another device.
    """
    report = Report("placement", seed=0)  # nothing is random
    x = np.arange(6, dtype="float32").reshape(2, 3)
    for device in devices:
        report.cases += 1
        mesh = mesh_on(axes="", devices=[device])  # one position
        left = asarray(mesh, x, "a:2;b:3")
        right = asarray(mesh, x.T, "b:3;c:2")
        y = einsum([left, right], "a;c")
        assert y.sharded_value is not None
        (value,) = y.sharded_value.values  # one device has one shard
        if not value.device.upper().endswith(device.upper()):
            report.failures.append(f"work for {device} was done on {value.device}")
        elif not np.allclose(value.numpy(), x @ x.T):
            report.failures.append(
                f"{device} multiplies wrongly: {value.numpy().tolist()}"
            )
    return report
