"""The devices of jax that a live mesh consists of, one for each mesh position.

    mesh = Mesh("data:8", devices="spmd:cpu")
    live_devices(mesh)                   # eight jax.Devices
    jax_mesh(mesh)                       # a jax.sharding.Mesh of them, with the axis "data"

`Mesh(devices=...)` says which of jax's devices the positions are:

    "spmd"          the accelerators that jax has, or else CPU devices
    "spmd:cuda"     those of one platform; also "spmd:tpu", "spmd:cpu"
    "spmd:cpu:8"    the first eight of them; the count must be the size of the mesh

The number of jax's CPU devices is set when jax starts, for the first mesh of a process. So
the largest mesh should be the first.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from meshtf.errors import MeshError, explain_error
from meshtf.mesh import Mesh
from meshtf.runtime.devices.processes import process_host, processes
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.join_processes import join_by_environment, share_token

_PLATFORMS = "JAX_PLATFORMS"
_CUDA_PLUGIN = (
    "pip install -e '.[cuda]' in a checkout brings jax's plugin, for Linux with a driver "
    "of NVIDIA (nvidia-smi lists the GPUs)."
)
# How to get the devices of a platform.
_PLUGINS = {
    "cuda": _CUDA_PLUGIN,
    "gpu": _CUDA_PLUGIN,
    "tpu": "pip install -e '.[tpu]' in a checkout brings jax's plugin, for hosts with TPUs.",
}
_DEVICES_FLAG = "xla_force_host_platform_device_count"

_devices: weakref.WeakKeyDictionary[Mesh, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def live_devices(mesh: Mesh) -> tuple[Any, ...]:
    """Returns the jax device of each position of a live mesh.

    Raises:
      MeshError: jax is missing, or has no such devices, or too few.
    """
    if mesh not in _devices:
        _devices[mesh] = _find_devices(mesh)
    return _devices[mesh]


def use_devices(mesh: Mesh, devices: Sequence[Any]) -> None:
    """Sets the jax device of each position of a live mesh."""
    _devices[mesh] = tuple(devices)


def jax_mesh(mesh: Mesh) -> Any:
    """Returns jax's mesh of the devices of a live mesh, with the same axes."""
    return mesh_of_devices(live_devices(mesh), mesh)


def mesh_of_devices(devices: Sequence[Any], mesh: Mesh) -> Any:
    """Returns jax's mesh of one device for each position of `mesh`, with its axes."""
    # jax's functions do not take a mesh without axes.
    axes = mesh.axes or {"device": 1}
    array = np.array(devices, dtype=object).reshape(tuple(axes.values()))
    return load_jax().sharding.Mesh(array, tuple(axes))


def cpu_mesh(size: int, axis: str) -> Any:
    """Returns jax's mesh of the first CPU devices, with one axis. Raises MeshError."""
    jax = load_jax()
    ask_for_cpu_devices(size)
    devices = jax.devices("cpu")
    if len(devices) < size:
        raise _too_few_devices(f"{axis}:{size}", size, devices)
    return jax.sharding.Mesh(np.array(devices[:size], dtype=object), (axis,))


def _find_devices(mesh: Mesh) -> tuple[Any, ...]:
    """Returns the jax devices that `mesh.devices` describes."""
    join_by_environment()
    num_processes = processes().count
    ask_for_cpu_devices(-(-mesh.size // num_processes))  # rounded up
    devices = devices_of_platform(mesh)
    if devices[0].platform != "cpu":
        _hide_gpus_from_tensorflow()
    if len(devices) < mesh.size:
        raise _too_few_devices(mesh, mesh.size, devices)
    if num_processes > 1 and len(devices) > mesh.size:
        raise _unused_devices(mesh, devices)
    share_token()
    return tuple(devices[: mesh.size])


def devices_of_platform(mesh: Mesh) -> list[Any]:
    """Returns all of jax's devices of the platform of a live mesh.

    Raises:
      MeshError: jax is missing, or has no devices of this platform.
    """
    jax = load_jax()
    platform = _platform(mesh)
    try:
        return list(jax.devices(platform) if platform else jax.devices())
    # jax asserts that there is a platform: JAX_PLATFORMS may name one without a plugin.
    except (RuntimeError, AssertionError) as error:
        raise _no_devices(mesh, platform, error) from None


def live_memory(mesh: Mesh) -> float | None:
    """Returns the bytes of one device of a live mesh that jax may take; None: unknown."""
    statistics = live_devices(mesh)[0].memory_stats() or {}
    return statistics.get("bytes_limit")


def platform_of(mesh: Mesh) -> str:
    """Returns what the devices of a live mesh are: "cpu", "cuda", "tpu"; "": others. If their
    platform is in `mesh.devices`, jax need not have them.
    """
    return _platform(mesh) or platform_of_device(live_devices(mesh)[0])


def platform_of_device(device: Any) -> str:
    """Returns what a device of jax is: "cpu", "cuda", "tpu"; "": something else."""
    platform = device.platform
    if platform == "gpu" and device.device_kind.startswith("NVIDIA"):
        return "cuda"
    return platform if platform in ("cpu", "cuda", "tpu") else ""


def _platform(mesh: Mesh) -> str:
    """Returns the platform of `mesh.devices`, "" for any."""
    _, platform, *_ = f"{mesh.devices}:".split(":")
    return platform


def _no_devices(mesh: Mesh, platform: str, error: Exception) -> MeshError:
    """Returns the error for a platform of which jax has no devices, "" for any."""
    way_out = _PLUGINS.get(
        platform, 'Platforms are "spmd:cpu", "spmd:cuda", "spmd:tpu"; "spmd" is any.'
    )
    if platform in _PLUGINS:
        way_out += ' devices="spmd:cpu" runs on CPU devices.'
    facts = {"jax": str(error).partition("\n")[0]} if str(error) else {}
    allowed = os.environ.get(_PLATFORMS, "")
    if allowed and platform not in allowed.split(","):
        facts["environment"] = f"{_PLATFORMS}={allowed}"
        way_out = f"Unset {_PLATFORMS}, which says what jax may use. {way_out}"
    problem = f"jax has no devices of the platform {platform!r}."
    if not platform:
        problem = "jax cannot use any devices."
    return MeshError(
        explain_error(
            problem, mesh=mesh, devices=mesh.devices, **facts, way_out=way_out
        )
    )


def ask_for_cpu_devices(count: int) -> None:
    """Sets the number of jax's CPU devices, unless the user has set it in XLA_FLAGS or jax
    has started already.
    """
    jax = load_jax()
    by_user = _DEVICES_FLAG in os.environ.get("XLA_FLAGS", "")
    if not by_user and jax.config.jax_num_cpu_devices < count:
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            # jax has started. If it has too few devices, the caller raises an error.
            logging.debug("jax has started already")


def _too_few_devices(mesh: object, size: int, devices: list[Any]) -> MeshError:
    """Returns the error for a mesh with more positions than jax has devices."""
    platform = devices[0].platform
    facts = {}
    way_out = f"Make a mesh of at most {_counted(len(devices), 'position')}."
    if platform == "cpu":
        needed = -(-size // processes().count)  # of each process, rounded up
        way_out = (
            "jax has started already, and the number of its CPU devices cannot change: "
            "make the largest mesh first, or call "
            f'jax.config.update("jax_num_cpu_devices", {needed}) at the top of the '
            "program."
        )
        flags = os.environ.get("XLA_FLAGS", "")
        if _DEVICES_FLAG in flags:
            facts["environment"] = f"XLA_FLAGS={flags}"
            way_out = (
                f"Set --{_DEVICES_FLAG}={needed} in XLA_FLAGS, or leave it out: then "
                "jax gets as many devices as its first mesh has positions."
            )
    else:
        way_out += ' devices="spmd:cpu" has as many as the mesh needs.'
    return MeshError(
        explain_error(
            f"the mesh has {_counted(size, 'position')}, but jax has "
            f"{_counted(len(devices), 'device')} of the platform {platform!r}.",
            mesh=mesh,
            **facts,
            way_out=way_out,
        )
    )


def _counted(count: int, noun: str) -> str:
    """Returns "1 device", or "8 devices"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _unused_devices(mesh: Mesh, devices: list[Any]) -> MeshError:
    """Returns the error for a mesh that leaves devices of several processes unused."""
    return MeshError(
        explain_error(
            f"the mesh has {mesh.size} positions, but {processes().count} processes have "
            f"{len(devices)} devices together, and each must take part.",
            mesh=mesh,
            way_out="Make a mesh of all devices, or start fewer processes.",
        )
    )


def hosts_of(mesh: Mesh) -> list[str]:
    """Returns the name of the process of each position of a live mesh, as in `Slot.host`."""
    return [process_host(device.process_index) for device in live_devices(mesh)]


def is_local(device: Any) -> bool:
    """Returns whether a device belongs to this process."""
    return bool(device.process_index == processes().index)


def _hide_gpus_from_tensorflow() -> None:
    """Keeps TensorFlow from reserving the memory of GPUs: on a live mesh it runs nothing on
    them.
    """
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        logging.warning(
            "TensorFlow has started on the GPUs already, and holds memory there: make "
            'the mesh with devices="spmd" before any use of TensorFlow.'
        )
