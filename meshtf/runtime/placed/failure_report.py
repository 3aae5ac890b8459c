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

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Node
from meshtf.mesh import Mesh
from meshtf.partition import Compute, Segment, Step, Value, WriteStep
from meshtf.runtime.devices.names import host_of
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.local_compute import TensorList, run_compute
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.op_errors import (
    NO_KERNEL,
    is_out_of_range,
    with_line,
    without_line,
)
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import Caller, SegmentResult
from meshtf.runtime.placed.variables.read_write_phases import phases_of


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


@contextlib.contextmanager
def _stop_at_error(node: Node) -> Iterator[None]:
    """A context in which an error of TensorFlow ends the second run at a node."""
    try:
        yield
    except tf.errors.OpError as problem:
        raise _RerunStopped(node, problem) from problem


class _Rerun(PlacedExecutor):
    """Runs a program op by op, up to its first update of a variable.

    Attributes:
      passes_updates: whether it goes on without the updates.
    """

    passes_updates = False

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment; raises `_RerunStopped` before updates."""
        for phase in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(phase.reads))
            for step in (*phase.slices, *phase.remaining):
                self.execute(step)
            if phase.writes and not self.passes_updates:
                raise _RerunStopped

    def _write(self, step: WriteStep) -> list[Shards]:
        """Leaves out writes of variables, and host ops, but for assertions."""
        if step.host_op is None or not step.host_op.asserts:
            return []
        with _stop_at_error(step.node):
            return super()._write(step)


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
    make_caller = _caller_of_ops
    if NO_KERNEL in error.message:
        make_caller = _caller_of_compiled_ops
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


def _caller_of_ops(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that runs ops one by one. It raises `_RerunStopped`."""

    def call(
        device: str, coordinates: dict[str, Any], inputs: TensorList
    ) -> SegmentResult:
        mesh_coordinates = MeshCoordinates(coordinates)
        values: dict[Value, Any] = dict(zip(segment.ins, inputs))
        for compute in segment.computes:
            with _stop_at_error(compute.node), tf.device(device):
                run_compute(compute, mesh, mesh_coordinates, shard_of=values)
        outputs = [values[v] for v in segment.outs]
        return SegmentResult(outputs, axes_read=mesh_coordinates.axes_read)

    return call


def _caller_of_compiled_ops(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that compiles each op separately before it runs, to find an op
    without a kernel in XLA. It raises `_RerunStopped`.
    """
    call_ops = _caller_of_ops(segment, mesh)

    def call(
        device: str, coordinates: dict[str, Any], inputs: TensorList
    ) -> SegmentResult:
        values: dict[Value, Any] = dict(zip(segment.ins, inputs))
        for compute in segment.computes:
            arguments = [values[v] for v in compute.dependencies]
            compiled_op = _compiled_op(compute, mesh, coordinates)
            with _stop_at_error(compute.node), tf.device(device):
                values.update(zip(compute.outs, compiled_op(arguments)))
        return call_ops(device, coordinates, inputs)

    return call


def _compiled_op(compute: Compute, mesh: Mesh, coordinates: dict[str, Any]) -> Any:
    """Returns the function of a computation's inputs that XLA compiles."""

    def body(arguments: list[Any]) -> list[Any]:
        values: dict[Value, Any] = dict(zip(compute.dependencies, arguments))
        run_compute(compute, mesh, MeshCoordinates(coordinates), shard_of=values)
        return [values[v] for v in compute.outs]

    return tf.function(body, autograph=False, jit_compile=True)
