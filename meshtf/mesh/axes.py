"""What a mesh is made of, as callers give it: axes, names, devices; and where it was
asked for.

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
            name for name, _ in parse_pairs(names, what="list of axes", values=False)
        )
    takes = 'names of axes, such as "data;model"'
    return tuple(
        as_text("optional_axes", name, takes)
        for name in as_sequence("optional_axes", names, takes)
    )


def caller_stacklevel() -> int:
    """Returns the `stacklevel` of the caller's innermost line outside of meshtf."""
    frame, level = sys._getframe(1), 1
    while (
        frame.f_back
        and frame.f_globals.get("__name__", "").partition(".")[0] == "meshtf"
    ):
        frame, level = frame.f_back, level + 1
    return level


def read_axes(given: AxesLike) -> dict[str, int]:
    """Returns sizes by names. Raises ParseError, ArgumentError."""
    axes: dict[str, int] = {}
    for name, size in _pairs(given):
        if name in axes:
            raise ParseError(
                f"axis {name!r} stands twice in the mesh {given!r}.\n  Rename one."
            )
        axes[name] = _size(name, size, given)
    return axes


def _pairs(given: AxesLike) -> list[tuple[str, Any]]:
    """Returns names and sizes of axes. Raises ParseError, ArgumentError."""
    if isinstance(given, str):
        return parse_pairs(given, what="mesh")
    axes = given.items() if isinstance(given, Mapping) else given
    if isinstance(axes, Iterable) and not hasattr(axes, "dtype"):
        pairs = list(axes)
        if all(
            isinstance(p, (tuple, list)) and len(p) == 2 and isinstance(p[0], str)
            for p in pairs
        ):
            return parse_pairs(
                ";".join(f"{name}:{size}" for name, size in pairs), what="mesh"
            )
    return refuse(
        "axes",
        given,
        "names and sizes",
        'Write them as "data:4;model:2", as [("data", 4), ("model", 2)], or as a dict.',
    )


def _size(name: str, size: str, given: object) -> int:
    if not size.isdigit() or int(size) < 1:
        raise ParseError(
            f"the size of mesh axis {name!r} must be a positive integer, not {size!r}, "
            f"in {given!r}."
        )
    return int(size)


def read_strings(name: str, given: str | Sequence[str], takes: str) -> tuple[str, ...]:
    """Returns one string or several as a tuple. Raises ArgumentError, which names the
    argument.
    """
    if isinstance(given, str):
        return (given,)
    return tuple(as_text(name, text, takes) for text in as_sequence(name, given, takes))


def read_devices(given: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Returns the devices of a mesh as they were given. Raises ArgumentError."""
    if given is None or isinstance(given, str):
        return given
    takes = 'None, "logical:8", "separate:8", "abstract", or a list of names of devices'
    names = as_sequence("devices", given, takes)
    for name in names:
        as_text("devices", name, takes)
    return names
