"""How the arguments of a mesh are read: axes, names, devices; and the caller's line.

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
    """Returns the names in a string such as "data;model", or in a list."""
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
    """Returns the `stacklevel` of the caller's innermost line outside of meshtf."""
    frame = sys._getframe(1)
    level = 1
    while (
        frame.f_back
        and frame.f_globals.get("__name__", "").partition(".")[0] == "meshtf"
    ):
        frame = frame.f_back
        level += 1
    return level


def read_axes(axes_like: AxesLike) -> dict[str, int]:
    """Returns sizes by names. Raises ParseError, ArgumentError."""
    axes: dict[str, int] = {}
    for name, size in _pairs(axes_like):
        if name in axes:
            raise ParseError(
                f"axis {name!r} occurs twice in the mesh {axes_like!r}.\n  Rename one."
            )
        axes[name] = _size(name, size, axes_like)
    return axes


def _pairs(axes_like: AxesLike) -> list[tuple[str, Any]]:
    """Returns names and sizes of axes. Raises ParseError, ArgumentError."""
    if isinstance(axes_like, str):
        return parse_pairs(axes_like, kind="mesh")
    axes = axes_like.items() if isinstance(axes_like, Mapping) else axes_like
    if isinstance(axes, Iterable) and not hasattr(axes, "dtype"):
        pairs = list(axes)
        if all(
            isinstance(p, (tuple, list)) and len(p) == 2 and isinstance(p[0], str)
            for p in pairs
        ):
            return parse_pairs(
                ";".join(f"{name}:{size}" for name, size in pairs), kind="mesh"
            )
    return refuse(
        "axes",
        axes_like,
        "names and sizes",
        'Write them as "data:4;model:2", as [("data", 4), ("model", 2)], or as a dict.',
    )


def _size(name: str, size: str, axes_like: object) -> int:
    if not size.isdigit() or int(size) < 1:
        raise ParseError(
            f"the size of mesh axis {name!r} must be a positive integer, not {size!r}, "
            f"in {axes_like!r}."
        )
    return int(size)


def read_strings(name: str, value: str | Sequence[str], takes: str) -> tuple[str, ...]:
    """Returns one string or several as a tuple.

    Args:
      name: of the argument, for errors.
      value: of the argument.
      takes: what the argument takes, for errors.

    Raises:
      ArgumentError: the value is neither a string nor a sequence of strings.
    """
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(name, text, takes) for text in as_sequence(name, value, takes))


def read_devices(devices: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Returns the devices of a mesh, checked. Raises ArgumentError."""
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
