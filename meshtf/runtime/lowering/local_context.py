"""The `LocalContext` that ops get when they run on one device.

Coordinates are scalar tensors, so that one trace serves all devices. `MeshCoordinates`
records which of them are read: a segment that reads none computes the same outputs on all
devices with equal inputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from meshtf.graph import (
    MatmulKernels,
    Node,
    factor_of,
    window_of,
)
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape
from meshtf.partition import NodePlan
from meshtf.partition.cost import local_shape, spans
from meshtf.runtime.devices.matmul_choice import matmul_kernels
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.padding import take_elements
from meshtf.runtime.tf_internals.xla_ops import optimization_barrier


class MeshCoordinates:
    """The coordinates of a mesh position, as tensors by mesh axis.

    Attributes:
      tensors: the coordinates.
      used: the axes whose coordinates were read.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()

    def __getitem__(self, axis: str) -> Any:
        self.used.add(axis)
        return self.tensors[axis]


class DeviceContext:
    """The shards of one node on one device (see `meshtf.graph.LocalContext`).

    Args:
      node: the node.
      plan: the placements of its inputs and outputs.
      mesh: the mesh.
      coords: the coordinates of the device's position.
      xs: the shards of its inputs.
      compiled: whether XLA compiles it.
      anywhere: whether it may run on other devices than the mesh's.
    """

    def __init__(
        self,
        node: Node,
        plan: NodePlan,
        mesh: Mesh,
        coords: MeshCoordinates,
        xs: tuple[Any, ...],
        compiled: bool = False,
        anywhere: bool = False,
    ) -> None:
        self.compiled = compiled
        self.coordinates = coords
        self._anywhere = anywhere
        self._node = node
        self._plan = plan
        self._mesh = mesh
        self._sizes = dict(plan.sizes)
        self.inputs = tuple(
            Shape(map(Dimension, x.shape.names, t.shape))
            for x, t in zip(node.inputs, xs)
        )
        self.outputs = tuple(
            local_shape(y.shape, p, mesh) for y, p in zip(node.outputs, plan.results)
        )

    @property
    def matmul_kernels(self) -> MatmulKernels | None:
        """The matmul kernels to choose from on CPUs without XLA; None: no choice."""
        if self.compiled or self._anywhere:
            return None
        return matmul_kernels(devices_of(self._mesh))

    @property
    def kernels_refuse(self) -> bool:
        """Whether TensorFlow's kernels raise for sizes that are too large."""
        return (
            not self.compiled
            and not self._anywhere
            and only_cpus(devices_of(self._mesh))
        )

    def with_coordinates(self, coords: Mapping[str, Any]) -> DeviceContext:
        """Returns the same context with other tensors for its coordinates."""
        context = copy.copy(self)
        context.coordinates = MeshCoordinates(coords)
        return context

    def global_size(self, factor: str) -> int:
        """Returns the size of the global dimension."""
        return self._sizes[factor]

    def num_shards(self, factor: str) -> int:
        """Returns the number of shards."""
        return math.prod(self._mesh.axes[a] for a in self._plan.axes_of(factor))

    def local_size(self, factor: str) -> int:
        """Returns the size of this shard."""
        return self.global_size(factor) // self.num_shards(factor)

    def shard_index(self, factor: str) -> Any:
        """Returns the index of this shard; 0 if the factor is not sharded."""
        index: Any = None
        for axis in self._plan.axes_of(factor):
            coordinate = self.coordinates[axis]
            if index is None:
                index = coordinate
            else:
                index = index * self._mesh.axes[axis] + coordinate
        return 0 if index is None else index

    def shard_offset(self, factor: str) -> Any:
        """Returns the global index of the shard's first element; 0 if the factor is not
        sharded.
        """
        index = self.shard_index(factor)
        return index if isinstance(index, int) else index * self.local_size(factor)

    def axis(self, i: int, dim: str) -> int:
        """Returns the axis of a dimension of input i."""
        return self._node.inputs[i].shape.index(dim)

    def window(
        self,
        i: int,
        dim: str,
        x: Any,
    ) -> Any:
        """Returns input i with the elements of `dim` that its window reads. If the factor
        is sharded, the window exchange has added them before.
        """
        factor = factor_of(self._node.op, dim)
        window = window_of(self._node.op, i, dim)
        if window is None or self.num_shards(factor) > 1:
            return x
        start = window.low(0)
        stop = window.high(self._sizes[factor])
        axis = self.axis(i, dim)
        if not window.wrap:
            return take_elements(x, axis, start, stop, window.fill)
        elements = [
            take_elements(x, axis, low, high, 0.0)
            for _, low, high in spans(start, stop, x.shape[axis], 1, wrap=True)
        ]
        return tf.concat(elements, axis)

    def optimization_barrier(self, x: Any) -> Any:
        """Returns x behind a barrier, across which XLA neither fuses nor merges ops."""
        return optimization_barrier([x])[0] if self.compiled else x
