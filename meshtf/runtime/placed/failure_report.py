"""Finds the op of a program that failed, so that the error names the user's line.

If an op fails on one of several devices, TensorFlow often reports only the other devices,
whose ops it cancelled. So the program is run again, op by op, until the op fails again or
the first update of a variable is reached. Updates are left out where an index is out of range,
since indices rarely depend on variables; and where the report is of a cancelled op only, which
says nothing of the cause.

    raise explain_failure(error, mesh, segments, program.results)

A segment is a sequence of computations without communication. A node is an op with its
inputs in the graph; it has the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Node
from meshtf.mesh import Mesh
from meshtf.partition import Segment, Step, Value, WriteStep
from meshtf.runtime.devices.names import host_of
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.local_compute import TensorList, run_segment
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.op_errors import (
    NO_KERNEL,
    is_out_of_range,
    with_line,
    without_line,
)
from meshtf.runtime.placed.op_by_op import OpByOpExecutor
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import (
    Caller,
    SegmentResult,
    run_directly,
)


class _RerunStopped(Exception):
    """Ends a second run of a program.

    Attributes:
      node: the node that failed; None: the first update is reached.
      problem: the error of the node; None: the first update is reached.
    """

    def __init__(
        self, node: Node | None = None, problem: tf.errors.OpError | None = None
    ) -> None:
        super().__init__()
        self.node = node
        self.problem = problem


class _Rerun(OpByOpExecutor):
    """Runs a program op by op, up to its first update of a variable.

    Attributes:
      passes_updates: whether it goes on without the updates.
    """

    passes_updates = False

    def _on_failure(self, node: Node, problem: tf.errors.OpError) -> None:
        raise _RerunStopped(node, problem) from problem

    def _update(self, write: Step) -> None:
        """Raises `_RerunStopped`, or leaves the update out."""
        if not self.passes_updates:
            raise _RerunStopped

    def _write(self, step: WriteStep) -> list[Shards]:
        """Leaves out writes of variables, and host ops, but for assertions."""
        if step.host_op is None or not step.host_op.asserts:
            return []
        try:
            return super()._write(step)
        except tf.errors.OpError as problem:
            raise _RerunStopped(step.node, problem) from problem


def explain_failure(
    error: tf.errors.OpError,
    mesh: Mesh,
    segments: Sequence[Segment],
    results: Sequence[Value],
) -> tf.errors.OpError:
    """Returns an error that names the op that failed; `error` without one if no op fails in a
    second run, see `without_line`.

    Args:
      error: the error of a call of the program.
      mesh: the mesh of the program.
      segments: the segments of the program.
      results: the results of the program.
    """
    num_hosts = len({host_of(device) for device in devices_of(mesh)})
    # Errors that bad values can cause. Other errors, such as a lost worker or no memory, do
    # not depend on one op, so the program is not run again.
    caused_by_values = (tf.errors.InvalidArgumentError, tf.errors.CancelledError)
    if not isinstance(error, caused_by_values) or num_hosts > 1:
        return without_line(error)
    make_caller = run_compiled if NO_KERNEL in error.message else run_directly
    try:
        rerun = _Rerun(mesh, segments, make_caller)
        is_cancelled = isinstance(error, tf.errors.CancelledError)
        rerun.passes_updates = is_cancelled or is_out_of_range(error)
        rerun.run(results)
    except _RerunStopped as stopped:
        if stopped.node is not None and stopped.problem is not None:
            return with_line(stopped.node, stopped.problem)
    except Exception:  # another problem of the second run: report the first error
        pass
    return without_line(error)


def run_compiled(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller of a segment with one op, which XLA compiles before it runs: so an op
    without a kernel in XLA fails.
    """
    call_directly = run_directly(segment, mesh)

    def call(
        device: str, coordinates: dict[str, Any], inputs: TensorList
    ) -> SegmentResult:
        def body(shards: TensorList) -> TensorList:
            return run_segment(segment, mesh, MeshCoordinates(coordinates), shards)

        compiled = tf.function(body, autograph=False, jit_compile=True)
        with tf.device(device):
            compiled(inputs)
        return call_directly(device, coordinates, inputs)

    return call
