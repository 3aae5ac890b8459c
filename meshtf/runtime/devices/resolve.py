"""Mesh positions to TensorFlow devices.

One TensorFlow device stands for one piece of hardware, so on a machine with one CPU all
positions map to it, and share what they hold alike:

    devices_of(Mesh("data:4;model:2"))     # ("/device:CPU:0",) * 8 on a laptop

Each op then has its position's share of the threads, where the process was asked to
share them (`share_threads`).

"logical:8" gives each of eight positions a logical device of one CPU. "separate:8" does
so too, and programs then treat these as if each had memory of its own: what crosses
between them is what would cross between accelerators.

Where the process drives workers (`meshtf.cluster`), positions map to the devices of
these, equally many next ones to each device, so that the last axes stay within a
worker.

A list of device names gives position i the i-th device. `within_host` makes the list a
set: where the positions of that axis would lie on several hosts, devices are dealt out
anew, so that they lie on one (`keep_within_host`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence

import tensorflow as tf

from meshtf.errors import MeshError, explain_error
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_int
from meshtf.runtime.devices.names import _first_beside, _short, host_of
from meshtf.runtime.devices.threads import share_threads

WORKER = "worker"  # what TensorFlow's clusters call the job of those who work

_resolved: weakref.WeakKeyDictionary[Mesh, tuple[str, ...]] = (
    weakref.WeakKeyDictionary()
)


def logical_devices(number: int) -> None:
    """Splits the CPU into logical devices, to try placement; before TensorFlow's first
    op.

    After `mtf.configure_process()` an op has its device's share of the cores, unless
    `tf.config.threading` says how many.

    Raises:
      MeshError: TensorFlow has started already.
    """
    number = as_int("number", number, least=1)
    share_threads(number)
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) >= number:
        return
    logical = [tf.config.LogicalDeviceConfiguration()] * number
    try:
        tf.config.set_logical_device_configuration(cpu, logical)
    except RuntimeError:
        have = len(tf.config.list_logical_devices("CPU"))
        if have < number:
            raise MeshError(
                explain_error(
                    f"TensorFlow has started already, with {have} logical CPU devices.",
                    way_out=f"Call mtf.logical_devices({number}) at the top of the "
                    "program, before any other use of TensorFlow.",
                )
            ) from None


def devices_of(mesh: Mesh) -> tuple[str, ...]:
    """Returns the device of each position. Raises MeshError where one is not there."""
    if mesh not in _resolved:
        _resolved[mesh] = _resolve(mesh)
    return _resolved[mesh]


def worker_devices() -> tuple[str, ...]:
    """Returns the devices of the workers that this process drives: GPUs, or else CPUs;
    () if none.
    """
    there = [
        d
        for d in tf.config.list_logical_devices()
        if d.name.startswith(f"/job:{WORKER}/")
    ]
    gpus = [d for d in there if d.device_type == "GPU"]
    return tuple(d.name for d in gpus or there if d.device_type in ("CPU", "GPU"))


def share_memory(devices: Sequence[str]) -> bool:
    """Whether devices see one memory: CPUs of one process."""
    first = _first_beside(devices[0])
    return "CPU" in first.upper() and all(
        _first_beside(d) == first for d in set(devices)
    )


def kept_separate(mesh: Mesh) -> bool:
    """Whether programs treat a mesh's devices as if each had memory of its own, as GPUs
    have.
    """
    return isinstance(mesh.devices, str) and mesh.devices.startswith("separate:")


def one_memory(mesh: Mesh) -> bool:
    """Whether programs treat all devices of a mesh as such that see one memory."""
    return share_memory(devices_of(mesh)) and not kept_separate(mesh)


def keep_within_host(mesh: Mesh, devices: Sequence[str]) -> list[int]:
    """Returns which device each position gets, so that `mesh.within_host` stays within
    a host.

    A list that fits as it is stays so. Otherwise groups of positions that differ only
    along `within_host` come in the order of their first positions, and each takes the
    next devices of the first host that has some left: hosts as the list first names
    them, devices as in the list.

    Args:
      mesh: the mesh.
      devices: full names, such as "/job:worker/replica:0/task:1/device:GPU:0".

    Raises:
      MeshError: the devices of some host do not make up whole groups.
    """
    groups = mesh.groups(*mesh.within_host)
    hosts = [host_of(name) for name in devices]
    if all(len({hosts[p] for p in group}) == 1 for group in groups):
        return list(range(mesh.size))
    left: dict[str, list[int]] = {}
    for i, host in enumerate(hosts):
        left.setdefault(host, []).append(i)
    length = len(groups[0])
    if any(len(some) % length for some in left.values()):
        raise _hosts_do_not_fit(
            mesh, length, {host: len(some) for host, some in left.items()}
        )
    dealt = [i for some in left.values() for i in some]
    order = [0] * mesh.size
    for k, group in enumerate(groups):
        for position, device in zip(group, dealt[k * length :], strict=False):
            order[position] = device
    return order


def _hosts_do_not_fit(mesh: Mesh, length: int, hosts: dict[str, int]) -> MeshError:
    axes = " x ".join(f"{axis}:{mesh.axes[axis]}" for axis in mesh.within_host)
    fits = math.gcd(*hosts.values())
    return MeshError(
        explain_error(
            f"{axes} cannot stay within a host: each host would need a multiple of "
            f"{length} devices.",
            mesh=mesh,
            within_host=", ".join(mesh.within_host),
            hosts="\n".join(
                f"{host}: {n} device{'s' * (n > 1)}" for host, n in hosts.items()
            ),
            way_out="List other devices, leave within_host out, or make the size along "
            f"it {fits}, which these hosts allow.",
        )
    )


def _resolve(mesh: Mesh) -> tuple[str, ...]:
    spec = mesh.devices
    if mesh.abstract:
        raise MeshError(
            explain_error(
                f"nothing runs on the mesh {mesh}: it is abstract.",
                way_out='Take away devices="abstract" to run, or ask for a plan: '
                "mtf.explain(fn, ...).",
            )
        )
    if spec is None and not tf.config.list_physical_devices("GPU"):
        share_threads(mesh.size)  # before anything else, which would start TensorFlow
    if spec is None and (far := worker_devices()):
        spec = [far[i * len(far) // mesh.size] for i in range(mesh.size)]
    if spec is None:
        gpus = [_short(d.name) for d in tf.config.list_logical_devices("GPU")]
        return tuple(
            (gpus or ["/device:CPU:0"])[i % max(1, len(gpus))] for i in range(mesh.size)
        )
    if isinstance(spec, str):
        spec = _logical(spec, mesh)
    there = {
        d.name: tf.DeviceSpec.from_string(d.name)
        for d in tf.config.list_logical_devices()
    }
    full = [_existing(name, there, mesh) for name in spec]
    names = [
        f if "/job:" in name else _short(f) for name, f in zip(spec, full, strict=True)
    ]
    return tuple(names[i] for i in keep_within_host(mesh, full))


def _logical(spec: str, mesh: Mesh) -> list[str]:
    kind, _, number = spec.partition(":")
    if kind not in ("logical", "separate") or number != str(mesh.size):
        raise MeshError(
            explain_error(
                f"devices={spec!r} does not fit a mesh of {mesh.size} positions.",
                mesh=mesh,
                way_out=f'Write devices="logical:{mesh.size}", give a list of device '
                "names, or None to use the hardware at hand.",
            )
        )
    logical_devices(mesh.size)
    return [f"/device:CPU:{i}" for i in range(mesh.size)]


def _existing(name: str, there: Mapping[str, tf.DeviceSpec], mesh: Mesh) -> str:
    """Returns the full name of a device. Raises MeshError where it is not among those
    there.
    """
    try:
        spec = tf.DeviceSpec.from_string(
            name if name.startswith("/") else f"/device:{name}"
        )
    except ValueError:
        spec = tf.DeviceSpec()
    parts = [
        part
        for part in ("job", "replica", "task", "device_type", "device_index")
        if getattr(spec, part) is not None
    ]
    for device, full in there.items():
        if spec.device_type and all(
            getattr(full, part) == getattr(spec, part) for part in parts
        ):
            return device
    raise MeshError(
        explain_error(
            f"the device {name!r} of the mesh is not there.",
            mesh=mesh,
            there=", ".join(map(_short, there)),
            way_out="Use devices that are there, or make logical ones at the top of "
            f"the program: mtf.logical_devices({mesh.size}).",
        )
    )
