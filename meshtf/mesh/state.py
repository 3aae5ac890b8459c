"""The state of a tensor along one axis of a mesh.

    Replicated      every device along the axis holds all of it
    Sharded(dim)    shard i holds elements [i * c, (i + 1) * c) of dim, c = size / devices
    Partial(kind)   each holds a partial sum, maximum or minimum, still to be reduced
    OnStage(k)      the devices at coordinate k hold all of it, the others nothing

A `Placement` is one state for each axis of the mesh, in the order of the axes. Where
several axes shard one dimension, the first of them in that order is the major one.

>>> from meshtf.mesh import Partial, Sharded, Replicated
>>> (Sharded("batch"), Partial("sum")) == (Sharded("batch"), Partial("sum"))
True
>>> Replicated
Replicated
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["sum", "max", "min"]


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Sharded along a dimension into equal shards."""

    dim: str


@dataclasses.dataclass(frozen=True)
class Partial:
    """A partial result on each device, to be reduced over the axis."""

    kind: Kind


@dataclasses.dataclass(frozen=True)
class OnStage:
    """All of it on the devices at one coordinate: a stage of a pipeline."""

    coordinate: int


@dataclasses.dataclass(frozen=True)
class _Replicated:
    """All of it on every device."""

    def __repr__(self) -> str:
        return "Replicated"


Replicated = _Replicated()
State: TypeAlias = Sharded | Partial | OnStage | _Replicated
Placement: TypeAlias = tuple[State, ...]


class Conflict(NamedTuple):
    """Why a dimension of a tensor is not sharded along the axis that the layout names.

    Attributes:
      kind: "axis": the axis shards dimension `other`; "size": the axis does not divide
        the size of the dimension.
      dim: name of the dimension.
      axis: name of the axis.
      other: name of the dimension that the axis shards already, or "".
    """

    kind: Literal["axis", "size"]
    dim: str
    axis: str
    other: str = ""


def state_text(state: State) -> str:
    """Returns a state in short: a dimension, "+" for a partial sum, "max", "min", "stage
    2", or "" for replicated; see `display.placement_text`.
    """
    if isinstance(state, Sharded):
        return state.dim
    if isinstance(state, Partial):
        return "+" if state.kind == "sum" else state.kind
    if isinstance(state, OnStage):
        return f"stage {state.coordinate}"
    return ""


def reduced_placement(placement: Placement) -> Placement:
    """Returns the placement with partial results read as Replicated."""
    return tuple(Replicated if isinstance(s, Partial) else s for s in placement)
