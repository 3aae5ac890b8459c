"""Mesh positions to TensorFlow devices.

One TensorFlow device stands for one piece of hardware, so on a machine with one CPU all positions
map to it, and share what they hold alike:

    devices_of(Mesh("data:4;model:2"))     # ("/device:CPU:0",) * 8 on a laptop
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import tensorflow as tf

from meshtf.errors import MeshError, explain_error
from meshtf.mesh import Mesh

_resolved: weakref.WeakKeyDictionary[Mesh, tuple[str, ...]] = weakref.WeakKeyDictionary()


def logical_devices(number: int) -> None:
  """Splits the CPU into logical devices, to try placement; before TensorFlow's first op.

  Raises:
    MeshError: TensorFlow has started already.
  """
  cpu = tf.config.list_physical_devices("CPU")[0]
  if len(tf.config.get_logical_device_configuration(cpu) or ()) >= number:
    return
  logical = [tf.config.LogicalDeviceConfiguration()] * number
  try:
    tf.config.set_logical_device_configuration(cpu, logical)
  except RuntimeError:
    have = len(tf.config.list_logical_devices("CPU"))
    if have < number:
      raise MeshError(explain_error(
          f"TensorFlow has started already, with {have} logical CPU devices.",
          way_out=f"Call mtf.logical_devices({number}) at the top of the program, before any other "
                  "use of TensorFlow.")) from None


def devices_of(mesh: Mesh) -> tuple[str, ...]:
  """Returns the device of each position. Raises MeshError where one is not there."""
  if mesh not in _resolved:
    _resolved[mesh] = _resolve(mesh)
  return _resolved[mesh]


def share_memory(devices: Sequence[str]) -> bool:
  """Whether devices see one memory: CPUs of one process."""
  tasks = {tf.DeviceSpec.from_string(d).replace(device_index=0).to_string() for d in devices}
  return len(tasks) == 1 and "CPU" in next(iter(tasks)).upper()


def _resolve(mesh: Mesh) -> tuple[str, ...]:
  spec = mesh.devices
  if spec is None:
    gpus = [_short(d.name) for d in tf.config.list_logical_devices("GPU")]
    return tuple((gpus or ["/device:CPU:0"])[i % max(1, len(gpus))] for i in range(mesh.size))
  if isinstance(spec, str):
    spec = _logical(spec, mesh)
  return tuple(_existing(name, mesh) for name in spec)


def _logical(spec: str, mesh: Mesh) -> list[str]:
  kind, _, number = spec.partition(":")
  if kind != "logical" or number != str(mesh.size):
    raise MeshError(explain_error(
        f"devices={spec!r} does not fit a mesh of {mesh.size} positions.", mesh=mesh,
        way_out=f'Write devices="logical:{mesh.size}", give a list of device names, or None to use '
                "the hardware at hand."))
  logical_devices(mesh.size)
  return [f"/device:CPU:{i}" for i in range(mesh.size)]


def _short(name: str) -> str:
  spec = tf.DeviceSpec.from_string(name)
  return f"/device:{spec.device_type}:{spec.device_index}"


def _existing(name: str, mesh: Mesh) -> str:
  there = tf.config.list_logical_devices()
  try:
    spec = tf.DeviceSpec.from_string(name if name.startswith("/") else f"/device:{name}")
  except ValueError:
    spec = tf.DeviceSpec()
  for device in there:
    full = tf.DeviceSpec.from_string(device.name)
    if spec.device_type and full.make_merged_spec(spec) == full:
      return device.name if spec.job else _short(device.name)
  raise MeshError(explain_error(
      f"the device {name!r} of the mesh is not there.", mesh=mesh,
      there=", ".join(_short(d.name) for d in there),
      way_out=f"Use devices that are there, or make logical ones at the top of the program: "
              f"mtf.logical_devices({mesh.size})."))
