"""The steps of a program: what devices compute, and the collectives in between. All devices
run the same steps, and the number of devices does not change them.

    ReadStep      w, x
    Compute       einsum(w, x) -> h            each device on its shards
    ReshardStep   h: Partial -> Replicated     all_reduce over the mesh axis "model"
    Compute       relu(h) -> y
    WriteStep     y

The inputs and outputs of a step are `Value`s. A value is a tensor in one placement (sharded,
replicated or partial along each mesh axis): each device holds its shard. `wait_for` is a
control dependency: a value that the step does not read, but that must exist before it runs.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

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
    """A tensor in one placement; or a tuple of local tensors, the statistics or the
    residuals of an `OpWithStatistics`.
    """

    spec: Spec | None  # global shape and dtype; None: a tuple
    placement: Placement
    is_tuple: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class ReadStep:
    """Reads a store (a variable, an argument or a constant) as the value `out`."""

    store: Store
    out: Value


@dataclasses.dataclass(frozen=True, eq=False)
class WriteStep:
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
    def op(self) -> Op:
        """The op of the node."""
        return self.node.op

    @property
    def write_op(self) -> WriteOp:
        """The op of a step that writes variables."""
        assert isinstance(self.node.op, WriteOp)
        return self.node.op

    @property
    def host_op(self) -> HostOp:
        """The op of a step that runs on the host."""
        assert isinstance(self.node.op, HostOp)
        return self.node.op


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardStep:
    """A reshard along axes of the mesh, such as an all_reduce, of `src` to `out`."""

    reshard: Reshard
    src: Value
    out: Value
    node: Node | None  # the node that needs `out`; None: `out` is a result
    wait_for: Value | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket:
    """Reductions of several values along the same axes, run as one collective.

    Only segments have buckets: `segments.schedule` puts reductions of a `Program` into
    them.
    """

    reductions: tuple[ReshardStep, ...]

    @property
    def node(self) -> Node | None:
        """The node that needs the first reduction."""
        return self.reductions[0].node


@dataclasses.dataclass(frozen=True, eq=False)
class WindowStep:
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


@dataclasses.dataclass(frozen=True, eq=False)
class GatherStatisticsStep:
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

    def num_shards(self, mesh: Mesh) -> int:
        """Returns the number of shards that exchange statistics."""
        return mesh.group_size(*self.axes)

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

    It runs `Op.local`. Where shards exchange statistics, a node has two of these steps:
    the first runs `OpWithStatistics.statistics`, the second `local_sharded`.

    Attributes:
      node: the node.
      plan: how the node runs.
      ins: the inputs of the op; `inputs` has all values that the step depends on.
      outs: the outputs of the op; (statistics, residuals) where `makes_statistics`.
      makes_statistics: whether the step runs `statistics`.
      gathered: the statistics of all shards, for `local_sharded`; None otherwise.
      residuals: the residuals of the local shard, for `local_sharded`; None otherwise.
    """

    node: Node
    plan: NodePlan
    ins: tuple[Value, ...]
    outs: tuple[Value, ...]
    makes_statistics: bool = False
    gathered: Value | None = None
    residuals: Value | None = None
    wait_for: Value | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the step depends on: `ins`, and all others that are not None."""
        optional = (self.gathered, self.residuals, self.wait_for)
        if optional == (None, None, None):
            return self.ins
        return (*self.ins, *(value for value in optional if value is not None))


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
    """A program that runs once for each iteration of a loop; see `graph.Loop`.

    The arguments of the body are `iteration`, `carries` and `entries`. Its results are
    the next carries, terms of sums, and outputs to be stacked.

    Attributes:
      node: the node with the loop.
      body: the program of one iteration.
      test: the program that computes whether there is another iteration; None: the
        number of iterations is known.
      iteration: the argument of the body that is the index of the iteration.
      carries: the arguments of the body that each iteration passes to the next one.
      entries: the arguments of the body that are one entry of each scanned input (a slice
        without the scanned dimension).
      initial_values: the values of `carries` in the first iteration.
      scanned_inputs: the tensors that `entries` are taken from.
      captured_values: the values of the surrounding program that the body and the test
        use.
      outs: the last carries, the sums, and the stacked outputs.
    """

    node: Node
    body: Program
    test: Program | None
    iteration: Value
    carries: tuple[Value, ...]
    entries: tuple[Value, ...]
    initial_values: tuple[Value, ...]
    scanned_inputs: tuple[Value, ...]
    captured_values: tuple[Value, ...]
    outs: tuple[Value, ...]
    wait_for: Value | None = None

    @property
    def op(self) -> Loop:
        """The op of the node."""
        assert isinstance(self.node.op, Loop)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """The values that the step depends on, `wait_for` included."""
        inputs = [*self.initial_values, *self.scanned_inputs, *self.captured_values]
        if self.wait_for is None:
            return inputs
        return [*inputs, self.wait_for]


@dataclasses.dataclass(frozen=True, eq=False)
class BranchStep:
    """One of two programs, chosen by a boolean that is equal on all devices.

    Attributes:
      node: the node with the branch.
      predicate: the boolean scalar.
      bodies: the program for a true predicate, and the program for a false one.
      captured_values: the values of the surrounding program that the bodies use.
      outs: the results of the program that runs.
    """

    node: Node
    predicate: Value
    bodies: tuple[Program, Program]
    captured_values: tuple[Value, ...]
    outs: tuple[Value, ...]
    wait_for: Value | None = None

    @property
    def inputs(self) -> list[Value]:
        """The values that the step depends on, `wait_for` included."""
        inputs = [self.predicate, *self.captured_values]
        if self.wait_for is None:
            return inputs
        return [*inputs, self.wait_for]


@dataclasses.dataclass(frozen=True, eq=False)
class CallStep:
    """One call of a program that is planned once and called several times; see
    `graph.Call`.

    Attributes:
      node: the node with the call.
      body: the program, which all calls share.
      body_arguments: the arguments of `body`, as values that its steps use.
      arguments: the arguments of this call, one for each of `body_arguments`.
      captured_values: the values of the surrounding program that the body uses.
      outs: the results of this call.
    """

    node: Node
    body: Program
    body_arguments: tuple[Value, ...]
    arguments: tuple[Value, ...]
    captured_values: tuple[Value, ...]
    outs: tuple[Value, ...]
    wait_for: tuple[Value, ...] = ()

    @property
    def op(self) -> Call:
        """The op of the node."""
        assert isinstance(self.node.op, Call)
        return self.node.op

    @property
    def inputs(self) -> list[Value]:
        """The values that the step depends on, `wait_for` included."""
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
    if isinstance(step, (Compute, LoopStep, BranchStep, CallStep)):
        return step.inputs
    if isinstance(step, ReadStep):
        return ()
    if isinstance(step, WriteStep):
        return step.values
    if isinstance(step, Bucket):
        return [reduction.src for reduction in step.reductions]
    return (step.src,)


def dependencies_of(step: Step) -> Iterable[Value]:
    """Returns the values that must exist before a step runs: its inputs, and the value
    that a reshard waits for.
    """
    if isinstance(step, ReshardStep) and step.wait_for is not None:
        return step.src, step.wait_for
    return inputs_of(step)


def outputs_of(step: Step) -> tuple[Value, ...]:
    """Returns the values that a step computes."""
    if isinstance(step, (WriteStep, Compute, LoopStep, BranchStep, CallStep)):
        return step.outs
    if isinstance(step, Bucket):
        return tuple(reduction.out for reduction in step.reductions)
    return (step.out,)


def walk(program: Program, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yields (step, number of runs) for all steps of a program, those of bodies too.

    Both bodies of a branch count as run, and a while loop counts as one iteration. A body
    that is called several times comes once, at the end. `times`: the runs of the program.
    """
    for step in program.steps:
        yield step, times
        if isinstance(step, LoopStep):
            iterations = times * (step.op.num_iterations or 1)
            for body in filter(None, (step.test, step.body)):
                yield from walk(body, iterations)
        elif isinstance(step, BranchStep):
            for body in step.bodies:
                yield from walk(body, times)
    called = [step.body for step in program.steps if isinstance(step, CallStep)]
    for body, calls in collections.Counter(called).items():
        yield from walk(body, times * calls)
