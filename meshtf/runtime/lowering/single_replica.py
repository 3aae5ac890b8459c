"""Runs a program on one shard of each value, on one replica or on a single device: a value
is one tensor.

    class MyReplica(SingleReplica):
        def _read(self, store): ...  # and _write, _reshard, _exchange_window, ...

    results = MyReplica(program, coordinates, jit=True).run()
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.partition import (
    Compute,
    Program,
    ReadStep,
    Step,
    Value,
    schedule,
)
from meshtf.runtime.lowering.local_compute import run_compute
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.op_names import scope_of
from meshtf.runtime.lowering.step_executor import StepExecutor
from meshtf.runtime.lowering.unstacked_values import unstacked_values


class SingleReplica(StepExecutor):
    """Executes a program on one shard of each value.

    Args:
      program: the program.
      coordinates: the mesh coordinates of the shards.
      jit: whether XLA compiles the program.
    """

    def __init__(
        self,
        program: Program,
        coordinates: MeshCoordinates,
        jit: bool,
    ) -> None:
        super().__init__(program.mesh)
        self.program = program
        self.coordinates = coordinates
        self.jit = jit

    def run(self) -> list[Any]:
        """Runs all steps and returns the results."""
        return self.run_body(self.program, {})

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        once: bool = False,
    ) -> list[Any]:
        """Returns the results of the body of a loop, branch or call."""
        outer_values = self.values
        outer_unstacked = self.unstacked_values
        self.values = dict(inputs)
        self.unstacked_values = unstacked_values(program.steps, program.results)
        for segment in schedule(program):
            for step in (*segment.before, *segment.computes):
                with tf.name_scope(scope(step)):
                    self._step(step)
        results = [self.values[v] for v in program.results]
        self.values = outer_values
        self.unstacked_values = outer_unstacked
        return results

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns one device, without a name."""
        return [None]

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the only shard."""
        return [shards]

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the only shard."""
        return shards[0]

    def _step(self, step: Step) -> None:
        if isinstance(step, Compute):
            run_compute(
                step,
                self.mesh,
                self.coordinates,
                self.values,
                self.jit,
                anywhere=True,
            )
        else:
            self.execute(step)


def scope(step: Step) -> str:
    """Returns the name scope of a step's TensorFlow ops: module path, op and serial
    number.
    """
    node = None if isinstance(step, ReadStep) else step.node
    return "load" if node is None else f"{scope_of(node)}.{node.serial}"
