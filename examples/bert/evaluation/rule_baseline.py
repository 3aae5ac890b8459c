"""Answers by rules that do not read the question: what a model that reads it must beat.

    rules = fixed_rules(training_questions)       # {"nothing": rule, ...}; rule(context) -> text

The rules are learned from the answers alone: the most frequent one; and what stands,
for the first time in a context, between the two words that most answers stand between.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping, Sequence

from examples.bert.datasets.squad_json import Question
from examples.bert.evaluation.squad_metrics import score

Rule = Callable[[str], str]
_PIECE = r"\w+|[^\w\s]"


def fixed_rules(learned: Sequence[Question]) -> dict[str, Rule]:
    """Returns rules by what they say."""
    texts = collections.Counter(a.text for q in learned for a in q.answers)
    sides = collections.Counter(
        _sides(q.context, a.start, a.end) for q in learned for a in q.answers
    )
    rules: dict[str, Rule] = {"nothing": lambda context: ""}
    if texts:
        usual = texts.most_common(1)[0][0]
        (left, right), _ = sides.most_common(1)[0]
        between = re.compile(
            re.escape(left) + r"\s*(\S.*?)\s*" + re.escape(right), re.DOTALL
        )
        rules[f"always {usual!r}"] = lambda context: usual
        rules[f"what is first between {left!r} and {right!r}"] = lambda context: (
            found.group(1) if (found := between.search(context)) else ""
        )
    return rules


def best_rule(
    learned: Sequence[Question], questions: Sequence[Question]
) -> tuple[str, Mapping[str, float]]:
    """Returns the rule that has the highest F1 on some questions, and its scores."""
    scores = {
        name: score(questions, {q.id: rule(q.context) for q in questions})
        for name, rule in fixed_rules(learned).items()
    }
    name = max(scores, key=lambda name: scores[name]["f1"])
    return name, scores[name]


def _sides(context: str, start: int, end: int) -> tuple[str, str]:
    """Returns the words, or other signs, before and behind an answer; "" at
    the ends.
    """
    before = re.findall(_PIECE, context[max(start - 40, 0) : start])
    behind = re.search(_PIECE, context[end:])
    return before[-1] if before else "", behind.group() if behind else ""
