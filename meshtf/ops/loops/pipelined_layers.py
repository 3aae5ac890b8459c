"""What a pipelined scan scans, and whether it can be: each result of a layer must be made of those
for microbatches.

    layers.check(body)          # PlanError: a result needs the entire batch
    layers.results.kinds_of_outputs
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph import Body, Branch, Context, GradientRule, Graph, Loop, Node, Tensor
from meshtf.graph.control_flow.body import record_on_body
from meshtf.graph.control_flow.scan_dimension import unused_dim_name
from meshtf.graph.op_kinds import ControlFlowOp, ConversionOp
from meshtf.mesh import Layout
from meshtf.ops.control.nested_values import tensors_of
from meshtf.ops.control.stop_gradient import Recomputed
from meshtf.ops.elementwise.where_cast_clip import Clip
from meshtf.ops.loops.batch_size import all_nodes
from meshtf.ops.loops.mapped_dimension import MappedDimension
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
      weights: the means over microbatches of sums over their examples that it uses.
      rules: the nodes of its custom gradient rules.
    """

    recorded: Body | None = None
    terms: Any = None
    outputs: Any = None
    kinds_of_terms: list[str | None] = dataclasses.field(default_factory=list)
    kinds_of_outputs: list[str | None] = dataclasses.field(default_factory=list)
    weights: list[Tensor] = dataclasses.field(default_factory=list)
    rules: list[Node] = dataclasses.field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        """All nodes of a layer and of its rules, those of loops within included."""
        assert self.recorded is not None
        return [*all_nodes(self.recorded), *self.rules]


@dataclasses.dataclass
class Layers:
    """What a pipelined scan scans.

    Attributes:
      body: the body of `scan_and_sum`: a function of the carry and an entry of xs.
      init: the initial carry: tensors with the batch, in any nesting.
      xs: the inputs, in any nesting.
      schedule: the stages and microbatches.
      recomputed: set if the backward pass computes each stage again from what it received.
      caller: the context of the scan.
      region: the changes of the layout within stages.
      graph: the graph that records the scan.
      results: what the body returned.
    """

    body: Callable[..., Any]
    init: Any
    xs: Any
    schedule: Schedule
    recomputed: Recomputed | None
    caller: Context
    region: Layout
    graph: Graph
    results: LayerResults = dataclasses.field(default_factory=LayerResults)

    @property
    def way_out(self) -> str:
        """What can be done about a body that cannot be computed in microbatches."""
        dim = self.schedule.dim.name
        batch = self.schedule.batch.name
        return (
            f"The layout divides {dim!r} into the stages of a pipeline, which compute one "
            f"microbatch after another, parts of {batch!r}: the first dimension of the carry. "
            "Transpose the carry if another one is the batch. Let the op work within each "
            "example, or within groups of them; or leave the rule out here: "
            f'with mtf.layout("{dim}:").'
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
        mapped = self._mapped((*body.arguments, *body.captures))
        for x in self.results.weights:
            mapped.begin_weight(x)
        mapped.follow(body.nodes)
        self._check_rules(body, body.nodes, mapped)
        self._check_sizes(body)
        self._check_division(body)
        kinds: list[str | None] = []
        for x in body.results:
            name = mapped.name_in(x)
            if name not in (None, dim.name):
                raise self.refusal(f"a result has it as {name!r}", x)
            if mapped.degree_in(x):
                raise self.refusal("a result depends on the weight of the batch", x)
            kinds.append(mapped.reduction_in(x) if name is None else "batch")
        num_carries = len(tensors_of(self.init, label="carry"))
        end_of_terms = num_carries + len(tensors_of(self.results.terms, label="sum"))
        for x, carry_kind in zip(body.results[:num_carries], kinds):
            if carry_kind != "batch":
                raise self.refusal("the next carry is another one for each layer", x)
        self.results.kinds_of_terms = kinds[num_carries:end_of_terms]
        self.results.kinds_of_outputs = kinds[end_of_terms:]
        return {}

    def _check_rules(
        self, body: Body, nodes: Sequence[Node], mapped: MappedDimension
    ) -> None:
        """Raises PlanError if a custom gradient rule needs the entire batch.

        Args:
          body: a body that nodes are recorded in: that of a layer, or of a loop or call within.
          nodes: the nodes.
          mapped: what has found the batch in them.
        """
        results_of_rule: dict[GradientRule, list[Tensor]] = {}
        for node in nodes:
            if node.gradient_rule is not None:
                ys = results_of_rule.setdefault(node.gradient_rule, [])
                ys.extend(node.outputs)
            if isinstance(node.op, ControlFlowOp):
                for inner in node.op.bodies:
                    self._check_rules(inner, inner.nodes, mapped)
        for rule, ys in results_of_rule.items():
            self._check_rule(body, rule, ys, mapped)

    def _check_rule(
        self, body: Body, rule: GradientRule, ys: list[Tensor], mapped: MappedDimension
    ) -> None:
        """Raises PlanError if the rule of results ys [...] needs the entire batch."""
        dys = [body.graph.new_argument(y.spec) for y in ys]
        for y, dy in zip(ys, dys):
            name = mapped.name_in(y)
            if name is not None:
                mapped.begin(dy, name)
            elif mapped.reduction_in(y) != "sum":
                # Each microbatch has a part of this cotangent; of a sum, all have the same.
                mapped.begin_sum(dy)
        try:
            nodes, dxs = record_on_body(body, lambda: rule.gradient(dys))
        except ShapeError as error:
            # It reads a tensor with the entire batch.
            raise self.refusal(f"a gradient rule fails: {error}", ys[0]) from error
        mapped.follow(nodes)
        self.results.rules += nodes
        self._check_rules(body, nodes, mapped)
        for x, dx in zip(rule.inputs, dxs):
            if dx is None:
                continue
            if mapped.name_in(x) != mapped.name_in(dx):
                raise self.refusal("the gradient of a rule has no batch", x)
            if mapped.reduction_in(dx) == "mean":
                raise self.refusal("the gradient of a rule is a mean over it", x)
            is_added_up = mapped.name_in(x) is None and mapped.reduction_in(x) != "sum"
            if is_added_up and mapped.reduction_in(dx) is None:
                why = "the gradient of a rule does not depend on it, and each adds its own"
                raise self.refusal(why, x)

    def is_sum(self, x: Tensor, nodes: list[Node], leaves: list[Tensor]) -> bool:
        """Returns whether a weight x [...] of a microbatch is a sum over its examples, maybe with
        a bound: that of the batch is then the sum over microbatches; that of others is their mean.

        Args:
          x: the weight.
          nodes: the nodes that compute it.
          leaves: the tensors that they begin with.
        """
        nodes = list(nodes)
        while nodes and isinstance(x.node.op, Clip | ConversionOp):
            nodes.remove(x.node)
            (x,) = x.node.inputs
        mapped = self._mapped(leaves)
        mapped.follow(nodes)
        if mapped.name_in(x):
            raise self.refusal("a mean over microbatches is of what has no examples", x)
        return mapped.reduction_in(x) == "sum"

    def _mapped(self, xs: Iterable[Tensor]) -> MappedDimension:
        """Returns what finds the batch in ops that begin with tensors xs [...]."""
        dim = self.schedule.microbatch_dim
        mapped = MappedDimension(
            dim, (), way_out=self.way_out, draws=True, reduces=True
        )
        for x in xs:
            if dim in tuple(x.shape):
                mapped.begin(x, dim.name)
        return mapped

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
