"""Groups of variables with their own optimizers, selected by regular expressions on
names.

    optimizer = ParameterGroups(model.trainable_variables, [
        ("bias$|scale$", lambda variables: SGD(variables, 0.1)),
        ("embedding/", lambda variables: Adafactor(variables, product(rate, 0.1))),
        ("", lambda variables: AdamW(variables, rate, decay_mask=exclude_names("norm/")))])

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
from meshtf.optimizers.checks import check_pairs, check_step
from meshtf.optimizers.optimizer import Optimizer
from meshtf.runtime.variable import Variable

Rule = tuple[str, Callable[[Sequence[Variable]], Optimizer]]


def match_names(pattern: str) -> Callable[[Variable], bool]:
    """Returns a function that says whether the name of a variable contains a match of
    the regular expression `pattern`. It can be a `decay_mask`.

    Args:
      pattern: a regular expression, which may match anywhere in the name.
    """
    pattern = as_pattern("pattern", pattern)
    return lambda variable: re.search(pattern, variable.name) is not None


def exclude_names(pattern: str) -> Callable[[Variable], bool]:
    """Returns a function that says whether the name of a variable contains no match of
    the regular expression `pattern`. It can be a `decay_mask`:

        AdamW(variables, 1e-3, decay_mask=exclude_names("bias|norm"))

    Args:
      pattern: a regular expression, which may match anywhere in the name.
    """
    pattern = as_pattern("pattern", pattern)
    return lambda variable: re.search(pattern, variable.name) is None


def as_pattern(name: str, pattern: Any) -> str:
    """Returns the text of a regular expression. Raises ArgumentError, ParseError."""
    as_text(name, pattern, "a regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ParseError(
            explain_error(
                f"the regular expression {pattern!r} cannot be read: {error}.",
                **{"from": Source.of_caller()},
                way_out="Write a backslash before each character that is to be matched "
                "literally.",
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


class ParameterGroups(Optimizer):
    """An optimizer for each group of variables, as `optax.multi_transform`.

    Args:
      variables: the variables to update.
      rules: pairs of a pattern and a function that takes the variables of the group and
        returns their optimizer. The first rule that matches a variable counts. Two
        optimizers of one class may have the same name, since slots are keyed by
        variable.
      name: the prefix of the names of all slots.

    Raises:
      PlanError: a variable matches no rule, a rule has no variable, or two variables
        have one name.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        rules: Sequence[Rule],
        name: str = "parameter_groups",
    ) -> None:
        variables = as_variables("variables", variables, "variables")
        rules = _as_rules(rules)
        super().__init__(variables, 0.0, [{} for _ in variables], name)
        groups = self._grouped(variables, [pattern for pattern, _ in rules])
        with self.scope():
            self.optimizers = [make(group) for (_, make), group in zip(rules, groups)]
        for optimizer in self.optimizers:
            check_record(Optimizer, rules=optimizer)
        self.slots = {}
        for optimizer in self.optimizers:
            self.slots.update(optimizer.slots)
        self._group_index = {v.name: i for i, group in enumerate(groups) for v in group}

    def apply_gradients(
        self,
        grads: Sequence[Tensor | None],
        variables: Sequence[Variable],
        step: Tensor | None = None,
    ) -> None:
        """Updates each variable by the optimizer of its group.

        Arguments and errors are those of `Optimizer.apply_gradients`.
        """
        step = check_step(step)
        grads, variables = check_pairs(grads, variables)
        self.check_variables(variables)
        pairs = list(zip(grads, variables, strict=True))
        for i, optimizer in enumerate(self.optimizers):
            group = [(g, v) for g, v in pairs if self._group_index[v.name] == i]
            if group:
                optimizer.apply_gradients(
                    [g for g, _ in group], [v for _, v in group], step
                )

    def _grouped(
        self, variables: Sequence[Variable], patterns: Sequence[str]
    ) -> list[list[Variable]]:
        """Returns the variables of each pattern: each goes to its first match."""
        groups: list[list[Variable]] = [[] for _ in patterns]
        for variable in variables:
            matches = [
                i
                for i, pattern in enumerate(patterns)
                if match_names(pattern)(variable)
            ]
            if not matches:
                raise PlanError(
                    explain_error(
                        f"no rule matches variable {variable.name!r}.",
                        rules=", ".join(map(repr, patterns)),
                        way_out="End with a rule for all remaining variables: "
                        '("", function of variables).',
                    )
                )
            groups[matches[0]].append(variable)
        for pattern, group in zip(patterns, groups):
            if not group:
                raise PlanError(
                    explain_error(
                        f"the rule {pattern!r} has no variable.",
                        rules=", ".join(map(repr, patterns)),
                        variables="\n".join(v.name for v in variables),
                        way_out="Correct the pattern, remove the rule, or put it before "
                        "the rules that match its variables first.",
                    )
                )
        return groups
