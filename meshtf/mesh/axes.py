"""Reads the arguments of a mesh: axes, names of axes, devices.

>>> from meshtf.mesh.axes import read_axes, read_names
>>> read_axes("data:4;model:2"), read_names("data;model")
({'data': 4, 'model': 2}, ('data', 'model'))
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.errors import ParseError
from meshtf.names import parse_pairs
from meshtf.names.arguments import as_sequence, as_text, refuse

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


def read_devices(devices: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Returns the argument `devices` of a mesh unchanged, except that names in any iterable
    become a sequence. Raises ArgumentError for a value that a mesh does not take.
    """
    if devices is None or isinstance(devices, str):
        return devices
    takes = (
        'None, "logical:8", "separate:8", "spmd", "abstract", or a list of names of '
        "devices"
    )
    names = as_sequence("devices", devices, takes)
    for name in names:
        as_text("devices", name, takes)
    return names
