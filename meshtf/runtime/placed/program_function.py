"""A program as one TensorFlow function, ready to be called.

The function consists of calls of segments and of collectives between them. It is written
node by node. It runs without TensorFlow's graph optimizer, which would delay the first
step and has nothing to optimize between segments.
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
from meshtf.runtime.lowering.program_summary import (
    ProgramMemory,
    collectives_of,
    memory_of,
)
from meshtf.runtime.placed.executor import Placed, schedule_for_devices
from meshtf.runtime.placed.failure_report import explain_failure
from meshtf.runtime.placed.numerics_check import Checked
from meshtf.runtime.placed.program.function_calls import GraphFunction
from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.placed.segment_functions import Tracer
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.tf_internals.call_options import (
    CPU_CONFIG,
    PLAIN_CONFIG,
    ProgramFunction,
)


class Compiled:
    """A recorded function for one combination of argument specs, ready to run: the
    placed runtime's `Executable`.

    Args:
      recorded: the function.
      stores: the stores of the arguments, in order; each call fills them from the flat
        list of its tensors.
      jit: whether XLA compiles the segments.
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
        # Set by the first call: the program, the functions that it calls, and for each
        # result the index of each position's shard among its distinct shards.
        self.function: ProgramFunction | None = None
        self.graph_functions: list[GraphFunction] = []
        self.distinct_indices: list[tuple[int, ...]] = []
        self.cpus = only_cpus(devices_of(self.mesh))
        self.config = CPU_CONFIG if self.cpus and not jit else PLAIN_CONFIG

    def __repr__(self) -> str:
        return (
            f"<compiled program on {self.mesh}: {len(self.program.steps)} steps, "
            f"{len(self.collectives)} collectives>"
        )

    def __call__(self, flat: Sequence[Any]) -> list[ShardedValue]:
        """Runs the program on the arguments' tensors and returns the results' shards."""
        results = self.program.results
        if current().check_numerics:
            self._fill(flat)
            values = Checked(self.mesh, self.segments).run(results)
            return [
                ShardedValue(result.placement, shards)
                for result, shards in zip(results, values)
            ]
        if self.function is None:
            self.function = self._written(flat)
        try:
            return self._sharded_values(self.function(flat))
        except tf.errors.OpError as error:
            self._fill(flat)
            problem = explain_failure(error, self.mesh, self.segments, results)
            if problem is error:
                raise
            raise problem from error

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call, such as "all_reduce over model of [batch:64
        d_model:16]".
        """
        return collectives_of(self.program)

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""
        return memory_of(self.program, self.stores)

    @property
    def definition(self) -> Any:
        """The FunctionDef of the program, after its first call."""
        assert self.function is not None
        return self.function.definition

    @property
    def called_definitions(self) -> list[Any]:
        """The FunctionDefs that it calls, except those that XLA compiles."""
        return [f.definition for f in self.graph_functions if not f.jit]

    def _written(self, flat: Sequence[Any]) -> ProgramFunction:
        """Writes the program for arguments of these shapes and data types."""
        program = ProgramWriter()
        tracer = Tracer(self.jit, self.cpus, program)
        placed = Placed(self.mesh, self.segments, tracer, program)
        self._fill([program.argument(tf.TensorSpec(x.shape, x.dtype)) for x in flat])
        results: list[Any] = []
        devices: list[str] = []
        self.distinct_indices = []
        for shards in placed.run(self.program.results):
            tensors, indices = distinct(shards)
            self.distinct_indices.append(indices)
            results += tensors
            positions = [indices.index(k) for k in range(len(tensors))]
            devices += [placed.devices[position] for position in positions]
        self.graph_functions = [
            *tracer.graph_functions(),
            *placed.variables.graph_functions(),
        ]
        return ProgramFunction(
            program.finish(results, devices),
            program.captured,
            devices,
            self.config,
            functions=program.functions,
        )

    def _fill(self, flat: Sequence[Any]) -> None:
        remaining = list(flat)
        for store in self.stores:
            store.fill(remaining)

    def _sharded_values(self, flat: Sequence[Any]) -> list[ShardedValue]:
        """Returns the results, given the distinct shards of all of them in order."""
        values = []
        start = 0
        for result, indices in zip(self.program.results, self.distinct_indices):
            shards = [None if k < 0 else flat[start + k] for k in indices]
            values.append(ShardedValue(result.placement, shards))
            start += max(indices) + 1
        return values
