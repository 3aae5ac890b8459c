"""A pipeline within a mtf.function: each cell is recorded once, and called for each
microbatch.

The order of work on a stage is a chain: each call waits for the one before it on its
stage. Sums of weights' gradients are handed on from call to call, so that each is one
tensor at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from meshtf.graph import Body, Spec, Tensor, context, record_body
from meshtf.graph.arguments import as_scalar, as_tensor
from meshtf.graph.control_flow.call import Backward, Which, backward_of, call
from meshtf.names import Shape, accumulation_dtype, has_gradient
from meshtf.ops.control.layout_region import stage
from meshtf.ops.control.microbatch import (
    DeferredCall,
    call_with_means,
    deferred_calls,
    microbatch,
)
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import full, zeros
from meshtf.pipeline.costs import layer_name
from meshtf.pipeline.schedule import Schedule, Task

_NUMBER = Spec(Shape(), "int32")


class Pipeline(Protocol):
    """What recording asks of a pipeline.

    Attributes:
      cells: the layers of each cell.
      stages: the number of stages.
      microbatches: the number of microbatches in a batch.
      dim: the dimension that is split into microbatches.
      recompute: whether the backward pass computes a cell again.
    """

    cells: list[list[Callable[..., Any]]]
    stages: int
    microbatches: int
    dim: str
    recompute: bool

    def stage_of(self, cell: int) -> int:
        """Returns the stage at which a cell runs."""


class _Run(NamedTuple):
    """One forward pass of a microbatch through a cell."""

    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


class Cells:
    """The bodies of a pipeline's cells, and their calls.

    Args:
      pipe: the pipeline.
      example: one microbatch of what the first layer takes.
      loss_of: makes a loss of the last layer's output and `others`; None: there is no
        loss.
      others: one microbatch of them.
    """

    def __init__(
        self,
        pipe: Pipeline,
        example: Any,
        loss_of: Callable[..., Tensor] | None,
        others: Any,
    ) -> None:
        self.pipe, self.loss_of, self.others = pipe, loss_of, others
        self.mesh = tf.nest.flatten(example)[0].mesh
        self.known: dict[
            Any, Any
        ] = {}  # of dimensions that were made of the microbatch
        self.bodies: list[Body] = []
        self.outputs: list[
            tuple[Tensor, ...]
        ] = []  # of each body: what the next one takes
        self.later: list[
            list[DeferredCall]
        ] = []  # of each cell: what is to be called in the end
        self.structures: list[Any] = []  # of each cell's output
        for k in range(len(pipe.cells)):
            example = self._record(k, example)
        self.number_of_inputs = (
            len(tf.nest.flatten(others)) if loss_of is not None else 0
        )
        self.last: dict[int, tuple[Tensor, ...]] = {}  # what each stage made last
        self.runs: dict[tuple[int, int], _Run] = {}

    @property
    def captures(self) -> list[Tensor]:
        """What the cells use from outside, each once."""
        return list(dict.fromkeys(x for body in self.bodies for x in body.captures))

    def forward(self, number: int, x: Any) -> Any:
        """Returns what all cells make of a microbatch."""
        flat = tf.nest.flatten(x)
        for k, body in enumerate(self.bodies):
            made = self._call(Which(k, number), body, [self._number(number), *flat])
            self.runs[k, number] = _Run((), made)
            flat = list(made[: len(self.outputs[k])])
        return tf.nest.pack_sequence_as(self.structures[-1], flat)

    def finish(self) -> None:
        """Calls what layers asked for once in a batch, when all microbatches are
        through.
        """
        for k, later in enumerate(self.later):
            first = len(self.outputs[k])
            made = [
                self.runs[k, m].results[first:] for m in range(self.pipe.microbatches)
            ]
            number = sum(len(entry.tensors) for entry in later)
            sums = [add_n([rows[i] for rows in made]) for i in range(number)]
            call_with_means(later, sums, self.pipe.microbatches)

    def run(
        self, parts: Sequence[Sequence[Tensor]], schedule: Schedule
    ) -> tuple[Tensor, list[list[Tensor | None]], list[Tensor | None]]:
        """Runs all microbatches through all cells, forwards and backwards.

        Args:
          parts: of each microbatch the tensors that the first cell takes, then
            `others`.
          schedule: the order of work.

        Returns:
          (loss, cotangents of parts, cotangents of captures).
        """
        self._record_backwards()
        self.kept = [b.keeping(body) for body, b in zip(self.bodies, self.backwards)]
        self.sums: list[list[Tensor]] = [
            self._zeros(k, b) for k, b in enumerate(self.backwards)
        ]
        self.cotangents: dict[tuple[int, int], dict[Tensor, Tensor]] = {}
        cells = len(self.bodies)
        for task in schedule.order():
            k = task.chunk * self.pipe.stages + task.stage
            if task.kind == "forward":
                self._forward(k, task, parts[task.microbatch])
            else:
                self._backward(k, task)
        self.finish()
        losses = [self.runs[cells - 1, m].results[0] for m in range(len(parts))]
        return (
            add_n(losses) * (1.0 / len(parts)),
            [self._of_parts(m) for m in range(len(parts))],
            self._of_captures(),
        )

    def _record(self, k: int, example: Any) -> Any:
        """Records cell k on what the one before it made; returns what stands for its
        results.
        """
        pipe, last = (
            self.pipe,
            k == len(self.pipe.cells) - 1 and self.loss_of is not None,
        )
        flat, others = (
            tf.nest.flatten(example),
            tf.nest.flatten(self.others) if last else [],
        )
        made: list[Any] = []

        def run(number: Tensor, *xs: Tensor) -> Sequence[Tensor]:
            def cell(*xs: Tensor) -> Any:
                given = tf.nest.pack_sequence_as(example, list(xs[: len(flat)]))
                if not last:
                    return run_cell(pipe, k, number, given, self.known)
                rest = tf.nest.pack_sequence_as(self.others, list(xs[len(flat) :]))
                with stage(pipe.stage_of(k)):
                    return run_cell(
                        pipe, k, number, given, self.known, self.loss_of, rest
                    )

            with deferred_calls() as later:
                made.append((recompute(cell) if pipe.recompute else cell)(*xs))
            self.later.append(later)
            return [
                *tf.nest.flatten(made[0]),
                *(x for entry in later for x in entry.tensors),
            ]

        with context(stage=pipe.stage_of(k)):
            self.bodies.append(
                record_body(run, [_NUMBER, *(x.spec for x in (*flat, *others))])
            )
        self.structures.append(tf.nest.map_structure(lambda x: 0, made[0]))
        self.outputs.append(self.bodies[k].results[: len(tf.nest.flatten(made[0]))])
        return tf.nest.pack_sequence_as(made[0], list(self.outputs[k]))

    def _record_backwards(self) -> None:
        """Records the backward bodies, the last first: what the loss does not depend on
        has none.

        A variable that the loss does not depend on has no gradient then, as without a
        pipeline, so that an optimizer leaves it as it is.
        """
        self.backwards: list[Backward] = []
        self.wanted: list[list[int]] = []  # of each cell: which outputs have cotangents
        for k in reversed(range(len(self.bodies))):
            outputs = self.outputs[k]
            wanted = [i for i, r in enumerate(outputs) if has_gradient(r.dtype)]
            if self.backwards:
                reached = set(self.backwards[0].arguments)
                wanted = [i for i in wanted if self._taken(k)[i] in reached]
            self.wanted.insert(0, wanted)
            self.backwards.insert(
                0, backward_of(self.bodies[k], [outputs[i] for i in wanted])
            )

    def _taken(self, k: int) -> Sequence[Tensor]:
        """Returns what outputs of cell k are to the next cell: arguments of
        its body.
        """
        return self.bodies[k + 1].arguments[1 : 1 + len(self.outputs[k])]

    def _number(self, number: int) -> Tensor:
        with context(stage=None):
            return full(self.mesh, "", number, "int32")

    def _call(
        self, which: Which, body: Body, arguments: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Calls a body at the stage of its cell, after all that this stage
        did before.
        """
        place = self.pipe.stage_of(which.cell)
        with stage(place):
            made = call(body, arguments, self.last.get(place, ()), which=which)
        self.last[place] = made
        return made

    def _zeros(self, k: int, backward: Backward) -> list[Tensor]:
        with stage(self.pipe.stage_of(k)):
            return [
                zeros(self.mesh, x.shape, accumulation_dtype(x.dtype))
                for x in backward.captures
            ]

    def _forward(self, k: int, task: Task, inputs: Sequence[Tensor]) -> None:
        body = self.kept[k]
        others = len(inputs) - self.number_of_inputs
        taken = (
            list(inputs[:others])
            if k == 0
            else list(
                self.runs[k - 1, task.microbatch].results[: len(self.outputs[k - 1])]
            )
        )
        if k == len(self.bodies) - 1:
            taken += inputs[others:]
        arguments = (self._number(task.microbatch), *taken)
        made = self._call(Which(k, task.microbatch), body, arguments)
        self.runs[k, task.microbatch] = _Run(arguments, made)

    def _backward(self, k: int, task: Task) -> None:
        backward, run = self.backwards[k], self.runs[k, task.microbatch]
        self.cotangents[k, task.microbatch] = {}
        if not backward.body.results:
            return
        outside = dict(
            zip(
                (*self.kept[k].arguments, *self.kept[k].results),
                (*run.arguments, *run.results),
            )
        )
        kept = [outside[x] for x in backward.kept]
        made = iter(
            self._call(
                Which(k, task.microbatch, backward=True),
                backward.body,
                [*kept, *self._given(k, task.microbatch), *self.sums[k]],
            )
        )
        reached = [x for x in self.bodies[k].arguments if x in set(backward.arguments)]
        self.cotangents[k, task.microbatch] = {x: next(made) for x in reached}
        self.sums[k] = list(made)

    def _given(self, k: int, number: int) -> list[Tensor]:
        """Returns the cotangents of a cell's results: of the loss, or from the next
        cell.
        """
        wanted = self.wanted[k]
        if k == len(self.bodies) - 1:
            results = self.outputs[k]
            with stage(self.pipe.stage_of(k)):
                return [
                    full(self.mesh, "", 1.0 / self.pipe.microbatches, results[i].dtype)
                    for i in wanted
                ]
        return [self.cotangents[k + 1, number][self._taken(k)[i]] for i in wanted]

    def _of_parts(self, number: int) -> list[Tensor | None]:
        """Returns the cotangents of what the first cell took, and of the others."""
        first = [
            self.cotangents[0, number].get(x) for x in self.bodies[0].arguments[1:]
        ]
        last = len(self.bodies) - 1
        others = [
            self.cotangents[last, number].get(x)
            for x in self.bodies[last].arguments[
                len(self.bodies[last].arguments) - self.number_of_inputs :
            ]
        ]
        return [*first, *others] if last else first

    def _of_captures(self) -> list[Tensor | None]:
        """Returns the cotangents of captures, those of several cells added up."""
        totals: dict[Tensor, Tensor] = {}
        for backward, sums in zip(self.backwards, self.sums):
            for x, total in zip(backward.captures, sums):
                with context(primals=(x,)):
                    totals[x] = totals[x] + total if x in totals else total
        return [
            cast(totals[x], x.dtype) if x in totals else None for x in self.captures
        ]


def run_cell(
    pipe: Pipeline,
    cell: int,
    number: Any,
    x: Any,
    known: dict[Any, Any],
    loss_of: Callable[..., Tensor] | None = None,
    others: Sequence[Any] = (),
) -> Any:
    """Returns what the layers of a cell make of a microbatch.

    Args:
      pipe: the pipeline.
      cell: the number of the cell.
      number: of the microbatch: an int, or a tensor.
      x: what the cell's first layer takes.
      known: what cells know of dimensions that were made of the microbatch: see
        `microbatch`.
      loss_of: makes a loss of the result.
      others: what `loss_of` takes besides.
    """
    with (
        stage(pipe.stage_of(cell)),
        microbatch(pipe.dim, pipe.microbatches, number, known),
    ):
        for layer in pipe.cells[cell]:
            x = layer(x)
        if loss_of is not None:
            return as_scalar("the loss of a pipeline", loss_of(x, *others))
        returned = f"what layer {layer_name(pipe.cells[cell][-1], cell)!r} of a pipeline returns"
        return tf.nest.map_structure(lambda y: as_tensor(returned, y), x)
