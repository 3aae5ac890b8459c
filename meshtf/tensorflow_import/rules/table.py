"""The table of rules, by kind of operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering


class Rule:
    """What an operation says of its dimensions, and what it is in named operations.

    Both methods raise `NoRule` for a form that must run replicated.

    Attributes:
        is_uniform: Whether it computes the same of tensors that have one further dimension, for
            each entry of that.
    """

    is_uniform: ClassVar[bool] = False

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        """Says which axes of the operands and results are the same: those of the first operand
        and result, where a rule does not say otherwise.
        """
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        """Returns the outputs, as named tensors."""
        raise NotImplementedError


class BroadcastRule(Rule):
    """A rule of operands that broadcast."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.broadcast(node.inputs, node.outputs[0])


RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[type[Rule]], type[Rule]]:
    """Enters a class as the rule of some kinds of operations."""

    def enter(cls: type[Rule]) -> type[Rule]:
        RULES.update(dict.fromkeys(kinds, cls()))
        return cls

    return enter
