"""Flags of commands that measure on devices, and write what they find."""

from __future__ import annotations

from absl import flags

DEVICES = flags.DEFINE_integer(
    "devices",
    None,
    "The number of devices that layouts are searched for. `calibrate` times the ops of one of "
    "them, at the local sizes of the best layouts.",
    lower_bound=1,
    allow_override=True,
)
MEMORY = flags.DEFINE_string(
    "memory",
    None,
    'The memory of one device, such as "80GiB"; by default that of the profile.',
)
MESH_DEVICES = flags.DEFINE_string(
    "mesh_devices",
    None,
    'The devices to measure on, as Mesh.devices: "spmd:cpu:8", "spmd:cuda:8", "logical:8". '
    "`calibrate` takes by default those of the configuration, or one device for all positions.",
)
SAVE = flags.DEFINE_string(
    "save",
    None,
    "The file to write: `search` writes its first choice as a gin file, `calibrate` the profile "
    "(by default my_machine.json).",
)
