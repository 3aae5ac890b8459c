"""Scores of answers as computed by SQuAD's evaluation scripts: exact match and F1.

    score(questions, {id: text})            # {"exact": 71.2, "f1": 80.5, "total": 500, ...}
    best_threshold(questions, {id: text}, {id: odds}, f1)

The best score over all answers of a question counts. For a question without an answer
only the empty text is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from examples.bert.datasets.squad_json import Question
from transformer.inference.answer_metrics import exact_match, f1

Metric = Callable[[str, Sequence[str]], float]  # (text, right answers) -> 0.0 to 1.0


class _QuestionScores(NamedTuple):
    """What the possible predictions for a question score.

    Attributes:
      odds: the score of "no answer" minus that of the text, by the model.
      score_of_text: the metric of the text, 0.0 to 1.0.
      score_if_empty: the metric of the empty text, 0.0 or 1.0.
    """

    odds: float
    score_of_text: float
    score_if_empty: float


def score(questions: Sequence[Question], texts: Mapping[str, str]) -> dict[str, float]:
    """Returns the means of exact match and F1 over all questions, in percent. If there are
    both questions with and without an answer, also their separate means.

    Args:
      questions: the questions, with answers.
      texts: predictions by question id; a missing one counts as wrong.
    """
    answerable = [question for question in questions if question.answers]
    unanswerable = [question for question in questions if not question.answers]
    # By the prefix of the names of their scores, as in SQuAD's scripts.
    subsets = {"": list(questions)}
    if answerable and unanswerable:
        subsets |= {"HasAns_": answerable, "NoAns_": unanswerable}
    scores = {}
    for prefix, subset in subsets.items():
        for name, metric in (("exact", exact_match), ("f1", f1)):
            total = 0.0
            for question in subset:
                if question.id in texts:
                    total += metric(texts[question.id], _answer_texts(question))
            scores[prefix + name] = 100.0 * total / len(subset)
        scores[f"{prefix}total"] = len(subset)
    return scores


def _answer_texts(question: Question) -> list[str]:
    """Returns the texts of all right answers."""
    return [answer.text for answer in question.answers]


def best_threshold(
    questions: Sequence[Question],
    texts: Mapping[str, str],
    odds: Mapping[str, float],
    metric: Metric,
) -> tuple[float, float]:
    """Returns the highest score over all thresholds, in percent, and the lowest threshold
    that gives it.

    Args:
      questions: the questions, with answers.
      texts: the best non-empty predictions, by question id.
      odds: scores of "no answer" minus those of `texts`, by question id. The prediction
        is empty if the odds are above the threshold.
      metric: `exact_match` or `f1`.
    """
    by_odds = sorted(  # lowest odds first
        _QuestionScores(
            odds=odds[question.id],
            score_of_text=metric(texts[question.id], _answer_texts(question)),
            score_if_empty=float(not question.answers),
        )
        for question in questions
    )
    # Below the lowest odds, all predictions are empty. Raising the threshold replaces
    # empty predictions by texts, one question after another.
    total = sum(scores.score_if_empty for scores in by_odds)
    best = total
    threshold = by_odds[0].odds - 1.0
    for k, scores in enumerate(by_odds):
        total += scores.score_of_text - scores.score_if_empty
        # Questions of equal odds change together.
        is_last_of_equal = k + 1 == len(by_odds) or by_odds[k + 1].odds > scores.odds
        # More than a rounding error better.
        if total > best + 1e-9 and is_last_of_equal:
            best = total
            threshold = scores.odds
    return 100.0 * best / len(by_odds), threshold
