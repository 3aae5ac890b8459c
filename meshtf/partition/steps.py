"""The steps of a program. Every device runs the same steps, for any number of devices.

    ReadStep w      ReadStep x
    Compute einsum  (w, x) -> h           every device on its shards
    ReshardStep     h: Partial -> Replicated   all_reduce over "model"
    Compute relu    h -> y
    WriteStep y

A step reads and makes `Value`s. A value is a tensor in one placement: each device holds
its shard.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator

from meshtf.graph import (
    Call,
    HostOp,
    Loop,
    Node,
    Op,
    OpWithStatistics,
    Spec,
    Store,
    Window,
    WriteOp,
)
from meshtf.mesh import Mesh, Placement
from meshtf.partition.cost import local_shape
from meshtf.partition.planner import NodePlan
from meshtf.partition.reshard_table import Reshard


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor in one placement; `spec` is None for statistics and residuals."""

    spec: Spec | None
    placement: Placement
    is_tuple: bool = False  # of tensors, as from `OpWithStatistics.statistics`


@dataclasses.dataclass(frozen=True, eq=False)
class ReadStep:
    """Reads a store: a variable, an argument or a constant."""

    store: Store
    out: Value


@dataclasses.dataclass(frozen=True, eq=False)
class WriteStep:
    """Writes the variables of a `WriteOp`, or runs a `HostOp` once."""

    node: Node
    values: tuple[Value, ...]
    outs: tuple[Value, ...] = ()

    @property
    def op(self) -> Op:
        """The op of the node."""
        return self.node.op

    @property
    def write_op(self) -> WriteOp:
        """The op, where it writes variables."""
        assert isinstance(self.node.op, WriteOp)
        return self.node.op

    @property
    def host_op(self) -> HostOp:
        """The op, where it runs on the host."""
        assert isinstance(self.node.op, HostOp)
        return self.node.op

    @property
    def variables(self) -> tuple[Store, ...]:
        """The variables that it writes; none for a `HostOp`."""
        op = self.node.op
        if isinstance(op, WriteOp):
            return op.variables
        return ()


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardStep:
    """One reshard of a value along one axis of the mesh, such as an all_reduce."""

    reshard: Reshard
    src: Value
    out: Value
    node: Node | None  # the node that needs it; None: the results of the program
    wait_for: Value | None = None  # does not run before this value exists


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Reductions of several values along one axis as one collective. `schedule` makes
    buckets; a `Program` has none.
    """

    reductions: tuple[ReshardStep, ...]

    @property
    def node(self) -> Node | None:
        """The node that needs the first reduction."""
        return self.reductions[0].node


@dataclasses.dataclass(frozen=True, eq=False)
class WindowStep:
    """Neighbour exchange: each device receives the elements of `dim` that its window
    reads, with the window's `fill` beyond the ends.
    """

    axis: str
    dim: str
    window: Window
    factor_size: int  # global size of the factor that the window slides along
    src: Value
    out: Value
    node: Node


@dataclasses.dataclass(frozen=True, eq=False)
class GatherStatisticsStep:
    """The small all_gather of statistics: stacks those of all shards along `axes`."""

    axes: tuple[str, ...]
    src: Value
    out: Value
    node: Node
    plan: NodePlan

    def num_shards(self, mesh: Mesh) -> int:
        """Returns how many shards exchange statistics."""
        return math.prod(mesh.axes[axis] for axis in self.axes)

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


@dataclasses.dataclass(frozen=True, eq=False)
class Compute:
    """The computation of one node on every device.

    It runs `Op.local`. Where shards exchange statistics, there are two such steps: one
    runs `statistics`, the other `local_sharded`.
    """

    node: Node
    plan: NodePlan
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    makes_statistics: bool = False  # then `outs` are (statistics, residuals)
    gathered: Value | None = None  # statistics of all shards, for `local_sharded`
    residuals: Value | None = None  # of the local shard, for `local_sharded`
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def inputs(self) -> list[Value]:
        """The values that it depends on, `wait_for` included."""
        optional = (self.gathered, self.residuals, self.wait_for)
        return [*self.ins, *(v for v in optional if v is not None)]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Steps in the order in which they run, and the values that are the results.

    `notes` are remarks for the user, such as a rule of the layout that does not apply.
    The notes of a body belong to the program that contains it.
    """

    mesh: Mesh
    steps: tuple[Step, ...]
    results: tuple[Value, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class LoopStep:
    """A program that runs once for each iteration; see `graph.Loop`.

    The arguments of the body are the index of the iteration, the carries, and one
    element of each scanned input. Its results are the next carries, terms of sums, and
    outputs to be stacked.
    """

    node: Node
    body: Program
    test: Program | None  # whether there is another iteration; None: the count is known
    iteration: Value  # argument of the body: the index of the iteration
    carries: tuple[Value, ...]  # arguments of the body
    elements: tuple[Value, ...]  # arguments of the body
    initial_values: tuple[Value, ...]  # of the carries
    scanned_inputs: tuple[Value, ...]  # of the elements
    captured_values: tuple[Value, ...]  # of the surrounding program
    outs: tuple[Value, ...]
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def op(self) -> Loop:
        """The op of the node."""
        assert isinstance(self.node.op, Loop)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """The values that it depends on, `wait_for` included."""
        inputs = [*self.initial_values, *self.scanned_inputs, *self.captured_values]
        if self.wait_for is None:
            return inputs
        return [*inputs, self.wait_for]


@dataclasses.dataclass(frozen=True, eq=False)
class BranchStep:
    """One of two programs, chosen by a boolean that is equal on all devices."""

    node: Node
    predicate: Value
    bodies: tuple[Program, Program]  # where `predicate` is true, where it is false
    captured_values: tuple[Value, ...]  # of the surrounding program
    outs: tuple[Value, ...]
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def inputs(self) -> list[Value]:
        """The values that it depends on, `wait_for` included."""
        inputs = [self.predicate, *self.captured_values]
        if self.wait_for is None:
            return inputs
        return [*inputs, self.wait_for]


@dataclasses.dataclass(frozen=True, eq=False)
class CallStep:
    """One run of a program that is planned once and called several times; see
    `graph.Call`.
    """

    node: Node
    body: Program
    body_arguments: tuple[Value, ...]
    arguments: tuple[Value, ...]  # of this call, one for each of `body_arguments`
    captured_values: tuple[Value, ...]  # of the surrounding program
    outs: tuple[Value, ...]
    wait_for: tuple[Value, ...] = ()  # does not run before these exist

    @property
    def op(self) -> Call:
        """The op of the node."""
        assert isinstance(self.node.op, Call)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """The values that it depends on, `wait_for` included."""
        return [*self.arguments, *self.captured_values, *self.wait_for]


Step = (
    ReadStep
    | WriteStep
    | ReshardStep
    | Bucket
    | WindowStep
    | GatherStatisticsStep
    | Compute
    | LoopStep
    | BranchStep
    | CallStep
)


def inputs_of(step: Step) -> Iterable[Value]:
    """Returns the values that a step computes on."""
    if isinstance(step, ReadStep):
        return ()
    if isinstance(step, WriteStep):
        return step.values
    if isinstance(step, Bucket):
        return [reduction.src for reduction in step.reductions]
    if isinstance(step, (Compute, LoopStep, BranchStep, CallStep)):
        return step.inputs
    return (step.src,)


def dependencies_of(step: Step) -> Iterable[Value]:
    """Returns the values that must exist before a step runs: its inputs, and the value
    that a reshard waits for.
    """
    if isinstance(step, ReshardStep) and step.wait_for is not None:
        return step.src, step.wait_for
    return inputs_of(step)


def outputs_of(step: Step) -> tuple[Value, ...]:
    """Returns the values that a step makes."""
    if isinstance(step, (WriteStep, Compute, LoopStep, BranchStep, CallStep)):
        return step.outs
    if isinstance(step, Bucket):
        return tuple(reduction.out for reduction in step.reductions)
    return (step.out,)


def unstacked_values(steps: Collection[Step], results: Iterable[Value]) -> set[Value]:
    """Returns the stacked outputs of loops that only other loops scan, element by
    element.

    A runtime can keep such a value as a list: it need not become one tensor.
    """
    stacked = {
        value
        for step in steps
        if isinstance(step, LoopStep)
        for value in step.outs[step.op.num_carries + step.op.num_sums :]
    }
    for step in steps:
        if isinstance(step, LoopStep):
            stacked.difference_update(_tensor_inputs(step))
        else:
            stacked.difference_update(dependencies_of(step))
    return stacked.difference(results)


def _tensor_inputs(step: LoopStep) -> Iterator[Value]:
    """Yields the values that a loop needs as one tensor each.

    Among them are scanned inputs whose scanned dimension is not their first one.
    """
    yield from step.initial_values
    yield from step.captured_values
    if step.wait_for is not None:
        yield step.wait_for
    for value in step.scanned_inputs:
        assert value.spec is not None and step.op.dim is not None
        if value.spec.shape.names[0] != step.op.dim.name:
            yield value


def walk(program: Program, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yields all steps, those of bodies too, each with the most times that it runs.

    A while loop counts as one iteration.
    """
    for step in program.steps:
        yield step, times
        if isinstance(step, LoopStep):
            iterations = times * (step.op.num_iterations or 1)
            if step.test is not None:
                yield from walk(step.test, iterations)
            yield from walk(step.body, iterations)
        elif isinstance(step, BranchStep):
            for body in step.bodies:
                yield from walk(body, times)
        elif isinstance(step, CallStep):
            yield from walk(step.body, times)
