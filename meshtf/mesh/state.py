"""The state of a tensor along one axis of a mesh.

    Replicated      each device along the axis holds the entire tensor
    Sharded(dim)    device i holds elements [i * c, (i + 1) * c) of dim, c = ceil(size / devices)
    Partial(kind)   each device holds a partial sum, maximum or minimum, not yet reduced
    OnStage(k)      the devices at coordinate k hold the entire tensor, the others nothing
    Varying         each device holds an entire tensor of its own, in the body of a loop whose
                    iterations are divided among the devices (see `partition.sharded_loops`)

What a tensor is along all axes is its `Placement`.

>>> from meshtf.mesh import Partial, Sharded, Replicated
>>> Sharded("batch") is Sharded("batch"), Partial("sum")
(True, Partial('sum'))
>>> Replicated
Replicated
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["sum", "max", "min"]


class _OncePerValue(type):
    """The type of classes that have one object for each value. So states are compared and
    hashed as objects: the planner looks up placements all the time.
    """

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)
        # The arguments of a call, or the values of all fields -> the object.
        cls._objects: dict[tuple[Any, ...], Any] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns the object with these fields."""
        known = None if kwargs else cls._objects.get(args)
        if known is None:
            new = super().__call__(*args, **kwargs)
            known = cls._objects.setdefault(tuple(vars(new).values()), new)
            if not kwargs:
                cls._objects[args] = known
        return known


class _State(metaclass=_OncePerValue):
    """Base of the states."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a state are the state itself."""
        return type(self), tuple(vars(self).values())


@dataclasses.dataclass(frozen=True, eq=False)
class Sharded(_State):
    """The tensor is divided along a dimension into shards of equal size, the last of which may
    end with padding (see `shard_sizes`).

    Attributes:
      dim: the name of the dimension.
    """

    dim: str

    def __repr__(self) -> str:
        return f"Sharded({self.dim!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class Partial(_State):
    """Each device has a partial result, to be reduced over the axis."""

    kind: Kind

    def __repr__(self) -> str:
        return f"Partial({self.kind!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class OnStage(_State):
    """The entire tensor is on the devices at one coordinate: a stage of a pipeline."""

    coordinate: int

    def __repr__(self) -> str:
        return f"OnStage({self.coordinate})"


@dataclasses.dataclass(frozen=True, eq=False)
class _Replicated(_State):
    """The entire tensor is on every device."""

    def __repr__(self) -> str:
        return "Replicated"


@dataclasses.dataclass(frozen=True, eq=False)
class _Varying(_State):
    """Each device has an entire tensor of its own."""

    def __repr__(self) -> str:
        return "Varying"


Replicated = _Replicated()
Varying = _Varying()
State: TypeAlias = Sharded | Partial | OnStage | _Replicated | _Varying


class Conflict(NamedTuple):
    """Why a dimension of a tensor is not sharded along the axis that the layout names.

    Attributes:
      kind: "axis": the axis shards dimension `other`; "size": the mesh is strict, and the
        axis does not divide the size of the dimension.
      dim: the name of the dimension.
      axis: the name of the axis.
      other: the name of the dimension that the axis shards already; "" for kind "size".
    """

    kind: Literal["axis", "size"]
    dim: str
    axis: str
    other: str = ""


def state_text(state: State) -> str:
    """Returns a state as `display.placement_text` takes it: the name of the sharded
    dimension; "+", "max" or "min" for a partial result; "stage 2"; "" for replicated.
    """
    if isinstance(state, Sharded):
        return state.dim
    if isinstance(state, Partial):
        return "+" if state.kind == "sum" else state.kind
    if isinstance(state, OnStage):
        return f"stage {state.coordinate}"
    return ""
