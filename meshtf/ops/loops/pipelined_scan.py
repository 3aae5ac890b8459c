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

In the ticks marked "-", the *bubble*, a stage computes something that no result depends on; a
gradient that is not a number stops there as well. (Huang et al. 2019, arXiv:1811.06965; one
program for all stages: Xu et al. 2021, arXiv:2105.04663, section 3.3.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Body,
    Graph,
    Source,
    Tensor,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.recorder import RecomputeGroup
from meshtf.mesh import Layout
from meshtf.names import Dimension, Shape, has_gradient
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.custom_gradient import custom_gradient
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    microbatch,
    split_into_microbatches,
)
from meshtf.ops.control.nested_values import next_carry, pack, pack_next, tensors_of
from meshtf.ops.elementwise.arithmetic import (
    add,
    equal,
    greater_equal,
    less,
    logical_and,
    outer,
)
from meshtf.ops.elementwise.where_cast_clip import clip, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.mapped_dimension import MappedDimension
from meshtf.ops.loops.recorded_scan import recorded_scan, results_of
from meshtf.ops.loops.schedule import Schedule, schedule_of
from meshtf.ops.loops.slots import entry_of, into_slots, out_of_slots, with_entry
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten
from meshtf.ops.shapes.slice import concat
from meshtf.ops.shapes.slice import slice as take_elements
from meshtf.ops.variables.fill import full
from meshtf.ops.windows.shift import roll

_TICK = ".tick"


def pipelined_scan(
    body: Callable[..., Any], init: Any, xs: Any, dim: Dimension, reverse: bool
) -> tuple[Any, Any, Any] | None:
    """Records a scan as a pipeline, if the layout shards its dimension; returns the results of
    `scan_and_sum`, or None: it is none.

    Args:
      body: see `scan_and_sum`, as for `init`, `xs`, `dim` and `reverse`.

    Raises:
      PlanError: `mesh.microbatches` is set, and an op of the body needs the entire batch.
    """
    graph = current_executor()
    assert isinstance(graph, Graph)
    mesh = graph.mesh
    if mesh is None or reverse or isinstance(current().substitutes, _Taken):
        return None
    carry = tensors_of(init, label="carry")
    schedule = schedule_of(mesh, mesh.layout_in(current().region), carry, dim)
    if schedule is None:
        return None
    recomputes = False
    scan = PipelinedScan(body, init, xs, schedule, recomputes)
    return scan.run()


class PipelinedScan:
    """A scan that is recorded as a pipeline.

    Args:
      body: the body of `scan_and_sum`: a function of the carry and an entry of xs.
      init: the initial carry: tensors with the batch, in any nesting.
      xs: the inputs, in any nesting.
      schedule: the stages and microbatches.
      recomputes: whether the backward pass computes each stage again from what it received.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        init: Any,
        xs: Any,
        schedule: Schedule,
        recomputes: bool,
    ) -> None:
        self.body = body
        self.init = init
        self.xs = xs
        self.schedule = schedule
        self.recomputes = recomputes
        self.caller = current()
        self.graph = current_executor()
        mesh = self.graph.mesh
        assert mesh is not None  # `schedule_of` has placed dimensions on it
        self.mesh = mesh
        # What the body of a layer returned: the nested structures, and how each result of the
        # batch is made of those of microbatches.
        self.terms: Any = None
        self.outputs: Any = None
        self.kinds: list[str | None] = []

    def run(self) -> tuple[Any, Any, Any]:
        """Records the pipeline; returns what `scan_and_sum` does.

        Raises:
          PlanError: an op of the body needs the entire batch.
        """
        schedule = self.schedule
        region = self.caller.region.then(self._rules_of_stages())
        # Outside of its layers, indices in the batch play no role.
        with context(region=region, microbatches=None, batch_means=_NoMeans()):
            carry = tensors_of(self.init, label="carry")
            buffers = [into_slots(x, schedule) for x in carry]
            states = [self._first_state(x) for x in carry]
            layers = [self._by_stage(x) for x in tensors_of(self.xs, label="xs")]
            self.layers = layers
            ticks = Dimension(_TICK, schedule.num_ticks)
            last, sums, stacks = recorded_scan(
                self._tick, (states, buffers), index_range(self.mesh, ticks), ticks
            )
            _states, buffers = last
            ys = [out_of_slots(buffer, schedule) for buffer in buffers]
            sums, stacks = self._of_batch(sums, stacks)
        return pack(self.init, ys), sums, stacks

    def _rules_of_stages(self) -> Layout:
        """Returns changes of the layout: within the pipeline, only stages are sharded along its
        axes.
        """
        axes = set(self.schedule.axes)
        changes = {}
        for name, rule_axes in self.mesh.layout_in(self.caller.region).items():
            if name != self.schedule.dim.name and axes & set(rule_axes):
                changes[name] = "+".join(axis for axis in rule_axes if axis not in axes)
        return Layout.changes(changes)

    def _first_state(self, x: Tensor) -> Tensor:
        """Returns what stages have before the first tick, zeros [stages, ..., batch, ...]."""
        dims = [self.schedule.stages_dim]
        for dim in x.shape:
            is_batch = dim.name == self.schedule.batch.name
            dims.append(self.schedule.microbatch_dim if is_batch else dim)
        return full(self.mesh, Shape(dims), value=0, dtype=x.dtype)

    def _by_stage(self, x: Tensor) -> Tensor:
        """Returns an input [..., layers, ...] of the scan as [stages, layers of a stage, ...].

        Stages beyond the last layer have copies of it, which have no effect: unlike zeros, they
        give no values that are not numbers.
        """
        schedule = self.schedule
        dim = schedule.dim.name
        x = transpose(x, (dim, *x.shape.without(dim).names))
        missing = schedule.num_stages * schedule.layers_of_stage - schedule.dim.size
        if missing:
            last = take_elements(x, dim, begin=schedule.dim.size - 1, size=1)
            x = concat([x, *[last] * missing], dim)
        x = unflatten(x, dim, [schedule.stages_dim, schedule.layers_dim])
        if schedule.batch in tuple(x.shape):
            x = split_into_microbatches(
                x, schedule.batch.name, schedule.num_microbatches
            )
        return x

    def _tick(self, carry: Any, tick: Tensor) -> tuple[Any, Any, Any]:
        """Returns what stages have after a tick, sums of the terms of all stages, and what is
        stacked over ticks.
        """
        states, buffers = carry
        schedule = self.schedule
        stages_dim = schedule.stages_dim
        dim = stages_dim.name
        stages = index_range(self.mesh, stages_dim)
        is_first = equal(stages, 0)
        is_last = equal(stages, stages_dim.size - 1)
        slot = tick % schedule.num_slots
        entries = [entry_of(buffer, slot) for buffer in buffers]
        received = [
            where(is_first, entry, roll(state, dim, 1))
            for entry, state in zip(entries, states)
        ]

        def stage(_: None, inputs: Any) -> tuple[None, Any, Any]:
            return _Stage(self, tick).run(*inputs)

        _, sums, (states, totals, outputs) = recorded_scan(
            stage, None, (stages, received, self.layers), stages_dim
        )
        buffers = [
            with_entry(buffer, slot, where(is_last, state, roll(entry, dim, -1)))
            for buffer, entry, state in zip(buffers, entries, states)
        ]
        return (states, buffers), (sums, totals), outputs

    def _of_batch(self, sums: Any, stacks: Any) -> tuple[Any, Any]:
        """Returns the sums and the stacked outputs of the batch.

        Args:
          sums: the sums over ticks: those of terms, and those of outputs without the batch,
            [stages, layers of a stage, ...].
          stacks: the outputs with the batch, [tick, stages, layers of a stage, ...].
        """
        sums_of_terms, totals = sums
        num_terms = len(sums_of_terms)
        means = [
            self._mean(x, kind)
            for x, kind in zip(sums_of_terms, self.kinds[:num_terms])
        ]
        with_batch = iter(stacks)
        without_batch = iter(totals)
        outputs = []
        for kind in self.kinds[num_terms:]:
            if kind == "batch":
                outputs.append(self._of_layers(self._of_ticks(next(with_batch))))
            else:
                outputs.append(self._of_layers(self._mean(next(without_batch), kind)))
        return pack(self.terms, means), pack(self.outputs, outputs)

    def _mean(self, total: Tensor, kind: str | None) -> Tensor:
        """Returns what a sum over microbatches says of the batch: their mean for means."""
        if kind != "mean":
            return total
        return total * (1.0 / self.schedule.num_microbatches)

    def _of_ticks(self, x: Tensor) -> Tensor:
        """Returns outputs [tick, stages, layers, ..., microbatch's batch, ...] as [stages,
        layers, ..., batch, ...]: stage s computes microbatch m in tick m + s.
        """
        schedule = self.schedule
        stages = index_range(self.mesh, schedule.stages_dim)
        microbatches = Dimension(MICROBATCH, schedule.num_microbatches)
        ticks = outer(stages, index_range(self.mesh, microbatches), add)
        y = gather_with_bounds(x, ticks, _TICK, "trusted")
        return flatten(y, (schedule.batch.name, MICROBATCH), schedule.batch.name)

    def _of_layers(self, x: Tensor) -> Tensor:
        """Returns x [..., stages, ..., layers of a stage, ...] as [layers, ...]."""
        schedule = self.schedule
        dim = schedule.dim.name
        names = (dim, schedule.layers_dim.name)
        x = transpose(x, (*names, *x.shape.without(*names).names))
        y = flatten(x, names, dim)
        if y.shape[dim] == schedule.dim.size:
            return y
        return take_elements(y, dim, begin=0, size=schedule.dim.size)


class _Stage:
    """One stage in one tick: the layers of the stage, for the microbatch that it has.

    Args:
      scan: the pipelined scan.
      tick: the index of the tick, a scalar.
    """

    def __init__(self, scan: PipelinedScan, tick: Tensor) -> None:
        self.scan = scan
        self.schedule = scan.schedule
        self.tick = tick
        self.context = current()
        self.graph = current_executor()
        self.group = RecomputeGroup()
        self.taken = _Taken(self)

    def run(
        self, stage: Tensor, received: list[Tensor], layers: list[Tensor]
    ) -> tuple[None, Any, Any]:
        """Returns the terms of sums, and what is stacked over stages: the states, outputs
        without the batch, and outputs with it.

        Args:
          stage: the index of the stage, a scalar.
          received: the carry that comes from the stage before.
          layers: the inputs of the layers of this stage.
        """
        schedule = self.schedule
        index = self.tick - stage
        self.is_busy = logical_and(
            greater_equal(index, 0), less(index, schedule.num_microbatches)
        )
        self.index = clip(index, 0, schedule.num_microbatches - 1)
        self.first_layer = stage * schedule.layers_of_stage
        entries = [self._entry(x) for x in layers]
        layer_indices = index_range(self.scan.mesh, schedule.layers_dim)
        with self._recomputed():
            carry, terms, outputs = recorded_scan(
                self._layer,
                received,
                (layer_indices, entries),
                schedule.layers_dim,
                late_captures=self._check,
            )
            num_terms = len(terms)
            kinds = self.scan.kinds
            terms = [self._counted(x, kind) for x, kind in zip(terms, kinds)]
            totals = []
            with_batch = []
            for x, kind in zip(outputs, kinds[num_terms:]):
                if kind == "batch":
                    with_batch.append(x)
                else:
                    totals.append(self._counted(x, kind))
        return None, terms, (carry, totals, with_batch)

    @contextlib.contextmanager
    def _recomputed(self) -> Iterator[None]:
        """Within this context, ops belong to what the backward pass computes again, if it does."""
        group = self.group if self.scan.recomputes else self.context.recompute_group
        with context(recompute_group=group):
            yield

    def _counted(self, x: Tensor, kind: str | None) -> Tensor:
        """Returns a result x of this microbatch as a term of a sum over ticks: 0 in the bubble.
        What does not depend on the microbatch counts once.
        """
        counts = self.is_busy
        if kind is None:
            counts = logical_and(counts, equal(self.index, 0))
        return where(counts, x, 0)

    def _layer(self, carry: Any, inputs: Any) -> tuple[Any, Any, Any]:
        """Returns the next carry, the terms of sums, and the outputs of one layer."""
        layer_index, entries = inputs
        scan = self.scan
        dim = scan.schedule.dim
        batch = scan.schedule.batch.name
        index = self.first_layer + layer_index
        specs = [x.spec for x in carry]
        # Random ops use the index of the layer, and not those of the tick and the stage.
        with (
            context(microbatches=scan.caller.microbatches),
            microbatch(batch, scan.schedule.num_microbatches, self.index),
            context(
                iterations=(*scan.caller.iterations, index_in_batch(dim, index)),
                region=scan.caller.region.then(scan._rules_of_stages()),
                substitutes=self.taken,
            ),
        ):
            old = pack_next(scan.init, iter(carry))
            returned = scan.body(old, pack_next(scan.xs, iter(entries)))
            new, scan.terms, scan.outputs = results_of(returned, 3)
            new = next_carry(old, new, specs)
            results = [
                tensors_of(new, label="carry"),
                tensors_of(scan.terms, label="sum"),
                tensors_of(scan.outputs, label="result"),
            ]
        if dim.size % scan.schedule.num_stages == 0:
            new_carry, terms, outputs = results
            return new_carry, terms, outputs
        exists = less(index, dim.size)
        new_carry = [where(exists, x, y) for x, y in zip(results[0], carry)]
        terms = [where(exists, x, 0) for x in results[1]]
        return new_carry, terms, results[2]

    def _entry(self, x: Tensor) -> Tensor:
        """Returns an input of the layers of this stage for the microbatch."""
        group = self.group
        with context(recompute_group=group):
            if MICROBATCH in x.shape and self.schedule.microbatch_dim in tuple(x.shape):
                x = gather_with_bounds(x, self.index, MICROBATCH, "trusted")
            return self._guarded(x)

    def _guarded(self, x: Tensor) -> Tensor:
        """Returns x, to which the bubble gives no gradient."""
        if not has_gradient(x.dtype):
            return x
        return _with_gradient_where(x, self.is_busy)

    def take(self, x: Tensor) -> Tensor:
        """Returns what the layers of this stage use in place of a tensor from outside."""
        if _is_within(x.node.owner, self.graph):
            return x
        batch = self.schedule.batch
        caller = {**vars(self.scan.caller), "microbatches": None}
        if batch in tuple(x.shape):
            with executing(self.scan.graph), context(**caller):
                x = split_into_microbatches(
                    x, batch.name, self.schedule.num_microbatches
                )
        with executing(self.graph), context(**vars(self.context)):
            return self._entry(x)

    def _check(self, body: Body) -> Mapping[Tensor, Tensor]:
        """Finds out how each result of a layer depends on the batch; returns {}: the body needs no
        other captures.

        Raises:
          PlanError: a result of the batch is not made of those of microbatches.
        """
        scan = self.scan
        dim = self.schedule.microbatch_dim
        mapped = MappedDimension(
            dim, (), way_out=self._way_out(), draws=True, reduces=True
        )
        _index, *arguments = body.arguments
        num_carries = len(tensors_of(scan.init, label="carry"))
        for x in (*arguments, *body.captures):
            if dim in tuple(x.shape):
                mapped.begin(x, dim.name)
        mapped.follow(body.nodes)
        carries = body.results[:num_carries]
        results = body.results[num_carries:]
        num_terms = len(tensors_of(scan.terms, label="sum"))
        if any(mapped.name_in(x) is None for x in carries):
            self._refuse("the carry loses it on the way", carries[0])
        kinds = []
        for i, x in enumerate(results):
            kind = mapped.reduction_in(x)
            if mapped.name_in(x) is not None:
                kind = "batch"
                if mapped.name_in(x) != dim.name or i < num_terms:
                    self._refuse("a result has it under another name", x)
            kinds.append(kind)
        scan.kinds = kinds
        return {}

    def _refuse(self, why: str, x: Tensor) -> None:
        """Raises PlanError: results of microbatches do not make those of the batch."""
        raise PlanError(
            explain_error(
                f"{self.schedule.batch.name!r} cannot be divided into microbatches: {why}.",
                tensor=repr(x.shape),
                source=x.node.source,
                way_out=self._way_out(),
            )
        )

    def _way_out(self) -> str:
        """Returns what can be done about a body that needs the entire batch."""
        dim = self.schedule.dim.name
        return (
            f"The layout divides {dim!r} into the stages of a pipeline, which compute one "
            "microbatch after another. Let the op work within each example, or within groups of "
            f'them; or leave the rule out here: with mtf.layout("{dim}:").'
        )


class _Taken(dict[Tensor, Tensor]):
    """The substitutes of tensors from outside in the layers of a stage: see
    `Context.substitutes`.
    """

    def __init__(self, stage: _Stage) -> None:
        super().__init__()
        self._stage = stage

    def get(self, x: Tensor, default: Any = None) -> Any:
        """Returns the substitute of x, which is made when x is used first."""
        if x not in self:
            self[x] = self._stage.take(x)
        return self[x]


class _NoMeans:
    """The means over microbatches that layers of a pipeline ask for: see `Context.batch_means`."""

    def of(self, x: Tensor) -> Tensor:
        """Raises PlanError: the first microbatch would need the others."""
        raise PlanError(
            explain_error(
                "a layer of a pipeline needs the mean of a weight over all microbatches, and they "
                "come one after another.",
                tensor=repr(x),
                source=Source.of_caller(),
                way_out="Compute it before the layers, from their inputs.",
            )
        )


@custom_gradient
def _with_gradient_where(x: Tensor, condition: Tensor) -> Any:
    """Returns x, with the gradient 0 where a condition is false, also in place of NaN."""

    def gradient(dy: Tensor) -> list[Tensor | None]:
        return [where(condition, dy, 0), None]

    return x, gradient


def _is_within(owner: Any, graph: Any) -> bool:
    """Returns whether the owner of a node is a graph, or the graph of a body in it."""
    while owner is not None and owner is not graph:
        owner = getattr(owner, "outer", None)
    return owner is graph
