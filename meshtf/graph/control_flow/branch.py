"""Branches: one of two bodies runs, and all devices take the same one.

Example:

    apply_all(Branch(then, otherwise), predicate, *then.captures, *otherwise.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshtf.graph.apply import apply_all
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.control_flow.body import Body, check_body_inputs, record_on_body
from meshtf.graph.op import Spec
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(ControlFlowOp):
    """Runs `then` where the first input is true, else `otherwise`; both give the same
    specs.

    Inputs are the predicate, the captures of `then`, and those of `otherwise`.
    """

    then: Body
    otherwise: Body

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        check_body_inputs((*self.then.captures, *self.otherwise.captures), xs[1:])
        check_body_inputs(self.otherwise.results, [r.spec for r in self.then.results])
        return tuple(r.spec for r in self.then.results)

    def flops(self, *xs: Spec) -> int:
        return max(self.then.flops, self.otherwise.flops)

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.then, self.otherwise

    def captures(self, xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns the inputs that are captures of each body."""
        middle = 1 + len(self.then.captures)
        return xs[1:middle], xs[middle:]

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        """Each body of the gradient computes its forward body again, and makes zeros
        for what the other one has gradients by; what neither has gradients by has
        none."""
        dys = dy if isinstance(dy, tuple) else (dy,)
        halves = [branch_gradient(body, dys) for body in self.bodies]
        found = [(half, x) for half in halves for x in half.cotangents]
        bodies, inputs = [], []
        for half, own in zip(halves, self.captures(xs)):
            bodies.append(_gradient_body(half, found))
            outside = {**dict(zip(half.forward.captures, own)), **half.outer_cotangents}
            inputs += [outside.get(x, x) for x in bodies[-1].captures]
        made = (
            apply_all(Branch(*bodies), xs[0], *inputs, mesh=xs[0].mesh) if found else ()
        )
        cotangents = dict(zip(found, made))
        return [
            None,
            *(
                cotangents.get((half, x))
                for half in halves
                for x in half.forward.captures
            ),
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class BranchGradient:
    """The gradient of one branch, as nodes on the tensors of its body.

    `cotangents` are those of the captures that have one; `given` what the body takes
    for the cotangents of its results, and what these are outside.
    """

    forward: Body
    nodes: tuple[Node, ...]
    cotangents: dict[Tensor, Tensor]
    outer_cotangents: dict[Tensor, Tensor]

    def body(self, results: Sequence[Tensor], more: Sequence[Node] = ()) -> Body:
        """Returns a body that computes the forward body again, and results of it or of
        more nodes.
        """
        nodes = [*self.forward.nodes, *self.nodes, *more]
        return Body.of(self.forward.graph, (), nodes, results)


def branch_gradient(body: Body, dys: Sequence[Tensor | None]) -> BranchGradient:
    """Returns the gradient of the body of a branch.

    Args:
      body: the forward body.
      dys: the cotangent of each of its results, or None.
    """
    pairs = [
        (r, body.graph.given(r.spec), dy)
        for r, dy in zip(body.results, dys)
        if dy is not None
    ]
    captures = [x for x in body.captures if has_gradient(x.dtype)]

    def backward() -> list[Tensor | None]:
        return gradients_within(
            set(body.nodes),
            [r for r, _, _ in pairs],
            captures,
            [d for _, d, _ in pairs],
        )

    nodes, made = record_on_body(body, backward)
    return BranchGradient(
        body,
        tuple(nodes),
        {x: dx for x, dx in zip(captures, made) if dx is not None},
        {d: dy for _, d, dy in pairs},
    )


def _gradient_body(
    half: BranchGradient, found: Sequence[tuple[BranchGradient, Tensor]]
) -> Body:
    """Returns what makes the cotangents of all captures: zeros for those of the other
    branch.
    """

    def zeros() -> list[Tensor]:
        return [OPERATORS["zeros_like"](x) for owner, x in found if owner is not half]

    nodes, made = record_on_body(half.forward, zeros)
    others = iter(made)
    return half.body(
        [half.cotangents[x] if owner is half else next(others) for owner, x in found],
        nodes,
    )
