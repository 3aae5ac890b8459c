"""Whether what a layer records depends on the size of its batch as a number.

    batch_size = x.shape["batch"]             # in a microbatch, that of the microbatch
    loss = mtf.reduce_sum(losses) / batch_size

A layer of a pipeline is recorded for a microbatch. Python has computed such numbers by then, and no
op tells where they are from. So the layer is recorded for another size as well: its numbers must be
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Body, Node, Op
from meshtf.graph.op_kinds import ControlFlowOp

_SCALAR_TYPES = (bool, int, float, complex)


def check_same_scalars(
    nodes: Sequence[Node], other_nodes: Sequence[Node], dim: str, way_out: str
) -> None:
    """Raises PlanError if recorded ops differ in more than the size of a dimension.

    Args:
      nodes: the nodes of a function.
      other_nodes: those of the same function, recorded for another size of the dimension.
      dim: the name of the dimension.
      way_out: what errors say.
    """
    for node, other_node in zip(nodes, other_nodes):
        if _scalars(node.op) != _scalars(other_node.op):
            raise _refusal(node, dim, way_out)
    if len(nodes) != len(other_nodes):
        raise _refusal(nodes[-1], dim, way_out)


def all_nodes(body: Body) -> Iterator[Node]:
    """Yields the nodes of a body, and those of bodies within."""
    for node in body.nodes:
        yield node
        if isinstance(node.op, ControlFlowOp):
            for inner in node.op.bodies:
                yield from all_nodes(inner)


def _scalars(op: Op) -> tuple[Any, ...]:
    """Returns the kind of an op, and its attributes that are numbers."""
    return (type(op), *[x for x in vars(op).values() if isinstance(x, _SCALAR_TYPES)])


def _refusal(node: Node, dim: str, way_out: str) -> PlanError:
    """Returns the error of a node that depends on the size of the batch."""
    return PlanError(
        explain_error(
            f"{node.op.display_name} depends on the size of {dim!r} as a number, which is another "
            "one in each microbatch.",
            outputs=", ".join(repr(y.shape) for y in node.outputs),
            source=node.source,
            way_out=f"Take means with mtf.reduce_mean. {way_out}",
        )
    )
