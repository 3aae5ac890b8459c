"""The GPipe wrapper: layers in a row, cut into stages, that work on microbatches side
by side.

    pipe = mtf.pipeline.GPipe(layers, stages=4, microbatches=16, inputs=example, recompute=True)

    loss = pipe.loss(lambda y, labels: mtf.reduce_mean(mtf.cross_entropy(y, labels, "vocab")),
                     x, labels)
    grads = mtf.gradients([loss], pipe.trainable_variables)
    y = pipe(x)                                    # without a loss, to evaluate

Neither the number of stages, nor that of microbatches, nor the schedule changes loss
and gradients. (Huang et al. 2019, arXiv:1811.06965; schedules:
`meshtf.pipeline.schedule`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import MeshError, PlanError, ShapeError, explain_error
from meshtf.graph import Graph, Source, Tensor, context, current_executor
from meshtf.graph.arguments import check_nest
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names.arguments import (
    as_callable,
    as_dim,
    as_sequence,
    as_text,
    check_bools,
    check_floats,
    check_ints,
    refuse,
)
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    call_with_means,
    deferred_calls,
    merge_microbatches,
    split_into_microbatches,
)
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.shapes.slice import slice as take_elements
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.pipeline.costs import layer_costs, owner
from meshtf.pipeline.drawing import split_text, timeline_text
from meshtf.pipeline.padding import batch_weights, pad_batch
from meshtf.pipeline.partition import Memory, split
from meshtf.pipeline.recorded_cells import Cells, run_cell
from meshtf.pipeline.schedule import Schedule, gpipe, interleaved, one_f_one_b
from meshtf.pipeline.simulator import Timeline, simulate
from meshtf.runtime.variable import Variable

_SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


class GPipe(Module):
    """A sequence of layers as a pipeline.

    Args:
      layers: callables; each takes what the one before returned: a tensor, or several
        in any nesting. Pass a tensor on to bring it to a later layer. A module's
        partial, such as that of training=True, or method, is a layer with the variables
        of the module.
      stages: how many cells of layers; the mesh's axis for stages has this size, or 1.
      microbatches: how many parts of a batch are under way.
      schedule: "1f1b" (fewer microbatches are held at once) or "gpipe".
      chunks: cells of each stage; more than one interleave them (1F1B alone).
      partition: how layers are split: see `split`; or the numbers of layers of each
        cell.
      recompute: whether the backward pass computes each cell again, and keeps its input
        alone.
      cost: of each layer, or a function from a layer to its cost, or "measured": the
        time that it takes on `inputs`; default: the operations that are counted on
        `inputs`.
      inputs: an example of what the first layer takes (a tensor, or several in any
        nesting), to count costs on; without it and `cost`, layers cost the same.
      memory: bytes of layers, with `limit`, the most of a cell: see `split`.
      limit: see `memory`.
      dim: the dimension that is cut into microbatches.
      pad: whether rows are added to a batch that `microbatches` does not divide, or
        whose parts could not be sharded as the layout says; the loss gets weights by
        which they do not count.
      name: of the module.

    Raises:
      PlanError: fewer layers than cells, or no split keeps to the limit.
      MeshError: the mesh of a variable or of `inputs` has another number of stages.
    """

    called_in_path = (
        False  # layers draw the same random numbers in `loss`, and by themselves
    )

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
            as_callable("layers", layer)
        super().__init__(name)
        self.layers, self.stages, self.microbatches = list(layers), stages, microbatches
        self.owners = [
            owner(layer) for layer in self.layers
        ]  # so that their variables are found
        self.recompute, self.dim, self.pad = recompute, as_dim("dim", dim), pad
        for mesh in _meshes(self.layers, inputs):
            self._check_mesh(mesh)
        self.schedule = _schedule(schedule, stages, microbatches, chunks)
        check_nest("inputs", inputs)
        self.costs = layer_costs(self.layers, cost, inputs)
        self.sizes = split(
            [c.cost for c in self.costs], stages * chunks, partition, memory, limit
        )
        ends = [sum(self.sizes[: k + 1]) for k in range(len(self.sizes))]
        self.cells = [
            self.layers[end - size : end] for end, size in zip(ends, self.sizes)
        ]
        self._place_variables()

    def timeline(self, backward: float = 2.0) -> Timeline:
        """Returns when each stage will do what, by the layers' costs.

        Args:
          backward: how much more a backward pass costs than a forward pass.
        """
        check_floats(backward=backward)
        layers = iter(self.costs)
        costs = [sum(next(layers).cost for _ in cell) for cell in self.cells]
        return simulate(
            self.schedule,
            costs,
            [backward * c for c in costs],
            recompute=costs if self.recompute else 0,
        )

    def __str__(self) -> str:
        return (
            f"{split_text(self.costs, self.sizes)}\n\n{timeline_text(self.timeline())}"
        )

    def stage_of(self, cell: int) -> int:
        """Returns the stage at which a cell runs."""
        check_ints(cell=cell)
        return cell % self.stages

    def __call__(self, x: Any) -> Any:
        """Returns what the last layer makes of x, one microbatch after another, put
        together again.

        It has gradients: the forward passes of all microbatches come before any
        backward pass, as in GPipe's schedule, whatever `schedule` says.
        """
        parts = self._parts(x)
        if isinstance(current_executor(), Graph):
            cells = Cells(self, parts[0], None, ())
            ys = [cells.forward(m, part) for m, part in enumerate(parts)]
            cells.finish()
        else:
            ys = self._eagerly(parts)
        number = tf.nest.flatten(x)[0].shape[self.dim]
        return tf.nest.map_structure(
            lambda *rows: self._together(list(rows), number), *ys
        )

    def loss(self, loss_of: Callable[..., Tensor], x: Any, *others: Any) -> Tensor:
        """Returns the mean over microbatches of loss_of(y, *others), y being the last
        layer's output.

        If that is a mean over the rows of `dim`, all of one weight, the result is that
        of the whole batch. Its gradients are computed with it, in the order of the
        schedule.

        Args:
          loss_of: takes the output for a microbatch and its rows of others, returns a
            scalar. With `pad` it takes weights [dim] besides, by which it multiplies
            what it takes the mean of.
          x: what the first layer takes.
          *others: tensors with `dim`, in any nesting, such as labels.

        Raises:
          ShapeError: a tensor lacks `dim`, or `microbatches` does not divide it, or the
            loss is no scalar.
          MeshError: the mesh's axis for stages has another size.
        """
        as_callable("loss_of", loss_of)
        if self.pad:
            others = (
                *others,
                batch_weights(tf.nest.flatten(x)[0], self.dim, self.microbatches),
            )
        parts = self._parts((x, others))
        if not isinstance(current_executor(), Graph):
            losses = self._eagerly(
                [part for part, _ in parts], loss_of, [rest for _, rest in parts]
            )
            return add_n(losses) * (1.0 / self.microbatches)
        cells = Cells(self, parts[0][0], loss_of, parts[0][1])
        flat = [tf.nest.flatten(part) for part in parts]
        captures = cells.captures

        @custom_gradient
        def run(tensors: Any, captured: Any) -> Any:
            loss, rows, sums = cells.run(tensors, self.schedule)
            found = [*(d for row in rows for d in row), *sums]
            return loss, lambda dy: [
                _times(d, dy, x)
                for d, x in zip(
                    found, tf.nest.flatten([tensors, captured]), strict=True
                )
            ]

        return run(flat, captures)

    def _eagerly(
        self,
        parts: Sequence[Any],
        loss_of: Callable[..., Tensor] | None = None,
        others: Sequence[Any] = (),
    ) -> list[Any]:
        """Returns what the layers, and the loss, make of all microbatches, in eager
        mode.
        """
        ys, collected = [], []
        last = len(self.cells) - 1
        for number, x in enumerate(parts):
            known: Any = {}
            with (
                context(seeded=set()),
                deferred_calls() as later,
            ):  # it draws for rows of its own
                for k in range(last):
                    x = run_cell(self, k, number, x, known)
                rest = () if loss_of is None else others[number]
                ys.append(run_cell(self, last, number, x, known, loss_of, rest))
            collected.append([t for entry in later for t in entry.tensors])
        call_with_means(
            later, [add_n(list(ts)) for ts in zip(*collected)], self.microbatches
        )
        return ys

    def _parts(self, x: Any) -> list[Any]:
        """Returns the microbatches: rows m, m + M, ... of each tensor, so that none
        moves.
        """
        check_nest("x", x, missing=False)
        flat = [y.tensor() if hasattr(y, "tensor") else y for y in tf.nest.flatten(x)]
        if not flat:
            refuse("x", x, "a tensor, or several in any nesting")
        self._check_mesh(flat[0].mesh)
        if self.pad:
            flat = [pad_batch(y, self.dim, self.microbatches) for y in flat]
        rows = [
            unstack(split_into_microbatches(y, self.dim, self.microbatches), MICROBATCH)
            for y in flat
        ]
        return [
            tf.nest.pack_sequence_as(x, [r[m] for r in rows])
            for m in range(self.microbatches)
        ]

    def _together(self, rows: list[Tensor], number: int) -> Tensor:
        shape = rows[0].shape
        if self.dim not in shape:
            raise ShapeError(
                explain_error(
                    f'an output of the pipeline lacks "{self.dim}", so its '
                    "microbatches cannot be put together.",
                    tensor=repr(shape),
                    **{"from": Source.of_caller()},
                    way_out="Use pipe.loss for what is a mean over the batch.",
                )
            )
        y = merge_microbatches(
            stack(rows, MICROBATCH, shape.index(self.dim) + 1), self.dim
        )
        return (
            y if y.shape[self.dim] == number else take_elements(y, self.dim, 0, number)
        )

    def _check_mesh(self, mesh: Mesh | None) -> None:
        if mesh is None:
            raise PlanError(
                explain_error(
                    "a pipeline must know its mesh, and its input does not tell it so "
                    "far.",
                    **{"from": Source.of_caller()},
                    way_out="Write @mtf.function(mesh=mesh, ...).",
                )
            )
        there = mesh.axes.get(mesh.stages, 1)
        if there not in (1, self.stages):
            raise MeshError(
                explain_error(
                    f"a pipeline of {self.stages} stage{'s' * (self.stages != 1)} does "
                    f"not fit axis {mesh.stages!r} of size {there}.",
                    mesh=repr(mesh),
                    **{"from": Source.of_caller()},
                    way_out=f"Take stages={there}, a mesh with "
                    f"{mesh.stages}:{self.stages}, or one without that axis, on which "
                    "all stages are one.",
                )
            )

    def _place_variables(self) -> None:
        """Brings each layer's variables to its stage; those of several layers to the
        first one's.
        """
        seen: set[int] = set()
        for k, cell in enumerate(self.cells):
            for variable in (v for layer in cell for v in _variables(layer)):
                if id(variable) not in seen:
                    seen.add(id(variable))
                    variable.bring_to_stage(self.stage_of(k))


def _times(d: Tensor | None, dy: Tensor, x: Tensor) -> Tensor | None:
    """Returns the cotangent of x, which lies where x does."""
    with context(primals=(x,)):
        return None if d is None else d * cast(dy, d.dtype)


def _variables(layer: Any) -> Sequence[Variable]:
    module = owner(layer)
    return module.variables if isinstance(module, Module) else ()


def _meshes(layers: Sequence[Callable[..., Any]], inputs: Any) -> list[Mesh]:
    """Returns the meshes of the layers' variables and of an example."""
    every = [
        *(v for layer in layers for v in _variables(layer)),
        *tf.nest.flatten(inputs),
    ]
    return list(
        dict.fromkeys(
            x.mesh for x in every if isinstance(getattr(x, "mesh", None), Mesh)
        )
    )


def _schedule(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    as_text("schedule", name)
    if name not in _SCHEDULES or (chunks > 1 and name != "1f1b"):
        raise PlanError(
            explain_error(
                f"there is no schedule {name!r}"
                + (f" with {chunks} chunks." if chunks > 1 else "."),
                way_out=f"Take one of {', '.join(map(repr, _SCHEDULES))}; chunks "
                "interleave 1f1b.",
            )
        )
    if chunks > 1:
        return interleaved(stages, microbatches, chunks)
    return _SCHEDULES[name](stages, microbatches)
