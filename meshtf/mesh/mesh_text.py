"""A mesh as text: its axes, and its constructor call.

>>> axes_text({"data": 4, "model": 2})
'data:4;model:2'
>>> mesh_repr({"data": 4}, {"layout": "batch:data", "devices": ""})
"Mesh('data:4', layout='batch:data')"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def axes_text(axes: Mapping[str, int]) -> str:
    """Returns the names and sizes of axes."""
    return ";".join(f"{name}:{size}" for name, size in axes.items())


def devices_text(devices: str | Sequence[str] | None) -> str:
    """Returns the devices of a mesh in short: a setting such as "logical:8", or the first
    and the last name of a list; "" for None, the available devices.
    """
    if devices is None:
        return ""
    if isinstance(devices, str):
        return devices
    if len(devices) == 1:
        return devices[0]
    return f"{devices[0]} ... {devices[-1]}"


def mesh_repr(axes: Mapping[str, int], settings: Mapping[str, str]) -> str:
    """Returns the constructor call of a mesh.

    Args:
      axes: the names and sizes of the axes.
      settings: the other arguments by name; empty arguments are left out.
    """
    arguments = [repr(axes_text(axes))]
    arguments += [f"{name}={text!r}" for name, text in settings.items() if text]
    return f"Mesh({', '.join(arguments)})"
