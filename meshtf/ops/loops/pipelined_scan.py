"""A scan over a sharded dimension: a pipeline.

    layout "layers:stage; batch:data", mtf.scan(layer, x, weights, "layers")

The devices along the axes that shard the scanned dimension are *stages*: each has the entries of
its shard, which are consecutive layers. The batch is divided into *microbatches*, which pass from
stage to stage. In a *tick*, each stage computes its layers for one microbatch:

    tick        0    1    2    3    4             3 stages, 3 microbatches
    stage 0     m0   m1   m2   -    -
    stage 1     -    m0   m1   m2   -
    stage 2     -    -    m0   m1   m2

All of it is named ops, so that gradients, both runtimes and forecasts need nothing of their own:
a scan over ticks, in its body a map over stages (see `partition.sharded_loops`), and in that one
a scan over the layers of a stage. `mtf.roll` moves what a stage has computed to the next one.

No device has all microbatches before or after the pipeline. They lie in a buffer of *slots*,
`[microbatch:slots, layers:stages, batch, ...]`: in tick t the first stage takes its part of slot
t % slots, all parts of this slot move on by one stage, and the last stage fills the part that
became free with its output.

With repeats, a stage has several groups of layers: it takes the weights of the group that its
microbatch has come to.

In the ticks marked "-", the *bubble*, a stage computes something that no result depends on; a
gradient that is not a number stops there as well. (Huang et al. 2019, arXiv:1811.06965; one
program for all stages: Xu et al. 2021, arXiv:2105.04663, section 3.3.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from meshtf.errors import explain_error
from meshtf.graph import (
    Graph,
    ReadOp,
    Source,
    Tensor,
    context,
    current,
    current_executor,
)
from meshtf.graph.control_flow.scan_dimension import REPEAT, TICK
from meshtf.mesh import Layout, Mesh
from meshtf.mesh.once_per_mesh import warn_once
from meshtf.names import Dimension, Shape
from meshtf.ops.control.microbatch import MICROBATCH, split_into_microbatches
from meshtf.ops.control.nested_values import pack, tensors_of
from meshtf.ops.control.stop_gradient import recomputed_function, stop_gradient
from meshtf.ops.elementwise.arithmetic import add, equal, outer
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.batch_size import check_same_scalars
from meshtf.ops.loops.layer_groups import into_groups, out_of_groups
from meshtf.ops.loops.pipelined_layers import LayerResults, Layers
from meshtf.ops.loops.recorded_scan import recorded_scan
from meshtf.ops.loops.schedule import Schedule, schedule_of
from meshtf.ops.loops.slots import after_tick, entry_of, into_slots, out_of_slots
from meshtf.ops.loops.stage import Stage, StageInputs
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.ops.shapes.reshape import flatten, transpose
from meshtf.ops.shapes.slice import slice as take_elements
from meshtf.ops.windows.shift import roll


def pipelined_scan(
    body: Callable[..., Any], init: Any, xs: Any, dim: Dimension, reverse: bool
) -> tuple[Any, Any, Any] | None:
    """Records a scan as a pipeline, if the layout shards its dimension; returns the results of
    `scan_and_sum`: (carry [...], sums [...], stacks [dim, ...]), or None: it is none.

    If `mesh.microbatches` is not set, a scan that cannot be a pipeline is none, and a warning
    says why.

    Args:
      body: see `scan_and_sum`, as for `init`, `xs`, `dim` and `reverse`.

    Raises:
      PlanError: `mesh.microbatches` is set, and the scan cannot be a pipeline.
      ShapeError: `mesh.microbatches` does not divide the batch.
    """
    graph = current_executor()
    assert isinstance(graph, Graph)
    mesh = graph.mesh
    if mesh is None or isinstance(current().substitutes, StageInputs):
        return None  # no layout is known; or the loop is within a stage
    layout = mesh.layout_in(current().region)
    carry = tensors_of(init, label="carry")
    schedule = schedule_of(mesh, layout, carry, dim, reverse)
    if schedule is None:
        return None
    recomputed = recomputed_function(body)
    layers = Layers(
        body=recomputed.fn if recomputed else body,
        init=init,
        xs=xs,
        schedule=schedule,
        recomputed=recomputed,
        caller=current(),
        region=current().region.then(_rules_of_stages(layout, schedule)),
        graph=graph,
    )
    attempt = _Attempt(graph)
    try:
        results = PipelinedScan(layers, mesh).run()
        _check_scalars(layers, mesh, _Attempt(graph, attempt.paths))
        return results
    except Exception as error:  # also of code that does not expect a microbatch
        if mesh.microbatches is not None:
            raise
        attempt.discard()
        source = Source.of_caller()
        text = explain_error(
            f"the scan over {dim.name!r}, which the layout shards, is no pipeline: all devices "
            f"gather {dim.name!r} and run all iterations.",
            because=error,
            source=source,
        )
        warn_once(mesh, f"no pipeline at {source}", text)
        return None


class _Attempt:
    """What a graph records from now on, which may be discarded.

    Args:
      graph: the graph.
      paths: the paths of random ops before it; None: those of now.
    """

    def __init__(self, graph: Graph, paths: set[Any] | None = None) -> None:
        self.graph = graph
        self.num_nodes = len(graph.nodes)
        self.paths = set(current().random_paths or ()) if paths is None else paths

    def discard(self) -> None:
        """Discards what was recorded. Reads of variables stay: later reads of the same variable
        find them.
        """
        nodes = self.graph.nodes
        reads = [x for x in nodes[self.num_nodes :] if isinstance(x.op, ReadOp)]
        nodes[self.num_nodes :] = reads
        paths = current().random_paths
        if paths is not None:
            paths.clear()
            paths.update(self.paths)


def _check_scalars(layers: Layers, mesh: Mesh, attempt: _Attempt) -> None:
    """Raises PlanError if a number in a recorded layer is another one for the entire batch.

    Args:
      layers: layers that were recorded for microbatches.
      mesh: the mesh.
      attempt: what is recorded here, and discarded.
    """
    schedule = layers.schedule
    if schedule.num_microbatches == 1:
        return
    results = LayerResults()
    entire = dataclasses.replace(
        layers,
        schedule=dataclasses.replace(schedule, num_microbatches=1),
        results=results,
    )
    with context(random_paths=set(attempt.paths), runs_again=True):
        PipelinedScan(entire, mesh).run()
        attempt.discard()
    nodes, other_nodes = layers.results.nodes, results.nodes
    check_same_scalars(nodes, other_nodes, schedule.batch.name, layers.way_out)


def _rules_of_stages(layout: Layout, schedule: Schedule) -> Layout:
    """Returns changes of a layout: within a pipeline, only stages are sharded along its axes."""
    changes = {}
    for name, axes in layout.items():
        if name != schedule.dim.name and not set(axes).isdisjoint(schedule.axes):
            changes[name] = "+".join(axis for axis in axes if axis not in schedule.axes)
    return Layout.changes(changes)


class PipelinedScan:
    """A scan that is recorded as a pipeline.

    Args:
      layers: what it scans.
      mesh: the mesh.
    """

    def __init__(self, layers: Layers, mesh: Mesh) -> None:
        self.layers = layers
        self.schedule = layers.schedule
        self.mesh = mesh

    def run(self) -> tuple[Any, Any, Any]:
        """Records the pipeline; returns what `scan_and_sum` does.

        Raises:
          PlanError: an op of the body needs the entire batch.
        """
        schedule = self.schedule
        layers = self.layers
        # Outside of its layers, indices in the batch play no role.
        with context(region=layers.region, microbatches=None, batch_means=None):
            carry = tensors_of(layers.init, label="carry")
            buffers = [into_slots(x, schedule) for x in carry]
            states = [self._first_state(x) for x in carry]
            inputs = tensors_of(layers.xs, label="xs")
            inputs_of_stages = [self._by_stage(x) for x in inputs]
            ticks = Dimension(TICK, schedule.num_ticks)

            def tick(carry: Any, index: Tensor) -> tuple[Any, Any, Any]:
                return self._tick(carry, index, inputs_of_stages)

            last, sums, stacks = recorded_scan(
                tick, (states, buffers), index_range(self.mesh, ticks), ticks
            )
            _states, buffers = last
            ys = [out_of_slots(buffer, schedule) for buffer in buffers]
            terms, outputs = self._of_batch(sums, stacks)
        results = layers.results
        return (
            pack(layers.init, ys),
            pack(results.terms, terms),
            pack(results.outputs, outputs),
        )

    def _first_state(self, x: Tensor) -> Tensor:
        """Returns what stages have before the first tick, [stages, ..., batch, ...]: the first
        microbatch of x. So a stage that has no microbatch yet computes something that its layers
        are made for, and not of zeros.
        """
        schedule = self.schedule
        batch = schedule.batch.name
        y = split_into_microbatches(x, batch, schedule.num_microbatches)
        y = take_elements(y, MICROBATCH, begin=0, size=1)
        y = flatten(y, (batch, MICROBATCH), batch)
        y = stop_gradient(transpose(y, x.shape.names))
        return broadcast(y, Shape([schedule.stages_dim, *y.shape]))

    def _by_stage(self, x: Tensor) -> Tensor:
        """Returns an input [..., layers, ...] of the scan as stages have it: see `into_groups`;
        with the batch [stages, ..., microbatch, ...].
        """
        schedule = self.schedule
        x = into_groups(x, schedule)
        if schedule.batch in tuple(x.shape):
            x = split_into_microbatches(
                x, schedule.batch.name, schedule.num_microbatches
            )
        return x

    def _tick(
        self, carry: Any, tick: Tensor, inputs_of_stages: list[Tensor]
    ) -> tuple[Any, Any, Any]:
        """Returns what stages have after a tick, sums of the terms of all stages, and what is
        stacked over ticks.
        """
        states, buffers = carry
        schedule = self.schedule
        dim = schedule.dim.name
        stages = index_range(self.mesh, schedule.stages_dim)
        order = schedule.order(stages)
        groups = stages
        if schedule.repeats > 1:
            firsts = index_range(self.mesh, schedule.repeats_dim) * schedule.num_stages
            groups = outer(stages, firsts, add)
        is_first = equal(order, 0)
        slot = tick % schedule.num_slots
        entries = [entry_of(buffer, slot) for buffer in buffers]
        received = [
            where(is_first, entry, roll(state, dim, schedule.direction))
            for entry, state in zip(entries, states)
        ]

        def stage(_: None, inputs: Any) -> tuple[None, Any, Any]:
            return Stage(self.layers, tick).run(*inputs)

        _, sums, (states, totals, outputs) = recorded_scan(
            stage,
            None,
            (order, groups, received, inputs_of_stages),
            schedule.stages_dim,
        )
        buffers = [
            after_tick(buffer, entry, state, tick, schedule)
            for buffer, entry, state in zip(buffers, entries, states)
        ]
        return (states, buffers), (sums, totals), outputs

    def _of_batch(self, sums: Any, stacks: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the sums and the stacked outputs of the batch.

        Args:
          sums: the sums over ticks: those of terms, and those of outputs without the batch,
            [stages, repeat, layers of a group, ...].
          stacks: the terms with the batch, [tick, stages, ...], and the outputs with it, [tick,
            stages, layers of a group, ...].
        """
        sums_of_terms, totals = map(iter, sums)
        with_batch = iter(stacks)
        terms = []
        for kind in self.layers.results.kinds_of_terms:
            if kind == "batch":
                x = self._of_ticks(next(with_batch))
                terms.append(reduce_sum(x, self._group_dims))
            else:
                terms.append(self._mean(next(sums_of_terms), kind))
        outputs = []
        of_layer = tensors_of(self.layers.results.outputs, label="result")
        for kind, output in zip(self.layers.results.kinds_of_outputs, of_layer):
            if kind == "batch":
                x = self._of_ticks(next(with_batch))
            else:
                x = cast(self._mean(next(totals), kind), output.dtype)
            outputs.append(out_of_groups(x, self.schedule))
        return terms, outputs

    @property
    def _group_dims(self) -> list[str]:
        """The names of the dimensions of the groups of layers."""
        names = [self.schedule.dim.name]
        if self.schedule.repeats > 1:
            names.append(REPEAT)
        return names

    def _mean(self, total: Tensor, kind: str | None) -> Tensor:
        """Returns what a sum over microbatches [...] says of the batch: for means their mean."""
        if kind != "mean":
            return total
        return total * (1.0 / self.schedule.num_microbatches)

    def _of_ticks(self, x: Tensor) -> Tensor:
        """Returns x [tick, stages, ..., batch of a microbatch, ...] as [stages, repeat, ..., batch,
        ...]: the stage that is the k-th computes microbatch m in tick m + k, and then once each
        period.
        """
        schedule = self.schedule
        order = schedule.order(index_range(self.mesh, schedule.stages_dim))
        microbatches = Dimension(MICROBATCH, schedule.num_microbatches)
        ticks = outer(order, index_range(self.mesh, microbatches), add)
        if schedule.repeats > 1:
            repeats = schedule.repeat(index_range(self.mesh, schedule.repeats_dim))
            ticks = outer(ticks, repeats * schedule.period, add)
        y = gather_with_bounds(x, ticks, TICK, "trusted")
        return flatten(y, (schedule.batch.name, MICROBATCH), schedule.batch.name)
