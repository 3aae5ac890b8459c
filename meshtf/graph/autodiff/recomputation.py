"""Recomputation of forward nodes in the backward pass (`mtf.recompute`).

`gradients.py` applies the ops of the nodes again. This file has what it needs for that:
control dependencies, so that nothing is recomputed too early, and ops and custom gradient
rules that use recomputed tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.graph.context import GradientRule, context, current
from meshtf.graph.op import Op
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.recorder import CustomGradientRule
from meshtf.graph.tensor import Tensor


class ControlDependency:
    """A dependency on a cotangent, for nodes of any pipeline stage.

    Nodes on the stage of the cotangent wait for the cotangent itself. Nodes on other stages
    wait for an ordering token: a scalar that is computed from the cotangent, and cheap to
    send.

    Args:
      dy: the cotangent.
    """

    def __init__(self, dy: Tensor) -> None:
        self.dy = dy
        self.token: Tensor | None = None  # made when it is first needed

    def at(self, stage: int | None) -> Tensor | None:
        """Returns the tensor that nodes of a stage wait for; None in eager mode, where the
        cotangent has its value already.
        """
        if self.dy.sharded_value is not None:
            return None
        if self._is_local(stage):
            return self.dy
        if self.token is None:
            with context(
                primals=(self.dy,),
                stage=self.dy.node.stage,
                recompute_group=None,
                wait_for=None,
            ):
                self.token = OPERATORS["ordering_token"](self.dy)
        return self.token

    def _is_local(self, stage: int | None) -> bool:
        """Returns whether the cotangent is on this stage."""
        mesh = self.dy.mesh
        if mesh is None or mesh.num_stages == 1:
            return True
        return stage is not None and stage == self.dy.node.stage


def recomputed_op(op: Op, recomputed: Mapping[Tensor, Tensor]) -> Op:
    """Returns the op of a recomputed node. An op with an attribute `wait_for`, a `Call`, waits
    for recomputed tensors instead of those of the forward pass.

    Args:
      op: the op of the forward node.
      recomputed: tensor of the forward pass -> recomputed tensor.
    """
    wait_for = getattr(op, "wait_for", ())
    if not wait_for:
        return op
    recomputed_wait_for = tuple(recomputed.get(x, x) for x in wait_for)
    return dataclasses.replace(op, wait_for=recomputed_wait_for)  # type: ignore[type-var]


def rule_on_recomputed(
    rule: GradientRule, recomputed: Mapping[Tensor, Tensor]
) -> GradientRule:
    """Returns a custom gradient rule that uses recomputed tensors.

    It is called in gradients of gradients, which may themselves recompute tensors.

    Args:
      rule: the rule of the forward function.
      recomputed: tensor of the forward pass -> recomputed tensor.
    """

    def gradient(dys: Sequence[Any]) -> Sequence[Any]:
        """Calls the rule, whose ops read recomputed tensors."""
        # If this backward pass has recomputed a recomputed tensor y again, it takes the
        # place of y.
        outer_substitutes = current().substitutes or {}
        substitutes = {**outer_substitutes}
        for x, y in recomputed.items():
            substitutes[x] = outer_substitutes.get(y, y)
        with context(substitutes=substitutes):
            return rule.gradient(dys)

    def substituted(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Returns tensors, with recomputed ones in place of those of the forward pass."""
        return tuple(recomputed.get(x, x) for x in xs)

    return CustomGradientRule(
        inputs=substituted(rule.inputs),
        captures=substituted(rule.captures),
        num_results=rule.num_results,
        intermediates=substituted(rule.intermediates),
        gradient=gradient,
    )
