"""Functions with which an optimizer computes in the layout of its slots: the variables with
its state, such as moving averages.

    with use_layout(variable.slot_layout):
      grad = reduce_partial_sums(grad)      # sharded as the slots are
      variable.assign(variable - grad * rate)

If slots are sharded and their variable is replicated (ZeRO-1), `reduce_partial_sums` is one
reduce_scatter, the computations are on shards, and the assignment is one all_gather. These
two collectives together exchange the bytes of one all_reduce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshtf.graph import Tensor, apply, context
from meshtf.graph.op_kinds import ConversionOp, ElementwiseOp
from meshtf.mesh import Layout
from meshtf.ops.elementwise.where_cast_clip import Cast, cast
from meshtf.ops.variables.optimizer_updates import ReducePartialSums


@contextlib.contextmanager
def use_layout(layout: Layout) -> Iterator[None]:
    """Within the context, new tensors are sharded by the rules of `layout` only."""
    # "*:" removes the rules of the mesh's layout for all dimensions.
    with context(region=Layout.changes("*:").then(layout)):
        yield


def reduce_partial_sums(x: Tensor) -> Tensor:
    """Returns x with its partial sums reduced, in the layout of the context. All ops that
    read the result share the one reduction.

    With `Mesh(reduce_dtype="bfloat16")` each partial sum of float32 is rounded before.
    """
    if not _is_rounded(x):
        return apply(ReducePartialSums(), x)
    assert x.mesh is not None
    terms = apply(Cast(x.dtype, x.mesh.reduce_dtype, rounds_terms=True), x)
    return cast(apply(ReducePartialSums(), terms), x.dtype)


def rounded_gradient(grad: Tensor) -> Tensor:
    """Returns a gradient, reduced in the data type of the mesh if that is a narrower one. One that
    was reduced, and perhaps scaled since, stays as it is.
    """
    if not _is_rounded(grad):
        return grad
    node = grad.node
    while isinstance(node.op, ElementwiseOp | ConversionOp) and node.inputs:
        node = node.inputs[0].node
    is_reduced = isinstance(node.op, ReducePartialSums)
    return grad if is_reduced else to_slot_layout(grad)


def _is_rounded(x: Tensor) -> bool:
    """Returns whether devices add up partial sums of x in a narrower data type than its own."""
    return (
        x.dtype == "float32" and x.mesh is not None and x.mesh.reduce_dtype != x.dtype
    )


def to_slot_layout(grad: Tensor) -> Tensor:
    """Returns a gradient with its partial sums reduced, in the layout of an optimizer's
    slots if that layout can shard the gradient's shape.

    The layout of slots is that of the layout region (a `with mtf.layout(...)` block) in
    which the gradient was computed.
    """
    if grad.mesh is None:
        return reduce_partial_sums(grad)
    layout = grad.mesh.layout_in(grad.node.region, "slot")
    _, conflicts = grad.mesh.place(grad.shape, layout)
    if conflicts:
        return reduce_partial_sums(grad)
    with use_layout(layout):
        return reduce_partial_sums(grad)
