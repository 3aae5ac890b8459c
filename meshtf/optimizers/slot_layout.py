"""Optimizers compute in the layout of their slots.

    with lying(variable.slot_layout):
      grad = finished(grad)                 # its partial sums reduced, sharded as the slots are
      variable.assign(variable - grad * rate)

If slots are sharded and their variable is replicated (ZeRO-1), `reduce_partial_sums` is one
reduce_scatter, the computations are on shards, and the assignment is one all_gather:
together the bytes of one all_reduce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshtf.graph import Tensor, apply, context
from meshtf.mesh import Layout
from meshtf.ops.variables.optimizer_updates import ReducePartialSums


@contextlib.contextmanager
def use_layout(layout: Layout) -> Iterator[None]:
    """Within the context, tensors are sharded by the rules of `layout` only."""
    with context(region=Layout.changes("*:").then(layout)):
        yield


def reduce_partial_sums(x: Tensor) -> Tensor:
    """Returns x with its partial sums reduced, once for all consumers, in the layout of
    the context.
    """
    return apply(ReducePartialSums(), x)


def to_slot_layout(grad: Tensor) -> Tensor:
    """Returns a gradient with its partial sums reduced, in the layout of an optimizer's
    slots if its shape permits.

    The rules for slots are those of the region in which the gradient was computed.
    """
    if grad.mesh is None:
        return reduce_partial_sums(grad)
    layout = grad.mesh.layout_in(grad.node.region, "slot")
    if grad.mesh.place(grad.shape, layout)[1]:
        return reduce_partial_sums(grad)
    with use_layout(layout):
        return reduce_partial_sums(grad)
