"""Describes the tensors of a program: global shape, state along each mesh axis, and the
shard of one device.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshtf.forecast.report_data import PlacedTensor
from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, OnStage, Partial, Placement, Replicated, Sharded, State
from meshtf.partition import Value
from meshtf.partition.cost import local_bytes, local_shape


class PlacedTensors:
    """Describes tensors. Those with equal spec (shape and data type) and placement share one
    `PlacedTensor`.

    Args:
      mesh: the mesh that the tensors lie on.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._cache: dict[tuple[Spec, Placement], PlacedTensor] = {}

    def of_value(self, value: Value) -> PlacedTensor:
        """Returns the description of a value of the program."""
        assert value.spec is not None
        return self.of(value.spec, value.placement)

    def of_values(self, values: Iterable[Value]) -> tuple[PlacedTensor, ...]:
        """Returns the descriptions of several values of the program."""
        return tuple(map(self.of_value, values))

    def of_store(self, store: Store) -> PlacedTensor:
        """Returns the description of a variable or an argument."""
        return self.of(store.spec, store.placement)

    def of(self, spec: Spec, placement: Placement) -> PlacedTensor:
        """Returns the description of a tensor with this placement."""
        key = spec, placement
        if key not in self._cache:
            self._cache[key] = PlacedTensor(
                shape=tuple((dim.name, dim.size) for dim in spec.shape),
                dtype=spec.dtype,
                states=tuple(state_name(placement[axis]) for axis in self._mesh.axes),
                local=local_shape(spec.shape, placement, self._mesh).sizes,
                bytes=local_bytes(spec, placement, self._mesh),
                orders=placement.orders(self._mesh.axes),
            )
        return self._cache[key]


def has_shape_of(spec: Spec | None, other: Spec) -> bool:
    """Returns whether a tensor has the dimensions of another, in any order."""
    return spec is not None and set(spec.shape) == set(other.shape)


def state_name(state: State) -> str:
    """Returns a state as text: "replicated", the name of the sharded dimension, the kind
    of a partial result ("sum", "max", "min"), or "stage 2".
    """
    if isinstance(state, Sharded):
        return state.dim
    if isinstance(state, OnStage):
        return f"stage {state.coordinate}"
    if isinstance(state, Partial):
        return state.kind
    return "replicated" if state == Replicated else "varying"
