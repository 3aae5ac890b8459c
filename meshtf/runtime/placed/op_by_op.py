"""Runs a program op by op, without TensorFlow's graphs, for those who look at each op.

    class Printing(OpByOpExecutor):
        def _after_op(self, compute):
            print(compute.node, self.values[compute.outs[0]])

Loops, branches, updates and collectives run as in a program. A segment is a sequence of
computations without communication: each computation runs as a segment of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from meshtf.graph import Node
from meshtf.mesh import Mesh
from meshtf.partition import Compute, Segment, Step
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.segment_functions import MakeCaller, run_directly
from meshtf.runtime.placed.variables.read_write_phases import phases_of


class OpByOpExecutor(PlacedExecutor):
    """Base class of executors that look at each op.

    Args:
      mesh: the mesh of the program.
      segments: the segments of the program.
      make_caller: a function (segment with one op, mesh) -> the function that runs it.
    """

    def __init__(
        self,
        mesh: Mesh,
        segments: Sequence[Segment],
        make_caller: MakeCaller = run_directly,
    ) -> None:
        super().__init__(mesh, segments, make_caller)

    def _after_op(self, compute: Compute) -> None:
        """Is called after a computation; `values` has its inputs and outputs."""

    def _after_read(self, read: Step) -> None:
        """Is called after a read of a variable or an argument."""

    def _on_failure(self, node: Node, problem: tf.errors.OpError) -> None:
        """Is called if the op of a node fails. Unless this raises an error, `problem` is
        raised.
        """

    def _update(self, write: Step) -> None:
        """Runs an update of variables."""
        self.values.update(self.variables.write([write], self.values))

    def _call(self, segment: Segment) -> None:
        """Runs each computation of a segment, and then drops what no other segment needs."""
        for compute in segment.computes:
            single = Segment(
                before=(),
                computes=(compute,),
                stage=segment.stage,
                ins=compute.dependencies,
                outs=compute.outs,
            )
            try:
                super()._call(single)
            except tf.errors.OpError as problem:
                self._on_failure(compute.node, problem)
                raise
            self._after_op(compute)
        for compute in segment.computes:
            for value in set(compute.outs).difference(segment.outs):
                del self.values[value]

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment, one by one."""
        for phase in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(phase.reads))
            for read in phase.reads:
                self._after_read(read)
            for step in (*phase.slices, *phase.remaining):
                self.execute(step)
            for write in phase.writes:
                self._update(write)
