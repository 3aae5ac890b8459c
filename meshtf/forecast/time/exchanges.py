"""Seconds of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.hardware import CollectiveTimes, Hardware

# The kind of work that all collectives have in common: latency, and the time in which devices
# wait for the last one.
LATENCY = "latency"


def collective_seconds(
    hardware: Hardware,
    times: CollectiveTimes,
    kind: str,
    axes: Sequence[str],
    received: Any,
    merged: bool = False,
    copies: Any = 0.0,
) -> Any:
    """Returns the seconds of a collective, by the factors of a profile: that of its kind for
    its bytes, and that of `LATENCY`, if there is one, for its latency.

    Args:
      hardware: the profile.
      times: the times of collectives without factors.
      kind: the kind, such as "all_reduce".
      axes: the axes of the mesh along which devices communicate.
      received: the bytes that one device receives.
      merged: whether it runs with another collective, which has the latency.
      copies: the seconds of copies before and after it.
    """
    factor = hardware.work_factor(kind)
    factor_of_latency = hardware.work_factors.get(LATENCY, factor)
    if merged or factor_of_latency == factor:
        return (times.seconds(kind, axes, received, merged) + copies) * factor
    of_bytes = times.seconds(kind, axes, received, merged=True)
    latency = times.seconds(kind, axes, received) - of_bytes
    return (of_bytes + copies) * factor + latency * factor_of_latency
