"""The flag of the devices whose time is predicted."""

from __future__ import annotations

from absl import flags

HARDWARE = flags.DEFINE_string(
    "hardware",
    None,
    'The devices, such as "h100" (a file of configs/hardware), or the path of a profile that '
    "`meshtf calibrate` wrote: times are predicted for them.",
)
