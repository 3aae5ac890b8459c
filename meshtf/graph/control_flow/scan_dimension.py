"""The names of dimensions that loops scan.

    name = unused_dim_name(body, "layers")     # "layers", or ".layers" if body uses it

The loop that computes the gradient needs tensors of the body, stacked along this dimension.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.graph.control_flow.body import Body
from meshtf.graph.control_flow.loop import Loop
from meshtf.graph.op_kinds import ControlFlowOp

TICK = ".tick"  # the dimension of the ticks of a pipeline
REPEAT = ".repeat"  # that of the groups of layers of one stage


def unused_dim_name(body: Body, name: str) -> str:
    """Returns a name for the dimension that a loop scans: `name`, with a "." in front if a
    tensor of the body has a dimension of that name.

    For the gradient, tensors of the body are stacked along the new dimension, so none of
    them may have the name already. Users cannot write names with a ".".
    """
    used_names = set(_dim_names(body))
    while name in used_names:
        name = f".{name}"
    return name


def _dim_names(body: Body) -> Iterator[str]:
    """Yields the names of all dimensions in a body and in the bodies within it."""
    tensors = [*body.arguments]
    for node in body.nodes:
        tensors += node.outputs
    for tensor in tensors:
        yield from tensor.shape.names
    for node in body.nodes:
        op = node.op
        if isinstance(op, Loop) and op.dim is not None:
            yield op.dim.name
        if isinstance(op, ControlFlowOp):
            for inner in op.bodies:
                yield from _dim_names(inner)
