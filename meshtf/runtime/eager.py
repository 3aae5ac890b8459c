"""Eager mode: each op is planned and run at once, so that tensors have values to look
at.

Example:

    set_eager_executor(EAGER)         # done once, by meshtf.function
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import MeshError, explain_error
from meshtf.graph import (
    OPERATORS,
    GradientBarrier,
    Node,
    Op,
    ShardedValue,
    Tensor,
    WriteOp,
    current,
)
from meshtf.graph.used_layouts import layout_use, record_layout_use
from meshtf.mesh import Mesh, Placement
from meshtf.names import has_gradient
from meshtf.partition import Program, build, schedule
from meshtf.runtime.placed.executor import Placed
from meshtf.runtime.placed.failure_report import with_line
from meshtf.runtime.placed.numerics_check import Checked
from meshtf.runtime.placed.segment_functions import run_directly
from meshtf.runtime.storage.write_times import written


class Eager:
    """The executor outside of functions."""

    mesh: Mesh | None = None

    @property
    def owner(self) -> Eager:
        """Itself: all that runs outside of functions is in one gradient."""
        return self

    def recorder_of(self, op: Op) -> Eager:
        """Returns the executor that nodes of an op go to."""
        return self

    def find(self, op: Op) -> Node | None:
        """Returns nothing: every read reads."""
        return None

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Runs a node, and returns outputs with their values; on an abstract mesh, with
        their places alone.
        """
        if node.mesh is None:
            raise MeshError(
                explain_error(
                    "an op outside of a function has no mesh.",
                    **{"from": node.source},
                    way_out="Pass the mesh.",
                )
            )
        if not node.primals:
            record_layout_use(node.mesh, layout_use([node]))
        program = build([node], node.outputs, node.mesh, finish=False)
        values = (
            [[]] * len(program.results)
            if node.mesh.abstract
            else _run_node(program, node)
        )
        if isinstance(node.op, WriteOp):
            for store in node.op.variables:
                written(store)
        if node.recompute_group is None and _ends_gradients(node):
            node = node.without_inputs()  # no longer of use, and perhaps large
        for y, value, slices in zip(node.outputs, program.results, values):
            y.sharded_value = ShardedValue(value.placement, slices)
        return node.outputs


EAGER = Eager()


class InPlace(Eager):
    """Runs the ops of a function one by one, on its mesh."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh
        self.outer = EAGER

    @property
    def owner(self) -> Eager:
        """The executor outside: gradients find nodes there as well."""
        return EAGER


def _ends_gradients(node: Node) -> bool:
    return isinstance(node.op, GradientBarrier) or not any(
        has_gradient(y.dtype) for y in node.outputs
    )


def _run_node(program: Program, node: Node) -> list[list[Any]]:
    """Runs a node; what bad values lead to tells its line."""
    try:
        return _run(program)
    except tf.errors.InvalidArgumentError as error:
        if "\n  from " in error.message:  # what a loop's body has told already
            raise
        raise with_line(node, error) from None


def bring(tensor: Tensor, placement: Placement) -> list[Any]:
    """Returns the slices of an eager tensor in a placement."""
    assert tensor.mesh is not None
    if tensor.sharded_value is not None and tensor.sharded_value.placement == placement:
        return tensor.sharded_value.values
    return _run(build([], [tensor], tensor.mesh, placement=placement))[0]


def export(tensor: Tensor) -> Any:
    """Returns an eager tensor as one whole TensorFlow tensor."""
    assert tensor.mesh is not None
    return bring(tensor, tensor.mesh.replicated)[0]


def _run(program: Program) -> list[list[Any]]:
    segments = schedule(program)
    if current().check_numerics:
        return Checked(program.mesh, segments).run(program.results)
    return Placed(program.mesh, segments, run_directly).run(program.results)


OPERATORS["export"] = export
