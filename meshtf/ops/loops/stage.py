"""One stage of a pipelined scan in one tick: the layers of the stage, for the microbatch that it
has.

    carry, ... = Stage(scan, tick).run(stage_index, received, layers)

The body of a layer is recorded at the size of a microbatch. What it uses from outside of the loop
is replaced when it is used: of a tensor with the batch each stage takes its microbatch, which is
another one in each stage. The op contract says whether results of microbatches make those of the
batch: see `mapped_dimension`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    Body,
    Branch,
    Context,
    Graph,
    Loop,
    Source,
    Tensor,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.control_flow.scan_dimension import unused_dim_name
from meshtf.graph.recorder import RecomputeGroup
from meshtf.mesh import Layout
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    microbatch,
    split_into_microbatches,
)
from meshtf.ops.control.nested_values import next_carry, pack, pack_next, tensors_of
from meshtf.ops.elementwise.arithmetic import equal, greater_equal, less, logical_and
from meshtf.ops.elementwise.where_cast_clip import clip, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.batch_size import all_nodes
from meshtf.ops.loops.mapped_dimension import MappedDimension
from meshtf.ops.loops.masked_gradient import masked, where_true
from meshtf.ops.loops.recorded_scan import recorded_scan, results_of
from meshtf.ops.loops.schedule import Schedule


@dataclasses.dataclass
class LayerResults:
    """What the body of a layer returned; recording it fills this in.

    Attributes:
      terms: the nested structure of the terms of sums.
      outputs: the nested structure of the outputs that are stacked.
      kinds_of_terms: for each term what it has of the batch: "batch": its examples; "sum" or
        "mean": a sum or mean over them; None: nothing.
      kinds_of_outputs: the same of each output.
      recorded: the recorded body of a layer; None: not yet.
    """

    recorded: Body | None = None
    terms: Any = None
    outputs: Any = None
    kinds_of_terms: list[str | None] = dataclasses.field(default_factory=list)
    kinds_of_outputs: list[str | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Layers:
    """What a pipelined scan scans.

    Attributes:
      body: the body of `scan_and_sum`: a function of the carry and an entry of xs.
      init: the initial carry: tensors with the batch, in any nesting.
      xs: the inputs, in any nesting.
      schedule: the stages and microbatches.
      recomputes: whether the backward pass computes each stage again from what it received.
      caller: the context of the scan.
      region: the changes of the layout within stages.
      graph: the graph that records the scan.
      results: what the body returned.
    """

    body: Callable[..., Any]
    init: Any
    xs: Any
    schedule: Schedule
    recomputes: bool
    caller: Context
    region: Layout
    graph: Graph
    results: LayerResults = dataclasses.field(default_factory=LayerResults)

    @property
    def way_out(self) -> str:
        """What can be done about a body that cannot be computed in microbatches."""
        dim = self.schedule.dim.name
        return (
            f"The layout divides {dim!r} into the stages of a pipeline, which compute one "
            "microbatch after another. Let the op work within each example, or within groups of "
            f'them; or leave the rule out here: with mtf.layout("{dim}:").'
        )

    def check(self, body: Body) -> Mapping[Tensor, Tensor]:
        """Finds out what each result of a layer has of the batch. Returns {}: the body has no
        further captures.

        Args:
          body: the recorded body: its arguments are those of `Stage._layer`.

        Raises:
          PlanError: results of microbatches do not make those of the batch.
        """
        self.results.recorded = body
        dim = self.schedule.microbatch_dim
        mapped = MappedDimension(
            dim, (), way_out=self.way_out, draws=True, reduces=True
        )
        for x in (*body.arguments, *body.captures):
            if dim in tuple(x.shape):
                mapped.begin(x, dim.name)
        mapped.follow(body.nodes)
        self._check_sizes(body)
        self._check_division(body)
        kinds: list[str | None] = []
        for x in body.results:
            name = mapped.name_in(x)
            if name not in (None, dim.name):
                raise self.refusal(f"a result has it as {name!r}", x)
            kinds.append(mapped.reduction_in(x) if name is None else "batch")
        num_carries = len(tensors_of(self.init, label="carry"))
        end_of_terms = num_carries + len(tensors_of(self.results.terms, label="sum"))
        for x, carry_kind in zip(body.results[:num_carries], kinds):
            if carry_kind != "batch":
                raise self.refusal("the next carry is another one for each layer", x)
        self.results.kinds_of_terms = kinds[num_carries:end_of_terms]
        self.results.kinds_of_outputs = kinds[end_of_terms:]
        return {}

    def _check_sizes(self, body: Body) -> None:
        """Raises PlanError if an op of the body has the entire batch."""
        batch = self.schedule.batch
        if self.schedule.num_microbatches == 1:
            return
        for node in body.nodes:
            for y in node.outputs:
                if batch in tuple(y.shape):
                    raise self.refusal("this op makes the entire batch", y)

    def _check_division(self, body: Body) -> None:
        """Raises PlanError if a map over stages could not be divided among devices."""
        layers = self.schedule.dim.name
        if unused_dim_name(body, layers) != layers:
            why = f"the layers have a dimension {layers!r} of their own"
            raise self.refusal(why, body.results[0])
        for x in body.captures:
            if layers in x.shape:
                raise self.refusal(f"the layers use a tensor along {layers!r}", x)
        for node in all_nodes(body):
            op = node.op
            if isinstance(op, Branch) or (isinstance(op, Loop) and op.dim is None):
                why = "stages would take different ways through mtf.cond or mtf.while_loop"
                raise self.refusal(why, node.outputs[0])

    def refusal(self, why: str, x: Tensor) -> PlanError:
        """Returns the error of a result x [...] of a layer."""
        return PlanError(
            explain_error(
                f"{self.schedule.batch.name!r} cannot be divided into microbatches: {why}.",
                tensor=repr(x.shape),
                source=x.node.source,
                way_out=self.way_out,
            )
        )


@dataclasses.dataclass
class _LayerCall:
    """A layer while its body is recorded.

    Attributes:
      graph: the graph of its body.
      context: the context before the body is called.
      exists: whether the scan has this layer, bool []; None: it has all layers of all stages.
    """

    graph: Any
    context: Context
    exists: Tensor | None

    def input(self, x: Tensor) -> Tensor:
        """Returns a tensor [...] as the layer uses it: a layer that does not exist gives it no
        gradient.
        """
        if self.exists is None:
            return x
        return masked(x, self.exists)


class Stage:
    """One stage in one tick.

    Args:
      layers: what the pipeline scans.
      tick: the index of the tick, a scalar.
    """

    def __init__(self, layers: Layers, tick: Tensor) -> None:
        self.layers = layers
        self.schedule = layers.schedule
        self.tick = tick
        self.context = current()
        self.graph = current_executor()
        self.inputs = StageInputs(self)

    def run(
        self, order: Tensor, received: list[Tensor], inputs: list[Tensor]
    ) -> tuple[None, Any, Any]:
        """Returns the terms of sums, and what is stacked over stages: the carry, outputs without
        the batch, and terms and outputs with it.

        Args:
          order: the number of stages before this one, a scalar.
          received: the carry that comes from the stage before.
          inputs: the inputs of the layers of this stage.
        """
        schedule = self.schedule
        index = self.tick - order
        self.is_busy = logical_and(
            greater_equal(index, 0), less(index, schedule.num_microbatches)
        )
        self.microbatch = clip(index, 0, schedule.num_microbatches - 1)
        self.first_layer = schedule.order(order) * schedule.layers_of_stage
        batch = schedule.batch
        has_batch = [
            batch in tuple(x.shape) for x in tensors_of(self.layers.xs, label="xs")
        ]
        entries = [self._input(x, split) for x, split in zip(inputs, has_batch)]
        indices = index_range(self.graph.mesh, schedule.layers_dim)
        with self._recomputed():
            carry, terms, outputs = recorded_scan(
                self._layer,
                received,
                (indices, entries),
                schedule.layers_dim,
                reverse=schedule.reverse,
                late_captures=self.layers.check,
            )
            results = self.layers.results
            sums, with_batch = self._counted(terms, results.kinds_of_terms)
            totals, outputs_with_batch = self._counted(
                outputs, results.kinds_of_outputs
            )
        return None, sums, (carry, totals, with_batch + outputs_with_batch)

    @contextlib.contextmanager
    def _recomputed(self) -> Iterator[None]:
        """Within this context, ops belong to what the backward pass computes again, if it does."""
        group = self.context.recompute_group
        if self.layers.recomputes:
            group = RecomputeGroup()
        with context(recompute_group=group):
            yield

    def _counted(
        self, results: list[Tensor], kinds: list[str | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns those results of this microbatch that do not have the batch as terms of sums
        over ticks, 0 in the bubble; and those that have it. What does not depend on the batch
        counts once.
        """
        terms = []
        with_batch = []
        for x, kind in zip(results, kinds, strict=True):
            if kind == "batch":
                with_batch.append(x)
                continue
            counts = self.is_busy
            if kind is None:
                counts = logical_and(counts, equal(self.microbatch, 0))
            terms.append(where_true(counts, x))
        return terms, with_batch

    def _layer(self, carry: Any, inputs: Any) -> tuple[Any, Any, Any]:
        """Returns the next carry, the terms of sums, and the outputs of one layer."""
        layer_index, entries = inputs
        layers = self.layers
        dim = self.schedule.dim
        index = self.first_layer + layer_index
        batch = self.schedule.batch.name
        specs = [x.spec for x in carry]
        exists = None
        if dim.size % self.schedule.num_stages:
            exists = less(index, dim.size)
        self.layer = _LayerCall(current_executor(), current(), exists)
        with (
            context(microbatches=layers.caller.microbatches),
            microbatch(batch, self.schedule.num_microbatches, self.microbatch),
            # Random ops use the index of the layer, and not those of the tick and the stage.
            context(
                iterations=(*layers.caller.iterations, index_in_batch(dim, index)),
                substitutes=self.inputs,
            ),
        ):
            old = pack_next(layers.init, map(self.layer.input, carry))
            entry = pack_next(layers.xs, map(self.layer.input, entries))
            new, terms, outputs = results_of(layers.body(old, entry), 3)
            layers.results.terms = terms
            layers.results.outputs = outputs
            # A layer may return what is from outside.
            new = pack(new, [self.inputs.get(x) for x in tensors_of(new, "carry")])
            new_carry = tensors_of(next_carry(old, new, specs), label="carry")
            terms = [self.inputs.get(x) for x in tensors_of(terms, label="sum")]
            outputs = [self.inputs.get(x) for x in tensors_of(outputs, label="result")]
        if exists is not None:
            new_carry = [where(exists, x, y) for x, y in zip(new_carry, carry)]
            terms = [where_true(exists, x) for x in terms]
        return new_carry, terms, outputs

    def _input(self, x: Tensor, is_split: bool) -> Tensor:
        """Returns a tensor from outside, [..., microbatch, ...] if it is split, as layers use it:
        the microbatch of the stage, to which the bubble gives no gradient.
        """
        if is_split:
            with context(recompute_group=RecomputeGroup(in_loops=True)):
                x = gather_with_bounds(x, self.microbatch, MICROBATCH, "trusted")
        return masked(x, self.is_busy)

    def take(self, x: Tensor) -> Tensor:
        """Returns what the layers of this stage use in place of a tensor x [...]."""
        if _is_within(x.node.owner, self.graph):
            return x
        caller = {**vars(self.layers.caller), "microbatches": None}
        with executing(self.layers.graph), context(**caller):
            batch = self.schedule.batch
            is_split = batch in tuple(x.shape)
            if is_split:
                num_microbatches = self.schedule.num_microbatches
                x = split_into_microbatches(x, batch.name, num_microbatches)
            elif self.schedule.microbatch_dim in tuple(x.shape):
                raise self.layers.refusal("this tensor has the size of a microbatch", x)
        with executing(self.graph), context(**vars(self.context)):
            x = self._input(x, is_split)
        with executing(self.layer.graph), context(**vars(self.layer.context)):
            return self.layer.input(x)


class StageInputs(dict[Tensor, Tensor]):
    """The substitutes of tensors from outside in the layers of a stage: see
    `Context.substitutes`.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def get(self, x: Tensor, default: Any = None) -> Any:
        """Returns the substitute of x, which is made when x is used first; x itself if it is of
        the stage.
        """
        if x not in self:
            self[x] = self._stage.take(x)
        return self[x]


class NoMeans:
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


def _is_within(owner: Any, graph: Any) -> bool:
    """Returns whether the owner of a node is a graph, or the graph of a body in it."""
    while owner is not None and owner is not graph:
        owner = getattr(owner, "outer", None)
    return owner is graph
