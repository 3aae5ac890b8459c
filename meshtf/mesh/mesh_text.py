"""A mesh as text: its axes, and its constructor call.

>>> axes_text({"data": 4, "model": 2})
'data:4;model:2'
>>> mesh_repr({"data": 4}, {"layout": "batch:data", "devices": ""})
"Mesh('data:4', layout='batch:data')"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshtf.errors import explain_error, near_misses


def axes_text(axes: Mapping[str, int]) -> str:
    """Returns the names and sizes of axes."""
    return ";".join(f"{name}:{size}" for name, size in axes.items())


def mesh_text(axes: Mapping[str, int]) -> str:
    """Returns the axes of a mesh as text; never ""."""
    return axes_text(axes) or "(one position)"


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


def missing_axis_notes(
    axes: Mapping[str, int], rules: Iterable[tuple[str, tuple[str, ...]]]
) -> list[str]:
    """Returns notes about rules with an axis that the mesh, which has `axes`, lacks."""
    return [
        missing_axis_note(axes, axis, f"layout rule {name}:{axis}")
        for name, rule_axes in rules
        for axis in rule_axes
        if axis not in axes
    ]


def missing_axis_error(axes: Mapping[str, int], axis: str, named_by: str) -> str:
    """Returns the message about an axis that the mesh lacks and that is not optional.

    Args:
      axes: the axes of the mesh.
      axis: the axis that it lacks.
      named_by: what names the axis, such as "layout rule batch:data".
    """
    similar = near_misses(axis, axes)
    question = f"Did you mean {similar}?" if similar else ""
    return explain_error(
        f"{named_by}: the mesh has no axis {axis!r}, which counts as size 1.",
        mesh=mesh_text(axes),
        way_out=f"{question} If it may be absent, say so: Mesh(..., "
        f'optional_axes="{axis}").'.lstrip(),
    )


def missing_axis_note(axes: Mapping[str, int], axis: str, named_by: str) -> str:
    """Returns the note about an axis that the mesh, which has `axes`, lacks; `named_by` says
    what names the axis.
    """
    similar = near_misses(axis, axes)
    question = f" Did you mean {similar}?" if similar else ""
    note = f"the mesh {mesh_text(axes)} has no axis {axis!r}, which counts as size 1."
    return f"{named_by}: {note}{question}"


def bucket_bytes_error(bucket_bytes: int) -> str:
    """Returns the error for negative `bucket_bytes`."""
    return (
        f"bucket_bytes is {bucket_bytes}: it is 0 or more; 0 reduces each partial sum by a "
        "collective."
    )


def host_axis_error(axes: Mapping[str, int], axis: str) -> str:
    """Returns the error for an axis of `within_host` that the mesh lacks."""
    return explain_error(
        f"within_host names the axis {axis!r}, which the mesh lacks.",
        mesh=mesh_text(axes),
        close_to=near_misses(axis, axes) or "none of its axes",
        way_out="Name axes of the mesh, or leave within_host out.",
    )


def stage_rule_error(axes: Mapping[str, int], dim: str, axis: str) -> str:
    """Returns the error of a rule along the axis of the stages of `GPipe`."""
    return explain_error(
        f"axis {axis!r} is for the stages of a pipeline: no dimension is sharded along it.",
        rule=f"{dim}:{axis}",
        mesh=mesh_text(axes),
        way_out="Name another axis, or say which one is for stages: Mesh(..., stages=...). A "
        "pipeline of equal layers needs none: write the rule into the layout of the mesh.",
    )
