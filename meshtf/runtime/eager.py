"""Eager mode: each op outside of a `mtf.function` is planned and run as soon as it is
called, so that its outputs have values.

Example:

    (y,) = EAGER.run(node)            # y.sharded_value.values has the shard of each position
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.deferred_tensorflow import is_imported
from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.graph import (
    GradientBarrier,
    Node,
    Op,
    ShardedValue,
    Tensor,
    WriteOp,
    current,
    register_operator,
)
from meshtf.graph.operators import line_of_caller
from meshtf.graph.recorder import Recorded
from meshtf.graph.used_layouts import layout_use, record_layout_use
from meshtf.mesh import Mesh, Placement
from meshtf.names import has_gradient
from meshtf.partition import Program, build, schedule
from meshtf.runtime.lowering.op_errors import with_line
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.numerics_check import CheckingExecutor
from meshtf.runtime.placed.segment_functions import run_directly
from meshtf.runtime.spmd.eager_programs import run_on_devices
from meshtf.runtime.storage.write_times import record_write


class Eager:
    """The executor of ops outside of functions."""

    mesh: Mesh | None = None

    @property
    def owner(self) -> Eager:
        """The executor itself: gradients see all nodes that ran outside of functions."""
        return self

    def recorder_of(self, op: Op) -> Eager:
        """Returns the executor that runs nodes of an op: this one, whatever the op."""
        return self

    def find(self, op: Op) -> Node | None:
        """Returns None: in eager mode no node is reused, so every read is executed."""
        return None

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Runs a node and returns its outputs with values; on an abstract mesh, the outputs
        have placements and no values.
        """
        refuse_in_tf_function("a named op runs")
        if node.mesh is None:
            raise MeshError(
                explain_error(
                    "an op outside of a function has no mesh.",
                    source=node.source,
                    way_out="Pass the mesh.",
                )
            )
        # Only nodes of gradient rules have `primals`, the tensors of the forward node whose
        # layout they follow.
        if not node.primals:
            record_layout_use(node.mesh, layout_use([node]))
        values = _values(node, node.mesh)
        if isinstance(node.op, WriteOp):
            for store in node.op.variables:
                record_write(store)
        if node.recompute_group is None and _ends_gradients(node):
            # No gradient needs the inputs, so their memory is released.
            node = node.with_inputs(())
        for y, value in zip(node.outputs, values):
            y.sharded_value = value
        return node.outputs


EAGER = Eager()


def refuse_in_tf_function(event: str) -> None:
    """Raises PlanError while TensorFlow records a graph: a program that runs then is no part
    of it, or leaves symbolic tensors behind.

    Args:
      event: what happens there, such as "a named op runs".
    """
    if not is_imported() or tf.executing_eagerly():
        return
    raise PlanError(
        explain_error(
            f"{event} inside a tf.function, or another graph of TensorFlow.",
            source=line_of_caller(),
            way_out="Write @mtf.function in place of @tf.function; or call it outside, and "
            "pass x.numpy() to TensorFlow's functions.",
        )
    )


class InPlace(Eager):
    """The executor that runs the ops of a `mtf.function` one by one, on its mesh."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh
        self.outer = EAGER

    @property
    def owner(self) -> Eager:
        """The eager executor: gradients may reach nodes that ran outside the function."""
        return EAGER


def _ends_gradients(node: Node) -> bool:
    """Returns whether no gradient can flow through a node."""
    return isinstance(node.op, GradientBarrier) or not any(
        has_gradient(y.dtype) for y in node.outputs
    )


def _values(node: Node, mesh: Mesh) -> list[ShardedValue]:
    """Returns the outputs of a node."""
    if mesh.live:
        values = run_on_devices(node)
        if values is not None:
            return values
    # finish=False: outputs may stay partial sums, which a later op may reduce.
    program = build([node], node.outputs, mesh, finish=False)
    if mesh.abstract:
        # No shards for any result.
        return [ShardedValue(value.placement, []) for value in program.results]
    shards_of_outputs = _run_node(program, node)
    return [
        ShardedValue(value.placement, shards)
        for value, shards in zip(program.results, shards_of_outputs)
    ]


def _run_node(program: Program, node: Node) -> list[list[Any]]:
    """Runs the program of a node, and returns the shards of each output. An error that the
    node's values cause names the user's line.
    """
    try:
        return _run(program)
    except tf.errors.InvalidArgumentError as error:
        # A node in the body of a loop has added its line already.
        if "\n  from " in error.message:
            raise
        raise with_line(node, error) from None


def reshard_to(tensor: Tensor, placement: Placement) -> Sequence[Any]:
    """Returns the shards of an eager tensor in a placement, one for each position."""
    refuse_in_tf_function("the value of a tensor is taken")
    assert tensor.mesh is not None
    if tensor.sharded_value is not None and tensor.sharded_value.placement == placement:
        return tensor.sharded_value.values
    program = build(nodes=[], results=[tensor], mesh=tensor.mesh, placement=placement)
    (shards,) = _run(program)
    return shards


def run_recorded(recorded: Recorded) -> list[list[Any]]:
    """Runs a recorded function without arguments op by op, on the host, and returns the
    shards of each result, one for each position of the mesh.
    """
    return _run(build(recorded.nodes, recorded.results, recorded.mesh))


def export(tensor: Tensor) -> Any:
    """Returns the global value of an eager tensor as one TensorFlow tensor."""
    assert tensor.mesh is not None
    value = tensor.sharded_value
    if value is not None and value.is_whole:
        refuse_in_tf_function("the value of a tensor is taken")
        return next(shard for shard in value.values if shard is not None)
    replicas = reshard_to(tensor, tensor.mesh.replicated)
    return replicas[0]


def _run(program: Program) -> list[list[Any]]:
    """Runs a program, and returns the shards of each result."""
    segments = schedule(program)
    if current().check_numerics:
        return CheckingExecutor(program.mesh, segments).run(program.results)
    return PlacedExecutor(program.mesh, segments, run_directly).run(program.results)


register_operator("export", export)
