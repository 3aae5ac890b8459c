"""What runtimes share: who carries out which step between computations.

    class Mine(StepExecutor):
      def _load(self, store): ...           # and _put, _tell, _window, _move

    carrier.carry_out(step)                 # carrier.values[step.out] is there

See `single_replica` for those that hold one shard of everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    GatherStatisticsStep,
    LoopStep,
    MoveStep,
    Program,
    ReadStep,
    Step,
    Value,
    WindowStep,
    WriteStep,
)
from meshtf.runtime.lowering.control_flow import run_branch, run_call, run_loop


class StepExecutor:
    """Base of runtimes: keeps values, and sends each step to the method that carries it
    out.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.values: dict[Value, Any] = {}
        self.unstacked_values: set[Value] = (
            set()
        )  # stacks of loops that stay lists: `partition.walked_only`

    def execute(self, step: Step) -> None:
        """Carries out a step that is no computation, and keeps what it makes."""
        if isinstance(step, ReadStep):
            self.values[step.out] = self._read(step.store)
        elif isinstance(step, WriteStep):
            self.values.update(zip(step.outs, self._write(step)))
        elif isinstance(step, GatherStatisticsStep):
            self.values[step.out] = self._gather_statistics(step)
        elif isinstance(step, WindowStep):
            self.values[step.out] = self._exchange_window(step)
        elif isinstance(step, MoveStep):
            self.values[step.out] = self._reshard(step)
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

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Has what is made within wait until tensors are there."""
        return tf.control_dependencies(tensors)

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each slice of a value that can differ from
        the others.
        """
        raise NotImplementedError

    def distinct_shards(self, value: Value, slices: Any) -> list[Any]:
        """Returns of what `values` would hold of a value those slices, in
        that order.
        """
        raise NotImplementedError

    def to_positions(self, value: Value, slices: list[Any]) -> Any:
        """Returns what `values` holds of a value with these different slices."""
        raise NotImplementedError

    def _read(self, store: Store) -> Any:
        raise NotImplementedError

    def _write(self, step: WriteStep) -> Sequence[Any]:
        raise NotImplementedError

    def _gather_statistics(self, step: GatherStatisticsStep) -> Any:
        raise NotImplementedError

    def _exchange_window(self, step: WindowStep) -> Any:
        raise NotImplementedError

    def _reshard(self, step: MoveStep) -> Any:
        raise NotImplementedError

    def _bucket(self, step: Bucket) -> list[Any]:
        return [self._reshard(move) for move in step.moves]
