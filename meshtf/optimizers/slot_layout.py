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
from meshtf.mesh import Layout
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
    """
    return apply(ReducePartialSums(), x)


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
