"""Where optimizers work: on the slices that their slots hold.

    with lying(variable.slot_layout):
      grad = finished(grad)                 # its sums finished, and cut as the slots are
      variable.assign(variable - grad * rate)

Where slots are cut and their variable is not (ZeRO-1), `finished` is one
reduce_scatter, the work between is on slices, and the assignment is one all_gather: the
bytes of one all_reduce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshtf.graph import Tensor, apply, context
from meshtf.mesh import Layout
from meshtf.ops.variables.optimizer_updates import ReducePartialSums


@contextlib.contextmanager
def lying(layout: Layout) -> Iterator[None]:
    """Lays out what is made inside by these rules alone."""
    with context(region=Layout.changes("*:").then(layout)):
        yield


def finished(x: Tensor) -> Tensor:
    """Returns x with its sums finished, once for all that reads it, where the rules in
    force say.
    """
    return apply(ReducePartialSums(), x)


def beside_slots(grad: Tensor) -> Tensor:
    """Returns a gradient with its sums finished where an optimizer's slots lie, if it
    can lie there.

    The rules for slots are those of the region in which the gradient was made.
    """
    if grad.mesh is None:
        return finished(grad)
    layout = grad.mesh.layout_in(grad.node.region, "slot")
    if grad.mesh.place(grad.shape, layout)[1]:
        return finished(grad)
    with lying(layout):
        return finished(grad)
