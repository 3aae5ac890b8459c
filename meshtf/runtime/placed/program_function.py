"""A recorded function as one TensorFlow function, ready to be called.

The TensorFlow function consists of calls of segments, and of collectives between them. It
is written node by node, and runs without TensorFlow's graph optimizer, which would delay
the first step and has nothing to optimize between segments.

    executable = PlacedExecutable(recorded, stores, jit=False)
    results = executable([x, y])             # the first call writes the function

A segment is a sequence of computations without communication. A store is where a program
reads an argument from; each call of the function fills the stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import ShardedValue
from meshtf.graph.context import current
from meshtf.graph.recorder import Recorded
from meshtf.partition import build
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.local_context import Stored
from meshtf.runtime.lowering.program_summary import ProgramSummary
from meshtf.runtime.placed.executor import PlacedExecutor, schedule_for_devices
from meshtf.runtime.placed.failure_report import explain_failure
from meshtf.runtime.placed.numerics_check import CheckingExecutor
from meshtf.runtime.placed.program.function_calls import GraphFunction
from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.placed.segment_functions import Tracer
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.tf_internals.call_options import (
    ProgramFunction,
    plain_config,
)
from meshtf.runtime.tf_internals.xla_ops import stored


class PlacedExecutable(ProgramSummary):
    """A recorded function for one combination of argument specs, ready to run: the
    placed runtime's `Executable`.

    Args:
      recorded: the function.
      stores: the stores of the arguments, in order; each call fills them from its tensors.
      jit: whether XLA compiles the segments.

    Attributes:
      program: the program with explicit communication.
      segments: the schedule of the program.
      function: the TensorFlow function; None before the first call.
      graph_functions: the functions that `function` calls.
      distinct_indices: for each result, the index of each mesh position's shard among the
        distinct shards of the result; -1: the position has no shard.
      cpus: whether all devices are CPUs.
      config: the serialized ConfigProto with which TensorFlow runs the function.
    """

    def __init__(
        self,
        recorded: Recorded,
        stores: Sequence[Any],
        jit: bool,
    ) -> None:
        self.mesh = recorded.mesh
        self.stores = stores
        self.jit = jit
        self.program = build(recorded.nodes, recorded.results, recorded.mesh)
        self.segments = schedule_for_devices(self.program)
        # The first call sets these three attributes.
        self.function: ProgramFunction | None = None
        self.graph_functions: list[GraphFunction] = []
        self.distinct_indices: list[tuple[int, ...]] = []
        self.cpus = only_cpus(devices_of(self.mesh))
        self.config = plain_config(cpus=self.cpus and not jit)

    def __repr__(self) -> str:
        return (
            f"<compiled program on {self.mesh}: {len(self.program.steps)} steps, "
            f"{len(self.collectives)} collectives>"
        )

    def __call__(self, tensors: Sequence[Any]) -> list[ShardedValue]:
        """Returns the results of the program for the tensors of all arguments, in order."""
        results = self.program.results
        if current().check_numerics:
            self.fill_stores(tensors)
            shards_of_results = CheckingExecutor(self.mesh, self.segments).run(results)
            return [
                ShardedValue(result.placement, shards)
                for result, shards in zip(results, shards_of_results)
            ]
        if self.function is None:
            self.function = self._write_function(tensors)
        try:
            return self._sharded_values(self.function(tensors))
        except tf.errors.OpError as error:
            self.fill_stores(tensors)
            explained_error = explain_failure(error, self.mesh, self.segments, results)
            if explained_error is error:
                raise
            raise explained_error from error

    @property
    def definition(self) -> Any:
        """The FunctionDef of the program, after its first call."""
        assert self.function is not None
        return self.function.definition

    @property
    def called_definitions(self) -> list[Any]:
        """The FunctionDefs that the program calls, except those that XLA compiles."""
        return [f.definition for f in self.graph_functions if not f.jit]

    def _write_function(self, tensors: Sequence[Any]) -> ProgramFunction:
        """Returns the TensorFlow function for arguments with the shapes and data types of
        `tensors`. Its results are the distinct shards of all results.
        """
        writer = ProgramWriter()
        tracer = Tracer(
            jit=self.jit,
            as_branch=self.cpus,
            program=writer,
            stored=Stored(stored, platform="cpu") if self.jit and self.cpus else None,
        )
        executor = PlacedExecutor(
            self.mesh, self.segments, make_caller=tracer, program=writer
        )
        arguments = [writer.argument(tf.TensorSpec(x.shape, x.dtype)) for x in tensors]
        self.fill_stores(arguments)
        results: list[Any] = []
        devices: list[str] = []
        self.distinct_indices = []
        for shards in executor.run(self.program.results):
            distinct_shards, indices = distinct(shards)
            self.distinct_indices.append(indices)
            results += distinct_shards
            for k in range(len(distinct_shards)):
                position = indices.index(k)  # the first position with this shard
                devices.append(executor.devices[position])
        self.graph_functions = [
            *tracer.graph_functions(),
            *executor.variables.graph_functions(),
        ]
        return ProgramFunction(
            definition=writer.finish(results, devices),
            captured=writer.captured,
            devices=devices,
            config=self.config,
            functions=writer.functions,
        )

    def _sharded_values(self, distinct_shards: Sequence[Any]) -> list[ShardedValue]:
        """Returns the results, from the distinct shards of all results in order."""
        values = []
        start = 0
        for result, indices in zip(self.program.results, self.distinct_indices):
            shards = [None if k < 0 else distinct_shards[start + k] for k in indices]
            values.append(ShardedValue(result.placement, shards))
            num_distinct = max(indices) + 1
            start += num_distinct
        return values
