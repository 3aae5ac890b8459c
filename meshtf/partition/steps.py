"""The steps of a program, on values: what every position does, whatever their number.

    ReadStep w      ReadStep x
    Compute einsum  (w, x) -> h           every device on its slices
    MoveStep        h: Partial -> Replicated   all_reduce over "model"
    Compute relu    h -> y
    WriteStep y

A `Value` is a tensor in one placement, the same thing on every device but for offsets.
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
    many: bool = False  # a tuple of tensors, as of `statistics`


@dataclasses.dataclass(frozen=True, eq=False)
class ReadStep:
    """Read a store."""

    store: Store
    out: Value


@dataclasses.dataclass(frozen=True, eq=False)
class WriteStep:
    """Write the variables of a `WriteOp`, or run a `HostOp` once."""

    node: Node
    values: tuple[Value, ...]
    outs: tuple[Value, ...] = ()

    @property
    def op(self) -> Op:
        """What it carries out."""
        return self.node.op

    @property
    def write_op(self) -> WriteOp:
        """The op, where it writes variables."""
        assert isinstance(self.node.op, WriteOp)
        return self.node.op

    @property
    def host_op(self) -> HostOp:
        """The op, where it tells the world outside."""
        assert isinstance(self.node.op, HostOp)
        return self.node.op

    @property
    def variables(self) -> tuple[Store, ...]:
        """What it writes; none where it tells the world outside."""
        op = self.node.op
        return op.variables if isinstance(op, WriteOp) else ()


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardStep:
    """One collective."""

    reshard: Reshard
    src: Value
    out: Value
    node: Node | None  # for whom
    wait_for: Value | None = None  # does not run before this value exists


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Reductions of several values along one axis, as one collective; only a schedule
    has them.
    """

    reductions: tuple[ReshardStep, ...]

    @property
    def node(self) -> Node | None:
        """For whom the first of them is."""
        return self.reductions[0].node


@dataclasses.dataclass(frozen=True, eq=False)
class WindowStep:
    """Neighbour exchange: each device gets its window's rows of `dim`,
    its `fill` outside.
    """

    axis: str
    dim: str
    window: Window
    factor_size: int
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
        """Returns what each shard exchanges."""
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
    """The work of one node on every device: `local`, or one half of it where shards
    exchange statistics.
    """

    node: Node
    plan: NodePlan
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    makes_statistics: bool = False  # then outs are (exchanged, residuals)
    gathered: Value | None = None  # statistics of all shards: runs `local_sharded`
    residuals: Value | None = None
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def inputs(self) -> list[Value]:
        """All values that it needs."""
        return [
            v
            for v in (*self.ins, self.gathered, self.residuals, self.wait_for)
            if v is not None
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Steps, and the values that are the results.

    `notes` say what is legal but worth knowing about it; those of a body are with the
    program around it.
    """

    mesh: Mesh
    steps: tuple[Step, ...]
    results: tuple[Value, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class LoopStep:
    """A program that runs many times; see `graph.Loop`.

    In each turn `turn`, `states` and `rows` are given to the body, whose results are
    states, sums and what is stacked; the states' first values are `starts`, rows are of
    `walked`.
    """

    node: Node
    body: Program
    test: Program | None
    iteration: Value
    carries: tuple[Value, ...]
    elements: tuple[Value, ...]
    initial_values: tuple[Value, ...]
    scanned_inputs: tuple[Value, ...]
    captured_values: tuple[Value, ...]  # of the surrounding program
    outs: tuple[Value, ...]
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def op(self) -> Loop:
        """What it carries out."""
        assert isinstance(self.node.op, Loop)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """All values that it needs."""
        every = (
            *self.initial_values,
            *self.scanned_inputs,
            *self.captured_values,
            self.wait_for,
        )
        return [v for v in every if v is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class BranchStep:
    """One of two programs, chosen by a value that is the same on all devices."""

    node: Node
    predicate: Value
    bodies: tuple[Program, Program]
    captured_values: tuple[Value, ...]  # of the surrounding program
    outs: tuple[Value, ...]
    wait_for: Value | None = None  # does not run before this value exists

    @property
    def inputs(self) -> list[Value]:
        """All values that it needs."""
        return [
            v
            for v in (self.predicate, *self.captured_values, self.wait_for)
            if v is not None
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class CallStep:
    """One run of a program that is planned once and runs at several places; see
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
        """What it carries out."""
        assert isinstance(self.node.op, Call)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """All values that it needs."""
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
    """Returns the values that a step works on."""
    if isinstance(step, ReadStep):
        return ()
    if isinstance(step, Bucket):
        return [reshard.src for reshard in step.reductions]
    if isinstance(step, (Compute, LoopStep, BranchStep, CallStep)):
        return step.inputs
    return step.values if isinstance(step, WriteStep) else (step.src,)


def dependencies_of(step: Step) -> Iterable[Value]:
    """Returns the values that must be there before a step runs: those that it reads,
    and more.
    """
    if isinstance(step, ReshardStep) and step.wait_for is not None:
        return step.src, step.wait_for
    return inputs_of(step)


def outputs_of(step: Step) -> tuple[Value, ...]:
    """Returns the values that a step makes."""
    if isinstance(step, (WriteStep, Compute, LoopStep, BranchStep, CallStep)):
        return step.outs
    if isinstance(step, Bucket):
        return tuple(reshard.out for reshard in step.reductions)
    return (step.out,)


def unstacked_values(steps: Collection[Step], results: Iterable[Value]) -> set[Value]:
    """Returns what loops stack and other loops walk along, element by element, and
    nothing else uses.

    It need not become one tensor.
    """
    stacks = {
        v
        for step in steps
        if isinstance(step, LoopStep)
        for v in step.outs[step.op.states + step.op.sums :]
    }
    for step in steps:
        stacks.difference_update(
            _as_tensors(step) if isinstance(step, LoopStep) else dependencies_of(step)
        )
    return stacks.difference(results)


def _as_tensors(step: LoopStep) -> Iterator[Value]:
    """Yields what a loop needs as one tensor: what it walks along another dimension
    than the first counts as well."""
    yield from (*step.initial_values, *step.captured_values)
    if step.wait_for is not None:
        yield step.wait_for
    for value in step.scanned_inputs:
        assert value.spec is not None and step.op.dim is not None
        if value.spec.shape.names[0] != step.op.dim.name:
            yield value


def walk(program: Program, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yields all steps, those of loops and branches too, each with how often it runs at
    most.

    Of a loop whose number of turns only a run tells, one turn counts.
    """
    for step in program.steps:
        yield step, times
        if isinstance(step, LoopStep):
            for body in (step.test, step.body):
                if body is not None:
                    yield from walk(body, times * (step.op.turns or 1))
        elif isinstance(step, (BranchStep, CallStep)):
            for body in step.bodies if isinstance(step, BranchStep) else (step.body,):
                yield from walk(body, times)
