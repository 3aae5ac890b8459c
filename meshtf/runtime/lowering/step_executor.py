"""The base class of executors in all runtimes: its table says how each class of steps runs.

A program is a list of steps: reads and writes of variables, collectives, loops. Each sets
values, which are tensors with one shard for every mesh position.

    class MyExecutor(StepExecutor):
        def _read(self, store): ...  # and _write, _reshard, _exchange_window, ...

    executor.execute(step)           # sets executor.values[y] for each output y

Subclasses: `single_replica.SingleReplica` has one shard of each value,
`placed.executor.PlacedExecutor` has the shards of all mesh positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    FirstEntryStep,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WindowStep,
    WriteEntryStep,
    WriteStep,
    ZerosStep,
)
from meshtf.runtime.lowering.control_flow import run_branch, run_call, run_loop
from meshtf.runtime.lowering.padding.uneven_loops import take_first_entry
from meshtf.runtime.lowering.stacks import make_zeros, write_entry


class StepExecutor:
    """Base class of executors.

    Attributes:
      mesh: the mesh of the program.
      values: the shards of each value that was computed so far. Their form depends on the
        subclass: a single shard, or a list with the shard of each mesh position.
      unstacked_values: the stacked outputs of loops that stay lists; see
        `lowering.stacks`.
      totals: outputs of steps that add them to something -> its distinct shards.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.values: dict[Value, Any] = {}
        self.unstacked_values: set[Value] = set()
        self.totals: dict[Value, list[Any]] = {}

    # Whether steps add to what a loop sums in place: see `lowering.control_flow`. TensorFlow
    # would copy the sum in each iteration.
    adds_in_place: ClassVar[bool] = False

    # For each class of steps, what runs it: a function of the executor and the step, which
    # returns the entry of `values` for each output. A runtime that differs overrides the
    # methods below, or has an entry of its own.
    table: ClassVar[dict[type[Step], Callable[[Any, Any], Sequence[Any]]]] = {}

    def __init_subclass__(cls) -> None:
        cls.table = dict(cls.table)

    def execute(self, step: Step) -> None:
        """Executes a step and stores its results in `values`."""
        results = self.table[type(step)](self, step)
        self.values.update(zip(step.outputs, results))

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        single_use: bool = False,
    ) -> list[Any]:
        """Returns the results of the body of a loop, branch or call.

        Args:
          program: the program of the body.
          inputs: the shards of the body's arguments and captured values.
          single_use: whether the entire program contains this body only once.
        """
        raise NotImplementedError

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which new ops run only after `tensors` are computed."""
        return tf.control_dependencies(tensors)

    def empty_after(self, array: Any, num_entries: int, value: Value, x: Any) -> Any:
        """Returns an empty tf.TensorArray for shards of a value, made after x is computed, where
        the compiler would make it earlier.
        """
        return array

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""
        raise NotImplementedError

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the distinct shards of a value, given its entry of `values`."""
        raise NotImplementedError

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the entry of `values` for a value with these distinct shards."""
        raise NotImplementedError

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates on the mesh of each distinct shard of a value, by axis:
        integers or scalar int32 tensors.
        """
        raise NotImplementedError

    # Each of the methods below executes one type of step, and returns the entry of `values`
    # for its output; `_write` and `_bucket` return the entries for several outputs.

    def _read(self, store: Store) -> Any:
        raise NotImplementedError

    def _write(self, step: WriteStep) -> Sequence[Any]:
        raise NotImplementedError

    def _gather_statistics(self, step: GatherStatisticsStep) -> Any:
        raise NotImplementedError

    def _exchange_window(self, step: WindowStep) -> Any:
        raise NotImplementedError

    def _reshard(self, step: ReshardStep) -> Any:
        raise NotImplementedError

    def _bucket(self, step: Bucket) -> list[Any]:
        """Returns the output of each reduction of a bucket."""
        return [self._reshard(reshard) for reshard in step.reductions]


StepExecutor.table = {
    ReadStep: lambda executor, step: [executor._read(step.store)],
    WriteStep: lambda executor, step: executor._write(step),
    ReshardStep: lambda executor, step: [executor._reshard(step)],
    Bucket: lambda executor, step: executor._bucket(step),
    FirstEntryStep: take_first_entry,
    ZerosStep: make_zeros,
    WriteEntryStep: write_entry,
    WindowStep: lambda executor, step: [executor._exchange_window(step)],
    GatherStatisticsStep: lambda executor, step: [executor._gather_statistics(step)],
    LoopStep: run_loop,
    BranchStep: run_branch,
    CallStep: run_call,
}
