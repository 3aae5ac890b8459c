"""A pipeline in a `mtf.function`: each chunk of layers is recorded once, as a body, and
called for each microbatch.

The calls of a stage form a chain: each call waits for the previous call on its stage, so
they run in the order of the schedule. The captures of a body are the outer tensors that it
reads, such as parameters. The sums of their gradients are passed from call to call, so that
each sum is only one tensor at any time. The residuals are the tensors of a forward pass that
its backward pass reads. Deferred calls, such as updates of running means, are made once for
each batch, with the means of their tensors over the microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshtf.graph import Body, Spec, Tensor, context, record_body
from meshtf.graph.control_flow.call import CallId, call
from meshtf.names import Shape, accumulation_dtype, has_gradient, nested
from meshtf.ops.control.batch_means import RecordedMeans
from meshtf.ops.control.layout_region import stage
from meshtf.ops.control.microbatch import call_with_means, deferred_calls
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full, zeros
from meshtf.pipeline.recorded_chunk import (
    ForwardPass,
    RecordedChunk,
    means_of_chunks,
)
from meshtf.pipeline.run_chunk import Pipeline, run_chunk
from meshtf.pipeline.schedule import Schedule

_INDEX_SPEC = Spec(Shape(), "int32")


class RecordedChunks:
    """The bodies of a pipeline's chunks, and their calls.

    Args:
      pipe: the pipeline.
      example: one microbatch of the input of the first layer.
      loss_of: the function that computes the loss from the last layer's output and
        `loss_inputs`; None: there is no loss.
      loss_inputs: one microbatch of the further arguments of `loss_of`.
      stacked_inputs: the flat inputs of the first layer, and then of the loss, of all
        microbatches: `[..., microbatch, ...]`.
    """

    def __init__(
        self,
        pipe: Pipeline,
        example: Any,
        loss_of: Callable[..., Tensor] | None,
        loss_inputs: Any,
        stacked_inputs: Sequence[Tensor],
    ) -> None:
        self.pipe = pipe
        self.loss_of = loss_of
        self.loss_inputs = loss_inputs
        self.num_loss_inputs = 0
        if loss_of is not None:
            self.num_loss_inputs = len(nested.flatten(loss_inputs))
        self.mesh = nested.flatten(example)[0].mesh
        # Dimensions that layers have made of the microbatch; see `run_chunk`.
        self.derived_dims: dict[Any, Any] = {}
        self.chunks: list[RecordedChunk] = []
        for k in range(len(pipe.model_chunks)):
            # The output of a chunk is the example on which the next chunk is recorded.
            example = self._record_forward_body(k, example)
        self.last_chunk = self.chunks[-1]
        # {capture of chunks that stands for a mean over microbatches: the mean}.
        self.means = means_of_chunks(self.chunks, stacked_inputs, pipe.microbatches)
        # {stage: results of its latest call}; the stage's next call waits for them.
        self.latest_results: dict[int, tuple[Tensor, ...]] = {}

    @property
    def captures(self) -> list[Tensor]:
        """The tensors that the chunks capture, each once."""
        return [self.means.get(x, x) for x in self._symbolic_captures]

    @property
    def _symbolic_captures(self) -> dict[Tensor, None]:
        """The captures of the recorded bodies, each once."""
        captures: dict[Tensor, None] = {}
        for chunk in self.chunks:
            captures.update(dict.fromkeys(chunk.body.captures))
        return captures

    def forward(self, index: int, x: Any) -> Any:
        """Returns the output of the last chunk for microbatch `index`."""
        flat = nested.flatten(x)
        for chunk in self.chunks:
            arguments = [self._index_tensor(index), *flat]
            call_id = CallId(chunk.index, microbatch=index)
            results = self._call(chunk, call_id, chunk.body, arguments)
            # Only a backward pass, as in `run`, needs the arguments of a forward pass.
            chunk.forward_passes[index] = ForwardPass(arguments=(), results=results)
            flat = chunk.outputs_of(index)
        return nested.pack_sequence_as(self.last_chunk.structure, flat)

    def make_deferred_calls(self) -> None:
        """Makes the deferred calls of all chunks, after the last microbatch."""
        num_microbatches = self.pipe.microbatches
        for chunk in self.chunks:
            tensors = [chunk.deferred_tensors_of(m) for m in range(num_microbatches)]
            sums = [add_n(list(terms)) for terms in zip(*tensors)]
            call_with_means(chunk.deferred, sums, num_microbatches)

    def run(
        self, inputs: Sequence[Sequence[Tensor]], schedule: Schedule
    ) -> tuple[Tensor, list[list[Tensor | None]], list[Tensor | None]]:
        """Runs the forward and backward passes of all microbatches through all chunks.

        Args:
          inputs: for each microbatch the flat inputs of the first layer, followed by the
            flat loss inputs.
          schedule: the order of the tasks.

        Returns:
          (mean loss, cotangents of `inputs`, cotangents of `captures`); None for a tensor
          on which the loss does not depend.
        """
        self._record_backward_bodies()
        for task in schedule.order():
            chunk = self.chunks[schedule.model_chunk(task)]
            m = task.microbatch
            if task.kind == "forward":
                self._run_forward(chunk, m, inputs[m])
            else:
                self._run_backward(chunk, m)
        self.make_deferred_calls()
        microbatches = range(len(inputs))
        losses = []
        for m in microbatches:
            losses += self.last_chunk.outputs_of(m)
        mean_loss = add_n(losses) * (1.0 / len(losses))
        input_cotangents = [self._input_cotangents(m) for m in microbatches]
        return mean_loss, input_cotangents, self._capture_cotangents()

    def _record_forward_body(self, k: int, example: Any) -> Any:
        """Records chunk k on an example of its input.

        Returns:
          An example of the chunk's output: the results of its body, in the structure of
          the output.
        """
        pipe = self.pipe
        stage_index = pipe.stage_of(k)
        layer_inputs = nested.flatten(example)
        num_layer_inputs = len(layer_inputs)
        is_last = k == len(pipe.model_chunks) - 1
        loss_of = self.loss_of if is_last else None
        loss_inputs = () if loss_of is None else self.loss_inputs
        # Recording `run` appends the output, the deferred calls and the means.
        output_and_deferred: list[Any] = []

        def run(index: Tensor, *xs: Tensor) -> Sequence[Tensor]:
            """Returns the outputs of the chunk, then the tensors of deferred calls."""

            def run_layers(*xs: Tensor) -> Any:
                x = nested.pack_sequence_as(example, list(xs[:num_layer_inputs]))
                labels = nested.pack_sequence_as(loss_inputs, xs[num_layer_inputs:])
                return run_chunk(
                    pipe, k, index, x, self.derived_dims, loss_of, loss_inputs=labels
                )

            if pipe.recompute:
                run_layers = recompute(run_layers)
            means = RecordedMeans()
            with deferred_calls() as deferred, context(batch_means=means):
                output = run_layers(*xs)
            output_and_deferred.extend([output, deferred, means])
            if loss_of is not None:
                means.warn_of_divisors(output)
            deferred_tensors = [x for entry in deferred for x in entry.tensors]
            return [*nested.flatten(output), *deferred_tensors]

        with context(stage=stage_index):
            specs = [x.spec for x in (*layer_inputs, *nested.flatten(loss_inputs))]
            body = record_body(run, [_INDEX_SPEC, *specs])
        output, deferred, means = output_and_deferred
        outputs = body.results[: len(nested.flatten(output))]
        chunk = RecordedChunk(
            index=k,
            stage=stage_index,
            body=body,
            layer_arguments=body.arguments[1 : 1 + num_layer_inputs],
            outputs=outputs,
            structure=nested.map_structure(lambda x: 0, output),  # without tensors
            deferred=deferred,
            means=means,
        )
        self.chunks.append(chunk)
        return nested.pack_sequence_as(output, list(outputs))

    def _record_backward_bodies(self) -> None:
        """Records the backward bodies, from the last chunk to the first one, and the
        initial gradient sums.

        The backward body of a chunk on which the loss does not depend has no results. So a
        variable on which the loss does not depend has no gradient, as without a pipeline,
        and an optimizer does not change it.
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

    def _next_chunk(self, chunk: RecordedChunk) -> RecordedChunk:
        """Returns the chunk that takes the outputs of a chunk."""
        return self.chunks[chunk.index + 1]

    def _next_arguments(self, chunk: RecordedChunk) -> Sequence[Tensor]:
        """Returns the arguments of the next chunk's body that take the outputs of a
        chunk.
        """
        _index, *arguments = self._next_chunk(chunk).body.arguments
        return arguments[: len(chunk.outputs)]

    def _index_tensor(self, index: int) -> Tensor:
        """Returns the index of a microbatch as an int32 scalar."""
        with context(stage=None):
            return full(self.mesh, shape="", value=index, dtype="int32")

    def _call(
        self,
        chunk: RecordedChunk,
        call_id: CallId,
        body: Body,
        arguments: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """Calls a body at the stage of its chunk, after this stage's previous call."""
        previous = self.latest_results.get(chunk.stage, ())
        with stage(chunk.stage):
            results = call(
                body,
                arguments,
                wait_for=previous,
                captures=self.means,
                call_id=call_id,
            )
        self.latest_results[chunk.stage] = results
        return results

    def _zeros(self, chunk: RecordedChunk) -> list[Tensor]:
        """Returns the initial gradient sums of the captures of a chunk, which are zeros."""
        sums = []
        with stage(chunk.stage):
            for x in chunk.backward.captures:
                dtype = accumulation_dtype(x.dtype)
                sums.append(zeros(self.mesh, x.shape, dtype))
        return sums

    def _run_forward(
        self, chunk: RecordedChunk, m: int, inputs: Sequence[Tensor]
    ) -> None:
        """Runs the forward pass of microbatch m through a chunk; `inputs` are the flat
        inputs of the pipeline for this microbatch.
        """
        num_layer_inputs = len(inputs) - self.num_loss_inputs
        if chunk.index == 0:
            xs = list(inputs[:num_layer_inputs])
        else:
            xs = self.chunks[chunk.index - 1].outputs_of(m)
        if chunk is self.last_chunk:
            xs += inputs[num_layer_inputs:]
        arguments = (self._index_tensor(m), *xs)
        call_id = CallId(chunk.index, microbatch=m)
        results = self._call(chunk, call_id, chunk.body_with_residuals, arguments)
        chunk.forward_passes[m] = ForwardPass(arguments, results)

    def _run_backward(self, chunk: RecordedChunk, m: int) -> None:
        """Calls the backward body of a chunk on microbatch m.

        Its results are the cotangents of those arguments that have one, followed by the
        new gradient sums.
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
        call_id = CallId(chunk.index, microbatch=m, backward=True)
        results = iter(self._call(chunk, call_id, backward.body, arguments))
        with_cotangents = set(backward.arguments)
        for x in chunk.body.arguments:
            if x in with_cotangents:
                cotangents[x] = next(results)
        chunk.gradient_sums = list(results)

    def _output_cotangents(self, chunk: RecordedChunk, m: int) -> list[Tensor]:
        """Returns the cotangents of the outputs of a chunk for microbatch m: for the last
        chunk the cotangent of its loss, else those that the next chunk has computed.
        """
        indices = chunk.cotangent_indices
        if chunk is self.last_chunk:
            # The loss is a mean over microbatches.
            weight = 1.0 / self.pipe.microbatches
            dtypes = [chunk.outputs[i].dtype for i in indices]
            with stage(chunk.stage):
                return [full(self.mesh, "", weight, dtype=dtype) for dtype in dtypes]
        cotangents = self._next_chunk(chunk).cotangents[m]
        next_arguments = self._next_arguments(chunk)
        return [cotangents[next_arguments[i]] for i in indices]

    def _input_cotangents(self, m: int) -> list[Tensor | None]:
        """Returns the cotangents of the flat inputs of the first layer, then those of the
        flat loss inputs, for microbatch m.
        """
        first_chunk = self.chunks[0]
        # With a single chunk, these arguments include the loss inputs.
        _index, *first_arguments = first_chunk.body.arguments
        first_cotangents = first_chunk.cotangents[m]
        cotangents = [first_cotangents.get(x) for x in first_arguments]
        if first_chunk is not self.last_chunk:
            arguments = self.last_chunk.body.arguments
            loss_arguments = arguments[len(arguments) - self.num_loss_inputs :]
            loss_cotangents = self.last_chunk.cotangents[m]
            cotangents += [loss_cotangents.get(x) for x in loss_arguments]
        return cotangents

    def _capture_cotangents(self) -> list[Tensor | None]:
        """Returns the cotangents of `captures`: sums over the chunks that capture the
        tensor, None for a tensor without gradients.
        """
        totals: dict[Tensor, Tensor] = {}
        for chunk in self.chunks:
            for x, gradient in zip(chunk.backward.captures, chunk.gradient_sums):
                if x not in totals:
                    totals[x] = gradient
                    continue
                with context(primals=(x,)):  # the sum is placed as x
                    totals[x] = totals[x] + gradient
        cotangents: list[Tensor | None] = []
        for x in self._symbolic_captures:
            cotangents.append(cast(totals[x], x.dtype) if x in totals else None)
        return cotangents


def scaled_gradient(gradient: Tensor | None, dy: Tensor, x: Tensor) -> Tensor | None:
    """Returns gradient * dy as the cotangent of x, with the placement of x; None if the
    gradient is None.
    """
    if gradient is None:
        return None
    with context(primals=(x,)):  # the result is placed as x
        return gradient * cast(dy, gradient.dtype)
