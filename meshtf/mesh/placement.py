"""The placement of a tensor: how its elements lie on the positions of a mesh.

It is written as a layout is: for each dimension the axes that shard it, the major one first.
Along other axes the tensor is a partial result, on one stage of a pipeline, or varies; along the
rest it is replicated.

>>> from meshtf.mesh import Partial
>>> x = Placement("batch:fsdp+data", model=Partial("sum"))
>>> x.axes_of("batch"), x["data"], x["model"], x["pipe"]
(('fsdp', 'data'), Sharded('batch'), Partial('sum'), Replicated)
>>> x.reduced(), Placement()
(Placement('batch:fsdp+data'), Placement())
>>> print(x)
batch:fsdp+data; sum over model
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.mesh.layout import Layout, LayoutLike
from meshtf.mesh.shard_sizes import is_padded
from meshtf.mesh.state import (
    OnStage,
    Partial,
    Replicated,
    Sharded,
    State,
    Varying,
    _Replicated,
    _Varying,
)
from meshtf.names import Shape
from meshtf.names.arguments import refuse

# The state along an axis that neither shards nor replicates a tensor.
OtherState: TypeAlias = Partial | OnStage | _Varying


class Placement:
    """How a tensor lies on a mesh. There is one object for each value, so placements are
    compared and hashed as objects: the planner looks them up all the time.

    Args:
      shards: the axes that shard each dimension, the major one first: "batch:fsdp+data". It is
        written as a layout.
      other_states: by the name of an axis, its state if that is `Partial`, `OnStage` or
        `Varying`.

    Attributes:
      shards: {dimension: the axes that shard it, the major one first}.
      other_states: {axis: its state}, for the axes along which the tensor is a partial result,
        on one stage, or varies.
      unreplicated: the axes along which the tensor is not replicated.
    """

    __slots__ = ("shards", "other_states", "unreplicated", "_states")
    shards: dict[str, tuple[str, ...]]
    other_states: dict[str, OtherState]
    unreplicated: frozenset[str]
    _states: dict[str, State]
    # The items of `shards` and `other_states` -> the object.
    _objects: dict[Any, Placement] = {}

    def __new__(
        cls, shards: LayoutLike = (), /, **other_states: OtherState
    ) -> Placement:
        for axis, state in other_states.items():
            if not isinstance(state, OtherState):
                refuse(axis, state, "a state", f'Write {axis}=mtf.Partial("sum").')
        return cls.of(dict(Layout(shards).items()), other_states)

    @classmethod
    def of(
        cls,
        shards: Mapping[str, Sequence[str]],
        other_states: Mapping[str, OtherState] | None = None,
    ) -> Placement:
        """Returns the placement with these attributes. Dimensions without axes are left out."""
        axes_of_dim = sorted((dim, tuple(axes)) for dim, axes in shards.items() if axes)
        key = tuple(axes_of_dim), frozenset((other_states or {}).items())
        placement = cls._objects.get(key)
        if placement is None:
            placement = object.__new__(cls)
            placement.shards = dict(axes_of_dim)
            placement.other_states = dict(sorted((other_states or {}).items()))
            placement._states = {
                axis: Sharded(dim) for dim, axes in axes_of_dim for axis in axes
            }
            placement._states.update(placement.other_states)
            placement.unreplicated = frozenset(placement._states)
            placement = cls._objects.setdefault(key, placement)
        return placement

    def __getitem__(self, axis: str) -> State:
        """Returns the state along an axis of the mesh."""
        state = self._states.get(axis)
        if state is None and not isinstance(axis, str):
            refuse("axis", axis, "the name of an axis", 'Write placement["data"].')
        return state or Replicated

    # A placement has no items: it does not know the axes of the mesh.
    __iter__ = None
    __contains__ = None

    def axes_of(self, dim: str) -> tuple[str, ...]:
        """Returns the axes that shard a dimension, the major one first."""
        return self.shards.get(dim, ())

    def states(self, axes: Iterable[str]) -> Iterator[tuple[str, State]]:
        """Yields the axes of a mesh with their states, in the order of the mesh; but the places
        of axes that shard one dimension are filled from the major one to the minor one.
        """
        next_axis = {dim: iter(dim_axes) for dim, dim_axes in self.shards.items()}
        for axis in axes:
            state = self[axis]
            if isinstance(state, Sharded):
                axis = next(next_axis[state.dim])
            yield axis, state

    def orders(self, axes: Iterable[str]) -> tuple[int, ...]:
        """Returns a number for each axis of a mesh, as files tell the order of the axes that
        shard one dimension: those of a lower number are more significant; of equal numbers,
        those earlier in the mesh. () if all would be 0.
        """
        indices = {axis: i for i, axis in enumerate(axes)}
        orders = [0] * len(indices)
        for dim_axes in self.shards.values():
            order = 0
            for previous, axis in zip(dim_axes, dim_axes[1:]):
                order += indices[axis] < indices[previous]
                orders[indices[axis]] = order
        return tuple(orders) if any(orders) else ()

    @property
    def stage(self) -> int | None:
        """The pipeline stage that holds the tensor; None: all stages do."""
        for state in self.other_states.values():
            if isinstance(state, OnStage):
                return state.coordinate
        return None

    @property
    def partial(self) -> dict[str, Partial]:
        """{axis: its state}, for the axes along which the tensor is a partial result."""
        states = self.other_states.items()
        return {axis: state for axis, state in states if isinstance(state, Partial)}

    def reduced(self) -> Placement:
        """Returns the placement after an all-reduce of all partial results."""
        if not self.other_states:
            return self
        return Placement.of(self.shards, self._without_partial())

    def with_dims(self, dims: Iterable[str]) -> Placement:
        """Returns the placement, on the same stage, of a tensor that has only some of the
        dimensions, and no partial results.
        """
        shards = {dim: self.axes_of(dim) for dim in dims}
        return Placement.of(shards, self._without_partial())

    def filled_from(self, other: Placement) -> Placement:
        """Returns the placement that has the states of `other` along the axes where this one
        is replicated, unless both shard the same dimension.
        """
        if self is other or not other.unreplicated:
            return self
        shards = dict(self.shards)
        for dim, axes in other.shards.items():
            free_axes = tuple(axis for axis in axes if axis not in self.unreplicated)
            shards.setdefault(dim, free_axes)
        other_states = {
            a: s for a, s in other.other_states.items() if a not in self.unreplicated
        }
        return Placement.of(shards, {**other_states, **self.other_states})

    def with_stage(self, axis: str, stage: int | None) -> Placement:
        """Returns the placement on a stage along an axis; None: on all stages."""
        if stage is None:
            return self.without_axes([axis])
        return self.along([axis], OnStage(stage))

    def with_state(self, axis: str, state: State, axes: Sequence[str]) -> Placement:
        """Returns the placement with another state along one axis. If other axes shard the
        dimension, it is inserted before the first of them that comes after it in `axes`, the
        axes of the mesh.
        """
        if self[axis] == state:
            return self
        rest = self.without_axes([axis])
        if isinstance(state, Sharded):
            dim_axes = [*rest.axes_of(state.dim)]
            minor = set(axes[axes.index(axis) :])
            index = next((i for i, a in enumerate(dim_axes) if a in minor), None)
            dim_axes.insert(len(dim_axes) if index is None else index, axis)
            return Placement.of({**rest.shards, state.dim: dim_axes}, rest.other_states)
        return rest if isinstance(state, _Replicated) else rest.along([axis], state)

    def sharded_over(self, dim: str, axes: Sequence[str]) -> Placement:
        """Returns the placement in which some axes shard a dimension, and no other one."""
        rest = self.without_axes(axes)
        return Placement.of({**rest.shards, dim: axes}, rest.other_states)

    def along(self, axes: Iterable[str], state: OtherState) -> Placement:
        """Returns the placement with this state along some axes."""
        axes = tuple(axes)
        if all(self[axis] is state for axis in axes):
            return self
        rest = self.without_axes(axes)
        return Placement.of(
            rest.shards, {**rest.other_states, **dict.fromkeys(axes, state)}
        )

    def without_axes(self, axes: Iterable[str]) -> Placement:
        """Returns the placement, replicated along some axes."""
        axes = set(axes)
        if self.unreplicated.isdisjoint(axes):
            return self
        return Placement.of(
            {
                dim: tuple(a for a in dim_axes if a not in axes)
                for dim, dim_axes in self.shards.items()
            },
            {a: state for a, state in self.other_states.items() if a not in axes},
        )

    def _without_partial(self) -> dict[str, OtherState]:
        """Returns the other states that are no partial results."""
        states = self.other_states.items()
        return {axis: state for axis, state in states if not isinstance(state, Partial)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a placement are the placement itself."""
        return Placement.of, (self.shards, self.other_states)

    def __str__(self) -> str:
        """Returns "batch:data; sum over model", or "replicated"."""
        words = [f"{dim}:{'+'.join(axes)}" for dim, axes in self.shards.items()]
        for axis, state in self.other_states.items():
            if isinstance(state, Partial):
                words.append(f"{state.kind} over {axis}")
            elif isinstance(state, OnStage):
                words.append(f"{axis} {state.coordinate}")
            else:
                words.append(f"varies along {axis}")
        return "; ".join(words) or "replicated"

    def __repr__(self) -> str:
        rules = ";".join(f"{dim}:{'+'.join(axes)}" for dim, axes in self.shards.items())
        arguments = [repr(rules)] if rules else []
        arguments += [f"{axis}={state!r}" for axis, state in self.other_states.items()]
        return f"Placement({', '.join(arguments)})"


def can_become(old: Placement, new: Placement) -> bool:
    """Returns whether reshards lead from one placement to another: whether the table of
    reshards has "never" along no axis.
    """
    axes = old.other_states.keys() | new.other_states.keys()
    return all(_can_become(old[axis], new[axis]) for axis in axes)


def _can_become(old: State, new: State) -> bool:
    """Returns whether a reshard leads from one state along an axis to another."""
    if old is new:
        return True
    if old is Varying or isinstance(new, Partial):
        return False
    if isinstance(old, OnStage):
        return new is Replicated or isinstance(new, OnStage)
    return old is Replicated or not isinstance(new, OnStage)


def lost_axes(old: Placement, new: Placement) -> dict[str, tuple[str, ...]]:
    """Returns {dimension: axes}, for the axes that shard a dimension in `old`, and do not shard
    it in the same way in `new`.

    An axis shards a dimension in the same way if the more significant axes of the
    dimension are equal as well; otherwise its shards have different elements.
    """
    lost = {}
    for dim, axes in old.shards.items():
        num_equal = num_equal_axes(axes, new.axes_of(dim))
        if num_equal < len(axes):
            lost[dim] = axes[num_equal:]
    return lost


def num_equal_axes(axes: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many axes two sequences share from their start on."""
    num_equal = 0
    for axis, other_axis in zip(axes, other):
        if axis != other_axis:
            break
        num_equal += 1
    return num_equal


def keeps_shards(
    axes: Mapping[str, int],
    dim: str,
    dim_axes: Sequence[str],
    new_axes: Sequence[str],
    shape: Shape | None,
) -> bool:
    """Returns whether the shards of a dimension have the same elements in two orders of its
    axes. With padding, the shards of another order may begin at other elements.

    Args:
      axes: names and sizes of the mesh's axes.
      dim: the name of the dimension.
      dim_axes: all axes that shard it, the major one first.
      new_axes: the same axes in another order.
      shape: the global shape of the tensor; None: the axes divide its sizes.
    """
    sizes = [axes[axis] for axis in dim_axes]
    new_sizes = [axes[axis] for axis in new_axes]
    return shape is None or sizes == new_sizes or not is_padded(shape[dim], sizes)


def placement_between(
    axes: Mapping[str, int], old: Placement, new: Placement, shape: Shape | None
) -> Placement | None:
    """Returns a placement between two others, such that a dimension loses or gains its minor
    axes only; None: no such step is needed or possible. The arguments are those of `reshards`.

    From (a, b) to b alone, and from b to (a, b), the dimension is sharded over (b, a) in
    between: devices exchange shards, where otherwise they would gather the dimension.
    """
    for dim, after in new.shards.items():
        before = old.axes_of(dim)
        # full: the larger set of axes; first: the smaller one; order: the larger one with the
        # smaller one in front.
        full, first = (before, after) if set(after) < set(before) else (after, before)
        order = (*first, *(axis for axis in full if axis not in first))
        added = set(full) - set(before)
        is_free = all(old[axis] == Replicated or axis in old.partial for axis in added)
        is_part = before and set(first) < set(full)
        if not is_part or order == full or not is_free:
            continue
        if keeps_shards(axes, dim, full, order, shape):
            other_states = {
                a: state for a, state in old.other_states.items() if a not in added
            }
            return Placement.of({**old.shards, dim: order}, other_states)
    return None


def num_kept_shards(
    axis_sizes: Mapping[str, int], axes: Sequence[str], new_axes: Sequence[str]
) -> int:
    """Returns how many positions keep their shard if the order of axes changes.

    Args:
      axis_sizes: the sizes of axes by name.
      axes: the axes before, the major one first.
      new_axes: the same axes in the new order.
    """
    sizes = [axis_sizes[axis] for axis in axes]
    strides = {
        axis: math.prod(axis_sizes[minor] for minor in new_axes[i + 1 :])
        for i, axis in enumerate(new_axes)
    }
    positions = itertools.product(*map(range, sizes))
    new_indices = (
        sum(strides[axis] * coordinate for axis, coordinate in zip(axes, coordinates))
        for coordinates in positions
    )
    return sum(index == new_index for index, new_index in enumerate(new_indices))
