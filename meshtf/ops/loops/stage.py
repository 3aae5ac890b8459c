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
from typing import Any

from meshtf.graph import (
    Context,
    Tensor,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.control_flow.scan_dimension import REPEAT
from meshtf.graph.recorder import RecomputeGroup
from meshtf.names import Shape
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.batch_means import is_within
from meshtf.ops.control.masked_gradient import masked, where_true
from meshtf.ops.control.microbatch import (
    MICROBATCH,
    microbatch,
    split_into_microbatches,
)
from meshtf.ops.control.nested_values import next_carry, pack, pack_next, tensors_of
from meshtf.ops.control.stop_gradient import recompute, recomputed_ops
from meshtf.ops.elementwise.arithmetic import (
    equal,
    greater_equal,
    less,
    logical_and,
)
from meshtf.ops.elementwise.where_cast_clip import clip, where
from meshtf.ops.indexing.gather import gather_with_bounds, sum_at_ids
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.loops.batch_weights import (
    LayerInputs,
    computation_of,
    mean_of_microbatches,
)
from meshtf.ops.loops.pipelined_layers import Layers
from meshtf.ops.loops.recorded_scan import recorded_scan, results_of


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

    def entry(self, x: Tensor, is_busy: Tensor) -> Tensor:
        """Returns an entry [...] of an input of the scan as the layer uses it: the bubble gives it
        no gradient, either. What this masks is the gradient of one layer, so that the loop over
        layers can add it to what the ticks sum.
        """
        if self.exists is not None:
            is_busy = logical_and(is_busy, self.exists)
        return masked(x, is_busy)


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
        self.layer_inputs = LayerInputs(
            layers.graph, layers.caller, layers.schedule.num_microbatches
        )

    def run(
        self,
        order: Tensor,
        groups: Tensor,
        received: list[Tensor],
        inputs: list[Tensor],
    ) -> tuple[None, Any, Any]:
        """Returns the terms of sums, and what is stacked over stages: the carry, outputs without
        the batch, and terms and outputs with it.

        Args:
          order: the number of stages before this one, a scalar.
          groups: the index of each of its groups, [repeat]; without repeats a scalar.
          received: the carry that comes from the stage before.
          inputs: the inputs of the layers of this stage.
        """
        schedule = self.schedule
        self._begin(self.tick - order)
        self.first_layer = self._of_group(groups) * schedule.layers_of_group
        batch = schedule.batch
        has_batch = [
            batch in tuple(x.shape) for x in tensors_of(self.layers.xs, label="xs")
        ]
        entries = [
            self._microbatch(x) if split else x
            for x, split in zip(map(self._of_group, inputs), has_batch)
        ]
        indices = index_range(self.graph.mesh, schedule.layers_dim)
        if schedule.repeats > 1:
            # After the last repeat the first stage receives what the pipeline has computed.
            received = [masked(x, self.is_busy) for x in received]
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
            totals = [self._of_repeat(x) for x in totals]
        return None, sums, (carry, totals, with_batch + outputs_with_batch)

    def _begin(self, index: Tensor) -> None:
        """Finds out what the stage computes.

        Args:
          index: for how many ticks it has had microbatches before, a scalar; negative: it has
            none yet.
        """
        schedule = self.schedule
        num_microbatches = schedule.num_microbatches
        self.is_busy = greater_equal(index, 0)
        if schedule.repeats > 1:
            repeat = clip(index // schedule.period, 0, schedule.repeats - 1)
            index = index - repeat * schedule.period
            self.repeat = schedule.repeat(repeat)
        self.is_busy = logical_and(self.is_busy, less(index, num_microbatches))
        self.microbatch = clip(index, 0, num_microbatches - 1)

    def _of_group(self, x: Tensor) -> Tensor:
        """Returns the entry [...] of x [repeat, ...] for the group that the stage computes."""
        if self.schedule.repeats == 1:
            return x
        # Else the forward pass would store the weights for each tick.
        with context(recompute_group=RecomputeGroup(in_loops=True)):
            return gather_with_bounds(x, self.repeat, REPEAT, "trusted")

    def _of_repeat(self, x: Tensor) -> Tensor:
        """Returns x [layers of a group, ...] as [repeat, layers of a group, ...], with zeros for
        the groups of the stage that it does not compute now.
        """
        if self.schedule.repeats == 1:
            return x
        shape = Shape([self.schedule.repeats_dim, *x.shape])
        return sum_at_ids(x, self.repeat, REPEAT, shape, "trusted")

    def _recomputed(self) -> contextlib.AbstractContextManager[Any]:
        """Within this context, ops belong to what the backward pass computes again, if that is all
        of the stage; else each layer is recomputed alone.
        """
        recomputed = self.layers.recomputed
        if recomputed is None or recomputed.stored:
            return context(recompute_group=self.context.recompute_group)
        return recomputed_ops(())

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
        if dim.size % self.schedule.num_groups:
            exists = less(index, dim.size)
        self.layer = _LayerCall(current_executor(), current(), exists)
        with (
            context(microbatches=layers.caller.microbatches),
            microbatch(batch, self.schedule.num_microbatches, self.microbatch),
            # Random ops use the index of the layer, and not those of the tick and the stage.
            context(
                iterations=(*layers.caller.iterations, index_in_batch(dim, index)),
                substitutes=self.inputs,
                batch_means=self,
            ),
        ):
            old = pack_next(layers.init, map(self.layer.input, carry))
            masked_entries = [self.layer.entry(x, self.is_busy) for x in entries]
            entry = pack_next(layers.xs, iter(masked_entries))
            body = layers.body
            if layers.recomputed and layers.recomputed.stored:
                body = recompute(body, layers.recomputed.stored)
            new, terms, outputs = results_of(body(old, entry), 3)
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
        return masked(self._microbatch(x) if is_split else x, self.is_busy)

    def _microbatch(self, x: Tensor) -> Tensor:
        """Returns the microbatch of the stage, of x [..., microbatch, ...]."""
        with context(recompute_group=RecomputeGroup(in_loops=True)):
            return gather_with_bounds(x, self.microbatch, MICROBATCH, "trusted")

    def take(self, x: Tensor) -> Tensor:
        """Returns what the layers of this stage use in place of a tensor x [...]."""
        if is_within(x.node.owner, self.graph):
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
            y = self._input(x, is_split)
        with executing(self.layer.graph), context(**vars(self.layer.context)):
            y = self.layer.input(y)
        self.layer_inputs.sources[y] = (x, is_split)
        return y

    def of(self, x: Tensor) -> Tensor:
        """Returns the mean over microbatches of x [...]: see `Context.batch_means`."""
        with context(substitutes=None):
            x = self.inputs.get(x)
            nodes, leaves = computation_of(x, self.layer_inputs)
            is_sum = self.layers.is_sum(x, nodes, leaves)
            mean = mean_of_microbatches(x, nodes, leaves, self.layer_inputs)
            weight = self.inputs.get(mean)
        if is_sum:
            self.layers.results.weights.append(weight)
        return weight


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
