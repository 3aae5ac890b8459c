"""A pipeline within a mtf.function: each chunk is recorded once, and called for each
microbatch.

The order of work on a stage is a chain: each call waits for the previous call on its
stage. The sums of the captures' gradients are passed from call to call, so that each is
one tensor at any time.
"""

from __future__ import annotations

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
        self.mesh = tf.nest.flatten(example)[0].mesh
        # Dimensions that were derived from the microbatch; see `microbatch`.
        self.derived_dims: dict[Any, Any] = {}
        self.bodies: list[Body] = []
        # For each chunk: the results of its body that the next chunk takes.
        self.outputs: list[tuple[Tensor, ...]] = []
        # For each chunk: calls to make once a batch, after its last microbatch.
        self.deferred: list[list[DeferredCall]] = []
        # For each chunk: the nested structure of its output.
        self.structures: list[Any] = []
        for k in range(len(pipe.model_chunks)):
            example = self._record(k, example)
        self.num_loss_inputs = 0
        if loss_of is not None:
            self.num_loss_inputs = len(tf.nest.flatten(loss_inputs))
        # For each stage: the results of its latest call.
        self.latest: dict[int, tuple[Tensor, ...]] = {}
        # By chunk and microbatch.
        self.forward_passes: dict[tuple[int, int], _ForwardPass] = {}
        # By chunk and microbatch: the cotangents of the body's arguments.
        self.cotangents: dict[tuple[int, int], dict[Tensor, Tensor]] = {}
        # By chunk.
        self.backwards: dict[int, BackwardBody] = {}
        self.bodies_with_residuals: dict[int, Body] = {}
        self.gradient_sums: dict[int, list[Tensor]] = {}
        # By chunk: the indices of the outputs that have cotangents.
        self.cotangent_indices: dict[int, list[int]] = {}

    @property
    def captures(self) -> list[Tensor]:
        """The tensors that the chunks capture, each once."""
        return list(dict.fromkeys(x for body in self.bodies for x in body.captures))

    def forward(self, index: int, x: Any) -> Any:
        """Returns the output of the last chunk for microbatch `index`."""
        flat = tf.nest.flatten(x)
        for k, body in enumerate(self.bodies):
            arguments = [self._index_tensor(index), *flat]
            results = self._call(CallId(k, index), body, arguments)
            self.forward_passes[k, index] = _ForwardPass((), results)
            num_outputs = len(self.outputs[k])
            flat = list(results[:num_outputs])
        return tf.nest.pack_sequence_as(self.structures[-1], flat)

    def finish(self) -> None:
        """Makes the deferred calls of all chunks, after the last microbatch."""
        for k, deferred in enumerate(self.deferred):
            # The results of a forward pass are outputs, deferred tensors, residuals.
            start = len(self.outputs[k])
            end = start + sum(len(entry.tensors) for entry in deferred)
            deferred_tensors = []
            for m in range(self.pipe.microbatches):
                results = self.forward_passes[k, m].results
                deferred_tensors.append(results[start:end])
            sums = [add_n(list(terms)) for terms in zip(*deferred_tensors)]
            call_with_means(deferred, sums, self.pipe.microbatches)

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
            k = schedule.model_chunk(task)
            m = task.microbatch
            if task.kind == "forward":
                self._forward(k, m, inputs[m])
            else:
                self._backward(k, m)
        self.finish()
        last_chunk = len(self.bodies) - 1
        microbatches = range(len(inputs))
        losses = []
        for m in microbatches:
            loss, *_ = self.forward_passes[last_chunk, m].results
            losses.append(loss)
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
        last_chunk = len(pipe.model_chunks) - 1
        with_loss = k == last_chunk and self.loss_of is not None
        flat = tf.nest.flatten(example)
        if with_loss:
            loss_inputs = tf.nest.flatten(self.loss_inputs)
        else:
            loss_inputs = []
        outputs: list[Any] = []

        def run(index: Tensor, *xs: Tensor) -> Sequence[Tensor]:
            def chunk(*xs: Tensor) -> Any:
                layer_inputs = list(xs[: len(flat)])
                x = tf.nest.pack_sequence_as(example, layer_inputs)
                if not with_loss:
                    return run_chunk(pipe, k, index, x, self.derived_dims)
                rest = tf.nest.pack_sequence_as(self.loss_inputs, list(xs[len(flat) :]))
                with stage(stage_index):
                    return run_chunk(
                        pipe, k, index, x, self.derived_dims, self.loss_of, rest
                    )

            run_layers = chunk
            if pipe.recompute:
                run_layers = recompute(chunk)
            with deferred_calls() as deferred:
                output = run_layers(*xs)
            outputs.append(output)
            self.deferred.append(deferred)
            deferred_tensors = [x for entry in deferred for x in entry.tensors]
            return [*tf.nest.flatten(output), *deferred_tensors]

        with context(stage=stage_index):
            specs = [x.spec for x in (*flat, *loss_inputs)]
            body = record_body(run, [_INDEX_SPEC, *specs])
        (output,) = outputs
        num_outputs = len(tf.nest.flatten(output))
        results = body.results[:num_outputs]
        self.bodies.append(body)
        self.structures.append(tf.nest.map_structure(lambda x: 0, output))
        self.outputs.append(results)
        return tf.nest.pack_sequence_as(output, list(results))

    def _record_backwards(self) -> None:
        """Records the backward bodies, from the last chunk to the first one, and makes
        the initial gradient sums.

        A chunk on which the loss does not depend has a backward body without results. A
        variable on which the loss does not depend has no gradient then, as without a
        pipeline, so that an optimizer does not change it.
        """
        next_backward = None
        for k in reversed(range(len(self.bodies))):
            outputs = self.outputs[k]
            indices = [i for i, y in enumerate(outputs) if has_gradient(y.dtype)]
            if next_backward is not None:
                with_cotangents = set(next_backward.arguments)
                next_arguments = self._next_arguments(k)
                indices = [i for i in indices if next_arguments[i] in with_cotangents]
            differentiated = [outputs[i] for i in indices]
            backward = backward_body(self.bodies[k], differentiated)
            body_with_residuals = backward.with_residuals(self.bodies[k])
            self.cotangent_indices[k] = indices
            self.backwards[k] = backward
            self.bodies_with_residuals[k] = body_with_residuals
            next_backward = backward
        for k in range(len(self.bodies)):
            self.gradient_sums[k] = self._zeros(k)

    def _next_arguments(self, k: int) -> Sequence[Tensor]:
        """Returns the arguments of the next chunk's body that take the outputs of chunk
        k.
        """
        _index, *arguments = self.bodies[k + 1].arguments
        num_outputs = len(self.outputs[k])
        return arguments[:num_outputs]

    def _index_tensor(self, index: int) -> Tensor:
        """Returns the index of a microbatch as an int32 scalar."""
        with context(stage=None):
            return full(self.mesh, "", index, "int32")

    def _call(
        self, call_id: CallId, body: Body, arguments: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Calls a body at the stage of its chunk, after this stage's previous call."""
        stage_index = self.pipe.stage_of(call_id.chunk)
        previous = self.latest.get(stage_index, ())
        with stage(stage_index):
            results = call(body, arguments, previous, call_id=call_id)
        self.latest[stage_index] = results
        return results

    def _zeros(self, k: int) -> list[Tensor]:
        """Returns the initial gradient sums of the captures of chunk k."""
        sums = []
        with stage(self.pipe.stage_of(k)):
            for x in self.backwards[k].captures:
                dtype = accumulation_dtype(x.dtype)
                sums.append(zeros(self.mesh, x.shape, dtype))
        return sums

    def _forward(self, k: int, m: int, inputs: Sequence[Tensor]) -> None:
        """Calls chunk k on microbatch m, for which `inputs` are those of the pipeline."""
        num_layer_inputs = len(inputs) - self.num_loss_inputs
        if k == 0:
            xs = list(inputs[:num_layer_inputs])
        else:
            num_outputs = len(self.outputs[k - 1])
            xs = list(self.forward_passes[k - 1, m].results[:num_outputs])
        last_chunk = len(self.bodies) - 1
        if k == last_chunk:
            xs += inputs[num_layer_inputs:]
        arguments = (self._index_tensor(m), *xs)
        results = self._call(CallId(k, m), self.bodies_with_residuals[k], arguments)
        self.forward_passes[k, m] = _ForwardPass(arguments, results)

    def _backward(self, k: int, m: int) -> None:
        """Calls the backward body of chunk k on microbatch m.

        Its results are the cotangents of the arguments that have some, then the new
        gradient sums.
        """
        backward = self.backwards[k]
        self.cotangents[k, m] = {}
        if not backward.body.results:
            return
        arguments = [
            *self._residuals(k, m),
            *self._output_cotangents(k, m),
            *self.gradient_sums[k],
        ]
        call_id = CallId(k, m, backward=True)
        results = iter(self._call(call_id, backward.body, arguments))
        with_cotangents = set(backward.arguments)
        for x in self.bodies[k].arguments:
            if x in with_cotangents:
                self.cotangents[k, m][x] = next(results)
        self.gradient_sums[k] = list(results)

    def _residuals(self, k: int, m: int) -> list[Tensor]:
        """Returns what the backward pass of chunk k takes of the forward pass of
        microbatch m.
        """
        body = self.bodies_with_residuals[k]
        forward = self.forward_passes[k, m]
        recorded = (*body.arguments, *body.results)
        computed = (*forward.arguments, *forward.results)
        values = dict(zip(recorded, computed))
        return [values[x] for x in self.backwards[k].residuals]

    def _output_cotangents(self, k: int, m: int) -> list[Tensor]:
        """Returns the cotangents of the outputs of chunk k for microbatch m: of the
        loss, or from the next chunk.
        """
        indices = self.cotangent_indices[k]
        last_chunk = len(self.bodies) - 1
        if k == last_chunk:
            weight = 1.0 / self.pipe.microbatches  # the loss is a mean
            dtypes = [self.outputs[k][i].dtype for i in indices]
            with stage(self.pipe.stage_of(k)):
                return [full(self.mesh, "", weight, dtype) for dtype in dtypes]
        cotangents = self.cotangents[k + 1, m]
        next_arguments = self._next_arguments(k)
        return [cotangents[next_arguments[i]] for i in indices]

    def _input_cotangents(self, m: int) -> list[Tensor | None]:
        """Returns the cotangents of the inputs of the first layer, then those of
        `loss_inputs`, for microbatch m.
        """
        _index, *layer_arguments = self.bodies[0].arguments
        start_cotangents = [self.cotangents[0, m].get(x) for x in layer_arguments]
        last_chunk = len(self.bodies) - 1
        if last_chunk == 0:
            return start_cotangents
        arguments = self.bodies[last_chunk].arguments
        loss_arguments = arguments[len(arguments) - self.num_loss_inputs :]
        loss_cotangents = self.cotangents[last_chunk, m]
        return [*start_cotangents, *map(loss_cotangents.get, loss_arguments)]

    def _capture_cotangents(self) -> list[Tensor | None]:
        """Returns the cotangents of captures, those of several chunks added up."""
        totals: dict[Tensor, Tensor] = {}
        for k in range(len(self.bodies)):
            captures = self.backwards[k].captures
            for x, total in zip(captures, self.gradient_sums[k]):
                with context(primals=(x,)):
                    totals[x] = totals[x] + total if x in totals else total
        return [
            cast(totals[x], x.dtype) if x in totals else None for x in self.captures
        ]
