"""Runs a program on one shard of each value: on one replica, which is the program of one
mesh position, or on a single device. A value of the program is then one tensor, the local
shard.

    class MyReplica(SingleReplica):
        def _read(self, store): ...  # and _write, _reshard, _exchange_window, ...

    results = MyReplica(program, coordinates, jit=True).run()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.partition import (
    Compute,
    Program,
    Step,
    Value,
    schedule,
)
from meshtf.runtime.lowering.local_compute import Outline, run_compute
from meshtf.runtime.lowering.local_context import (
    CheckRecorder,
    MeshCoordinates,
    Stored,
)
from meshtf.runtime.lowering.op_names import scope_of
from meshtf.runtime.lowering.stacks import unstacked_values
from meshtf.runtime.lowering.step_executor import StepExecutor


class SingleReplica(StepExecutor):
    """Executes a program on one shard of each value.

    Args:
      program: the program.
      coordinates: the mesh coordinates of the shards.
      jit: whether XLA compiles the program.
      checks: the recorder of checks of indices; None: checks are not recorded.
      outline: see `local_compute.Outline`; None: ops share no functions.
      stored: see `DeviceContext`; None: XLA may compute a tensor several times.
    """

    def __init__(
        self,
        program: Program,
        coordinates: MeshCoordinates,
        jit: bool,
        checks: CheckRecorder | None = None,
        outline: Outline | None = None,
        stored: Stored | None = None,
    ) -> None:
        super().__init__(program.mesh)
        self.program = program
        self.coordinates = coordinates
        self.jit = jit
        self.checks = checks
        self.outline = outline
        self.stored = stored

    def run(self) -> list[Any]:
        """Runs all steps and returns the results."""
        return self.run_body(self.program, inputs={})

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        single_use: bool = False,
    ) -> list[Any]:
        """Returns the results of a program: the entire one, or the body of a loop, branch
        or call. The arguments are those of `StepExecutor.run_body`.
        """
        outer_values = self.values
        outer_unstacked_values = self.unstacked_values
        self.values = dict(inputs)
        self.unstacked_values = unstacked_values(program.steps, program.results)
        for segment in schedule(program):
            for step in (*segment.before, *segment.computes):
                with tf.name_scope(numbered_scope(step)):
                    self.execute(step)
        results = [self.values[v] for v in program.results]
        self.values = outer_values
        self.unstacked_values = outer_unstacked_values
        return results

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns [None]: there is one shard, and TensorFlow chooses its device."""
        return [None]

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the only shard."""
        return [shards]

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates of the only shard."""
        return [self.coordinates]

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the only shard."""
        return shards[0]

    def _compute(self, step: Compute) -> Sequence[Any]:
        """Returns the outputs of an op."""
        (total,) = self.totals.pop(step.outs[0], [None]) if step.outs else [None]
        return run_compute(
            step,
            self.mesh,
            self.coordinates,
            shard_of=self.values,
            jit=self.jit,
            outline=self.outline,
            on_any_device=True,
            checks=self.checks,
            stored=self.stored,
            total=total,
        )


SingleReplica.table[Compute] = lambda executor, step: executor._compute(step)


def numbered_scope(step: Step) -> str:
    """Returns the name scope of a step's TensorFlow ops: module path, op, and the serial
    number of the node.
    """
    if step.node is None:
        return "load"
    return f"{scope_of(step.node)}.{step.node.serial}"
