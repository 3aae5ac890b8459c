"""Bodies: pieces of a program that loops and branches run, recorded once.

    body = record_body(fn, specs)       # fn takes tensors that stand for what it will be given
    body.results, body.captures         # and what it uses from outside

Variables are read outside, once, so a body is a function of its arguments and captures
alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import current_executor, executing
from meshtf.graph.context import context, current
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import EffectOp, ReadOp
from meshtf.graph.recorder import Graph, latest
from meshtf.graph.tensor import Node, Source, Tensor


@dataclasses.dataclass(frozen=True)
class Given(Op):
    """What a body is given each time it runs; never run itself."""

    spec: Spec

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return (self.spec,)


class Inner(Graph):
    """Records a body. Reads go to the graph around it; what writes is refused."""

    def __init__(self, around: Graph) -> None:
        super().__init__(around.mesh)
        self.around = around
        self.backwards: dict[Any, Any] = {}  # of bodies that are called: see `call`
        self.keeping: dict[Any, Any] = {}

    def find(self, op: ReadOp) -> Node | None:
        """Returns an earlier read of the same variable, outside."""
        return self.around.find(op)

    def recorder_of(self, op: Op) -> Graph:
        """Returns the graph that nodes of an op go to: reads go to the one around."""
        return self.around.recorder_of(op) if isinstance(op, ReadOp) else self

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Records a node, and returns its outputs. Raises PlanError if it writes."""
        if isinstance(node.op, EffectOp):
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} has an effect, and bodies of loops, branches and "
                    "pipelines have none.",
                    **{"from": node.source},
                    way_out="Return the value from the body, and write, print or "
                    "summarise it afterwards; mtf.once_per_batch writes what layers of "
                    "a pipeline keep.",
                )
            )
        self.nodes.append(node)
        return node.outputs

    def given(self, spec: Spec) -> Tensor:
        """Returns a tensor that stands for what the body will be given."""
        source = Source.of_caller()
        node = Node(Given(spec), (), (spec,), self.mesh, source, current(), self)
        return node.outputs[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """What a loop or branch runs: nodes that make `results` from `arguments` and
    `captures`.
    """

    graph: Inner
    arguments: tuple[Tensor, ...]
    recorded: tuple[Node, ...]
    results: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes; of one that was replaced, the latest."""
        return tuple(latest(node) for node in self.recorded)

    @staticmethod
    def of(
        graph: Inner,
        arguments: Sequence[Tensor],
        nodes: Sequence[Node],
        results: Sequence[Tensor],
    ) -> Body:
        """Returns a body of the nodes that the results need, with what they use from
        outside.
        """
        nodes = needed(nodes, results)
        made = {*arguments, *(y for n in nodes for y in n.outputs)}
        used = dict.fromkeys((*(x for n in nodes for x in uses(n)), *results))
        return Body(
            graph,
            tuple(arguments),
            tuple(nodes),
            tuple(results),
            tuple(x for x in used if x not in made),
        )

    @property
    def flops(self) -> int:
        """The floating-point operations of one run."""
        return sum(n.op.flops(*(x.spec for x in n.inputs)) for n in self.nodes)


def require_given(formal: Sequence[Tensor], given: Sequence[Spec]) -> None:
    """Refuses what differs from what a body was recorded for, if only in the order of
    dimensions.

    Raises:
      ShapeError: a shape or data type differs.
    """
    for x, spec in zip(formal, given, strict=True):
        if x.spec != spec:
            raise ShapeError(
                f"a body that was recorded for {x.dtype} {x.shape!r} is given "
                f"{spec.dtype} {spec.shape!r}."
            )


def uses(node: Node) -> tuple[Tensor, ...]:
    """Returns the tensors that must be there before a node runs, or that its rule
    needs.
    """
    before = node.inputs if node.after is None else (*node.inputs, node.after)
    return (
        before if node.rule is None else (*before, *node.rule.inputs, *node.rule.beside)
    )


def needed(nodes: Sequence[Node], results: Sequence[Tensor]) -> list[Node]:
    """Returns those nodes that the results need, in their order."""
    wanted = {latest(t.node) for t in results}
    kept = []
    for node in map(latest, reversed(nodes)):
        if node in wanted:
            kept.append(node)
            wanted.update(latest(x.node) for x in uses(node))
    return kept[::-1]


def unvarying(body: Body) -> list[Node]:
    """Returns the nodes that do the same in each run, such as casts of captures."""
    varies = {*body.arguments}
    same = []
    for node in body.nodes:
        if any(x in varies for x in uses(node)):
            varies.update(node.outputs)
        else:
            same.append(node)
    return same


def record_body(
    fn: Callable[..., Sequence[Tensor]],
    specs: Sequence[Spec],
    recorder: type[Inner] = Inner,
) -> Body:
    """Records fn, which takes a tensor for each spec and returns tensors.

    Args:
      fn: what the body does.
      specs: of its arguments.
      recorder: the kind of graph that its nodes go to.

    Raises:
      PlanError: fn has an effect, or nothing tells yet on which mesh it runs.
    """
    around = current_executor()
    assert isinstance(around, Graph)
    if around.mesh is None:
        raise PlanError(
            explain_error(
                "a loop or branch must know its mesh, and no tensor of this function "
                "tells it so far.",
                **{"from": Source.of_caller()},
                way_out="Write @mtf.function(mesh=mesh, ...).",
            )
        )
    graph = recorder(around)
    with executing(graph), context(group=None, after=None, primals=()):
        arguments = [graph.given(spec) for spec in specs]
        results = fn(*arguments)
    return Body.of(graph, arguments, graph.nodes, results)


def record_more(
    body: Body, fn: Callable[[], Sequence[Any]]
) -> tuple[list[Node], list[Any]]:
    """Records what fn makes of a body's tensors; returns the new nodes and fn's
    results.
    """
    graph = body.graph
    before = len(graph.nodes)
    with executing(graph), context(group=None, after=None, primals=()):
        results = list(fn())
    made = graph.nodes[before:]
    del graph.nodes[before:]
    return made, results
