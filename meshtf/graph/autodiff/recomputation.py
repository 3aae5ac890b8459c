"""What the backward pass needs to compute nodes of the forward pass again
(`mtf.recompute`): control dependencies, ops and custom gradient rules on recomputed
tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.graph.context import GradientRule, context, current
from meshtf.graph.op import Op
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import CustomGradientRule
from meshtf.graph.tensor import Tensor


class ControlDependency:
    """Makes nodes of any stage wait for a cotangent.

    Nodes of another stage wait for an ordering token: a scalar that is computed from the
    cotangent, and cheap to send.
    """

    def __init__(self, dy: Tensor) -> None:
        self.dy = dy
        self.token: Tensor | None = None

    def at(self, stage: int | None) -> Tensor | None:
        """Returns the tensor that nodes of a stage wait for; None in eager mode, where
        the cotangent is known.
        """
        if self.dy.sharded_value is not None:
            return None
        if self._is_local(stage):
            return self.dy
        if self.token is None:
            stage = self.dy.node.stage
            with context(
                primals=(self.dy,), stage=stage, recompute_group=None, wait_for=None
            ):
                self.token = OPERATORS["ordering_token"](self.dy)
        return self.token

    def _is_local(self, stage: int | None) -> bool:
        """Returns whether the cotangent is on the same stage."""
        mesh = self.dy.mesh
        if mesh is None or mesh.axes.get(mesh.stages, 1) == 1:
            return True
        return stage is not None and stage == self.dy.node.stage


def recomputed_op(op: Op, recomputed: Mapping[Tensor, Tensor]) -> Op:
    """Returns the op for a recomputed node: a call waits for the recomputed tensors in
    place of those that it waited for.
    """
    wait_for = getattr(op, "wait_for", ())
    if not wait_for:
        return op
    new = tuple(recomputed.get(x, x) for x in wait_for)
    return dataclasses.replace(op, wait_for=new)  # type: ignore[type-var]


def rule_on_recomputed(
    rule: GradientRule, recomputed: Mapping[Tensor, Tensor]
) -> GradientRule:
    """Returns a custom gradient rule on recomputed tensors, for gradients of gradients."""

    def gradient(dys: Sequence[Any]) -> Sequence[Any]:
        outer = current().substitutes or {}
        substitutes = {**outer}
        for x, y in recomputed.items():
            substitutes[x] = outer.get(y, y)
        with context(substitutes=substitutes):
            return rule.gradient(dys)

    def replaced(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(recomputed.get(x, x) for x in xs)

    return CustomGradientRule(
        inputs=replaced(rule.inputs),
        captures=replaced(rule.captures),
        num_results=rule.num_results,
        intermediates=replaced(rule.intermediates),
        gradient=gradient,
    )
