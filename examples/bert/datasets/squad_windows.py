"""Rows of questions and parts of their contexts, and the way back from tokens to
characters.

    [CLS] question [SEP] part of the context [SEP]

A context that is too long is cut into windows that begin `stride` tokens apart. A token
lies in several of them; the one where it has the most tokens around it, in front or
behind, whichever are fewer, is *its* window, and only there may an answer begin with it
(Devlin et al., 2018).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from examples.bert.datasets.squad_json import Answer, Question
from transformer import data
from transformer.data.sources import Example

IMPOSSIBLE = 0  # where an answer begins and ends that is not there: at [CLS]


@dataclasses.dataclass(frozen=True)
class Shape:
    """How rows are made.

    Attributes:
      length: tokens of a row.
      question: the most tokens of a question; what is behind them is cut off.
      stride: from where a window begins to where the next one does.
    """

    length: int
    question: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Window:
    """A row, and where in the context its tokens are.

    Attributes:
      question: the number of its question.
      tokens: int32 [tokens].
      token_types: 0, and 1 for the context and what is behind it.
      first: the place of the first token of the context.
      places: int32 [context tokens, 2], from which character to before which.
      own: bool [context tokens], whether this is a token's own window.
    """

    question: int
    tokens: np.ndarray
    token_types: np.ndarray
    first: int
    places: np.ndarray
    own: np.ndarray

    def span(self, answer: Answer) -> tuple[int, int]:
        """Returns the places of the first and the last token of an answer; of [CLS] if
        it does not lie in this window as a whole."""
        inside = np.flatnonzero(
            (self.places[:, 1] > answer.start) & (self.places[:, 0] < answer.end)
        )
        if not len(inside) or (
            self.places[0, 0] > answer.start or self.places[-1, 1] < answer.end
        ):
            return IMPOSSIBLE, IMPOSSIBLE
        return self.first + int(inside[0]), self.first + int(inside[-1])

    def row(self, answer: Answer | None) -> Example:
        """Returns what the model is given."""
        start, end = (IMPOSSIBLE, IMPOSSIBLE) if answer is None else self.span(answer)
        return {
            "tokens": self.tokens,
            "token_types": self.token_types,
            "start": np.int32(start),
            "end": np.int32(end),
        }


def windows(
    number: int, question: Question, vocabulary: data.WordPieceVocabulary, shape: Shape
) -> list[Window]:
    """Returns the windows of a question, of this number; the last token of the last one
    is the last of the context. A context without tokens has none."""
    asked = vocabulary.encode(question.text)[: shape.question]
    ids, places = vocabulary.encode_with_offsets(question.context)
    room = shape.length - len(asked) - 3
    if room < 1:
        raise data.DataError(
            f"rows of {shape.length} tokens have no room for a context beside a "
            f"question of {len(asked)}.\n  Raise --max_seq_length, or lower "
            "--max_query_length."
        )
    spans = cut(len(ids), room, shape.stride)
    own = own_windows(spans, len(ids))
    front = np.concatenate([[vocabulary.bos_id], asked, [vocabulary.eos_id]]).astype(
        np.int32
    )
    made = []
    for k, (begin, end) in enumerate(spans):
        tokens = np.concatenate([front, ids[begin:end], [vocabulary.eos_id]]).astype(
            np.int32
        )
        types = (np.arange(len(tokens)) >= len(front)).astype(np.int32)
        made.append(
            Window(
                number,
                tokens,
                types,
                len(front),
                places[begin:end],
                own[begin:end] == k,
            )
        )
    return made


def cut(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns where windows begin and end.

    >>> cut(10, room=4, stride=3)
    [(0, 4), (3, 7), (6, 10)]
    """
    found = []
    begin = 0
    while begin < tokens:
        found.append((begin, min(begin + room, tokens)))
        if begin + room >= tokens:
            break
        begin += min(stride, room)
    return found


def own_windows(spans: list[tuple[int, int]], tokens: int) -> np.ndarray:
    """Returns the number of each token's own window: int [tokens].

    >>> own_windows([(0, 4), (3, 7), (6, 10)], 10).tolist()
    [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    """
    at = np.arange(tokens)
    begin, end = np.array(spans, int).reshape(-1, 2, 1).transpose(1, 0, 2)
    around = np.minimum(at - begin, end - 1 - at) + 0.01 * (end - begin)
    inside = (begin <= at) & (at < end)
    return np.where(inside, around, -1.0).argmax(0) if spans else np.zeros(0, int)
