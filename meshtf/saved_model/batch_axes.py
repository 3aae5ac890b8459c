"""Whether a recorded function maps along a dimension, so that a batch of any size may be
computed in chunks.

    axes = batch_axes("batch", recording, ["x"], ["y"])    # PlanError: an op does not map
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.function.recording import Recording
from meshtf.graph import Tensor
from meshtf.names import Dimension
from meshtf.ops.loops.mapped_dimension import MappedDimension
from meshtf.saved_model.sizes import BatchAxes


def batch_axes(
    dim_name: str,
    recording: Recording,
    input_names: Sequence[str],
    output_names: Sequence[str],
    way_out: str = "",
    draws: bool = False,
) -> BatchAxes:
    """Returns the axes of a dimension along which a function maps.

    Args:
      dim_name: the name of the dimension.
      recording: the recorded function.
      input_names: the name of each argument.
      output_names: the name of each result.
      way_out: what errors say of an op that does not map; "": that of an export.
      draws: whether each chunk has random numbers of its own; if not, they are refused.

    Raises:
      PlanError: an op does not map along the dimension, or a result lacks it.
      ShapeError: no argument has the dimension, or it has no entries.
    """
    recorded = recording.recorded
    shapes = [store.spec.shape for store in recording.arguments]
    sizes = {shape[dim_name] for shape in shapes if dim_name in shape.names}
    if not sizes or 0 in sizes:
        raise ShapeError(
            explain_error(
                f"no argument has entries along {dim_name!r}, which any_size names.",
                arguments=", ".join(map(repr, shapes)) or "none",
                way_out='Name a dimension of an argument: any_size="batch".',
            )
        )
    (size,) = sizes  # one function has one size of each name
    dim = Dimension(dim_name, size)
    mapped = MappedDimension(dim, recording.arguments, way_out, draws)
    mapped.follow(recorded.nodes)
    inputs = {}
    for name, shape in zip(input_names, shapes):
        if dim_name in shape.names:
            inputs[name] = shape.names.index(dim_name)
    outputs = {
        name: _axis_in(mapped, y, name, way_out)
        for name, y in zip(output_names, recorded.results)
    }
    return BatchAxes(inputs, outputs, chunk=size)


def _axis_in(mapped: MappedDimension, result: Tensor, name: str, way_out: str) -> int:
    """Returns the axis of the dimension in a result of the function, called `name`.

    Raises:
      PlanError: the result lacks it.
    """
    dim = mapped.name_in(result)
    if dim is None:
        raise PlanError(
            explain_error(
                f"the result {name!r} has no {mapped.dim.name!r}, so it is not made of the "
                "results of chunks.",
                result=repr(result.shape),
                source=result.node.source,
                way_out=way_out or "Return it from another signature.",
            )
        )
    return result.shape.names.index(dim)
