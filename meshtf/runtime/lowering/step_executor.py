"""What runtimes share: who carries out which step between computations.

    class Mine(Carrier):
      def _load(self, store): ...           # and _put, _tell, _window, _move

    carrier.carry_out(step)                 # carrier.values[step.out] is there

`Single` is the base of those that hold one slice of everything, so that a value is a
tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    Load,
    LoopStep,
    MoveStep,
    Program,
    Put,
    Step,
    Tell,
    Value,
    WindowStep,
    schedule,
    walked_only,
)
from meshtf.runtime.lowering.control_flow import run_branch, run_call, run_loop
from meshtf.runtime.lowering.local_compute import run_compute
from meshtf.runtime.lowering.local_context import Coordinates


class Carrier:
    """Base of runtimes: keeps values, and sends each step to the method that carries it
    out.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.values: dict[Value, Any] = {}
        self.lists: set[Value] = (
            set()
        )  # stacks of loops that stay lists: `partition.walked_only`

    def carry_out(self, step: Step) -> None:
        """Carries out a step that is no computation, and keeps what it makes."""
        if isinstance(step, Load):
            self.values[step.out] = self._load(step.store)
        elif isinstance(step, Put):
            self.values.update(zip(step.outs, self._put(step)))
        elif isinstance(step, Tell):
            self.values[step.out] = self._tell(step)
        elif isinstance(step, WindowStep):
            self.values[step.out] = self._window(step)
        elif isinstance(step, MoveStep):
            self.values[step.out] = self._move(step)
        elif isinstance(step, Bucket):
            self.values.update(
                zip((move.out for move in step.moves), self._bucket(step))
            )
        elif isinstance(step, LoopStep):
            run_loop(self, step)
        elif isinstance(step, BranchStep):
            run_branch(self, step)
        elif isinstance(step, CallStep):
            run_call(self, step)

    def run_body(
        self, program: Program, given: dict[Value, Any], once: bool = False
    ) -> list[Any]:
        """Returns the results of a program within this one, which is given what it
        uses.

        Args:
          program: of a body.
          given: what it uses.
          once: whether it stands here and nowhere else, as the body of a loop does.
        """
        raise NotImplementedError

    def homes(self, value: Value) -> list[str | None]:
        """Returns the device of each slice of a value that can differ from
        the others.
        """
        raise NotImplementedError

    def different(self, value: Value, slices: Any) -> list[Any]:
        """Returns of what `values` would hold of a value those slices, in
        that order.
        """
        raise NotImplementedError

    def spread(self, value: Value, slices: list[Any]) -> Any:
        """Returns what `values` holds of a value with these different slices."""
        raise NotImplementedError

    def _load(self, store: Store) -> Any:
        raise NotImplementedError

    def _put(self, step: Put) -> Sequence[Any]:
        raise NotImplementedError

    def _tell(self, step: Tell) -> Any:
        raise NotImplementedError

    def _window(self, step: WindowStep) -> Any:
        raise NotImplementedError

    def _move(self, step: MoveStep) -> Any:
        raise NotImplementedError

    def _bucket(self, step: Bucket) -> list[Any]:
        return [self._move(move) for move in step.moves]


class Single(Carrier):
    """A carrier with one slice of each value: a replica, or a device alone.

    Args:
      program: what to run.
      coordinates: where its slices lie, for ops that ask.
      jit: whether XLA compiles it.
    """

    def __init__(self, program: Program, coordinates: Coordinates, jit: bool) -> None:
        super().__init__(program.mesh)
        self.program, self.coordinates, self.jit = program, coordinates, jit

    def run(self) -> list[Any]:
        """Runs all steps and returns the results."""
        return self.run_body(self.program, {})

    def run_body(
        self, program: Program, given: dict[Value, Any], once: bool = False
    ) -> list[Any]:
        """Returns the results of a program within this one."""
        around = self.values, self.lists
        self.values = dict(given)
        self.lists = walked_only(program.steps, program.results)
        for segment in schedule(program):
            for step in (*segment.before, *segment.computes):
                with tf.name_scope(scope(step)):
                    self._step(step)
        results = [self.values[v] for v in program.results]
        self.values, self.lists = around
        return results

    def homes(self, value: Value) -> list[str | None]:
        """Returns the one device, which needs no name."""
        return [None]

    def different(self, value: Value, slices: Any) -> list[Any]:
        """Returns the one slice."""
        return [slices]

    def spread(self, value: Value, slices: list[Any]) -> Any:
        """Returns the one slice."""
        return slices[0]

    def _step(self, step: Step) -> None:
        if isinstance(step, Compute):
            run_compute(
                step, self.mesh, self.coordinates, self.values, self.jit, anywhere=True
            )
        else:
            self.carry_out(step)


def scope(step: Step) -> str:
    """Returns the name under which a step's TensorFlow ops stand: its op's title and
    number.
    """
    node = None if isinstance(step, Load) else step.node
    return "load" if node is None else f"{node.op.display_name}.{node.serial}"
