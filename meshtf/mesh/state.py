"""The state of a tensor along one axis of a mesh.

    Whole          every device along the axis holds all of it
    Split(dim)     slice i holds rows [i*c, (i+1)*c) of dim, c = size / devices
    Pending(kind)  each holds a partial result, still to be summed, maxed or minned
    At(k)          the devices at coordinate k hold all of it, and no others (a stage)

A `Placement` is one state for each axis of the mesh, in the order of the axes. A
dimension over several axes is cut by the first of them in that order (the major one)
first.

>>> from meshtf.mesh import Pending, Split, Whole
>>> (Split("batch"), Pending("sum")) == (Split("batch"), Pending("sum"))
True
>>> Whole
Whole
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["sum", "max", "min"]


@dataclasses.dataclass(frozen=True)
class Split:
    """Cut into equal slices along a dimension."""

    dim: str


@dataclasses.dataclass(frozen=True)
class Pending:
    """A partial result on each device, to be reduced over the axis."""

    kind: Kind


@dataclasses.dataclass(frozen=True)
class At:
    """All of it on the devices at one coordinate: a stage of a pipeline."""

    coordinate: int


@dataclasses.dataclass(frozen=True)
class _Whole:
    """All of it on every device."""

    def __repr__(self) -> str:
        return "Whole"


Whole = _Whole()
State: TypeAlias = Split | Pending | At | _Whole
Placement: TypeAlias = tuple[State, ...]


def finished(placement: Placement) -> Placement:
    """Returns the placement with partial results read as Whole."""
    return tuple(Whole if isinstance(s, Pending) else s for s in placement)
