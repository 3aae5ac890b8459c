"""The specs of tensors that a loop stacks.

    stacked_spec(entry.spec, Dimension("layers", 12))

The stacked tensor has the shape `[layers, *entry.shape]`.
"""

from __future__ import annotations

from meshtf.errors import ShapeError, explain_error
from meshtf.graph.op import Spec
from meshtf.names import Dimension, Shape, Source


def stacked_spec(spec: Spec, dim: Dimension, source: Source | None = None) -> Spec:
    """Returns the spec `[dim, *spec.shape]` of a stacked output.

    Args:
      spec: the spec of one entry.
      dim: the dimension to stack along.
      source: the user's line for the error; None: the error names no line.

    Raises:
      ShapeError: the entry already has a dimension of this name.
    """
    if dim.name in spec.shape:
        raise ShapeError(
            explain_error(
                f'a loop stacks along "{dim.name}", but its body has a '
                f"{spec.shape!r} already.",
                **({} if source is None else {"from": source}),
                way_out="Give the loop another dim=, or rename the dimension in the "
                "body: mtf.rename.",
            )
        )
    return Spec(Shape([dim, *spec.shape]), spec.dtype)
