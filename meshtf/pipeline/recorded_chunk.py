"""A chunk of a pipeline in a `mtf.function`: its recorded bodies, and the results of their
calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.graph import Body, Tensor, apply
from meshtf.graph.control_flow.call import BackwardBody, backward_body
from meshtf.names import Dimension
from meshtf.ops.control.batch_means import (
    RecordedMeans,
    means_of_sums,
    stack_and_sum,
)
from meshtf.ops.control.layout_region import Relayout, relayout, stage
from meshtf.ops.control.microbatch import MICROBATCH, DeferredCall
from meshtf.ops.indexing.one_hot_and_range import range as index_range


class ForwardPass(NamedTuple):
    """The arguments and results of a chunk's forward call for one microbatch."""

    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


@dataclasses.dataclass(eq=False)
class RecordedChunk:
    """The bodies of a chunk, and the results of their calls so far.

    Attributes:
      index: the index of the chunk in the model.
      stage: the index of the stage on which the chunk runs.
      body: the recorded layers of the chunk.
      layer_arguments: the arguments of the body that are inputs of its first layer.
      outputs: the results of the body that the next chunk takes, or the loss. In the
        results, they are followed by the tensors of deferred calls.
      structure: the nested structure of the outputs.
      deferred: the calls to make once for each batch, after its last microbatch.
      means: the means over microbatches that the body asks for.
      forward_passes: {microbatch: its forward pass}.
      cotangents: {microbatch: {argument of the body: its cotangent}}.
      gradient_sums: the sums over the calls so far of the gradients of the captures.

    `record_backward` sets three more attributes:
      cotangent_indices: the indices of the outputs whose cotangents the backward body
        takes.
      backward: the recorded backward pass.
      body_with_residuals: `body` with the residuals as further results.
    """

    index: int
    stage: int
    body: Body
    layer_arguments: Sequence[Tensor]
    outputs: tuple[Tensor, ...]
    structure: Any
    deferred: list[DeferredCall]
    means: RecordedMeans
    forward_passes: dict[int, ForwardPass] = dataclasses.field(default_factory=dict)
    cotangents: dict[int, dict[Tensor, Tensor]] = dataclasses.field(
        default_factory=dict
    )
    gradient_sums: list[Tensor] = dataclasses.field(default_factory=list)

    def record_backward(self, indices: Sequence[int]) -> None:
        """Records the backward body, for cotangents of the outputs at `indices`."""
        outputs = [self.outputs[i] for i in indices]
        self.cotangent_indices = indices
        self.backward: BackwardBody = backward_body(self.body, outputs)
        self.body_with_residuals = self.backward.with_residuals(self.body)

    def outputs_of(self, microbatch: int) -> list[Tensor]:
        """Returns the outputs for a microbatch."""
        results = self.forward_passes[microbatch].results
        return list(results[: len(self.outputs)])

    def deferred_tensors_of(self, microbatch: int) -> Sequence[Tensor]:
        """Returns the tensors of deferred calls for a microbatch."""
        start = len(self.outputs)
        end = start + sum(len(entry.tensors) for entry in self.deferred)
        return self.forward_passes[microbatch].results[start:end]

    def residuals_of(self, microbatch: int) -> list[Tensor]:
        """Returns the tensors that the backward pass of a microbatch takes from its
        forward pass.
        """
        body = self.body_with_residuals
        forward = self.forward_passes[microbatch]
        body_tensors = (*body.arguments, *body.results)
        call_tensors = (*forward.arguments, *forward.results)
        tensor_of_call = dict(zip(body_tensors, call_tensors))
        return [tensor_of_call[x] for x in self.backward.residuals]


def means_of_chunks(
    chunks: Sequence[RecordedChunk], inputs: Sequence[Tensor], microbatches: int
) -> dict[Tensor, Tensor]:
    """Returns {symbolic tensor: the mean} for the means over microbatches that chunks ask for,
    such as the weight of the batch.

    They are computed before the first forward pass, by a loop over microbatches for each
    chunk with only those ops that they depend on: what layers return unchanged costs
    nothing.

    Args:
      chunks: the chunks of the model.
      inputs: the flat inputs of the first layer, and then of the loss,
        `[..., microbatch, ...]`.
      microbatches: the number of microbatches.
    """
    dim = Dimension(MICROBATCH, microbatches)
    means: dict[Tensor, Tensor] = {}
    layer_inputs = inputs
    for chunk, body in zip(chunks, _bodies_of_means(chunks)):
        index, *arguments = chunk.body.arguments
        # The last chunk also takes the inputs of the loss.
        loss_arguments = arguments[len(chunk.layer_arguments) :]
        values = dict(zip(chunk.layer_arguments, layer_inputs))
        values.update(zip(loss_arguments, inputs[len(inputs) - len(loss_arguments) :]))
        symbols = chunk.means.used_by([chunk.body])
        if body.results:
            values[index] = index_range(inputs[0].mesh, dim)
            with stage(chunk.stage):
                xs = [relayout(values[x]) for x in body.arguments]
                sums, stacks = stack_and_sum(body, xs, dim, num_sums=len(symbols))
                # Moved to this stage are the inputs, and the cotangents of the outputs.
                stacks = [apply(Relayout(), y) for y in stacks]
            means.update(zip(symbols, means_of_sums(sums, microbatches)))
            values.update(zip(body.results[len(symbols) :], stacks))
        # What no mean depends on has no value here.
        layer_inputs = [values.get(y, y) for y in chunk.outputs]
    return means


def _bodies_of_means(chunks: Sequence[RecordedChunk]) -> list[Body]:
    """Returns for each chunk the body that computes the terms of its means, and then those
    outputs that the means of later chunks depend on and that are no arguments.
    """
    bodies = []
    outputs: dict[Tensor, None] = {}
    for chunk in reversed(chunks):
        symbols = chunk.means.used_by([chunk.body])
        terms = [chunk.means.terms[x] for x in symbols]
        computed = [y for y in outputs if y not in set(chunk.body.arguments)]
        body = chunk.means.body([*terms, *computed], chunk.body.arguments)
        bodies.append(body)
        needed = {*body.arguments, *outputs}
        outputs = {}
        if chunk.index > 0:
            previous = chunks[chunk.index - 1]
            for y, x in zip(previous.outputs, chunk.layer_arguments):
                if x in needed:
                    outputs[y] = None
    return bodies[::-1]
