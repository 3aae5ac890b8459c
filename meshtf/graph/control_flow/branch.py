"""Branches: one of two bodies runs, the same one on all devices.

    branch = Branch(then, otherwise)
    apply_all(branch, predicate, *then.captures, *otherwise.captures)

The bodies have no arguments: the tensors that they use are captures.

`Branch` is the op of `mtf.cond`.
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
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(ControlFlowOp):
    """Runs the body `then` if the predicate is true, else the body `otherwise`.

    The inputs are the predicate (a boolean scalar), the captures of `then`, and the captures
    of `otherwise`. The results of both bodies have the same specs.
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
        _predicate, *captured_values = xs
        num_then = len(self.then.captures)
        return captured_values[:num_then], captured_values[num_then:]

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        """Returns the cotangents of the inputs, which a branch on the same predicate computes.

        Each body of the new branch recomputes a forward body, and returns cotangents of the
        captures of both forward bodies: zeros for captures of the body that did not run.
        The predicate and captures without gradients have None.
        """
        predicate = xs[0]
        dys = dy if isinstance(dy, tuple) else (dy,)
        branches = [branch_gradient(body, dys) for body in self.bodies]
        # A capture may be one of both bodies, so a target says which body captures it.
        targets = []
        for branch in branches:
            targets += [(branch, x) for x in branch.cotangents]
        cotangents: dict[tuple[BranchGradient, Tensor], Tensor] = {}
        if targets:
            then, otherwise = (_gradient_body(branch, targets) for branch in branches)
            then_values, otherwise_values = self.captures(xs)
            outputs = apply_all(
                Branch(then, otherwise),
                predicate,
                *branches[0].captured_values(then, then_values),
                *branches[1].captured_values(otherwise, otherwise_values),
                mesh=predicate.mesh,
            )
            cotangents = dict(zip(targets, outputs))
        predicate_cotangent = None
        dxs: list[Tensor | None] = [predicate_cotangent]
        for branch in branches:
            dxs += [cotangents.get((branch, x)) for x in branch.forward.captures]
        return dxs


@dataclasses.dataclass(frozen=True, eq=False)
class BranchGradient:
    """The gradient of one branch, as nodes that read tensors of the forward body.

    Attributes:
      forward: the forward body.
      nodes: the nodes of the gradient.
      cotangents: for each capture of the forward body that has a cotangent, the cotangent.
      outer_cotangents: for each symbolic cotangent of a result that `nodes` read, the
        cotangent outside of the branch.
    """

    forward: Body
    nodes: tuple[Node, ...]
    cotangents: dict[Tensor, Tensor]
    outer_cotangents: dict[Tensor, Tensor]

    def body(self, results: Sequence[Tensor], extra_nodes: Sequence[Node] = ()) -> Body:
        """Returns a body without arguments that recomputes the forward body, and computes
        `results`.

        Args:
          results: tensors of the forward body, of the gradient or of extra nodes.
          extra_nodes: further nodes that read tensors of the forward body.
        """
        return Body.of(
            self.forward.graph,
            arguments=(),
            nodes=[*self.forward.nodes, *self.nodes, *extra_nodes],
            results=results,
        )

    def captured_values(self, body: Body, values: Sequence[Tensor]) -> list[Tensor]:
        """Returns the values of the captures of a body that `body` returned.

        Args:
          body: the body.
          values: the values of the captures of the forward body.
        """
        outer_tensors = dict(zip(self.forward.captures, values))
        outer_tensors.update(self.outer_cotangents)
        return [outer_tensors.get(x, x) for x in body.captures]


def branch_gradient(body: Body, dys: Sequence[Tensor | None]) -> BranchGradient:
    """Returns the gradient of the body of a branch.

    Args:
      body: the forward body.
      dys: the cotangent of each result of the body, or None.
    """
    # The results with a cotangent. Within the body, their cotangents are symbolic.
    results = []
    outer_cotangents: dict[Tensor, Tensor] = {}
    for result, dy in zip(body.results, dys):
        if dy is not None:
            results.append(result)
            outer_cotangents[body.graph.new_argument(result.spec)] = dy
    captures = [x for x in body.captures if has_gradient(x.dtype)]

    def backward() -> list[Tensor | None]:
        """Returns the cotangents of captures."""
        return gradients_within(
            set(body.nodes), ys=results, xs=captures, grad_ys=list(outer_cotangents)
        )

    nodes, dxs = record_on_body(body, backward)
    return BranchGradient(
        forward=body,
        nodes=tuple(nodes),
        cotangents={x: dx for x, dx in zip(captures, dxs) if dx is not None},
        outer_cotangents=outer_cotangents,
    )


def _gradient_body(
    branch: BranchGradient, targets: Sequence[tuple[BranchGradient, Tensor]]
) -> Body:
    """Returns a body that computes the cotangents of all targets, if one branch has run.

    Args:
      branch: the gradient of the branch that has run.
      targets: (the branch that captures it, capture) for each capture with a cotangent. The
        cotangent of a target of the other branch is zeros.
    """

    def target_cotangents() -> list[Tensor]:
        """Returns the cotangents of targets, in order."""
        cotangents = []
        for capturing_branch, x in targets:
            if capturing_branch is branch:
                cotangents.append(branch.cotangents[x])
            else:
                cotangents.append(OPERATORS["zeros_like"](x))
        return cotangents

    nodes, results = record_on_body(branch.forward, target_cotangents)
    return branch.body(results, extra_nodes=nodes)
