"""Bodies of loops, branches and calls: graphs inside a graph, recorded once.

    body = record_body(fn, specs)       # calls fn with one symbolic tensor for each spec
    body.results
    body.captures                       # tensors of the outer graph that fn uses

Variables are read by nodes of the outer graph, and the values are captures. So a body is a
pure function of its arguments and captures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import current_executor, executing
from meshtf.graph.context import context, current
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import EffectOp, ReadOp
from meshtf.graph.recorder import Graph, latest_version
from meshtf.graph.tensor import Node, Source, Tensor


@dataclasses.dataclass(frozen=True)
class BodyArgument(Op):
    """The op of the node whose output is an argument of a body.

    It never runs: each run of the body gets the values of its arguments.
    """

    spec: Spec

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return (self.spec,)


class BodyGraph(Graph):
    """The graph that a body is recorded in. The outer graph records reads of variables; ops
    with effects raise an error.

    Args:
      outer: the graph with the loop, branch or call that runs the body.

    Attributes:
      backward_bodies: a cache that `call.py` fills: (body, indices of the results that have
        cotangents) -> the body that computes the gradient.
      bodies_with_residuals: a cache that `call.py` fills: body -> the body that also returns
        residuals, which are the tensors that the backward body reads.
    """

    def __init__(self, outer: Graph) -> None:
        super().__init__(outer.mesh)
        self.outer = outer
        self.backward_bodies: dict[Any, Any] = {}
        self.bodies_with_residuals: dict[Any, Any] = {}

    def find(self, op: ReadOp) -> Node | None:
        """Returns an earlier read of the same variable in the outer graph."""
        return self.outer.find(op)

    def recorder_of(self, op: Op) -> Graph:
        """Returns the graph that records an op: the outer graph for reads of variables."""
        if isinstance(op, ReadOp):
            return self.outer.recorder_of(op)
        return self

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Records a node, and returns the node's outputs.

        Raises:
          PlanError: the op has an effect, such as writing a variable.
        """
        if isinstance(node.op, EffectOp):
            raise PlanError(
                explain_error(
                    f"{node.op.display_name} has an effect, and bodies of loops, branches and "
                    "pipelines have none.",
                    source=node.source,
                    way_out="Return the value from the body, and write, print or "
                    "summarise it afterwards; mtf.once_per_batch writes what layers of "
                    "a pipeline keep.",
                )
            )
        self.nodes.append(node)
        return node.outputs

    def new_argument(self, spec: Spec) -> Tensor:
        """Returns a symbolic tensor, to be an argument of a body of this graph."""
        node = Node(
            BodyArgument(spec),
            inputs=(),
            specs=(spec,),
            mesh=self.mesh,
            source=Source.of_caller(),
            context=current(),
            owner=self,
        )
        return node.outputs[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """The nodes that a loop, branch or call runs: they compute `results` from `arguments` and
    `captures`.

    Attributes:
      graph: the graph that the nodes are recorded in.
      arguments: symbolic tensors, which get new values in each run.
      recorded_nodes: the nodes as they were recorded, in order.
      results: the tensors that the body returns: outputs of nodes, arguments or captures.
      captures: the tensors of outer graphs that nodes read, or that are results.
    """

    graph: BodyGraph
    arguments: tuple[Tensor, ...]
    recorded_nodes: tuple[Node, ...]
    results: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order, after replacements by `Graph.replace`."""
        return tuple(latest_version(node) for node in self.recorded_nodes)

    @staticmethod
    def of(
        graph: BodyGraph,
        arguments: Sequence[Tensor],
        nodes: Sequence[Node],
        results: Sequence[Tensor],
    ) -> Body:
        """Returns a body with the nodes that its results depend on, and finds its captures.

        Args:
          graph: the graph that the nodes were recorded in.
          arguments: the arguments of the body.
          nodes: the recorded nodes, in order; nodes that no result needs are left out.
          results: the results of the body.
        """
        nodes = required_nodes(nodes, results)
        inner_tensors = {*arguments, *outputs_of_nodes(nodes)}
        all_used_tensors = used_tensors(nodes, results)
        captures = tuple(x for x in all_used_tensors if x not in inner_tensors)
        return Body(
            graph=graph,
            arguments=tuple(arguments),
            recorded_nodes=tuple(nodes),
            results=tuple(results),
            captures=captures,
        )

    @property
    def flops(self) -> int:
        """The floating-point operations of one run of the body, on all devices."""
        total = 0
        for node in self.nodes:
            total += node.op.flops(*(x.spec for x in node.inputs))
        return total


def check_body_inputs(expected: Sequence[Tensor], inputs: Sequence[Spec]) -> None:
    """Checks the inputs of a body against the tensors that it was recorded with.

    Args:
      expected: the arguments and captures of the body.
      inputs: the specs of the tensors that a run would get.

    Raises:
      ShapeError: a shape, including the order of dimensions, or a dtype differs.
    """
    for x, spec in zip(expected, inputs, strict=True):
        if x.spec != spec:
            raise ShapeError(
                f"a body that was recorded for {x.dtype} {x.shape!r} is given "
                f"{spec.dtype} {spec.shape!r}."
            )


def dependencies(node: Node) -> tuple[Tensor, ...]:
    """Returns the tensors that a node needs: its inputs, its control dependency, and the
    tensors that its custom gradient rule reads.
    """
    tensors = node.inputs
    if node.wait_for is not None:
        tensors = (*tensors, node.wait_for)
    rule = node.gradient_rule
    if rule is None:
        return tensors
    return (*tensors, *rule.inputs, *rule.intermediates)


def outputs_of_nodes(nodes: Iterable[Node]) -> list[Tensor]:
    """Returns the outputs of all nodes, in order."""
    return [y for node in nodes for y in node.outputs]


def used_tensors(
    nodes: Iterable[Node], results: Iterable[Tensor]
) -> dict[Tensor, None]:
    """Returns the dependencies of nodes and the results, as keys of a dict: an ordered set."""
    tensors: dict[Tensor, None] = {}
    for node in nodes:
        tensors.update(dict.fromkeys(dependencies(node)))
    tensors.update(dict.fromkeys(results))
    return tensors


def required_nodes(nodes: Sequence[Node], results: Sequence[Tensor]) -> list[Node]:
    """Returns the nodes that results depend on.

    Args:
      nodes: the nodes to choose from, in the order in which they run; the order is kept.
      results: the results.
    """
    nodes_to_keep = {latest_version(result.node) for result in results}
    reversed_nodes = []
    for node in map(latest_version, reversed(nodes)):
        if node in nodes_to_keep:
            reversed_nodes.append(node)
            nodes_to_keep.update(latest_version(x.node) for x in dependencies(node))
    return reversed_nodes[::-1]


def uses_index(body: Body) -> bool:
    """Returns whether the body of a loop uses its first argument, the index of the iteration."""
    return body.arguments[0] in used_tensors(body.nodes, body.results)


def with_index_as_entry(body: Body) -> Body:
    """Returns the body of a loop without carries that takes the index of the iteration as the
    entry of its first scanned input. Its first argument is a new one that it does not use.
    """
    unused = body.graph.new_argument(body.arguments[0].spec)
    return dataclasses.replace(body, arguments=(unused, *body.arguments))


def invariant_nodes(body: Body) -> list[Node]:
    """Returns the nodes that depend on no argument of a body, such as casts of captures:
    they compute the same values in each run.
    """
    varying_tensors = {*body.arguments}  # the tensors that depend on arguments
    nodes = []
    for node in body.nodes:
        if any(x in varying_tensors for x in dependencies(node)):
            varying_tensors.update(node.outputs)
        else:
            nodes.append(node)
    return nodes


def record_body(
    fn: Callable[..., Sequence[Tensor]],
    specs: Sequence[Spec],
    graph_class: type[BodyGraph] = BodyGraph,
) -> Body:
    """Records a function as a body.

    Args:
      fn: computes the results of the body from its arguments, one tensor for each spec.
      specs: the specs of the arguments.
      graph_class: the class of the graph that the nodes are recorded in.

    Raises:
      PlanError: fn has an effect, or the mesh of the outer graph is not known yet.
    """
    outer = current_executor()
    assert isinstance(outer, Graph)
    if outer.mesh is None:
        raise PlanError(
            explain_error(
                "a loop or branch must know its mesh, and no tensor of this function "
                "has one so far.",
                source=Source.of_caller(),
                way_out="Write @mtf.function(mesh=mesh, ...).",
            )
        )
    graph = graph_class(outer)
    # The settings of the caller apply to the loop, branch or call as one node.
    with executing(graph), context(recompute_group=None, wait_for=None, primals=()):
        arguments = [graph.new_argument(spec) for spec in specs]
        results = fn(*arguments)
    return Body.of(graph, arguments=arguments, nodes=graph.nodes, results=results)


def record_on_body(
    body: Body, fn: Callable[[], Sequence[Any]]
) -> tuple[list[Node], list[Any]]:
    """Calls a function that applies ops to tensors of a body, and returns the new nodes,
    which are not added to the body.

    Args:
      body: the body.
      fn: applies ops to tensors of the body, such as gradient rules, and returns results.

    Returns:
      (the nodes that fn recorded, the results of fn).
    """
    graph = body.graph
    num_nodes = len(graph.nodes)
    with executing(graph), context(recompute_group=None, wait_for=None, primals=()):
        results = list(fn())
    new_nodes = graph.nodes[num_nodes:]
    del graph.nodes[num_nodes:]
    return new_nodes, results


def no_gradient_of_while(source: Source) -> PlanError:
    """Returns the error for the gradient of a while loop."""
    return PlanError(
        explain_error(
            "a while loop has no gradient: the number of its iterations is not known in advance.",
            source=source,
            way_out="Use mtf.scan with a fixed number of iterations, or mtf.stop_gradient "
            "around it.",
        )
    )
