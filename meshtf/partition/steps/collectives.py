"""Steps in which devices communicate.

step.kind, step.axes                 # "all_reduce", ("data", "model")
step.received(sizes)                 # the bytes that one device receives
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from meshtf.graph import Node, OpWithStatistics, Spec, Window
from meshtf.mesh import Mesh, Placement
from meshtf.names import dtype_bytes
from meshtf.partition.cost import (
    FREE_RESHARDS,
    bytes_per_byte,
    elements_received,
    local_bytes,
    local_shape,
)
from meshtf.partition.planner import NodePlan
from meshtf.partition.reshard_table import Reshard
from meshtf.partition.steps.step import Step, Value

_BETWEEN_STAGES = ("send", "broadcast")
_REDUCTIONS = ("all_reduce", "reduce_scatter")


Placed: TypeAlias = tuple[Spec, Placement]


class ShardSizes(Protocol):
    """Sizes on one device, for which the bytes of a collective are asked: numbers, or arrays
    with an entry for each of many meshes.
    """

    @property
    def mesh(self) -> Mesh:
        """The mesh that the program was planned for."""

    def local_bytes(self, value: Value) -> Any:
        """Returns the bytes of one shard of a value."""

    def group_size(self, axes: tuple[str, ...]) -> Any:
        """Returns how many devices differ along axes."""

    def num_exchanging(self, reshard: Reshard) -> Any:
        """Returns `Reshard.num_exchanging`."""

    def local_size(self, name: str, size: int, axes: tuple[str, ...]) -> Any:
        """Returns the size of a dimension on one device, with padding.

        Args:
          name: its name.
          size: its planned global size.
          axes: the axes that shard it.
        """


class CollectiveStep(Step):
    """Base class of steps in which devices communicate.

    Attributes:
      kind: the kind of collective, such as "all_reduce".
      axes: the axes of the mesh along which devices communicate.
      src: the value before the collective; `Bucket` has several.
      out: the value after it.
    """

    if TYPE_CHECKING:  # dataclasses would take these properties for defaults of fields

        @property
        def kind(self) -> str: ...

        @property
        def axes(self) -> tuple[str, ...]: ...

        @property
        def src(self) -> Value: ...

        @property
        def out(self) -> Value: ...

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The value before the collective."""
        return (self.src,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The value after it."""
        return (self.out,)

    def received(self, sizes: ShardSizes) -> Any:
        """Returns the bytes that one device receives, as the mean over those that take part."""
        raise NotImplementedError

    def exchanged(self, mesh: Mesh) -> tuple[Placed, Placed]:
        """Returns the tensor before the collective, and after it, to show to users."""
        assert self.src.spec is not None and self.out.spec is not None
        before = self.src.spec, self.src.placement
        return before, (self.out.spec, self.out.placement)

    @property
    def is_free(self) -> bool:
        """Whether no bytes are sent: each device has its result."""
        return False

    @property
    def is_transfer(self) -> bool:
        """Whether values go from one pipeline stage to others."""
        return False

    @property
    def collective(self) -> CollectiveStep:
        """The step itself."""
        return self

    @property
    def needs(self) -> tuple[Value, ...]:
        """The inputs: a collective waits only to save memory."""
        return self.inputs

    @property
    def title(self) -> str:
        """The kind and the axes."""
        return f"{self.kind} {'+'.join(self.axes)}"


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardStep(CollectiveStep):
    """A reshard along axes of the mesh, such as an all_reduce, of `src` to `out`."""

    reshard: Reshard
    src: Value
    out: Value
    node: Node | None  # the node that needs `out`; None: `out` is a result
    waits_for: tuple[Value, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the reshard in the table."""
        return self.reshard.kind

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the reshard."""
        return self.reshard.axes

    @property
    def reshards(self) -> tuple[ReshardStep, ...]:
        """The step itself."""
        return (self,)

    @property
    def is_free(self) -> bool:
        """Whether each device takes its result from what it has."""
        return self.kind in FREE_RESHARDS

    @property
    def is_transfer(self) -> bool:
        """Whether the value goes to other pipeline stages."""
        return self.kind in _BETWEEN_STAGES

    @property
    def is_drop(self) -> bool:
        """Whether a value that all pipeline stages have stays on a single one only."""
        return self.kind == "drop"

    @property
    def is_reduction(self) -> bool:
        """Whether it reduces a partial result over devices."""
        return self.kind in _REDUCTIONS

    def received(self, sizes: ShardSizes) -> Any:
        """Returns the bytes that one device receives."""
        num_devices = sizes.num_exchanging(self.reshard)
        return sizes.local_bytes(self.src) * bytes_per_byte(self.kind, num_devices)


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket(CollectiveStep):
    """Reductions of several values along the same axes, run as one collective.

    Only segments have buckets: `segments.schedule` puts reductions of a `Program` into
    them.

    Attributes:
      members: the reductions.
      node: the node that needs the first one.
    """

    members: tuple[ReshardStep, ...]
    node: Node | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", self.members[0].node)

    @property
    def kind(self) -> str:
        """The kind of all of the reductions."""
        return self.members[0].kind

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of all of the reductions."""
        return self.members[0].axes

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values before the reductions."""
        return tuple(member.src for member in self.members)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values after them."""
        return tuple(member.out for member in self.members)

    @property
    def reshards(self) -> tuple[ReshardStep, ...]:
        """The reductions."""
        return self.members

    @property
    def packed(self) -> tuple[Value, ...]:
        """All of the inputs."""
        return self.inputs

    def received(self, sizes: ShardSizes) -> Any:
        """Returns the bytes that one device receives."""
        num_bytes = sum(sizes.local_bytes(value) for value in self.inputs)
        return num_bytes * bytes_per_byte(self.kind, sizes.group_size(self.axes))


@dataclasses.dataclass(frozen=True, eq=False)
class WindowStep(CollectiveStep):
    """Neighbour (halo) exchange: each device receives the elements of a sharded dimension
    that the windows of its output read.

    Attributes:
      axes: the axes of the mesh that shard the dimension, the major one first.
      dim: the name of the dimension.
      window: which elements an output reads; elements beyond the ends are `window.fill`.
      factor_size: the global size of the output dimension along which the window slides.
      src: the value before the exchange.
      out: the value whose shards include the received elements.
      node: the node whose op reads windows.
    """

    axes: tuple[str, ...]
    dim: str
    window: Window
    factor_size: int
    src: Value
    out: Value
    node: Node

    kind = "window"

    def received(self, sizes: ShardSizes) -> Any:
        """Returns the bytes that one device receives."""
        # `elements_received` takes numbers: it is called once for each number of shards.
        num_shards = sizes.group_size(self.axes)
        counts, index = np.unique(num_shards, return_inverse=True)
        fractions = np.take([self._fraction(int(count)) for count in counts], index)
        fractions = np.reshape(fractions, np.shape(num_shards))
        return sizes.local_bytes(self.src) * fractions

    def _fraction(self, num_shards: int) -> float:
        """Returns the elements that a device receives, over those that it has."""
        assert self.src.spec is not None
        local_size = -(-self.src.spec.shape[self.dim] // num_shards)
        received = elements_received(
            self.window, self.factor_size, local_size, num_shards
        )
        return received / max(local_size, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class GatherStatisticsStep(CollectiveStep):
    """The all_gather of statistics: every device receives the statistics of all shards
    along `axes` of the mesh, stacked.

    `src` has the statistics of the local shard, `out` those of all shards; `node` is the
    node with the `OpWithStatistics`, and `plan` is how this node runs.
    """

    axes: tuple[str, ...]
    src: Value
    out: Value
    node: Node
    plan: NodePlan

    kind = "gather_statistics"

    @property
    def stage(self) -> int | None:
        """The stage of the op."""
        return self.plan.stage

    def specs(self, mesh: Mesh) -> tuple[Spec, ...]:
        """Returns the specs of the statistics of one shard."""
        op = self.node.op
        assert isinstance(op, OpWithStatistics)
        return op.statistics_specs(
            *(
                Spec(local_shape(x.shape, target, mesh), x.dtype)
                for x, target in zip(self.node.inputs, self.plan.targets)
            )
        )

    def exchanged(self, mesh: Mesh) -> tuple[Placed, Placed]:
        """Returns the largest of the statistics of one shard."""
        largest = max(self.specs(mesh), key=lambda spec: spec.shape.size)
        return (largest, mesh.replicated), (largest, mesh.replicated)

    def received(self, sizes: ShardSizes) -> Any:
        """Returns the bytes that one device receives."""
        num_bytes = sum(self._bytes(spec, sizes) for spec in self.specs(sizes.mesh))
        return num_bytes * (sizes.group_size(self.axes) - 1)

    def _bytes(self, spec: Spec, sizes: ShardSizes) -> Any:
        """Returns the bytes of a statistic of one shard, planned with `spec`."""
        result: Any = dtype_bytes(spec.dtype)
        for dim in spec.shape:
            size: Any = dim.size
            for x, target in zip(self.node.inputs, self.plan.targets):
                if dim.name in x.shape:
                    axes = target.axes_of(dim.name)
                    size = sizes.local_size(dim.name, x.shape[dim.name], axes)
            result = result * size
        return result

    def tuple_bytes(
        self, sizes: Mapping[Value, float], mesh: Mesh
    ) -> dict[Value, float]:
        """Returns the bytes of the statistics before and after the exchange."""
        local = sum(local_bytes(x, mesh.replicated, mesh) for x in self.specs(mesh))
        return {self.src: local, self.out: local * mesh.group_size(*self.axes)}
