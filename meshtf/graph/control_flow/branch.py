"""Branches: one of two bodies runs, the same one on all devices.

Example:

    branch = Branch(then, otherwise)
    apply_all(branch, predicate, *then.captures, *otherwise.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshtf.graph.apply import apply_all
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.control_flow.body import Body, check_body_inputs, record_on_body
from meshtf.graph.op import Cotangents, Spec, Specs
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(ControlFlowOp):
    """Runs `then` if the predicate is true, else `otherwise`. Their results have the same
    specs.

    Inputs are the predicate, the captures of `then`, and those of `otherwise`.
    """

    then: Body
    otherwise: Body

    def output_specs(self, *xs: Spec) -> Specs:
        specs = [result.spec for result in self.then.results]
        check_body_inputs((*self.then.captures, *self.otherwise.captures), xs[1:])
        check_body_inputs(self.otherwise.results, specs)
        return tuple(specs)

    def flops(self, *xs: Spec) -> int:
        return max(self.then.flops, self.otherwise.flops)

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.then, self.otherwise

    def captures(self, xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns the inputs that are captures of `then`, and of `otherwise`."""
        _condition, *captured_values = xs
        num_then = len(self.then.captures)
        then_captures = captured_values[:num_then]
        otherwise_captures = captured_values[num_then:]
        return then_captures, otherwise_captures

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        """Returns the outputs of a branch on the same predicate.

        Each of its bodies recomputes the forward body, and returns the cotangents of the
        captures of both: zeros for those of the other body. A capture without a
        cotangent in either has None.
        """
        dys = dy if isinstance(dy, tuple) else (dy,)
        branches = [branch_gradient(body, dys) for body in self.bodies]
        targets = []
        for branch in branches:
            targets += [(branch, x) for x in branch.cotangents]
        cotangents: dict[Any, Tensor] = {}
        if targets:
            bodies = [_gradient_body(branch, targets) for branch in branches]
            inputs: list[Tensor] = []
            for branch, body, values in zip(branches, bodies, self.captures(xs)):
                inputs += branch.captured_values(body, values)
            op = Branch(*bodies)
            outputs = apply_all(op, xs[0], *inputs, mesh=xs[0].mesh)
            cotangents = dict(zip(targets, outputs))
        result: list[Tensor | None] = [None]  # of the predicate
        for branch in branches:
            result += [cotangents.get((branch, x)) for x in branch.forward.captures]
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class BranchGradient:
    """The gradient of one branch, as nodes on the tensors of its body.

    Attributes:
      forward: the forward body.
      nodes: the nodes of the gradient.
      cotangents: of those captures that have one.
      outer_cotangents: for each cotangent of a result of the body, a symbolic tensor,
        the tensor outside that it is.
    """

    forward: Body
    nodes: tuple[Node, ...]
    cotangents: dict[Tensor, Tensor]
    outer_cotangents: dict[Tensor, Tensor]

    def body(self, results: Sequence[Tensor], extra_nodes: Sequence[Node] = ()) -> Body:
        """Returns a body that recomputes the forward body, and computes `results`.

        Args:
          results: tensors of the forward body, of the gradient or of extra nodes.
          extra_nodes: further nodes, recorded on the forward body.
        """
        nodes = [
            *self.forward.nodes,
            *self.nodes,
            *extra_nodes,
        ]
        graph = self.forward.graph
        return Body.of(graph, (), nodes, results)

    def captured_values(self, body: Body, values: Sequence[Tensor]) -> list[Tensor]:
        """Returns the inputs for the captures of a body of this gradient.

        Args:
          body: the body.
          values: the inputs for the captures of the forward body.
        """
        outer = dict(zip(self.forward.captures, values))
        outer.update(self.outer_cotangents)
        return [outer.get(x, x) for x in body.captures]


def branch_gradient(body: Body, dys: Sequence[Tensor | None]) -> BranchGradient:
    """Returns the gradient of the body of a branch.

    Args:
      body: the forward body.
      dys: the cotangent of each of its results, or None.
    """
    results = []
    seeds: dict[Tensor, Tensor] = {}
    for result, dy in zip(body.results, dys):
        if dy is not None:
            results.append(result)
            seeds[body.graph.new_argument(result.spec)] = dy
    captures = [x for x in body.captures if has_gradient(x.dtype)]

    def backward() -> list[Tensor | None]:
        return gradients_within(set(body.nodes), results, captures, list(seeds))

    nodes, dxs = record_on_body(body, backward)
    cotangents = {x: dx for x, dx in zip(captures, dxs) if dx is not None}
    return BranchGradient(body, tuple(nodes), cotangents, seeds)


def _gradient_body(
    branch: BranchGradient, targets: Sequence[tuple[BranchGradient, Tensor]]
) -> Body:
    """Returns the body that computes the cotangents of all targets.

    Args:
      branch: the gradient of one branch.
      targets: captures with a cotangent, each with the branch that captures it; the
        cotangents of those of the other branch are zeros.
    """

    def cotangents() -> list[Tensor]:
        return [
            branch.cotangents[x] if owner is branch else OPERATORS["zeros_like"](x)
            for owner, x in targets
        ]

    nodes, results = record_on_body(branch.forward, cotangents)
    return branch.body(results, nodes)
