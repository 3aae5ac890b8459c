"""Optimizers for groups of variables, selected by regular expressions on their names.

    optimizer = ByName(model.trainable_variables, [
        ("bias$|scale$", lambda variables: SGD(variables, 0.1)),
        ("embedding/", lambda variables: Adafactor(variables, product(rate, 0.1))),
        ("", lambda variables: AdamW(variables, rate, decays=unless_named("norm/")))])

A pattern is searched for anywhere in a name such as
"decoder/layer_0/attention/query/kernel". Each variable goes to the first rule whose
pattern matches; the empty pattern matches all remaining variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import ParseError, PlanError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.graph.arguments import as_variables
from meshtf.names.arguments import (
    as_callable,
    as_sequence,
    as_text,
    check_record,
    refuse,
)
from meshtf.optimizers.checks import check_pairs
from meshtf.optimizers.optimizer import Optimizer
from meshtf.runtime.variable import Variable

Rule = tuple[str, Callable[[Sequence[Variable]], Optimizer]]


def named(pattern: str) -> Callable[[Variable], bool]:
    """Returns a test of variables, such as `decays`: whether their name has the pattern
    in it.
    """
    pattern = as_pattern("pattern", pattern)
    return lambda variable: re.search(pattern, variable.name) is not None


def unless_named(pattern: str) -> Callable[[Variable], bool]:
    """Returns a test of variables, such as `decays`: whether their name lacks the
    pattern.
    """
    pattern = as_pattern("pattern", pattern)
    return lambda variable: re.search(pattern, variable.name) is None


def as_pattern(name: str, pattern: Any) -> str:
    """Returns a regular expression. Raises ArgumentError, ParseError."""
    as_text(name, pattern, "a regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ParseError(
            explain_error(
                f"the regular expression {pattern!r} cannot be read: {error}.",
                **{"from": Source.of_caller()},
                way_out="Write a backslash before a sign that is meant.",
            )
        ) from None
    return pattern


def _as_rules(rules: Any) -> list[Rule]:
    takes = "pairs of a pattern and a function of variables"
    checked_rules = list(as_sequence("rules", rules, takes))
    for rule in checked_rules:
        if not isinstance(rule, (tuple, list)) or len(rule) != 2:
            refuse("rules", rule, takes)
        as_pattern("rules", rule[0])
        as_callable("rules", rule[1])
    return checked_rules


class ByName(Optimizer):
    """An optimizer for each group of variables.

    Args:
      variables: the variables to update.
      rules: (pattern, function of variables that returns their optimizer), in order.
        Two optimizers of one class may have the same name, since slots are keyed by
        variable.
      name: the prefix of the names of all slots.

    Raises:
      PlanError: no rule is for a variable, a rule is for none, or two variables have
        one name.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        rules: Sequence[Rule],
        name: str = "by_name",
    ) -> None:
        variables = as_variables("variables", variables, "variables")
        rules = _as_rules(rules)
        super().__init__(variables, 0.0, [{} for _ in variables], name)
        groups = self._sorted(variables, [pattern for pattern, _ in rules])
        with self.scope():
            self.optimizers = [make(group) for (_, make), group in zip(rules, groups)]
        for optimizer in self.optimizers:
            check_record(Optimizer, rules=optimizer)
        self.slots = {}
        for optimizer in self.optimizers:
            self.slots.update(optimizer.slots)
        self._group = {v.name: i for i, group in enumerate(groups) for v in group}

    def apply(
        self,
        grads: Sequence[Tensor | None],
        variables: Sequence[Variable],
        step: Tensor,
    ) -> None:
        """Updates each variable by the optimizer of its group; arguments and errors as for any
        optimizer.
        """
        grads, variables = check_pairs(grads, variables)
        self.check_known(variables)
        pairs = list(zip(grads, variables, strict=True))
        for i, optimizer in enumerate(self.optimizers):
            group = [(g, v) for g, v in pairs if self._group[v.name] == i]
            if group:
                optimizer.apply([g for g, _ in group], [v for _, v in group], step)

    def _sorted(
        self, variables: Sequence[Variable], patterns: Sequence[str]
    ) -> list[list[Variable]]:
        groups: list[list[Variable]] = [[] for _ in patterns]
        for variable in variables:
            matches = [
                i for i, pattern in enumerate(patterns) if named(pattern)(variable)
            ]
            if not matches:
                raise PlanError(
                    explain_error(
                        f"no rule is for variable {variable.name!r}.",
                        rules=", ".join(map(repr, patterns)),
                        way_out='End with a rule for all others: ("", function of '
                        "variables).",
                    )
                )
            groups[matches[0]].append(variable)
        for pattern, group in zip(patterns, groups):
            if not group:
                raise PlanError(
                    explain_error(
                        f"the rule {pattern!r} is for no variable.",
                        rules=", ".join(map(repr, patterns)),
                        variables="\n".join(v.name for v in variables),
                        way_out="Correct the pattern, take the rule away, or put it "
                        "before those that take its variables.",
                    )
                )
        return groups
