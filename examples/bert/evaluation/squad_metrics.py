"""How answers are scored, as SQuAD's own programs do it: exact matches and F1 of words.

    score(questions, {id: text})            # {"exact": 71.2, "f1": 80.5, "total": 500, ...}
    best_threshold(questions, {id: text}, {id: odds}, f1)

The best score over all answers of a question counts. A question without an answer is
told right by an empty text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from examples.bert.datasets.squad_json import Question
from transformer.inference.answer_metrics import exact_match, f1

Metric = Callable[[str, Sequence[str]], float]


def score(questions: Sequence[Question], texts: Mapping[str, str]) -> dict[str, float]:
    """Returns the means of exact matches and F1, in percent, over all questions; and
    over those that have an answer and those that have none, where there are both kinds.

    Args:
      questions: with their answers.
      texts: what is told, by the questions' ids; what is not told counts as wrong.
    """
    kinds = {
        "": list(questions),
        "HasAns_": [q for q in questions if q.answers],
        "NoAns_": [q for q in questions if not q.answers],
    }
    if not kinds["HasAns_"] or not kinds["NoAns_"]:
        kinds = {"": kinds[""]}
    found = {}
    for kind, some in kinds.items():
        for name, metric in (("exact", exact_match), ("f1", f1)):
            total = sum(
                metric(texts[q.id], [a.text for a in q.answers])
                for q in some
                if q.id in texts
            )
            found[kind + name] = 100.0 * total / len(some)
        found[f"{kind}total"] = len(some)
    return found


def best_threshold(
    questions: Sequence[Question],
    texts: Mapping[str, str],
    odds: Mapping[str, float],
    metric: Metric,
) -> tuple[float, float]:
    """Returns the highest score in percent that a threshold gives, and the lowest such
    threshold.

    Args:
      questions: with their answers.
      texts: by id, the best answer that is not empty.
      odds: by id, how much better it is to answer nothing: above the threshold nothing
        is answered.
      metric: `exact_match` or `f1`.
    """
    ranked = sorted(
        (
            odds[q.id],
            metric(texts[q.id], [a.text for a in q.answers]),
            float(not q.answers),
        )
        for q in questions
    )
    right = sum(
        nothing for _, _, nothing in ranked
    )  # all thresholds below the lowest odds
    best = right
    threshold = ranked[0][0] - 1.0
    for k, (here, told, nothing) in enumerate(ranked):
        right += told - nothing
        if right > best + 1e-9 and (k + 1 == len(ranked) or ranked[k + 1][0] > here):
            best = right
            threshold = here
    return 100.0 * best / len(ranked), threshold
