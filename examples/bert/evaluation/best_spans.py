"""From logits of windows to answers: the best spans, and whether there is an answer at
all.

    found = answer(question, windows, start_logits, end_logits, limits)
    found.best[0].text           # the best span that is not empty
    found.null_odds              # how much higher the score of "no answer" is
    found.text(threshold=0.0)    # "" if the odds are above the threshold

A span must lie in the context, begin in its token's own window, not end before it
begins, and not be too long. Its score is the sum of two logits; that of no answer is
the lowest that any window gives to [CLS] (Devlin et al., 2018).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from examples.bert.datasets.squad_json import Question
from examples.bert.datasets.squad_windows import IMPOSSIBLE, Window

_NOTHING = (
    "empty"  # what is told where there is no span, and yet something must be told
)


class Span(NamedTuple):
    """An answer and its logits."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """How good it is."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Found:
    """What is told of a question.

    Attributes:
      best: spans, the best first; there is always one.
      null: the empty answer.
    """

    best: tuple[Span, ...]
    null: Span

    @property
    def null_odds(self) -> float:
        """How much higher the score of no answer is than that of the best span."""
        return self.null.score - self.best[0].score

    def text(self, threshold: float | None) -> str:
        """Returns the answer: nothing, if the odds are above the threshold. None: never
        nothing.
        """
        return (
            ""
            if threshold is not None and self.null_odds > threshold
            else self.best[0].text
        )

    def listed(self, size: int, negative: bool) -> list[dict[str, str | float]]:
        """Returns the best answers with probabilities that sum to 1, as
        nbest_predictions.json has them; with the empty one among them if there may be
        none."""
        spans = sorted(
            [*self.best[:size], *([self.null] if negative else [])],
            key=lambda span: -span.score,
        )
        highest = spans[0].score
        weights = [math.exp(span.score - highest) for span in spans]
        return [
            {
                "text": span.text,
                "probability": weight / sum(weights),
                "start_logit": span.start_logit,
                "end_logit": span.end_logit,
            }
            for span, weight in zip(spans, weights)
        ]


def answer(
    question: Question,
    windows: Sequence[Window],
    start: Sequence[np.ndarray],
    end: Sequence[np.ndarray],
    size: int,
    longest: int,
) -> Found:
    """Returns what the logits say of a question.

    Args:
      question: gives the characters.
      windows: all of its windows.
      start: for each of them, logits [length] of the first token of an answer.
      end: the same of the last one.
      size: how many of the highest logits are looked at, and how many answers there
        are.
      longest: the most tokens of an answer.
    """
    spans: dict[str, Span] = {}
    nulls = []
    for window, first, last in zip(windows, start, end, strict=True):
        nulls.append(Span("", float(first[IMPOSSIBLE]), float(last[IMPOSSIBLE])))
        for i, j in _candidates(window, first, last, size, longest):
            begin, finish = (window.places[k - window.first] for k in (i, j))
            text = question.context[begin[0] : finish[1]]
            span = Span(text, float(first[i]), float(last[j]))
            if text not in spans or spans[text].score < span.score:
                spans[text] = span
    best = sorted(spans.values(), key=lambda span: -span.score)[:size]
    return Found(
        tuple(best) or (Span(_NOTHING, 0.0, 0.0),),
        min(nulls, key=lambda span: span.score, default=Span("", 0.0, 0.0)),
    )


def _candidates(
    window: Window, first: np.ndarray, last: np.ndarray, size: int, longest: int
) -> list[tuple[int, int]]:
    """Returns the places of first and last tokens of spans that may be answers."""
    inside = np.arange(window.first, window.first + len(window.places))
    starts = _highest(inside[window.own], first, size)
    ends = _highest(inside, last, size)
    return [(i, j) for i in starts for j in ends if 0 <= j - i < longest]


def _highest(places: np.ndarray, logits: np.ndarray, size: int) -> list[int]:
    """Returns the places of the highest logits, the highest first."""
    return places[np.argsort(-logits[places], kind="stable")[:size]].tolist()
