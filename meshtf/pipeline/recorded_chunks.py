"""A pipeline within a mtf.function: each chunk is recorded once, and called for each
microbatch.

The order of work on a stage is a chain: each call waits for the previous call on its
stage. The sums of the captures' gradients are passed from call to call, so that each is
one tensor at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Body, Spec, Tensor, context, record_body
from meshtf.graph.control_flow.call import BackwardBody, CallId, backward_body, call
from meshtf.names import Shape, accumulation_dtype, has_gradient
from meshtf.ops.control.layout_region import stage
from meshtf.ops.control.microbatch import (
    DeferredCall,
    call_with_means,
    deferred_calls,
)
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full, zeros
from meshtf.pipeline.run_chunk import Pipeline, run_chunk
from meshtf.pipeline.schedule import Schedule

_INDEX_SPEC = Spec(Shape(), "int32")


class _ForwardPass(NamedTuple):
    """The forward pass of a microbatch through a chunk."""

    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


@dataclasses.dataclass(eq=False)
class _Chunk:
    """The bodies of a chunk, and what their calls have returned so far.

    Attributes:
      index: of the chunk in the model.
      stage: the index of the stage at which it runs.
      body: its layers.
      outputs: the results of the body that the next chunk takes; deferred tensors
        follow them.
      structure: the nested structure of the outputs.
      deferred: calls to make once a batch, after its last microbatch.
      forward_passes: by microbatch.
      cotangents: by microbatch, those of the body's arguments.
      gradient_sums: of the captures of `backward`, over the calls so far.
    """

    index: int
    stage: int
    body: Body
    outputs: tuple[Tensor, ...]
    structure: Any
    deferred: list[DeferredCall]
    forward_passes: dict[int, _ForwardPass] = dataclasses.field(default_factory=dict)
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
        """Returns what the backward pass takes of the forward pass of a microbatch."""
        body = self.body_with_residuals
        forward = self.forward_passes[microbatch]
        recorded = (*body.arguments, *body.results)
        computed = (*forward.arguments, *forward.results)
        values = dict(zip(recorded, computed))
        return [values[x] for x in self.backward.residuals]


class RecordedChunks:
    """The bodies of a pipeline's chunks, and their calls.

    Args:
      pipe: the pipeline.
      example: one microbatch of the input of the first layer.
      loss_of: computes a loss from the last layer's output and `loss_inputs`; None:
        there is no loss.
      loss_inputs: one microbatch of the further arguments of `loss_of`.
    """

    def __init__(
        self,
        pipe: Pipeline,
        example: Any,
        loss_of: Callable[..., Tensor] | None,
        loss_inputs: Any,
    ) -> None:
        self.pipe = pipe
        self.loss_of = loss_of
        self.loss_inputs = loss_inputs
        self.num_loss_inputs = 0
        if loss_of is not None:
            self.num_loss_inputs = len(tf.nest.flatten(loss_inputs))
        self.mesh = tf.nest.flatten(example)[0].mesh
        # Dimensions that were derived from the microbatch; see `microbatch`.
        self.derived_dims: dict[Any, Any] = {}
        self.chunks: list[_Chunk] = []
        for k in range(len(pipe.model_chunks)):
            example = self._record(k, example)
        self.last_chunk = self.chunks[-1]
        # For each stage: the results of its latest call.
        self.latest: dict[int, tuple[Tensor, ...]] = {}

    @property
    def captures(self) -> list[Tensor]:
        """The tensors that the chunks capture, each once."""
        captures: dict[Tensor, None] = {}
        for chunk in self.chunks:
            captures.update(dict.fromkeys(chunk.body.captures))
        return list(captures)

    def forward(self, index: int, x: Any) -> Any:
        """Returns the output of the last chunk for microbatch `index`."""
        flat = tf.nest.flatten(x)
        for chunk in self.chunks:
            arguments = [self._index_tensor(index), *flat]
            results = self._call(
                chunk, CallId(chunk.index, index), chunk.body, arguments
            )
            chunk.forward_passes[index] = _ForwardPass((), results)
            flat = chunk.outputs_of(index)
        return tf.nest.pack_sequence_as(self.last_chunk.structure, flat)

    def finish(self) -> None:
        """Makes the deferred calls of all chunks, after the last microbatch."""
        num_microbatches = self.pipe.microbatches
        for chunk in self.chunks:
            tensors = [chunk.deferred_tensors_of(m) for m in range(num_microbatches)]
            sums = [add_n(list(terms)) for terms in zip(*tensors)]
            call_with_means(chunk.deferred, sums, num_microbatches)

    def run(
        self, inputs: Sequence[Sequence[Tensor]], schedule: Schedule
    ) -> tuple[Tensor, list[list[Tensor | None]], list[Tensor | None]]:
        """Runs all microbatches through all chunks, forwards and backwards.

        Args:
          inputs: for each microbatch the tensors that the first chunk takes, then those
            of `loss_inputs`.
          schedule: the order of work.

        Returns:
          (loss, cotangents of inputs, cotangents of captures).
        """
        self._record_backwards()
        for task in schedule.order():
            chunk = self.chunks[schedule.model_chunk(task)]
            m = task.microbatch
            if task.kind == "forward":
                self._forward(chunk, m, inputs[m])
            else:
                self._backward(chunk, m)
        self.finish()
        microbatches = range(len(inputs))
        losses = []
        for m in microbatches:
            losses += self.last_chunk.outputs_of(m)
        mean_loss = add_n(losses) * (1.0 / len(losses))
        input_cotangents = [self._input_cotangents(m) for m in microbatches]
        return mean_loss, input_cotangents, self._capture_cotangents()

    def _record(self, k: int, example: Any) -> Any:
        """Records chunk k on an example of its input.

        Returns:
          An example of its output: the results of its body, in the output's structure.
        """
        pipe = self.pipe
        stage_index = pipe.stage_of(k)
        flat = tf.nest.flatten(example)
        loss_of = None
        loss_inputs = []
        if k == len(pipe.model_chunks) - 1 and self.loss_of is not None:
            loss_of = self.loss_of
            loss_inputs = tf.nest.flatten(self.loss_inputs)
        recorded: list[Any] = []

        def run(index: Tensor, *xs: Tensor) -> Sequence[Tensor]:
            def chunk(*xs: Tensor) -> Any:
                layer_inputs = list(xs[: len(flat)])
                x = tf.nest.pack_sequence_as(example, layer_inputs)
                if loss_of is None:
                    return run_chunk(pipe, k, index, x, self.derived_dims)
                rest = tf.nest.pack_sequence_as(self.loss_inputs, list(xs[len(flat) :]))
                with stage(stage_index):
                    return run_chunk(
                        pipe, k, index, x, self.derived_dims, loss_of, rest
                    )

            run_layers = chunk
            if pipe.recompute:
                run_layers = recompute(chunk)
            with deferred_calls() as deferred:
                output = run_layers(*xs)
            recorded.extend([output, deferred])
            deferred_tensors = [x for entry in deferred for x in entry.tensors]
            return [*tf.nest.flatten(output), *deferred_tensors]

        with context(stage=stage_index):
            specs = [x.spec for x in (*flat, *loss_inputs)]
            body = record_body(run, [_INDEX_SPEC, *specs])
        output, deferred = recorded
        num_outputs = len(tf.nest.flatten(output))
        outputs = body.results[:num_outputs]
        structure = tf.nest.map_structure(lambda x: 0, output)
        chunk = _Chunk(k, stage_index, body, outputs, structure, deferred)
        self.chunks.append(chunk)
        return tf.nest.pack_sequence_as(output, list(outputs))

    def _record_backwards(self) -> None:
        """Records the backward bodies, from the last chunk to the first one, and makes
        the initial gradient sums.

        A chunk on which the loss does not depend has a backward body without results. A
        variable on which the loss does not depend has no gradient then, as without a
        pipeline, so that an optimizer does not change it.
        """
        for chunk in reversed(self.chunks):
            outputs = chunk.outputs
            indices = [i for i, y in enumerate(outputs) if has_gradient(y.dtype)]
            if chunk is not self.last_chunk:
                with_cotangents = set(self._next_chunk(chunk).backward.arguments)
                next_arguments = self._next_arguments(chunk)
                indices = [i for i in indices if next_arguments[i] in with_cotangents]
            chunk.record_backward(indices)
        for chunk in self.chunks:
            chunk.gradient_sums = self._zeros(chunk)

    def _next_chunk(self, chunk: _Chunk) -> _Chunk:
        return self.chunks[chunk.index + 1]

    def _next_arguments(self, chunk: _Chunk) -> Sequence[Tensor]:
        """Returns the arguments of the next chunk's body that take the outputs of a
        chunk.
        """
        _index, *arguments = self._next_chunk(chunk).body.arguments
        return arguments[: len(chunk.outputs)]

    def _index_tensor(self, index: int) -> Tensor:
        """Returns the index of a microbatch as an int32 scalar."""
        with context(stage=None):
            return full(self.mesh, "", index, "int32")

    def _call(
        self, chunk: _Chunk, call_id: CallId, body: Body, arguments: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Calls a body at the stage of its chunk, after this stage's previous call."""
        previous = self.latest.get(chunk.stage, ())
        with stage(chunk.stage):
            results = call(body, arguments, previous, call_id=call_id)
        self.latest[chunk.stage] = results
        return results

    def _zeros(self, chunk: _Chunk) -> list[Tensor]:
        """Returns the initial gradient sums of the captures of a chunk."""
        sums = []
        with stage(chunk.stage):
            for x in chunk.backward.captures:
                dtype = accumulation_dtype(x.dtype)
                sums.append(zeros(self.mesh, x.shape, dtype))
        return sums

    def _forward(self, chunk: _Chunk, m: int, inputs: Sequence[Tensor]) -> None:
        """Calls a chunk on microbatch m, for which `inputs` are those of the pipeline."""
        num_layer_inputs = len(inputs) - self.num_loss_inputs
        if chunk.index == 0:
            xs = list(inputs[:num_layer_inputs])
        else:
            xs = self.chunks[chunk.index - 1].outputs_of(m)
        if chunk is self.last_chunk:
            xs += inputs[num_layer_inputs:]
        arguments = (self._index_tensor(m), *xs)
        call_id = CallId(chunk.index, m)
        results = self._call(chunk, call_id, chunk.body_with_residuals, arguments)
        chunk.forward_passes[m] = _ForwardPass(arguments, results)

    def _backward(self, chunk: _Chunk, m: int) -> None:
        """Calls the backward body of a chunk on microbatch m.

        Its results are the cotangents of the arguments that have some, then the new
        gradient sums.
        """
        backward = chunk.backward
        cotangents: dict[Tensor, Tensor] = {}
        chunk.cotangents[m] = cotangents
        if not backward.body.results:
            return
        arguments = [
            *chunk.residuals_of(m),
            *self._output_cotangents(chunk, m),
            *chunk.gradient_sums,
        ]
        call_id = CallId(chunk.index, m, backward=True)
        results = iter(self._call(chunk, call_id, backward.body, arguments))
        with_cotangents = set(backward.arguments)
        for x in chunk.body.arguments:
            if x in with_cotangents:
                cotangents[x] = next(results)
        chunk.gradient_sums = list(results)

    def _output_cotangents(self, chunk: _Chunk, m: int) -> list[Tensor]:
        """Returns the cotangents of the outputs of a chunk for microbatch m: of the
        loss, or from the next chunk.
        """
        indices = chunk.cotangent_indices
        if chunk is self.last_chunk:
            weight = 1.0 / self.pipe.microbatches  # the loss is a mean
            dtypes = [chunk.outputs[i].dtype for i in indices]
            with stage(chunk.stage):
                return [full(self.mesh, "", weight, dtype) for dtype in dtypes]
        cotangents = self._next_chunk(chunk).cotangents[m]
        next_arguments = self._next_arguments(chunk)
        return [cotangents[next_arguments[i]] for i in indices]

    def _input_cotangents(self, m: int) -> list[Tensor | None]:
        """Returns the cotangents of the inputs of the first layer, then those of
        `loss_inputs`, for microbatch m.
        """
        start_chunk = self.chunks[0]
        _index, *layer_arguments = start_chunk.body.arguments
        start_cotangents = start_chunk.cotangents[m]
        cotangents = [start_cotangents.get(x) for x in layer_arguments]
        if start_chunk is not self.last_chunk:
            arguments = self.last_chunk.body.arguments
            loss_arguments = arguments[len(arguments) - self.num_loss_inputs :]
            loss_cotangents = self.last_chunk.cotangents[m]
            cotangents += [loss_cotangents.get(x) for x in loss_arguments]
        return cotangents

    def _capture_cotangents(self) -> list[Tensor | None]:
        """Returns the cotangents of captures, those of several chunks added up."""
        totals: dict[Tensor, Tensor] = {}
        for chunk in self.chunks:
            for x, total in zip(chunk.backward.captures, chunk.gradient_sums):
                with context(primals=(x,)):
                    totals[x] = totals[x] + total if x in totals else total
        return [
            cast(totals[x], x.dtype) if x in totals else None for x in self.captures
        ]
