"""A mesh in words: its axes, and the arguments that made it.

>>> axes_text({"data": 4, "model": 2})
'data:4;model:2'
>>> mesh_repr({"data": 4}, {"layout": "batch:data", "devices": ""})
"Mesh('data:4', layout='batch:data')"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def axes_text(axes: Mapping[str, int]) -> str:
    """Returns names and sizes of axes."""
    return ";".join(f"{name}:{size}" for name, size in axes.items())


def devices_text(devices: str | Sequence[str] | None) -> str:
    """Returns devices in short; "" where a mesh takes the available ones."""
    if devices is None or isinstance(devices, str):
        return devices or ""
    if len(devices) == 1:
        return devices[0]
    return f"{devices[0]} ... {devices[-1]}"


def mesh_repr(axes: Mapping[str, int], settings: Mapping[str, str]) -> str:
    """Returns a mesh as the call that makes it.

    Args:
      axes: names and sizes of the axes.
      settings: other arguments by name; empty ones are left out.
    """
    arguments = [repr(axes_text(axes))]
    arguments += [f"{name}={text!r}" for name, text in settings.items() if text]
    return f"Mesh({', '.join(arguments)})"
