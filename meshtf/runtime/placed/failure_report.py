"""Finds which op of a program failed, so that the error names the user's line.

If an op fails on one of several devices, TensorFlow often reports only the other ones,
which it cancelled. So the program is run again, op by op, up to its first update, until
the op fails again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import explain_error
from meshtf.graph import Node
from meshtf.mesh import Mesh
from meshtf.partition import Compute, Segment, Step, Value, WriteStep
from meshtf.runtime.devices.names import host_of
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.local_compute import Flat, run_compute
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.placed.executor import Placed
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import Caller
from meshtf.runtime.placed.variables.read_write_phases import phases_of

_NO_KERNEL = "Detected unsupported operations"  # in the message of XLA
# Errors that bad values can cause. All others, such as a lost worker or no memory, are
# not searched for: they do not depend on the op.
_CAUSED_BY_VALUES = (tf.errors.InvalidArgumentError, tf.errors.CancelledError)


class _RerunStopped(Exception):
    """Ends a second run: an op failed, or the first update is reached."""

    def __init__(
        self, node: Node | None = None, problem: tf.errors.OpError | None = None
    ) -> None:
        super().__init__()
        self.node = node
        self.problem = problem


class _Rerun(Placed):
    """Runs a program op by op, without updates of variables."""

    def _execute_before(self, steps: Sequence[Step]) -> None:
        for phase in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(phase.reads))
            for step in (*phase.slices, *phase.remaining):
                self.execute(step)
            if phase.writes:
                raise _RerunStopped

    def _write(self, step: WriteStep) -> list[Shards]:
        return []


def explain_failure(
    error: tf.errors.OpError,
    mesh: Mesh,
    segments: Sequence[Segment],
    results: Sequence[Value],
) -> tf.errors.OpError:
    """Returns an error that names the op that failed; `error` itself if it is unknown.

    Args:
      error: the error of a call of the program.
      mesh: the mesh of the program.
      segments: its segments.
      results: its results.
    """
    num_hosts = len(set(map(host_of, devices_of(mesh))))
    if not isinstance(error, _CAUSED_BY_VALUES) or num_hosts > 1:
        return error
    caller = _one_by_one_compiled if _NO_KERNEL in error.message else _one_by_one
    try:
        _Rerun(mesh, segments, caller).run(results)
    except _RerunStopped as stopped:
        if stopped.node is not None and stopped.problem is not None:
            return with_line(stopped.node, stopped.problem)
    except Exception:  # another problem of the second run: report the first error
        pass
    return error


def _one_by_one(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that runs ops one by one. It raises `_RerunStopped`."""

    def call(
        device: str, coords: dict[str, Any], values: Flat
    ) -> tuple[Flat, set[str]]:
        with tf.device(device):
            return run(coords, values)

    def run(coords: dict[str, Any], values: Flat) -> tuple[Flat, set[str]]:
        coordinates = MeshCoordinates(coords)
        env: dict[Value, Any] = dict(zip(segment.ins, values))
        for compute in segment.computes:
            try:
                run_compute(compute, mesh, coordinates, env)
            except tf.errors.OpError as problem:
                raise _RerunStopped(compute.node, problem) from problem
        return [env[v] for v in segment.outs], coordinates.used

    return call


def _one_by_one_compiled(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that compiles each op separately before it runs, to find an op
    for which XLA has no kernel. It raises `_RerunStopped`.
    """
    run = _one_by_one(segment, mesh)

    def call(
        device: str, coords: dict[str, Any], values: Flat
    ) -> tuple[Flat, set[str]]:
        env: dict[Value, Any] = dict(zip(segment.ins, values))
        for compute in segment.computes:
            arguments = [env[v] for v in compute.inputs]
            outputs = _compiled(compute, mesh, coords)
            try:
                with tf.device(device):
                    env.update(zip(compute.outs, outputs(arguments)))
            except tf.errors.OpError as problem:
                raise _RerunStopped(compute.node, problem) from problem
        return run(device, coords, values)

    return call


def _compiled(compute: Compute, mesh: Mesh, coords: dict[str, Any]) -> Any:
    """Returns an op as a function that XLA compiles."""

    def body(arguments: list[Any]) -> list[Any]:
        env: dict[Value, Any] = dict(zip(compute.inputs, arguments))
        run_compute(compute, mesh, MeshCoordinates(coords), env)
        return [env[v] for v in compute.outs]

    return tf.function(body, autograph=False, jit_compile=True)


def with_line(node: Node, problem: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error of TensorFlow that names the op that failed and the user's line."""
    message = re.sub(
        r"\{\{.*?\}\} ?| \[Op:.*|\s*The op is created at:.*",
        "",
        problem.message,
        flags=re.DOTALL,
    ).strip()
    way_out = {}
    if _NO_KERNEL in message:
        way_out["way_out"] = "Leave out jit=True: TensorFlow has a kernel without XLA."
    text = explain_error(
        f"{node.op.display_name} failed: {message}",
        inputs="\n".join(f"{x.spec.dtype} {x.shape!r}" for x in node.inputs),
        **{"from": node.source},
        **way_out,
    )
    return type(problem)(None, None, text)
