"""Model inputs of a question and a window of its context, and the character offsets of
their tokens.

    [CLS] question [SEP] window of the context [SEP]

A context that is too long is split into overlapping windows, which start `stride` tokens
apart. An answer may only start at a token in the window where that token has maximum
context: where the smaller of the numbers of tokens before and after it is largest (Devlin
et al., 2018).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from examples.bert.datasets.squad_json import Answer, Question
from transformer import data
from transformer.data.sources import Example

NO_ANSWER = 0  # the index of [CLS], start and end of a question without an answer


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of model inputs.

    Attributes:
      length: maximum number of tokens of an input.
      question: maximum number of tokens of a question; longer ones are truncated.
      stride: number of tokens from the start of a window to that of the next one.
    """

    length: int
    question: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Window:
    """A question and a window of its context.

    Attributes:
      question: the index of the question.
      tokens: token ids, int32 [length].
      token_types: int32 [length]: 0 for the question, 1 for the context.
      context_start: the index of the first token of the context.
      offsets: int32 [context tokens, 2]: the first character of each token in the
        context, and the character after its last one.
      is_max_context: bool [context tokens]: whether this is the window in which the token
        has maximum context.
      characters: the first character of the context that is in this window, and the one after
        the last: up to the tokens outside, since characters such as spaces and accents may
        have no token.
    """

    question: int
    tokens: np.ndarray
    token_types: np.ndarray
    context_start: int
    offsets: np.ndarray
    is_max_context: np.ndarray
    characters: tuple[int, int]

    def span(self, answer: Answer) -> tuple[int, int]:
        """Returns the indices of the first and the last token of an answer; twice the
        index of [CLS] if the answer is not completely in this window.
        """
        starts = self.offsets[:, 0]
        ends = self.offsets[:, 1]
        tokens = np.flatnonzero((ends > answer.start) & (starts < answer.end))
        first_character, end_character = self.characters
        is_complete = first_character <= answer.start and answer.end <= end_character
        if not len(tokens) or not is_complete:
            return NO_ANSWER, NO_ANSWER
        return self.context_start + int(tokens[0]), self.context_start + int(tokens[-1])

    def features(self, answer: Answer | None) -> Example:
        """Returns the model's inputs, and the labels `start` and `end`."""
        start, end = (NO_ANSWER, NO_ANSWER) if answer is None else self.span(answer)
        return {
            "tokens": self.tokens,
            "token_types": self.token_types,
            "start": np.int32(start),
            "end": np.int32(end),
        }


def windows(
    index: int,
    question: Question,
    vocabulary: data.WordPieceVocabulary,
    shape: Shape,
) -> list[Window]:
    """Returns the windows of a question. They cover its context; a context without tokens
    has no window.

    Args:
      index: the index of the question, stored in its windows.
      question: the question.
      vocabulary: the vocabulary of the tokens.
      shape: the sizes of the windows.

    Raises:
      DataError: the question leaves no room for the context.
    """
    query_ids = vocabulary.encode(question.text)[: shape.question]
    ids, offsets = vocabulary.encode_with_offsets(question.context)
    room = shape.length - len(query_ids) - 3  # [CLS], and [SEP] twice
    if room < 1:
        raise data.DataError(
            f"inputs of {shape.length} tokens have no room for a context after a "
            f"question of {len(query_ids)}.\n  Raise --max_seq_length, or lower "
            "--max_query_length."
        )
    spans = window_spans(len(ids), room, shape.stride)
    max_context = max_context_windows(spans, len(ids))
    prefix = [vocabulary.bos_id, *query_ids, vocabulary.eos_id]
    results = []
    for k, (start, end) in enumerate(spans):
        first_character = 0 if start == 0 else int(offsets[start - 1, 1])
        end_character = len(question.context)
        if end < len(ids):
            end_character = int(offsets[end, 0])
        tokens = np.array([*prefix, *ids[start:end], vocabulary.eos_id], np.int32)
        results.append(
            Window(
                question=index,
                tokens=tokens,
                token_types=(np.arange(len(tokens)) >= len(prefix)).astype(np.int32),
                context_start=len(prefix),
                offsets=offsets[start:end],
                is_max_context=max_context[start:end] == k,
                characters=(first_character, end_character),
            )
        )
    return results


def window_spans(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns the first token of each window, and the token after its last one.

    Args:
      tokens: the number of tokens of the context.
      room: the maximum number of context tokens of a window.
      stride: the number of tokens between the starts of two windows.

    >>> window_spans(10, room=4, stride=3)
    [(0, 4), (3, 7), (6, 10)]
    """
    spans = []
    start = 0
    while start < tokens:
        spans.append((start, min(start + room, tokens)))
        if start + room >= tokens:
            break
        start += min(stride, room)
    return spans


def max_context_windows(spans: list[tuple[int, int]], tokens: int) -> np.ndarray:
    """Returns the index of the window in which each token has maximum context: [tokens].

    Args:
      spans: the first token of each window, and the token after its last one.
      tokens: the number of tokens of the context.

    >>> max_context_windows([(0, 4), (3, 7), (6, 10)], 10).tolist()
    [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    """
    if not spans:
        return np.zeros(0, int)
    token = np.arange(tokens)
    # [windows, 1], to compare with `token` [tokens].
    start = np.array([[start] for start, _ in spans], int)
    end = np.array([[end] for _, end in spans], int)
    # The longer window wins where two windows have equal context.
    context = np.minimum(token - start, end - 1 - token) + 0.01 * (end - start)
    is_in_window = (start <= token) & (token < end)
    return np.where(is_in_window, context, -1.0).argmax(0)
