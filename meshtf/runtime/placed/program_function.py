"""A whole program as one TensorFlow function.

The outer function is a list of calls of segments and of moves between them. It runs
without the graph optimiser, which costs start-up and finds nothing to do between
segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Held
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
from meshtf.runtime.placed.executor import Placed, arrange
from meshtf.runtime.placed.failure_report import explained
from meshtf.runtime.placed.function_calls import Callee
from meshtf.runtime.placed.numerics_check import Checked
from meshtf.runtime.placed.program_proto import definition_of
from meshtf.runtime.placed.segment_functions import Tracer
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.tf_internals.call_options import (
    CPU_CONFIG,
    IN_ANY_ORDER,
    PLAIN_CONFIG,
    call_with,
)
from meshtf.runtime.tf_internals.register_function import Registered


class Compiled:
    """A recorded function for one combination of argument specs, ready to run: the
    placed runtime's `Executable`.

    Args:
      recorded: the function.
      stores: the arguments, in order; they are filled from the flat list of tensors at
        each call.
      jit: whether XLA compiles the segments.
    """

    def __init__(self, recorded: Recorded, stores: Sequence[Any], jit: bool) -> None:
        self.mesh, self.stores, self.jit = recorded.mesh, stores, jit
        self.program = build(recorded.nodes, recorded.results, recorded.mesh)
        self.segments = arrange(self.program)
        self.patterns: list[tuple[int, ...]] = []
        self.function: Any = None  # as TensorFlow traced it
        self.registered: Any = None  # what runs in its place
        self.callees: list[Callee] = []  # what it calls; they are kept for it
        self.config = PLAIN_CONFIG

    def __call__(self, flat: Sequence[Any]) -> list[Held]:
        """Runs the program on the arguments' tensors and returns the results' shards."""
        if current().checked:
            self._fill(flat)
            values = Checked(self.mesh, self.segments).run(self.program.results)
            return [Held(v.placement, x) for v, x in zip(self.program.results, values)]
        if self.function is None:
            self._trace([tf.TensorSpec(x.shape, x.dtype) for x in flat])
        try:
            ys = call_with(self.config, self.function, flat, self.registered.name)
            return self._wrap(ys)
        except tf.errors.OpError as error:
            self._fill(flat)
            problem = explained(error, self.mesh, self.segments, self.program.results)
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
        """What variables, arguments and results take on one device."""
        return memory_of(self.program, self.stores)

    @property
    def definition(self) -> Any:
        """The FunctionDef that runs, once the program was called."""
        return self.registered.definition

    @property
    def called_definitions(self) -> list[Any]:
        """The FunctionDefs that it calls, but for those that XLA compiles."""
        return [callee.definition for callee in self.callees]

    def _trace(self, specs: Sequence[tf.TensorSpec]) -> None:
        """Traces the program."""
        cpus = only_cpus(devices_of(self.mesh))
        self.config = CPU_CONFIG if cpus and not self.jit else PLAIN_CONFIG
        tracer = Tracer(self.jit, cpus)
        placed = Placed(self.mesh, self.segments, tracer)
        order = placed.together.order
        self.function = tf.function(
            lambda *flat: self._body(placed, flat),
            autograph=False,
            experimental_attributes=IN_ANY_ORDER if order else {},
        ).get_concrete_function(*specs)
        self.callees = [*tracer.callees(), *placed.together.callees()]
        must_run = [op.name for op in order.writes] if order else []
        self.registered = Registered(definition_of(self.function, must_run))

    def _body(self, placed: Placed, flat: Sequence[Any]) -> list[Any]:
        self._fill(flat)
        out = []
        for slices in placed.run(self.program.results):
            different, pattern = distinct(slices)
            out.extend(different)
            self.patterns.append(pattern)
        return out

    def _fill(self, flat: Sequence[Any]) -> None:
        left = list(flat)
        for store in self.stores:
            store.fill(left)

    def _wrap(self, ys: list[Any]) -> list[Held]:
        values = []
        for result, pattern in zip(self.program.results, self.patterns, strict=True):
            slices = [None if k < 0 else ys[k] for k in pattern]
            values.append(Held(result.placement, slices))
            del ys[: max(pattern) + 1]
        return values
