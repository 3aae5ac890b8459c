"""Maps mesh positions (the elements of a mesh's grid) to TensorFlow devices.

`Mesh(devices=...)` decides which device runs each mesh position:

  None           the GPUs of this process in turn or, without GPUs, its CPU. If the process
                 drives workers (`meshtf.cluster`), the devices of the workers: consecutive
                 positions are on one device, so that the last mesh axes stay within a
                 worker.
  "logical:8"    eight logical devices of one CPU, one for each position.
  "separate:8"   the same devices, but programs treat each as if it had its own memory, and
                 exchange the tensors that accelerators would exchange.
  "spmd..."      the CPU: jax runs programs on its devices (`spmd/live/jax_host.py`), and
                 TensorFlow runs single ops outside of functions.
  a list         position i gets the i-th device. If an axis of `Mesh.within_host` would
                 span hosts, devices are reassigned (`keep_within_host`).

On a machine with one CPU all positions map to that CPU, and share equal tensors:

    devices_of(Mesh("data:4;model:2"))     # ("/device:CPU:0",) * 8 on a laptop

After `mtf.configure_process()`, each op then uses the threads of one position
(`share_threads`).
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Mapping, Sequence

import tensorflow as tf

from meshtf.errors import MeshError, explain_error
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_int
from meshtf.runtime.devices.names import LOCAL_CPU, device_zero, host_of, short_name
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.devices.threads import share_threads

WORKER = "worker"  # the name of the job of worker processes in TensorFlow clusters

# A cache of `devices_of`.
_devices_of_meshes: weakref.WeakKeyDictionary[Mesh, tuple[str, ...]] = (
    weakref.WeakKeyDictionary()
)


def logical_devices(count: int) -> None:
    """Splits the CPU into `count` logical devices, to try placements.

    It must be called before TensorFlow runs its first op. After
    `mtf.configure_process()`, an op uses cores / count threads, unless
    `tf.config.threading` says otherwise.

    Raises:
      MeshError: TensorFlow has started already.
    """
    count = as_int("count", count, least=1)
    share_threads(count)
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured_devices = tf.config.get_logical_device_configuration(cpu) or ()
    if len(configured_devices) >= count:
        return
    logical = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, logical)
    except RuntimeError:
        num_existing = len(tf.config.list_logical_devices("CPU"))
        if num_existing < count:
            raise MeshError(
                explain_error(
                    f"TensorFlow has started already, with {num_existing} logical CPU "
                    "devices.",
                    way_out=f"Call mtf.logical_devices({count}) at the top of the "
                    "program, before any other use of TensorFlow.",
                )
            ) from None


def devices_of(mesh: Mesh) -> tuple[str, ...]:
    """Returns the device of each mesh position.

    Raises:
      MeshError: the mesh is abstract, or one of its devices does not exist.
    """
    if mesh not in _devices_of_meshes:
        _devices_of_meshes[mesh] = _resolve(mesh)
    return _devices_of_meshes[mesh]


def worker_devices() -> tuple[str, ...]:
    """Returns the GPUs of the workers that this process drives, or their CPUs if they
    have no GPUs; () without workers.
    """
    devices = [
        d
        for d in tf.config.list_logical_devices()
        if d.name.startswith(f"/job:{WORKER}/")
    ]
    gpus = [d.name for d in devices if d.device_type == "GPU"]
    cpus = [d.name for d in devices if d.device_type == "CPU"]
    return tuple(gpus or cpus)


def share_memory(devices: Sequence[str]) -> bool:
    """Returns whether all devices share one memory: they are CPUs of one process."""
    cpu = device_zero(devices[0])
    return "CPU" in cpu.upper() and all(device_zero(d) == cpu for d in set(devices))


def simulates_separate_memory(mesh: Mesh) -> bool:
    """Returns whether programs treat a mesh's CPU devices as if each had its own memory,
    as GPUs have: `devices="separate:8"`.
    """
    return isinstance(mesh.devices, str) and mesh.devices.startswith("separate:")


def one_memory(mesh: Mesh) -> bool:
    """Returns whether programs may pass tensors between the devices of a mesh without
    copying them.
    """
    return share_memory(devices_of(mesh)) and not simulates_separate_memory(mesh)


def keep_within_host(mesh: Mesh, devices: Sequence[str]) -> list[int]:
    """Returns the index into `devices` for each position, such that no axis of
    `mesh.within_host` spans hosts.

    If the order of `devices` satisfies this, position i has index i. Otherwise the devices
    are sorted by host (stably, hosts in the order of the list), and each group of
    positions that differ only along `within_host` takes the next devices.

    Args:
      mesh: the mesh.
      devices: the full names of devices, such as
        "/job:worker/replica:0/task:1/device:GPU:0".

    Raises:
      MeshError: the number of devices of a host is no multiple of the group size.
    """
    groups = mesh.groups(*mesh.within_host)
    hosts = [host_of(name) for name in devices]
    hosts_of_groups = [{hosts[position] for position in group} for group in groups]
    if all(len(hosts_of_group) == 1 for hosts_of_group in hosts_of_groups):
        return list(range(mesh.size))
    indices_of_host: dict[str, list[int]] = {}
    for i, host in enumerate(hosts):
        indices_of_host.setdefault(host, []).append(i)
    group_size = len(groups[0])
    counts = {host: len(indices) for host, indices in indices_of_host.items()}
    if any(count % group_size for count in counts.values()):
        raise _hosts_do_not_fit(mesh, group_size, counts)
    indices_by_host = itertools.chain.from_iterable(indices_of_host.values())
    index_of_position = [0] * mesh.size
    for group in groups:
        for position in group:
            index_of_position[position] = next(indices_by_host)
    return index_of_position


def _hosts_do_not_fit(mesh: Mesh, group_size: int, counts: dict[str, int]) -> MeshError:
    """Returns the error for hosts whose device counts do not fit `within_host`."""
    axes = " x ".join(f"{axis}:{mesh.axes[axis]}" for axis in mesh.within_host)
    possible_size = math.gcd(*counts.values())
    return MeshError(
        explain_error(
            f"{axes} cannot stay within a host: each host would need a multiple of "
            f"{group_size} devices.",
            mesh=mesh,
            within_host=", ".join(mesh.within_host),
            hosts="\n".join(
                f"{host}: {count} device{'' if count == 1 else 's'}"
                for host, count in counts.items()
            ),
            way_out="List other devices, leave within_host out, or make the size along "
            f"it {possible_size}, which these hosts allow.",
        )
    )


def _resolve(mesh: Mesh) -> tuple[str, ...]:
    """Returns the device of each position, by the rules in the header of this file."""
    if mesh.abstract:
        raise MeshError(
            explain_error(
                f"nothing runs on the mesh {mesh}: it is abstract.",
                way_out='Remove devices="abstract" to run programs, or ask for a plan: '
                "mtf.explain(fn, ...).",
            )
        )
    if mesh.live:  # TensorFlow only lowers ops there, and runs single ops on the host
        return (LOCAL_CPU,) * mesh.size
    _check_single_process(mesh)
    if mesh.devices is None:
        if not tf.config.list_physical_devices("GPU"):
            share_threads(mesh.size)  # before anything that starts TensorFlow
        workers = worker_devices()
        if not workers:
            return _local_devices(mesh)
        names = [workers[i * len(workers) // mesh.size] for i in range(mesh.size)]
    elif isinstance(mesh.devices, str):
        names = _create_logical_devices(mesh.devices, mesh)
    else:
        names = list(mesh.devices)
    existing = {
        d.name: tf.DeviceSpec.from_string(d.name)
        for d in tf.config.list_logical_devices()
    }
    full_names = [_full_name(name, existing, mesh) for name in names]
    devices = []
    for i in keep_within_host(mesh, full_names):
        # A device keeps the form in which the user named it, with or without a job.
        has_job = "/job:" in names[i]
        devices.append(full_names[i] if has_job else short_name(full_names[i]))
    return tuple(devices)


def _check_single_process(mesh: Mesh) -> None:
    """Raises MeshError if several processes run the program: TensorFlow's devices are those
    of a single one.
    """
    if processes().count > 1:
        raise MeshError(
            explain_error(
                f"the mesh {mesh} has devices of TensorFlow, but {processes().count} "
                "processes run this program.",
                way_out='Make a live mesh, Mesh(..., devices="spmd"); or start one process, '
                "and workers: python -m meshtf launch, without --spmd.",
            )
        )


def _local_devices(mesh: Mesh) -> tuple[str, ...]:
    """Returns the GPUs of this process in turn, one for each position; without GPUs, its
    CPU for all positions.
    """
    gpus = [short_name(d.name) for d in tf.config.list_logical_devices("GPU")]
    devices = gpus or [LOCAL_CPU]
    return tuple(devices[i % len(devices)] for i in range(mesh.size))


def _create_logical_devices(setting: str, mesh: Mesh) -> list[str]:
    """Creates the logical devices that "logical:8" or "separate:8" asks for, and returns
    their names.

    Raises:
      MeshError: the mesh has another count of positions, or TensorFlow has started.
    """
    kind, _, count = setting.partition(":")
    if kind not in ("logical", "separate") or count != str(mesh.size):
        raise MeshError(
            explain_error(
                f"devices={setting!r} does not fit a mesh of {mesh.size} positions.",
                mesh=mesh,
                way_out=f'Write devices="logical:{mesh.size}", give a list of device '
                "names, or None to use the hardware at hand.",
            )
        )
    logical_devices(mesh.size)
    return [f"/device:CPU:{i}" for i in range(mesh.size)]


def _full_name(name: str, existing: Mapping[str, tf.DeviceSpec], mesh: Mesh) -> str:
    """Returns the full name of a device.

    Args:
      name: a name that may lack the job, replica and task, such as "GPU:0".
      existing: all existing devices, {full name: DeviceSpec}.
      mesh: the mesh, for errors.

    Raises:
      MeshError: no device has this name.
    """
    device_name = name
    if not name.startswith("/"):
        device_name = f"/device:{name}"
    try:
        spec = tf.DeviceSpec.from_string(device_name)
    except ValueError:
        spec = tf.DeviceSpec()  # without a device type, so it matches no device
    given_fields = [
        field
        for field in ("job", "replica", "task", "device_type", "device_index")
        if getattr(spec, field) is not None
    ]
    for full_name, full_spec in existing.items():
        if spec.device_type and all(
            getattr(full_spec, field) == getattr(spec, field) for field in given_fields
        ):
            return full_name
    raise MeshError(
        explain_error(
            f"the device {name!r} of the mesh does not exist.",
            mesh=mesh,
            existing=", ".join(map(short_name, existing)),
            way_out="Use existing devices, or make logical ones at the top of the "
            f"program: mtf.logical_devices({mesh.size}).",
        )
    )
