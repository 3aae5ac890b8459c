"""The `LocalContext` that ops get when they run on one device: the sizes and offsets of the
local shards.

Sizes and shards are given by *factor*: a dimension of an op's formula, which several of its
tensors may have. Its name is the name of the dimension, unless the op renames dimensions.

Mesh coordinates are scalar tensors, so that one traced function fits all devices.
`MeshCoordinates` records which coordinates are read: a segment that reads none computes
equal outputs on all devices with equal inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from meshtf.graph import (
    KernelCall,
    MatmulKernels,
    Node,
    RecordCheck,
    factor_of,
    window_of,
)
from meshtf.mesh import Mesh
from meshtf.mesh.shard_sizes import (
    elements_of_shards,
    is_padded,
    sizes_by_axis,
    start_of_shard,
)
from meshtf.names import Dimension, Shape
from meshtf.partition import Half, NodePlan
from meshtf.partition.cost import local_shape, spans
from meshtf.runtime.devices.matmul_choice import matmul_kernels
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.padding.element_ranges import (
    num_elements_at,
    take_elements,
)
from meshtf.runtime.tf_internals.captured_tensors import captured_as_inputs
from meshtf.runtime.tf_internals.xla_ops import custom_call, optimization_barrier


class Stored(NamedTuple):
    """How XLA is kept from computing a tensor anew in each kernel that reads it.

    Attributes:
      identity: a function that returns its argument, and that XLA fuses with no other op.
      platform: what all devices are known to be: "cpu", "cuda", "tpu"; "": any.
    """

    identity: Callable[[Any], Any]
    platform: str


class MeshCoordinates:
    """The coordinates of a mesh position (an element of the mesh's grid). It records which
    of them are read.

    Attributes:
      tensors: {mesh axis: coordinate, a scalar int32 tensor}.
      axes_read: the axes whose coordinates were read so far.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.axes_read: set[str] = set()

    def __getitem__(self, axis: str) -> Any:
        self.axes_read.add(axis)
        return self.tensors[axis]

    def index(self, axes: Sequence[str], mesh: Mesh) -> Any:
        """Returns the index of the position among those that differ only along `axes`, a
        scalar int32 tensor.

        Args:
          axes: the axes, at least one; the index changes fastest along the last.
          mesh: the mesh.
        """
        # A mixed-radix number, whose digits are the coordinates along the axes.
        major_axis, *minor_axes = axes
        index = self[major_axis]
        for axis in minor_axes:
            index = index * mesh.axes[axis] + self[axis]
        return index


class CheckRecorder(Protocol):
    """Adds checks of indices to a program whose ops cannot raise errors."""

    def add(self, node: Node, is_valid: Any, ids: Any, interval: str) -> None:
        """Adds a check of the indices of a node; see `meshtf.graph.op.RecordCheck`."""


class DeviceContext:
    """The shards of one node on one device (see `meshtf.graph.LocalContext`). A node is an
    op with its inputs in the graph.

    Args:
      node: the node.
      plan: the sizes of the op's factors, and the mesh axes that shard them.
      mesh: the mesh of the program.
      coordinates: the coordinates of the device's mesh position.
      input_shards: the shards of the node's inputs.
      compiled: whether XLA compiles the op.
      on_any_device: whether the op may run on other devices than those of the mesh.
      checks: the recorder of checks of indices; None: checks are not recorded.
      stored: how `stored` and `computed_once` store tensors; None: as XLA likes.
      batch_half: the half of the shards that the op computes; None: all. The sizes of the node and
        of the plan are those of a half. To the op it is a shard among twice as many.

    Attributes:
      inputs: the shape of each input on this device.
      outputs: the shape of each output on this device.
    """

    def __init__(
        self,
        node: Node,
        plan: NodePlan,
        mesh: Mesh,
        coordinates: MeshCoordinates,
        input_shards: tuple[Any, ...],
        compiled: bool = False,
        on_any_device: bool = False,
        checks: CheckRecorder | None = None,
        stored: Stored | None = None,
        batch_half: Half | None = None,
    ) -> None:
        self.compiled = compiled
        self.coordinates = coordinates
        self._on_any_device = on_any_device
        self._checks = checks
        self._stored = stored
        self._batch_half = batch_half
        self._node = node
        self._plan = plan
        self._mesh = mesh
        self._sizes = dict(plan.sizes)
        self.inputs = tuple(
            Shape(map(Dimension, x.shape.names, shard.shape))
            for x, shard in zip(node.inputs, input_shards)
        )
        self.outputs = tuple(
            local_shape(y.shape, placement, mesh)
            for y, placement in zip(node.outputs, plan.results)
        )

    @property
    def matmul_kernels(self) -> MatmulKernels | None:
        """The matmul kernels to choose from on CPUs without XLA; None: no choice."""
        if self.compiled or self._on_any_device:
            return None
        return matmul_kernels(devices_of(self._mesh))

    @property
    def kernels_refuse(self) -> bool:
        """Whether TensorFlow's kernels raise errors for indices out of range: on CPUs, unless
        XLA compiles the ops.
        """
        return (
            not self.compiled
            and not self._on_any_device
            and only_cpus(devices_of(self._mesh))
        )

    def with_coordinates(self, tensors: Mapping[str, Any]) -> DeviceContext:
        """Returns the same context with other tensors for the mesh coordinates."""
        context = copy.copy(self)
        context.coordinates = MeshCoordinates(tensors)
        return context

    def with_shapes(
        self, inputs: Sequence[Shape], outputs: Sequence[Shape]
    ) -> DeviceContext:
        """Returns the same context with other shapes of the inputs and outputs."""
        context = copy.copy(self)
        context.inputs = tuple(inputs)
        context.outputs = tuple(outputs)
        return context

    def global_size(self, factor: str) -> int:
        """Returns the size of all shards together along a factor, in elements."""
        return self._sizes[factor] * self._num_halves(factor)

    def num_shards(self, factor: str) -> int:
        """Returns the number of shards of a factor; 1 if it is not sharded."""
        num_shards = self._mesh.group_size(*self._plan.axes_of(factor))
        return num_shards * self._num_halves(factor)

    def _num_halves(self, factor: str) -> int:
        """Returns 2 if the op computes a half along this factor, else 1."""
        return (
            2 if self._batch_half is not None and self._batch_half.dim == factor else 1
        )

    def local_size(self, factor: str) -> int:
        """Returns the size of this shard along a factor, in elements, with padding."""
        size = self._sizes[factor]
        sizes = sizes_by_axis(size, self._axis_sizes(factor))
        return sizes[-1] if sizes else size

    def is_padded(self, factor: str) -> bool:
        """Returns whether a shard of a factor ends with padding."""
        return is_padded(self._sizes[factor], self._axis_sizes(factor))

    def num_elements(self, factor: str) -> Any:
        """Returns the size of this shard along a factor without padding: a scalar int32
        tensor; a Python int if no shard is padded.
        """
        if not self.is_padded(factor):
            return self.local_size(factor)
        axes = self._plan.axes_of(factor)
        size = self.global_size(factor)
        return num_elements_at(self.coordinates, size, axes, self._mesh)

    def elements_of_shards(self, factor: str) -> tuple[int, ...]:
        """Returns the size of each shard along a factor without padding."""
        if self._num_halves(factor) > 1:
            return (self.local_size(factor),) * self.num_shards(factor)
        return elements_of_shards(self.global_size(factor), self._axis_sizes(factor))

    def _axis_sizes(self, factor: str) -> list[int]:
        """Returns the sizes of the axes that shard a factor."""
        return [self._mesh.axes[axis] for axis in self._plan.axes_of(factor)]

    def shard_index(self, factor: str) -> Any:
        """Returns the index of this shard along a factor; 0 if the factor is not sharded."""
        axes = self._plan.axes_of(factor)
        index = self.coordinates.index(axes, self._mesh) if axes else 0
        if self._batch_half is None or self._batch_half.dim != factor:
            return index
        return 2 * index + self._batch_half.half_index

    def shard_offset(self, factor: str) -> Any:
        """Returns the global index of the shard's first element; 0 if the factor is not
        sharded.
        """
        if self.num_shards(factor) == 1:
            return 0
        axes = self._plan.axes_of(factor)
        size = self.global_size(factor)
        axis_sizes = self._axis_sizes(factor)
        if not self.is_padded(factor):
            return self.shard_index(factor) * self.local_size(factor)
        coordinates = [self.coordinates[axis] for axis in axes]
        return start_of_shard(size, axis_sizes, coordinates)

    def axis(self, i: int, dim: str) -> int:
        """Returns the axis of a dimension of input i."""
        return self.inputs[i].index(dim)

    def window(
        self,
        i: int,
        dim: str,
        x: Any,
    ) -> Any:
        """Returns x, the shard of input i, with exactly the elements of `dim` that the
        op's windows read: sliced and padded. If the factor is sharded, x has these
        elements already, from the window exchange.
        """
        factor = factor_of(self._node.op, dim)
        window = window_of(self._node.op, i, dim)
        if window is None or self.num_shards(factor) > 1:
            return x
        # The range that the windows of all outputs read; it may extend beyond the ends.
        start = window.low(0)
        stop = window.high(self._sizes[factor])
        axis = self.axis(i, dim)
        if not window.wrap:
            return take_elements(x, axis, start=start, stop=stop, fill=window.fill)
        # Indices wrap around: each span is a range that lies within the axis.
        size = x.shape[axis]
        slices = [
            take_elements(x, axis, start=low, stop=high, fill=0.0)
            for _shard_index, low, high in spans(
                start, stop, shard_size=size, num_shards=1, wrap=True
            )
        ]
        return tf.concat(slices, axis)

    @property
    def record_check(self) -> RecordCheck | None:
        """Adds a check of indices to the program; None: checks are not recorded."""
        checks = self._checks
        if checks is None:
            return None

        def record(is_valid: Any, ids: Any, interval: str) -> None:
            # The record of all checks is a variable, an input of the program.
            with captured_as_inputs():
                checks.add(self._node, is_valid, ids, interval)

        return record

    @property
    def platform(self) -> str:
        """What XLA compiles for: "cpu", "cuda", "tpu"; "": any devices, or not XLA."""
        return "" if self._stored is None else self._stored.platform

    def call_kernel(self, call: KernelCall, xs: list[Any]) -> list[Any]:
        """Returns the results of a kernel of XLA."""
        return custom_call(call.name, call.configuration, xs, call.results)

    def optimization_barrier(self, x: Any) -> Any:
        """Returns x behind a barrier, across which XLA neither fuses nor merges ops."""
        if not self.compiled:
            return x
        (behind_barrier,) = optimization_barrier([x])
        return behind_barrier

    def stored(self, x: Any) -> Any:
        """Returns x, which XLA on CPUs computes once."""
        if self.platform != "cpu":
            return x
        assert self._stored is not None
        return self._stored.identity(x)

    def computed_once(self, x: Any) -> Any:
        """Returns x, which XLA on any devices computes once."""
        x = self.optimization_barrier(x)
        # XLA on CPUs drops barriers before it fuses ops.
        return x if self._stored is None else self._stored.identity(x)
