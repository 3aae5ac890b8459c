"""From the logits of windows to an answer: the best spans, and whether there is an answer.

    prediction = answer(
        question, windows, start_logits, end_logits, num_best=20, max_length=30
    )
    prediction.best[0].text           # the best non-empty span
    prediction.null_odds              # how much higher the score of "no answer" is
    prediction.text(threshold=0.0)    # "" if the odds are above the threshold

A span must be in the context, start at a token in the window where it has maximum context,
not end before it starts, and not be too long. Its score is the sum of two logits. The
score of "no answer" is the lowest score that any window gives to [CLS] (Devlin et al.,
2018).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from examples.bert.datasets.squad_json import Question
from examples.bert.datasets.squad_windows import NO_ANSWER, Window

# The answer if no span is possible, but an answer is required.
_NO_SPAN_TEXT = "empty"


class Span(NamedTuple):
    """An answer.

    Attributes:
      text: the text of the answer.
      start_logit: the logit of its first token as the start of an answer.
      end_logit: the logit of its last token as the end of an answer.
    """

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answers to a question.

    Attributes:
      best: non-empty spans, best first; at least one.
      null: the empty answer.
    """

    best: tuple[Span, ...]
    null: Span

    @property
    def null_odds(self) -> float:
        """The score of the empty answer minus the score of the best span."""
        return self.null.score - self.best[0].score

    def text(self, threshold: float | None) -> str:
        """Returns the text of the best span, or "" if the odds are above the threshold;
        None: always the best span.
        """
        if threshold is not None and self.null_odds > threshold:
            return ""
        return self.best[0].text

    def nbest(
        self, num_answers: int, include_null: bool
    ) -> list[dict[str, str | float]]:
        """Returns the best answers with probabilities that sum to 1, as in
        nbest_predictions.json.

        Args:
          num_answers: the maximum number of non-empty answers.
          include_null: whether to include the empty answer.
        """
        spans = list(self.best[:num_answers])
        if include_null:
            spans.append(self.null)
        spans.sort(key=lambda span: -span.score)
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
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    num_best: int,
    max_length: int,
) -> Prediction:
    """Returns the answers to a question.

    Args:
      question: the question.
      windows: all windows of the question.
      start_logits: for each window, logits [length] for the first token of an answer.
      end_logits: for each window, logits [length] for the last token.
      num_best: how many first and last tokens are combined to spans, those with the
        highest logits; and the maximum number of answers.
      max_length: the maximum number of tokens of an answer.
    """
    best_by_text: dict[str, Span] = {}  # the best span of each text, over all windows
    nulls = []  # the empty answer of each window
    for window, starts, ends in zip(windows, start_logits, end_logits, strict=True):
        null_start = float(starts[NO_ANSWER])
        null_end = float(ends[NO_ANSWER])
        nulls.append(Span("", start_logit=null_start, end_logit=null_end))
        candidates = _candidates(
            window,
            start_logits=starts,
            end_logits=ends,
            num_best=num_best,
            max_length=max_length,
        )
        for first_token, last_token in candidates:
            first_character, _ = window.offsets[first_token - window.context_start]
            _, end_character = window.offsets[last_token - window.context_start]
            text = question.context[first_character:end_character]
            span = Span(
                text,
                start_logit=float(starts[first_token]),
                end_logit=float(ends[last_token]),
            )
            if text not in best_by_text or best_by_text[text].score < span.score:
                best_by_text[text] = span
    best = sorted(best_by_text.values(), key=lambda span: -span.score)[:num_best]
    if not best:
        best = [Span(_NO_SPAN_TEXT, start_logit=0.0, end_logit=0.0)]
    no_logits = Span("", start_logit=0.0, end_logit=0.0)  # if there are no windows
    null = min(nulls, key=lambda span: span.score, default=no_logits)
    return Prediction(best=tuple(best), null=null)


def _candidates(
    window: Window,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    num_best: int,
    max_length: int,
) -> list[tuple[int, int]]:
    """Returns the indices of the first and the last token of spans that may be answers.

    Args:
      window: the window of the spans.
      start_logits: logits [length] for the first token.
      end_logits: logits [length] for the last token.
      num_best: the maximum number of first tokens, and of last tokens.
      max_length: the maximum number of tokens of a span.
    """
    context = window.context_start + np.arange(len(window.offsets))
    first_tokens = _highest(context[window.is_max_context], start_logits, num_best)
    last_tokens = _highest(context, end_logits, num_best)
    return [
        (first_token, last_token)
        for first_token in first_tokens
        for last_token in last_tokens
        if 0 <= last_token - first_token < max_length
    ]


def _highest(indices: np.ndarray, logits: np.ndarray, num_best: int) -> list[int]:
    """Returns the `num_best` indices with the highest logits, highest first."""
    order = np.argsort(-logits[indices], kind="stable")
    return indices[order[:num_best]].tolist()
