"""Steps that run programs: loops, branches and calls."""

from __future__ import annotations

import dataclasses

from meshtf.graph import Call, Loop, Node
from meshtf.graph.control_flow.scan_dimension import TICK
from meshtf.mesh.shard_sizes import is_padded, sizes_by_axis
from meshtf.partition.steps.step import Body, Program, Step, Value


@dataclasses.dataclass(frozen=True, eq=False)
class LoopStep(Step):
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
      late: those results of the body that belong to the iteration before: see `late_sums`.
      spares: the entry of each scanned input that devices without any entry run; None, or none at
        all: they need none.
      captured_values: the values of the surrounding program that the body and the test
        use.
      outs: the last carries, the sums, and the stacked outputs.
      axes: the axes of the mesh that divide the iterations; along others, all devices run all.
      waits_for: see `Step`.
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
    axes: tuple[str, ...] = ()
    late: tuple[Value, ...] = ()
    spares: tuple[Value | None, ...] = ()
    waits_for: tuple[Value, ...] = ()

    @property
    def op(self) -> Loop:
        """The op of the node."""
        assert isinstance(self.node.op, Loop)
        return self.node.op

    @property
    def num_iterations(self) -> int | None:
        """The number of iterations that a device runs; None for a while loop. Where `axes` do
        not divide the iterations, some devices run the last of theirs again.
        """
        if self.op.dim is None:
            return None
        size = self.op.dim.size
        return sizes_by_axis(size, self._axis_sizes)[-1] if self.axes else size

    @property
    def is_uneven(self) -> bool:
        """Whether devices have different numbers of iterations of their own."""
        return self.op.dim is not None and is_padded(self.op.dim.size, self._axis_sizes)

    @property
    def _axis_sizes(self) -> list[int]:
        """The sizes of `axes`."""
        return [self.body.mesh.axes[axis] for axis in self.axes]

    @property
    def is_pipeline(self) -> bool:
        """Whether the iterations are the ticks of a pipeline."""
        return self.op.dim is not None and self.op.dim.name == TICK

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that the iterations begin with, scan and capture."""
        spares = tuple(value for value in self.spares if value is not None)
        return (
            *self.initial_values,
            *self.scanned_inputs,
            *spares,
            *self.captured_values,
        )

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The results of the loop."""
        return self.outs

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The test, if there is one, and the body."""
        op = self.op
        runs = self.num_iterations or 1
        dim = "" if op.dim is None else op.dim.name
        programs = (self.body,) if self.test is None else (self.test, self.body)
        return tuple(Body(program, runs, dim, self.axes) for program in programs)

    @property
    def loop(self) -> LoopStep:
        """The step itself."""
        return self

    @property
    def stacked(self) -> tuple[Value, ...]:
        """The outputs that have an entry for each iteration."""
        return self.outs[self.num_unstacked :]

    @property
    def num_unstacked(self) -> int:
        """The number of results of the body that are carries or terms of sums."""
        return len(self.carries) + self.op.num_sums


@dataclasses.dataclass(frozen=True, eq=False)
class BranchStep(Step):
    """One of two programs, chosen by a boolean that is equal on all devices.

    Attributes:
      node: the node with the branch.
      predicate: the boolean scalar.
      programs: the program for a true predicate, and the program for a false one.
      captured_values: the values of the surrounding program that the programs use.
      outs: the results of the program that runs.
      waits_for: see `Step`.
    """

    node: Node
    predicate: Value
    programs: tuple[Program, Program]
    captured_values: tuple[Value, ...]
    outs: tuple[Value, ...]
    waits_for: tuple[Value, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The predicate, and what the programs capture."""
        return (self.predicate, *self.captured_values)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The results."""
        return self.outs

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Both programs."""
        return tuple(map(Body, self.programs))

    @property
    def runs_one_body(self) -> bool:
        """True."""
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class CallStep(Step):
    """One call of a program that is planned once and called several times; see
    `graph.Call`.

    Attributes:
      node: the node with the call.
      body: the program, which all calls share.
      body_arguments: the arguments of `body`, as values that its steps use.
      arguments: the arguments of this call, one for each of `body_arguments`.
      captured_values: the values of the surrounding program that the body uses.
      outs: the results of this call.
      waits_for: see `Step`.
    """

    node: Node
    body: Program
    body_arguments: tuple[Value, ...]
    arguments: tuple[Value, ...]
    captured_values: tuple[Value, ...]
    outs: tuple[Value, ...]
    waits_for: tuple[Value, ...] = ()

    @property
    def op(self) -> Call:
        """The op of the node."""
        assert isinstance(self.node.op, Call)
        return self.node.op

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The arguments of this call, and what the body captures."""
        return (*self.arguments, *self.captured_values)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The results of this call."""
        return self.outs

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The program."""
        return (Body(self.body),)

    @property
    def call(self) -> CallStep:
        """The step itself."""
        return self
