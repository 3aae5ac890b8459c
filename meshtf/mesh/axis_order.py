"""The order of the axes that shard one dimension: the first of them is the major one.

The layout rule "batch:fsdp+data" divides the batch along `fsdp` first, whatever order the mesh
has. A placement says so by the `order` of its states:

>>> placement = (Sharded("batch", order=1), Sharded("batch"))
>>> axes_by_dim(("data", "fsdp"), placement)
{'batch': ('fsdp', 'data')}
>>> sharded_states(("data", "fsdp"), {"batch": ("fsdp", "data")})
{'fsdp': Sharded('batch'), 'data': Sharded('batch', order=1)}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from meshtf.mesh.shard_sizes import is_padded
from meshtf.mesh.state import OnStage, Placement, Sharded, State
from meshtf.names import Shape

Axis = TypeVar("Axis", bound=Hashable)
# A placement, a function from a dimension to its factor, and the number of elements.
PlacedSize: TypeAlias = tuple[Placement, Callable[[str], str], int]


def order_of(state: State) -> int:
    """Returns the order of a state: 0 if it shards no dimension."""
    return state.order if isinstance(state, Sharded) else 0


def without_order(state: State) -> State:
    """Returns a state whose `order` is 0."""
    return Sharded(state.dim) if isinstance(state, Sharded) else state


def axes_by_dim(
    axes: Iterable[Axis], placement: Placement
) -> dict[str, tuple[Axis, ...]]:
    """Returns, for each dimension that is sharded, the axes that shard it, the major one
    first.

    Args:
      axes: the axes of the mesh, in its order.
      placement: the state along each of them.
    """
    states = [
        (state.dim, state.order, axis)
        for axis, state in zip(axes, placement)
        if isinstance(state, Sharded)
    ]
    # Sorting is stable: axes of equal order stay in the order of the mesh.
    states.sort(key=lambda state: state[1])
    result: dict[str, tuple[Axis, ...]] = {}
    for dim, _order, axis in states:
        result[dim] = (*result.get(dim, ()), axis)
    return result


def sharded_states(
    axes: Sequence[Axis], axes_of_dim: Mapping[str, Sequence[Axis]]
) -> dict[Axis, Sharded]:
    """Returns the state along each axis that shards a dimension.

    Args:
      axes: the axes of the mesh, in its order.
      axes_of_dim: for each dimension the axes that shard it, the major one first.
    """
    states = {}
    for dim, dim_axes in axes_of_dim.items():
        order = 0
        previous_index = -1
        for axis in dim_axes:
            index = axes.index(axis)
            if index < previous_index:
                order += 1
            previous_index = index
            states[axis] = Sharded(dim, order)
    return states


def with_lowest_orders(placement: Placement) -> Placement:
    """Returns the same placement with the lowest `order` of each sharded axis, such that
    equal placements are equal objects. An axis that alone shards a dimension has order 0.
    """
    if not any(map(order_of, placement)):
        return placement
    axes = range(len(placement))
    states = sharded_states(axes, axes_by_dim(axes, placement))
    return tuple(states.get(axis, state) for axis, state in zip(axes, placement))


def shards_over_several(placement: Placement) -> bool:
    """Returns whether several axes shard one dimension."""
    dims = [state.dim for state in placement if isinstance(state, Sharded)]
    return len(set(dims)) < len(dims)


def changed_axes(
    axes: Sequence[str], placement: Placement, other: Placement
) -> dict[str, str]:
    """Returns {axis: dimension}, for the axes that shard a dimension in one placement and do
    not shard it in the same way in the other; the axes of a dimension: the major one first.

    An axis shards a dimension in the same way if the more significant axes of the
    dimension are equal as well; otherwise its shards have different elements.
    """
    dims: dict[str, str] = {}
    other_axes = axes_by_dim(axes, other)
    for dim, dim_axes in axes_by_dim(axes, placement).items():
        num_equal = num_equal_axes(dim_axes, other_axes.get(dim, ()))
        dims.update(dict.fromkeys(dim_axes[num_equal:], dim))
    return dims


def num_equal_axes(axes: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many axes two sequences share from their start on."""
    num_equal = 0
    for axis, other_axis in zip(axes, other):
        if axis != other_axis:
            break
        num_equal += 1
    return num_equal


class NewOrder(NamedTuple):
    """A dimension that is sharded over the same axes in another order.

    Attributes:
      dim: the name of the dimension.
      axes: the axes whose order changes; more significant axes keep their order.
      new_axes: the same axes in the new order.
    """

    dim: str
    axes: tuple[str, ...]
    new_axes: tuple[str, ...]


def new_orders(
    axes: Iterable[str], old: Placement, new: Placement
) -> Iterable[NewOrder]:
    """Yields the dimensions that the same axes shard in two placements, in another order."""
    axes = tuple(axes)
    old_axes = axes_by_dim(axes, old)
    for dim, dim_axes in axes_by_dim(axes, new).items():
        before = old_axes.get(dim, ())
        num_equal = num_equal_axes(before, dim_axes)
        if num_equal < len(dim_axes) and set(before) == set(dim_axes):
            yield NewOrder(dim, before[num_equal:], dim_axes[num_equal:])


def can_reorder(
    axes: Mapping[str, int],
    dim: str,
    dim_axes: Sequence[str],
    new_axes: Sequence[str],
    shape: Shape | None,
) -> bool:
    """Returns whether the shards of a dimension have the same elements in two orders of its
    axes. With padding, the shards of another order may begin at other elements.

    Args:
      axes: names and sizes of the mesh's axes, in order.
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
    axes only; None: it does so anyway. The arguments are those of `reshards`.

    From (a, b) to b alone, and from b to (a, b), the dimension is sharded over (b, a) in
    between: devices exchange shards, where otherwise they would gather the dimension.
    """
    states = dict(zip(axes, old))
    old_axes = axes_by_dim(axes, old)
    for dim, after in axes_by_dim(axes, new).items():
        before = old_axes.get(dim, ())
        order = (*after, *(axis for axis in before if axis not in after))
        full = before
        if set(before) < set(after):
            order = (*before, *(axis for axis in after if axis not in before))
            full = after
        added = (states[axis] for axis in order if axis not in before)
        is_free = not any(isinstance(state, (Sharded, OnStage)) for state in added)
        if not before or order == full or set(order) != set(full) or not is_free:
            continue
        if set(before) != set(after) and can_reorder(axes, dim, full, order, shape):
            states.update(sharded_states(tuple(axes), {**old_axes, dim: order}))
            return tuple(states.values())
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
    coordinates = itertools.product(*map(range, sizes))
    new_indices = (
        sum(strides[axis] * digit for axis, digit in zip(axes, digits))
        for digits in coordinates
    )
    return sum(index == new_index for index, new_index in enumerate(new_indices))


def with_order_of(state: State, other: State) -> State:
    """Returns `other` if both states shard the same dimension, else `state`."""
    if isinstance(state, Sharded) and isinstance(other, Sharded):
        return other if state.dim == other.dim else state
    return state


class Orders:
    """The order of the axes that shard the factors of an op. A factor is what several
    dimensions of its inputs and outputs have in common; axes of the mesh shard it.

    Args:
      axes: the axes of the mesh, in its order.
      sharded_factors: {axis: the factor that it shards}.
      tensors: for each tensor its placement, the factor of each of its dimensions, and its
        number of elements. Each factor has the order that most elements have, of tensors
        that all of its axes shard.
    """

    def __init__(
        self,
        axes: Sequence[str],
        sharded_factors: Mapping[str, str],
        tensors: Iterable[PlacedSize],
    ) -> None:
        self._axes = axes
        self._sharded_factors = sharded_factors
        # {factor: {its axes in an order: the number of elements}}
        elements: dict[str, dict[tuple[str, ...], int]] = {}
        for placement, factor_of, size in tensors:
            for dim, dim_axes in axes_by_dim(axes, placement).items():
                factor = factor_of(dim)
                if set(dim_axes) == self._axes_of(factor):
                    sizes = elements.setdefault(factor, {})
                    sizes[dim_axes] = sizes.get(dim_axes, 0) + size
        # {factor: its axes, the major one first}
        self._orders = {
            factor: max(sizes, key=sizes.__getitem__)
            for factor, sizes in elements.items()
        }

    def _axes_of(self, factor: str) -> set[str]:
        """Returns the axes that shard a factor."""
        return {axis for axis, name in self._sharded_factors.items() if name == factor}

    def sharded_factors(self) -> tuple[tuple[str, str], ...]:
        """Returns (axis, factor) for each axis that shards a factor, with the axes of each
        factor in their order.
        """
        next_axis = {factor: iter(axes) for factor, axes in self._orders.items()}
        return tuple(
            (next(next_axis[factor]) if factor in next_axis else axis, factor)
            for axis, factor in self._sharded_factors.items()
        )

    def applied_to(
        self, placement: Placement, factor_of: Callable[[str], str]
    ) -> Placement:
        """Returns a placement in which the axes of each factor are in their order.

        Args:
          placement: the placement of a tensor.
          factor_of: a function from a dimension of the tensor to its factor.
        """
        dim_axes = axes_by_dim(self._axes, placement)
        for dim, axes in dim_axes.items():
            order = self._orders.get(factor_of(dim), axes)
            dim_axes[dim] = order if set(order) == set(axes) else axes
        states = sharded_states(self._axes, dim_axes)
        return tuple(
            states.get(axis, state) for axis, state in zip(self._axes, placement)
        )
