"""Which op of a program failed: the user's line, which TensorFlow does not know.

Where an op fails on one of several devices, TensorFlow often tells of the others alone,
which were cancelled. The program runs once more, op by op, up to its first update, and
stops where it fails.
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

# What bad values lead to; others, such as lost workers or a full memory, would come
# again.
_NO_KERNEL = "Detected unsupported operations"  # as XLA says it
_OF_VALUES = (tf.errors.InvalidArgumentError, tf.errors.CancelledError)


class _Failed(Exception):
    """An op failed, or an update was reached."""

    def __init__(
        self, node: Node | None = None, problem: tf.errors.OpError | None = None
    ) -> None:
        super().__init__()
        self.node = node
        self.problem = problem


class _Rerun(Placed):
    """Runs a program op by op, and writes nothing."""

    def _execute_before(self, steps: Sequence[Step]) -> None:
        for phase in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(phase.reads))
            for step in (*phase.slices, *phase.remaining):
                self.execute(step)
            if phase.writes:
                raise _Failed

    def _write(self, step: WriteStep) -> list[Shards]:
        return []


def explain_failure(
    error: tf.errors.OpError,
    mesh: Mesh,
    segments: Sequence[Segment],
    results: Sequence[Value],
) -> tf.errors.OpError:
    """Returns an error of a program with the op that failed; the same one where that is
    not found.
    """
    if (
        not isinstance(error, _OF_VALUES)
        or len(set(map(host_of, devices_of(mesh)))) > 1
    ):
        return error
    caller = _one_by_one_compiled if _NO_KERNEL in error.message else _one_by_one
    try:
        _Rerun(mesh, segments, caller).run(results)
    except _Failed as failed:
        if failed.node is not None and failed.problem is not None:
            return with_line(failed.node, failed.problem)
    except Exception:  # whatever else goes wrong now is not what the user asks about
        pass
    return error


def _one_by_one(segment: Segment, mesh: Mesh) -> Caller:
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
                raise _Failed(compute.node, problem) from problem
        return [env[v] for v in segment.outs], coordinates.used

    return call


def _one_by_one_compiled(segment: Segment, mesh: Mesh) -> Caller:
    """Returns what compiles each op by itself before it runs, to find one for which XLA
    has no kernel.
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
                raise _Failed(compute.node, problem) from problem
        return run(device, coords, values)

    return call


def _compiled(compute: Compute, mesh: Mesh, coords: dict[str, Any]) -> Any:
    def body(arguments: list[Any]) -> list[Any]:
        env: dict[Value, Any] = dict(zip(compute.inputs, arguments))
        run_compute(compute, mesh, MeshCoordinates(coords), env)
        return [env[v] for v in compute.outs]

    return tf.function(body, autograph=False, jit_compile=True)


def with_line(node: Node, problem: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error of TensorFlow with the op that failed, and the line that called
    it.
    """
    what = re.sub(
        r"\{\{.*?\}\} ?| \[Op:.*|\s*The op is created at:.*",
        "",
        problem.message,
        flags=re.DOTALL,
    ).strip()
    way_out = {}
    if _NO_KERNEL in what:
        way_out["way_out"] = "Leave out jit=True: TensorFlow has a kernel of its own."
    text = explain_error(
        f"{node.op.display_name} failed: {what}",
        inputs="\n".join(f"{x.spec.dtype} {x.shape!r}" for x in node.inputs),
        **{"from": node.source},
        **way_out,
    )
    return type(problem)(None, None, text)
