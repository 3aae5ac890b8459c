"""Reads the arguments of a mesh: axes, names of axes, devices.

>>> from meshtf.mesh.axes import read_axes, read_names
>>> read_axes("data:4;model:2"), read_names("data;model")
({'data': 4, 'model': 2}, ('data', 'model'))
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.errors import MeshError, ParseError, explain_error
from meshtf.mesh.layout import Layout
from meshtf.mesh.mesh_text import mesh_text
from meshtf.names import parse_pairs
from meshtf.names.arguments import as_sequence, as_text, refuse

DEFAULT_STAGES = "stage"  # the axis of the stages of `GPipe`, if the user names none
_KINDS_OF_DEVICES = ("logical", "separate", "spmd", "abstract")
AxesLike: TypeAlias = str | Mapping[str, int] | Iterable[tuple[str, int]]


def read_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of axes in a string such as "data;model", or in a list."""
    if isinstance(names, str):
        return tuple(
            name for name, _ in parse_pairs(names, kind="list of axes", values=False)
        )
    takes = 'names of axes, such as "data;model"'
    return tuple(
        as_text("optional_axes", name, takes)
        for name in as_sequence("optional_axes", names, takes)
    )


def caller_stacklevel() -> int:
    """Returns the `stacklevel` with which `warnings.warn`, called by the caller of this
    function, shows the innermost line outside of meshtf.
    """
    frame = sys._getframe(1)
    level = 1
    while frame.f_back:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package != "meshtf":
            break
        frame = frame.f_back
        level += 1
    return level


def read_axes(axes_like: AxesLike) -> dict[str, int]:
    """Returns the size of each axis, by name.

    Raises:
      ParseError: a string cannot be read, a name occurs twice, or a size is not a positive
        integer.
      ArgumentError: `axes_like` is of another type.
    """
    axes: dict[str, int] = {}
    for name, size in _pairs(axes_like):
        if name in axes:
            raise ParseError(
                f"axis {name!r} occurs twice in the mesh {axes_like!r}.\n  Rename one."
            )
        axes[name] = _size(name, size, axes_like)
    return axes


def _pairs(axes_like: AxesLike) -> list[tuple[str, Any]]:
    """Returns (name, size as text) for each axis that a user describes. Raises ParseError,
    ArgumentError.
    """
    if isinstance(axes_like, str):
        return parse_pairs(axes_like, kind="mesh")
    axes = axes_like.items() if isinstance(axes_like, Mapping) else axes_like
    is_array = hasattr(axes, "dtype")
    if isinstance(axes, Iterable) and not is_array:
        pairs = list(axes)
        if all(map(_is_pair, pairs)):
            text = ";".join(f"{name}:{size}" for name, size in pairs)
            return parse_pairs(text, kind="mesh")
    return refuse(
        "axes",
        axes_like,
        takes="names and sizes",
        way_out='Write them as "data:4;model:2", as [("data", 4), ("model", 2)], or as a '
        "dict.",
    )


def _is_pair(value: object) -> bool:
    """Returns whether a value is a pair of a string and anything else."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return isinstance(value[0], str)


def _size(name: str, size: str, axes_like: object) -> int:
    """Returns the size of an axis as an integer. Raises ParseError."""
    if not size.isdigit() or int(size) < 1:
        raise ParseError(
            f"the size of mesh axis {name!r} must be a positive integer, not {size!r}, "
            f"in {axes_like!r}."
        )
    return int(size)


def read_strings(name: str, value: str | Sequence[str], takes: str) -> tuple[str, ...]:
    """Returns one string or several as a tuple.

    Args:
      name: the name of the argument, for errors.
      value: the value of the argument.
      takes: what the argument takes, for errors.

    Raises:
      ArgumentError: the value is neither a string nor a sequence of strings.
    """
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(name, text, takes) for text in as_sequence(name, value, takes))


def read_devices(
    devices: str | Sequence[str] | None, axes: Mapping[str, int]
) -> str | Sequence[str] | None:
    """Returns the argument `devices` of a mesh unchanged, except that names in any iterable
    become a sequence.

    Args:
      devices: the argument.
      axes: the axes of the mesh.

    Raises:
      ArgumentError: the argument is neither a string nor a list of strings.
      MeshError: the string is no setting, or the number of devices is not that of
        the positions.
    """
    if devices is None:
        return devices
    if isinstance(devices, str):
        _check_setting(devices, axes)
        return devices
    takes = (
        'None, "logical:8", "separate:8", "spmd", "abstract", or a list of names of '
        "devices"
    )
    names = as_sequence("devices", devices, takes)
    for name in names:
        as_text("devices", name, takes)
    size = math.prod(axes.values())
    if len(names) != size:
        raise MeshError(
            explain_error(
                f"the mesh has {size} positions, but {len(names)} devices were given.",
                mesh=mesh_text(axes),
                devices=", ".join(names),
                way_out="Give one device for each position (the last axis runs fastest), "
                "or devices=None to map all positions to the available hardware.",
            )
        )
    return names


def _check_setting(devices: str, axes: Mapping[str, int]) -> None:
    """Raises MeshError if a string is no setting of devices, such as "spmd:cpu:8", or has
    another count of devices than the mesh has positions.
    """
    size = math.prod(axes.values())
    kind, *fields = devices.split(":")
    if kind not in _KINDS_OF_DEVICES:
        raise MeshError(
            explain_error(
                f"devices={devices!r} is no setting of devices.",
                way_out='Write "spmd", "spmd:cuda", "spmd:tpu" or "spmd:cpu" for the devices '
                f'of jax; "logical:{size}" for devices of one CPU; None for the GPUs of '
                "TensorFlow or else the CPU; or a list of names of TensorFlow's devices.",
            )
        )
    if kind != "spmd" or not fields:
        return
    platform, *counts = fields
    if platform.isalpha() and counts in ([], [str(size)]):
        return
    platform = platform if platform.isalpha() else "cpu"
    raise MeshError(
        explain_error(
            f"devices={devices!r} does not fit a mesh of {size} positions.",
            mesh=mesh_text(axes),
            way_out=f'Write devices="spmd:{platform}:{size}", or leave the count out: '
            f'"spmd:{platform}".',
        )
    )


def read_stages(stages: str | None, layouts: Iterable[Layout]) -> str:
    """Returns the axis of the stages of `GPipe`; "": a rule shards a dimension along the axis that
    it is by default.

    Args:
      stages: what the user says; None: nothing.
      layouts: the rules of the mesh.
    """
    if stages is not None:
        return as_text("stages", stages, "the name of an axis")
    named: set[str] = set()
    for rules in layouts:
        for _name, axes in rules.items():
            named.update(axes)
    return "" if DEFAULT_STAGES in named else DEFAULT_STAGES
