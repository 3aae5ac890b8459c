"""Steps without communication: ops on shards, and reads and writes of variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from meshtf.graph import (
    HostOp,
    Node,
    OpWithStatistics,
    RenamingOp,
    RowsWriteOp,
    Spec,
    Store,
    Tensor,
    WindowedOp,
    WriteOp,
)
from meshtf.graph.op_kinds import ConversionOp, EntryOp
from meshtf.mesh import Mesh
from meshtf.partition.planner import NodePlan
from meshtf.partition.steps.step import Step, Value


@dataclasses.dataclass(frozen=True, eq=False)
class ReadStep(Step):
    """Reads a store (a variable, an argument or a constant) as the value `out`."""

    store: Store
    out: Value

    node = None

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The value that is read."""
        return (self.out,)

    @property
    def reads(self) -> tuple[Store, ...]:
        """The store."""
        return (self.store,)


@dataclasses.dataclass(frozen=True, eq=False)
class WriteStep(Step):
    """Writes the variables of a `WriteOp`, or runs a `HostOp` once.

    The op takes `values` and, if it is a `WriteOp`, returns `outs`.

    Attributes:
      variables: the variables that the step writes; empty for a `HostOp`.
    """

    node: Node
    values: tuple[Value, ...]
    outs: tuple[Value, ...] = ()
    variables: tuple[Store, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the op takes."""
        return self.values

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that it returns."""
        return self.outs

    @property
    def writes(self) -> tuple[Store, ...]:
        """The variables."""
        return self.variables

    @property
    def written_share(self) -> float:
        """The share of their rows, if the op writes only some."""
        op = self.node.op
        if not isinstance(op, RowsWriteOp):
            return 1.0
        num_touched = op.num_touched(*(x.spec for x in self.node.inputs))
        return min(1.0, num_touched / self.variables[0].spec.shape.sizes[0])

    @property
    def stage(self) -> int | None:
        """The stage of the variables, or of what a host op takes."""
        placed = self.variables or self.values
        return placed[0].placement.stage if placed else None

    @property
    def write_op(self) -> WriteOp:
        """The op of a step that writes variables."""
        assert isinstance(self.node.op, WriteOp)
        return self.node.op

    @property
    def host_op(self) -> HostOp | None:
        """The op of a step that runs on the host; None: it writes variables."""
        return self.node.op if isinstance(self.node.op, HostOp) else None


def with_specs(node: Node, changed: Callable[[Spec], Spec]) -> Node:
    """Returns a node whose inputs and outputs have other specs.

    Args:
      node: the node.
      changed: a function that returns the new spec for an old one.
    """
    inputs: list[Tensor] = []
    for x in node.inputs:
        inputs.append(Tensor(x.node, x.index, changed(x.spec)))
    specs = [changed(y.spec) for y in node.outputs]
    return node.with_inputs(inputs, specs)


class Half(NamedTuple):
    """One half of each device's elements of a dimension.

    Attributes:
      dim: the name of the dimension.
      half_index: 0: the first half; 1: the second.
    """

    dim: str
    half_index: int


@dataclasses.dataclass(frozen=True, eq=False)
class Compute(Step):
    """The computation of one node on every device.

    It runs `Op.local`. Where shards exchange statistics, a node has two of these steps:
    the first runs `OpWithStatistics.statistics`, the second `local_sharded`.

    Attributes:
      node: the node.
      plan: how the node runs.
      ins: the inputs of the op; `inputs` has `gathered` and `residuals` as well.
      outs: the outputs of the op; (statistics, residuals) where `makes_statistics`.
      makes_statistics: whether the step runs `statistics`.
      gathered: the statistics of all shards, for `local_sharded`; None otherwise.
      residuals: the residuals of the local shard, for `local_sharded`; None otherwise.
      batch_half: the half that the step computes, whose sizes `node` and `plan` have; None: all.
      waits_for: see `Step`.
    """

    node: Node
    plan: NodePlan
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    makes_statistics: bool = False
    gathered: Value | None = None
    residuals: Value | None = None
    batch_half: Half | None = None
    waits_for: tuple[Value, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the step computes on."""
        if self.gathered is None or self.residuals is None:
            return self.ins
        return (*self.ins, self.gathered, self.residuals)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values that the step computes."""
        return self.outs

    @property
    def computation(self) -> Compute:
        """The step itself."""
        return self

    @property
    def computes_node(self) -> bool:
        """Whether the outputs are those of the node."""
        return not self.makes_statistics

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the outputs needs only one element of each input."""
        with_neighbours = isinstance(self.node.op, (OpWithStatistics, WindowedOp))
        return self.plan.maps and not with_neighbours

    @property
    def is_view(self) -> bool:
        """Whether the op only gives its first input other names, or another shape."""
        return isinstance(self.node.op, RenamingOp)

    @property
    def is_conversion(self) -> bool:
        """Whether the op only converts its input to another data type."""
        return isinstance(self.node.op, ConversionOp)

    @property
    def is_entry(self) -> bool:
        """Whether the output of the op is zero but for one entry."""
        op = self.node.op
        return isinstance(op, EntryOp) and op.entry_dim is not None

    @property
    def stage(self) -> int | None:
        """The stage of the plan."""
        return self.plan.stage

    def tuple_bytes(
        self, sizes: Mapping[Value, float], mesh: Mesh
    ) -> dict[Value, float]:
        """Returns the bytes of residuals, which the op needs again after the exchange of
        statistics: their shapes are unknown, and the largest input is the estimate.
        """
        if not self.makes_statistics:
            return {}
        _statistics, residuals = self.outs
        return {residuals: max((sizes[value] for value in self.ins), default=0.0)}


@dataclasses.dataclass(frozen=True, eq=False)
class FirstEntryStep(Step):
    """Takes the first entry of a scanned input, on the devices that have it; others have zeros.

    Attributes:
      dim: the dimension that the loop scans.
      axes: the axes of the mesh that shard it.
      src: the scanned input.
      out: the entry, a partial sum along `axes`.
      node: the node of the loop.
    """

    dim: str
    axes: tuple[str, ...]
    src: Value
    out: Value
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The scanned input."""
        return (self.src,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The entry."""
        return (self.out,)

    @property
    def begins_loop(self) -> bool:
        """True."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class ZerosStep(Step):
    """Makes the zeros that a loop begins with, `out`; `node` is the node of the loop."""

    out: Value
    node: Node

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The zeros."""
        return (self.out,)


@dataclasses.dataclass(frozen=True, eq=False)
class WriteEntryStep(Step):
    """Writes an entry of what a loop has stacked, in place.

    Attributes:
      dim: the dimension of the entries.
      index: the index of the entry.
      src: the stack.
      entry: the entry.
      out: the stack with this entry.
      node: the node of the loop.
    """

    dim: str
    index: int
    src: Value
    entry: Value
    out: Value
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The stack and the entry."""
        return (self.src, self.entry)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The stack with the entry."""
        return (self.out,)

    @property
    def is_view(self) -> bool:
        """True: no other entry is copied."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class TakeHalfStep(Step):
    """Takes a half of each device's shard of a tensor.

    Attributes:
      batch_half: which half.
      src: the tensor.
      out: the half: a tensor of half the size, in the same placement.
      node: the node of the loop that is computed in halves.
    """

    batch_half: Half
    src: Value
    out: Value
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The tensor."""
        return (self.src,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The half."""
        return (self.out,)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinHalvesStep(Step):
    """Makes a tensor of its halves, or a sum of its terms.

    Attributes:
      dim: the dimension that the halves are of; "": the halves are terms of a sum.
      half_values: the halves.
      out: the tensor.
      node: the node of the loop that is computed in halves.
    """

    dim: str
    half_values: tuple[Value, Value]
    out: Value
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The halves."""
        return self.half_values

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The tensor."""
        return (self.out,)


@dataclasses.dataclass(frozen=True, eq=False)
class BarrierStep(Step):
    """Keeps what reads some values behind all of them: a compiler starts none of it before.

    Attributes:
      values: the values.
      outs: the same, behind the barrier.
      node: the node of the loop that is computed in halves.
    """

    values: tuple[Value, ...]
    outs: tuple[Value, ...]
    node: Node

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values."""
        return self.values

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The same, behind the barrier."""
        return self.outs

    @property
    def is_view(self) -> bool:
        """True: nothing is copied."""
        return True
