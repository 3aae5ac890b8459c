"""The module `GPipe`: consecutive layers, split into stages that work on different
microbatches at the same time.

    pipe = mtf.pipeline.GPipe(layers, stages=4, microbatches=16, inputs=example, recompute=True)

    loss = pipe.loss(lambda y, labels: mtf.reduce_mean(mtf.cross_entropy(y, labels, "vocab")),
                     x, labels)
    grads = mtf.gradients([loss], pipe.trainable_variables)
    y = pipe(x)                                    # without a loss, for evaluation

A stage is a group of devices that has one chunk of the model, or several. A chunk consists of
consecutive layers. The loss and its gradients do not depend on the number of stages, the
number of microbatches or the schedule. (Huang et al. 2019, arXiv:1811.06965; schedules:
`meshtf.pipeline.schedule`.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import MeshError, PlanError, ShapeError, explain_error
from meshtf.graph import Graph, Source, Tensor, context, current_executor
from meshtf.graph.arguments import check_nest
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import nested
from meshtf.names.arguments import (
    as_callable,
    as_dim,
    as_sequence,
    check_bools,
    check_floats,
    check_ints,
    refuse,
)
from meshtf.ops.control.batch_means import EagerMeans
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    DeferredCall,
    call_with_means,
    deferred_calls,
    merge_microbatches,
    split_into_microbatches,
)
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.shapes.slice import slice as take_elements
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.pipeline.costs import cost_unit, layer_costs
from meshtf.pipeline.drawing import split_text, timeline_text
from meshtf.pipeline.layer_variables import meshes_of, owner, variables_of
from meshtf.pipeline.padding import batch_weights, pad_batch
from meshtf.pipeline.partition import Memory, split
from meshtf.pipeline.recorded_chunks import RecordedChunks, scaled_gradient
from meshtf.pipeline.run_chunk import run_chunk
from meshtf.pipeline.schedule import schedule_called
from meshtf.pipeline.simulator import Timeline, simulate


class GPipe(Module):
    """A sequence of layers as a pipeline.

    Args:
      layers: callables, each of which takes what the previous one returns: a tensor, or
        several in any nesting. A layer returns a tensor unchanged to pass it to a later
        layer. A method of a module, or a `functools.partial` of one (such as one with
        training=True), is a layer with the variables of that module.
      stages: the number of stages; the mesh's axis for stages has this size, or 1.
      microbatches: the number of microbatches of a batch.
      schedule: "1f1b" (a stage stores the activations of fewer microbatches) or "gpipe".
      chunks: the number of chunks of each stage; several are interleaved (only "1f1b").
      partition: the method to split layers into chunks, see `split`; or the number of
        layers of each chunk.
      recompute: whether the backward pass computes each chunk again from its input, the
        only activation that is stored.
      cost: the cost of each layer; or a function from a layer to its cost; or "measured":
        seconds, measured on `inputs`; None: FLOPs, counted on `inputs`.
      inputs: an example of the input of the first layer (a tensor, or several in any
        nesting); None: without `cost`, all layers cost the same.
      memory: the bytes of layers, see `split`.
      limit: the most bytes of a chunk; None: no limit.
      dim: the dimension that is split into microbatches.
      pad: whether elements are added to a batch that `microbatches` does not divide, or
        whose microbatches could not be sharded as the layout says. The loss function
        gets weights, which are 0 for the added elements.
      name: the name of the module.

    Raises:
      PlanError: fewer layers than chunks, or no split keeps to the limit.
      MeshError: the mesh of a variable or of `inputs` has another number of stages.
    """

    # An option of `Module`: random numbers of layers do not depend on the pipeline's
    # path, so layers draw the same numbers as without a pipeline.
    called_in_path = False

    def __init__(
        self,
        layers: Sequence[Callable[..., Any]],
        stages: int,
        microbatches: int,
        schedule: str = "1f1b",
        chunks: int = 1,
        partition: str | Sequence[int] = "min_max",
        recompute: bool = False,
        cost: Sequence[float] | Callable[[Any], float] | str | None = None,
        inputs: Any = None,
        memory: Memory | None = None,
        limit: float | None = None,
        dim: str = "batch",
        pad: bool = False,
        name: str = "gpipe",
    ) -> None:
        check_ints(stages=stages, microbatches=microbatches, chunks=chunks)
        check_bools(recompute=recompute, pad=pad)
        layers = as_sequence("layers", layers, "a list of layers")
        for layer in layers:
            as_callable("layers", layer)  # raises ArgumentError
        super().__init__(name)
        self.layers = list(layers)
        self.stages = stages
        self.microbatches = microbatches
        # A module finds variables in its attributes, also those of partials and methods.
        self.owners = [owner(layer) for layer in self.layers]
        self.recompute = recompute
        self.dim = as_dim("dim", dim)
        self.pad = pad
        for mesh in meshes_of(self.layers, inputs):
            self._check_mesh(mesh)
        self.schedule = schedule_called(
            schedule, stages=stages, microbatches=microbatches, chunks=chunks
        )
        check_nest("inputs", inputs)
        self.costs = layer_costs(self.layers, cost, inputs)
        self.cost_unit = cost_unit(cost, inputs)
        # The number of layers of each chunk of the model.
        self.sizes = split(
            [layer.cost for layer in self.costs],
            stages=stages * chunks,
            method=partition,
            memory=memory,
            limit=limit,
        )
        self.model_chunks = self._in_chunks(self.layers)
        self._move_variables()

    def _in_chunks(self, items: list[Any]) -> list[list[Any]]:
        """Returns a list with one item for each layer, divided into the model's chunks."""
        chunks = []
        start = 0
        for size in self.sizes:
            end = start + size
            chunks.append(items[start:end])
            start = end
        return chunks

    def timeline(self, backward: float = 2.0) -> Timeline:
        """Returns the predicted time line of a batch, from the layers' costs.

        Args:
          backward: the cost of a backward pass relative to that of a forward pass.
        """
        check_floats(backward=backward)
        costs = []
        for chunk_layers in self._in_chunks(self.costs):
            costs.append(sum(layer.cost for layer in chunk_layers))
        return simulate(
            self.schedule,
            forward=costs,
            backward=[backward * cost for cost in costs],
            recompute=costs if self.recompute else 0,
        )

    def __str__(self) -> str:
        timeline = timeline_text(self.timeline(), unit=self.cost_unit)
        return f"{split_text(self.costs, self.sizes)}\n\n{timeline}"

    def stage_of(self, chunk: int) -> int:
        """Returns the index of the stage on which a chunk of the model runs."""
        check_ints(chunk=chunk)
        return chunk % self.stages

    def __call__(self, x: Any) -> Any:
        """Returns the output of the last layer for x, computed one microbatch after
        another.

        The output has gradients, but the forward passes of all microbatches come before
        any backward pass, as in GPipe's schedule, whatever `schedule` is.
        """
        stacked_inputs, microbatches = self._split(x)
        if isinstance(current_executor(), Graph):
            recorded_chunks = RecordedChunks(
                pipe=self,
                example=microbatches[0],
                loss_of=None,
                loss_inputs=(),
                stacked_inputs=stacked_inputs,
            )
            ys = [recorded_chunks.forward(m, xs) for m, xs in enumerate(microbatches)]
            recorded_chunks.make_deferred_calls()
        else:
            ys = self._run_eagerly(microbatches)
        first_input, *_ = nested.flatten(x)
        batch_size = first_input.shape[self.dim]
        return nested.map_structure(
            lambda *outputs: self._merge(list(outputs), batch_size), *ys
        )

    def loss(self, loss_of: Callable[..., Tensor], x: Any, *loss_inputs: Any) -> Tensor:
        """Returns the mean over microbatches of loss_of(y, *loss_inputs), where y is the
        output of the last layer.

        The result is the loss of the full batch if loss_of is a mean over `dim`, or a sum of
        means, weighted or not, as for `mtf.optimizers.accumulate_gradients`. Its gradients
        are computed with it, in the order of the schedule.

        Args:
          loss_of: a function that takes the output for a microbatch and the microbatch's
            elements of loss_inputs, and returns a scalar. With `pad` it also takes weights
            [dim], 0 for padding, and takes means that are weighted by them. Weights should
            not depend on what layers compute: that is computed once more.
          x: the input of the first layer.
          *loss_inputs: tensors with `dim`, in any nesting, such as labels.

        Raises:
          ShapeError: a tensor lacks `dim`, or `microbatches` does not divide it, or the
            loss is no scalar.
          MeshError: the mesh's axis for stages has another size.
        """
        loss_of = as_callable("loss_of", loss_of)
        if self.pad:
            first_input, *_ = nested.flatten(x)
            weights = batch_weights(first_input, self.dim, self.microbatches)
            loss_inputs = (*loss_inputs, weights)
        stacked_inputs, microbatches = self._split((x, loss_inputs))
        is_recorded = isinstance(current_executor(), Graph)
        if not is_recorded:
            inputs, split_loss_inputs = zip(*microbatches)
            losses = self._run_eagerly(inputs, loss_of, loss_inputs=split_loss_inputs)
            return add_n(losses) * (1.0 / self.microbatches)
        example, example_loss_inputs = microbatches[0]
        recorded_chunks = RecordedChunks(
            pipe=self,
            example=example,
            loss_of=loss_of,
            loss_inputs=example_loss_inputs,
            stacked_inputs=stacked_inputs,
        )

        # The gradients are computed together with the loss: the rule only scales them by dy.
        @custom_gradient
        def run(tensors: Any, captures: Any) -> Any:
            # The captures are tensors that layers read in addition: parameters.
            loss, input_gradients, capture_gradients = recorded_chunks.run(
                tensors, self.schedule
            )
            gradients = [*itertools.chain(*input_gradients), *capture_gradients]
            xs = nested.flatten([tensors, captures])

            def backward(dy: Tensor) -> list[Tensor | None]:
                return [
                    scaled_gradient(gradient, dy, x)
                    for gradient, x in zip(gradients, xs, strict=True)
                ]

            return loss, backward

        return run(
            [nested.flatten(xs) for xs in microbatches], recorded_chunks.captures
        )

    def _run_eagerly(
        self,
        inputs: Sequence[Any],
        loss_of: Callable[..., Tensor] | None = None,
        loss_inputs: Sequence[Any] = (),
    ) -> list[Any]:
        """Returns the outputs, or with `loss_of` the losses, of all microbatches in eager
        mode; `inputs` and `loss_inputs` are those of each microbatch.
        """
        last_chunk = len(self.model_chunks) - 1

        def run(m: int) -> tuple[Any, list[DeferredCall]]:
            """Returns the output or loss of microbatch m, and the calls that it defers."""
            x = inputs[m]
            labels = () if loss_of is None else loss_inputs[m]
            derived_dims: Any = {}
            # Layers draw random numbers for the elements of each microbatch, from the same
            # paths each time: no path is in use yet.
            with context(random_paths=set()), deferred_calls() as deferred:
                for k in range(len(self.model_chunks)):
                    loss: Any = (loss_of, labels) if k == last_chunk else (None, ())
                    x = run_chunk(self, k, m, x, derived_dims, *loss)
            return x, deferred

        means = EagerMeans(run, self.microbatches)
        ys = []
        tensors = []
        for m in range(self.microbatches):
            with context(batch_means=means.again()):
                y, deferred = run(m)
            ys.append(y)
            tensors.append([x for entry in deferred for x in entry.tensors])
        # Each microbatch has deferred the same calls: those of the last one are made.
        sums = [add_n(list(terms)) for terms in zip(*tensors)]
        call_with_means(deferred, sums, self.microbatches)
        return ys

    def _split(self, x: Any) -> tuple[list[Tensor], list[Any]]:
        """Returns the flat inputs of all microbatches `[..., microbatch, ...]`, and a list of
        the microbatches.

        Microbatch m has the elements m, m + M, ... of `dim`, so that no element moves to
        another device.
        """
        check_nest("x", x, missing=False)
        flat = []
        for y in nested.flatten(x):
            is_variable = hasattr(y, "tensor")
            flat.append(y.tensor() if is_variable else y)
        if not flat:
            refuse("x", x, "a tensor, or several in any nesting")
        self._check_mesh(flat[0].mesh)
        if self.pad:
            flat = [pad_batch(y, self.dim, self.microbatches) for y in flat]
        stacked = [
            split_into_microbatches(y, self.dim, self.microbatches) for y in flat
        ]
        unstacked = [unstack(y, MICROBATCH) for y in stacked]
        microbatches = []
        for m in range(self.microbatches):
            tensors = [all_microbatches[m] for all_microbatches in unstacked]
            microbatches.append(nested.pack_sequence_as(x, tensors))
        return stacked, microbatches

    def _merge(self, outputs: list[Tensor], size: int) -> Tensor:
        """Returns an output for the batch, merged from the outputs for its microbatches;
        padding is removed, so that `dim` has `size` elements.
        """
        shape = outputs[0].shape
        if self.dim not in shape:
            raise ShapeError(
                explain_error(
                    f'an output of the pipeline lacks "{self.dim}", so its '
                    "microbatches cannot be put together.",
                    tensor=repr(shape),
                    source=Source.of_caller(),
                    way_out="Use pipe.loss for what is a mean over the batch.",
                )
            )
        stacked_outputs = stack(outputs, MICROBATCH, shape.index(self.dim) + 1)
        y = merge_microbatches(stacked_outputs, self.dim)
        if y.shape[self.dim] == size:
            return y
        return take_elements(y, self.dim, begin=0, size=size)

    def _check_mesh(self, mesh: Mesh | None) -> None:
        """Raises an error for a mesh that is unknown or has another number of stages."""
        if mesh is None:
            raise PlanError(
                explain_error(
                    "a pipeline needs the mesh before it is recorded, and its input has "
                    "none yet.",
                    source=Source.of_caller(),
                    way_out="Write @mtf.function(mesh=mesh, ...).",
                )
            )
        num_stages = mesh.num_stages
        if num_stages not in (1, self.stages):
            raise MeshError(
                explain_error(
                    f"a pipeline of {self.stages} stage{'s' * (self.stages != 1)} does "
                    f"not fit axis {mesh.stages!r} of size {num_stages}.",
                    mesh=str(mesh),
                    source=Source.of_caller(),
                    way_out=f"Take stages={num_stages}, a mesh with "
                    f"{mesh.stages}:{self.stages}, or one without that axis, on which "
                    "all stages are one.",
                )
            )

    def _move_variables(self) -> None:
        """Moves the variables of each layer to the layer's stage. A variable that several
        layers share is moved to the stage of the first of them.
        """
        placed_ids: set[int] = set()
        for k, chunk in enumerate(self.model_chunks):
            for layer in chunk:
                for variable in variables_of(layer):
                    if id(variable) not in placed_ids:
                        placed_ids.add(id(variable))
                        variable.move_to_stage(self.stage_of(k))
