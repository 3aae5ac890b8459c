"""A separate optimizer for each group of variables; groups are selected by regular
expressions on names.

    optimizer = ParameterGroups(model.trainable_variables, [
        ("bias$|scale$", lambda variables: SGD(variables, 0.1)),
        ("embedding/", lambda variables: Adafactor(variables, product(rate, 0.1))),
        ("", lambda variables: AdamW(variables, rate, decay_mask=exclude_names("norm/")))])

A pattern is searched for anywhere in a name such as
"decoder/layer_0/attention/query/kernel". Each variable goes to the first rule whose
pattern matches; the empty pattern matches all remaining variables. The slots of an optimizer
are the variables with its state, such as moving averages.
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
from meshtf.optimizers.optimizer import Optimizer, slots_like
from meshtf.runtime.variable import Variable

# A pattern of names, and a function that returns the optimizer of a group of variables.
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
    """Returns a regular expression, after checking it.

    Args:
      name: the name of the argument, for messages.
      pattern: the argument.

    Raises:
      ArgumentError: the pattern is no text.
      ParseError: the pattern is no regular expression.
    """
    pattern = as_text(name, pattern, takes="a regular expression")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ParseError(
            explain_error(
                f"the regular expression {pattern!r} cannot be read: {error}.",
                source=Source.of_caller(),
                way_out="Write a backslash before each character that is to be matched "
                "literally.",
            )
        ) from None
    return pattern


def _as_rules(rules: Any) -> list[Rule]:
    """Returns the rules of `ParameterGroups` as a list.

    Raises:
      ArgumentError: a rule is no pair of a pattern and a function.
      ParseError: a pattern is no regular expression.
    """
    description = "pairs of a pattern and a function of variables"
    checked_rules = list(as_sequence("rules", rules, description))
    for rule in checked_rules:
        if not isinstance(rule, (tuple, list)) or len(rule) != 2:
            refuse("rules", rule, description)
        pattern, make_optimizer = rule
        # Both raise an error for a wrong value.
        as_pattern("rules", pattern)
        as_callable("rules", make_optimizer)
    return checked_rules


class ParameterGroups(Optimizer):
    """An optimizer that updates each group of variables by a separate optimizer, as
    `optax.multi_transform` does.

    Args:
      variables: the variables to update.
      rules: pairs of a pattern and a function. The function takes the variables whose
        first matching pattern is this one, and returns their optimizer. The optimizers
        may all have the same name: a slot is found by the name of its variable.
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
        variables = as_variables("variables", variables, expected="variables")
        rules = _as_rules(rules)
        # The base class checks the variables. It makes no slots, and its learning rate is
        # never used: each group's optimizer has its own.
        no_slots = slots_like(variables)
        super().__init__(variables, learning_rate=0.0, slots=no_slots, name=name)
        groups = _group_variables(variables, [pattern for pattern, _ in rules])
        with self.scope():
            self.optimizers = []
            for (_, make_optimizer), group in zip(rules, groups):
                self.optimizers.append(make_optimizer(group))
        for optimizer in self.optimizers:
            # An error names the argument `rules`, whose function returned no optimizer.
            check_record(Optimizer, rules=optimizer)
        # The slots of all groups, by variable as in the base class.
        self.slots = {}
        for optimizer in self.optimizers:
            self.slots.update(optimizer.slots)
        # The index of each variable's group and optimizer, by the variable's name.
        self._group_index = {}
        for i, group in enumerate(groups):
            for variable in group:
                self._group_index[variable.name] = i

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
            group = [
                (grad, variable)
                for grad, variable in pairs
                if self._group_index[variable.name] == i
            ]
            if group:
                group_grads = [grad for grad, _ in group]
                group_variables = [variable for _, variable in group]
                optimizer.apply_gradients(group_grads, group_variables, step)


def _group_variables(
    variables: Sequence[Variable], patterns: Sequence[str]
) -> list[list[Variable]]:
    """Returns the variables of each pattern, where a variable belongs to the first pattern
    that matches its name.

    Raises:
      PlanError: no pattern matches a variable, or a pattern has no variable.
    """
    groups: list[list[Variable]] = [[] for _ in patterns]
    for variable in variables:
        for pattern, group in zip(patterns, groups):
            if re.search(pattern, variable.name):
                group.append(variable)
                break
        else:
            raise PlanError(
                explain_error(
                    f"no rule matches variable {variable.name!r}.",
                    rules=", ".join(map(repr, patterns)),
                    way_out="End with a rule for all remaining variables: "
                    '("", function of variables).',
                )
            )
    for pattern, group in zip(patterns, groups):
        if not group:
            raise PlanError(
                explain_error(
                    f"the rule {pattern!r} has no variable.",
                    rules=", ".join(map(repr, patterns)),
                    variables="\n".join(variable.name for variable in variables),
                    way_out="Correct the pattern, remove the rule, or put it before "
                    "the rules that match its variables first.",
                )
            )
    return groups
