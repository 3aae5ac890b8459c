"""Baselines that answer without reading the question.

    rules = fixed_rules(training_questions)       # {"no answer": rule, ...}
    text = rules["no answer"](question.context)   # a rule: context -> text of the answer

One rule never answers. Two are learned from the answers of training questions: always
the most frequent answer; and the first text of a context between the two words that most
frequently enclose answers.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping, Sequence

from examples.bert.datasets.squad_json import Answer, Question
from examples.bert.evaluation.squad_metrics import score

Rule = Callable[[str], str]  # context -> text of the answer
_WORD_OR_SIGN = r"\w+|[^\w\s]"
_MAX_WORD_LENGTH = 40  # characters before an answer in which its last word is searched


def fixed_rules(training_questions: Sequence[Question]) -> dict[str, Rule]:
    """Returns the rules by their descriptions; without training answers, only the rule
    that never answers.
    """
    text_counts: collections.Counter[str] = collections.Counter()
    enclosing_counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for question in training_questions:
        for answer in question.answers:
            text_counts[answer.text] += 1
            enclosing_words = _enclosing_words(question.context, answer)
            enclosing_counts[enclosing_words] += 1
    rules: dict[str, Rule] = {"no answer": lambda context: ""}
    if text_counts:
        [(most_frequent, _)] = text_counts.most_common(1)
        [((left, right), _)] = enclosing_counts.most_common(1)
        between = re.compile(
            re.escape(left) + r"\s*(\S.*?)\s*" + re.escape(right), re.DOTALL
        )
        rules[f"always {most_frequent!r}"] = lambda context: most_frequent

        def first_between(context: str) -> str:
            """Returns the first text between the two words; "" if there is none."""
            match = between.search(context)
            return match.group(1) if match else ""

        rules[f"the first text between {left!r} and {right!r}"] = first_between
    return rules


def best_rule(
    training_questions: Sequence[Question], questions: Sequence[Question]
) -> tuple[str, Mapping[str, float]]:
    """Returns the description of the rule with the highest F1, and its scores.

    Args:
      training_questions: the questions from which rules are learned.
      questions: the questions on which rules are scored.
    """
    scores = {
        name: score(questions, {q.id: rule(q.context) for q in questions})
        for name, rule in fixed_rules(training_questions).items()
    }
    name = max(scores, key=lambda name: scores[name]["f1"])
    return name, scores[name]


def _enclosing_words(context: str, answer: Answer) -> tuple[str, str]:
    """Returns the word or sign before an answer and that after it; "" where the context
    begins or ends.
    """
    before_start = max(answer.start - _MAX_WORD_LENGTH, 0)
    words_before = re.findall(_WORD_OR_SIGN, context[before_start : answer.start])
    match_after = re.search(_WORD_OR_SIGN, context[answer.end :])
    left = words_before[-1] if words_before else ""
    right = match_after.group() if match_after else ""
    return left, right
