"""How answers are scored, as SQuAD's own programs do it: exact matches and F1 of words.

    exact("the Tower", ["A tower."])        # 1.0: small letters, no articles, no punctuation
    f1("a big tower", ["the tower"])        # 0.667
    score(questions, {id: text})            # {"exact": 71.2, "f1": 80.5, "total": 500, ...}
    best_threshold(questions, {id: text}, {id: odds}, f1)

The best score over all answers of a question counts. A question without an answer is told right by
an empty text alone.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

from examples.bert.squad import Question

Metric = Callable[[str, Sequence[str]], float]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normal(text: str) -> str:
  """Returns a text in small letters, without punctuation and articles, with single spaces.

  >>> normal("The  Eiffel-Tower, a tower.")
  'eiffeltower tower'
  """
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(text: str, answers: Sequence[str]) -> float:
  """Returns 1.0 if a text is one of the answers, but for what `normal` leaves out; else 0.0."""
  return float(any(normal(text) == normal(answer) for answer in _told(answers)))


def f1(text: str, answers: Sequence[str]) -> float:
  """Returns the highest F1 of a text's words and those of an answer."""
  return max(_f1(normal(text).split(), normal(answer).split()) for answer in _told(answers))


def _told(answers: Sequence[str]) -> Sequence[str]:
  """Returns the answers of which something is left; if there are none, an empty one."""
  return [answer for answer in answers if normal(answer)] or [""]


def _f1(words: list[str], others: list[str]) -> float:
  if not words or not others:
    return float(words == others)
  same = (collections.Counter(words) & collections.Counter(others)).total()
  precision, recall = same / len(words), same / len(others)
  return 2 * precision * recall / (precision + recall) if same else 0.0


def score(questions: Sequence[Question], texts: Mapping[str, str]) -> dict[str, float]:
  """Returns the means of exact matches and F1, in percent, over all questions; and over those that
  have an answer and those that have none, where there are both kinds.

  Args:
    questions: with their answers.
    texts: what is told, by the questions' ids; what is not told counts as wrong.
  """
  kinds = {"": list(questions), "HasAns_": [q for q in questions if q.answers],
           "NoAns_": [q for q in questions if not q.answers]}
  if not kinds["HasAns_"] or not kinds["NoAns_"]:
    kinds = {"": kinds[""]}
  found = {}
  for kind, some in kinds.items():
    for name, metric in (("exact", exact), ("f1", f1)):
      total = sum(metric(texts[q.id], [a.text for a in q.answers]) for q in some if q.id in texts)
      found[kind + name] = 100.0 * total / len(some)
    found[f"{kind}total"] = len(some)
  return found


def best_threshold(questions: Sequence[Question], texts: Mapping[str, str],
                   odds: Mapping[str, float], metric: Metric) -> tuple[float, float]:
  """Returns the highest score in percent that a threshold gives, and the lowest such threshold.

  Args:
    questions: with their answers.
    texts: by id, the best answer that is not empty.
    odds: by id, how much better it is to answer nothing: above the threshold nothing is answered.
    metric: `exact` or `f1`.
  """
  ranked = sorted((odds[q.id], metric(texts[q.id], [a.text for a in q.answers]),
                   float(not q.answers)) for q in questions)
  right = sum(nothing for _, _, nothing in ranked)      # all thresholds below the lowest odds
  best, threshold = right, ranked[0][0] - 1.0
  for k, (here, told, nothing) in enumerate(ranked):
    right += told - nothing
    if right > best + 1e-9 and (k + 1 == len(ranked) or ranked[k + 1][0] > here):
      best, threshold = right, here
  return 100.0 * best / len(ranked), threshold
