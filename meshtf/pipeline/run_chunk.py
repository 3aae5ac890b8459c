"""Runs the layers of one chunk of a pipeline on one microbatch, eagerly or while a
function is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshtf.graph import Tensor
from meshtf.graph.arguments import as_scalar, as_tensor
from meshtf.names import nested
from meshtf.ops.control.layout_region import stage
from meshtf.ops.control.microbatch import microbatch
from meshtf.pipeline.layer_variables import layer_name


class Pipeline(Protocol):
    """The attributes of `GPipe` that its chunks need.

    Attributes:
      model_chunks: the layers of each chunk of the model.
      stages: the number of stages.
      microbatches: the number of microbatches in a batch.
      dim: the dimension that is split into microbatches.
      recompute: whether the backward pass computes each chunk again from its input.
    """

    model_chunks: list[list[Callable[..., Any]]]
    stages: int
    microbatches: int
    dim: str
    recompute: bool

    def stage_of(self, chunk: int) -> int:
        """Returns the index of the stage on which a chunk of the model runs."""


def run_chunk(
    pipe: Pipeline,
    chunk: int,
    index: Any,
    x: Any,
    derived_dims: dict[Any, Any],
    loss_of: Callable[..., Tensor] | None = None,
    loss_inputs: Sequence[Any] = (),
) -> Any:
    """Returns the output of a chunk's last layer for a microbatch, or with `loss_of` its
    loss.

    Args:
      pipe: the pipeline.
      chunk: the index of the chunk in the model.
      index: the index of the microbatch: an int, or an int32 tensor.
      x: the input of the chunk's first layer.
      derived_dims: the dimensions that earlier chunks have made of `pipe.dim` in this
        microbatch by flattening and unflattening, as `microbatch` records them; those of
        this chunk are added.
      loss_of: the function that computes the loss from the output; None: the output is
        returned.
      loss_inputs: the further arguments of `loss_of`.
    """
    with (
        stage(pipe.stage_of(chunk)),
        microbatch(
            pipe.dim,
            num_microbatches=pipe.microbatches,
            index=index,
            digits_by_dim=derived_dims,
        ),
    ):
        for layer in pipe.model_chunks[chunk]:
            x = layer(x)
        if loss_of is not None:
            return as_scalar("the loss of a pipeline", loss_of(x, *loss_inputs))
        name = layer_name(pipe.model_chunks[chunk][-1], chunk)
        description = f"what layer {name!r} of a pipeline returns"
        return nested.map_structure(lambda y: as_tensor(description, y), x)
