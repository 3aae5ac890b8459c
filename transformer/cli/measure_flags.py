"""Flags of commands that measure on devices, and write what they find."""

from __future__ import annotations

from absl import flags

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
