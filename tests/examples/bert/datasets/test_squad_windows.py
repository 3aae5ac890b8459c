"""Windows: every token is in one of its own, and answers come back as the characters
they were.
"""

from __future__ import annotations

import numpy as np
import pytest

from examples.bert.datasets.squad_json import Answer, Question
from examples.bert.datasets.squad_windows import (
    Shape,
    max_context_windows,
    window_spans,
    windows,
)
from transformer.data import DataError

CONTEXT = (
    "The old tower, unaffable, stands in Paris  of 1889. It is where the river is wide."
)


def question(answer, text="where is the tower ?"):
    start = CONTEXT.index(answer)
    return Question("1", text, CONTEXT, (Answer(answer, start),))


@pytest.mark.parametrize(
    "tokens, room, stride",
    [(1, 4, 2), (4, 4, 2), (5, 4, 2), (23, 7, 3), (23, 7, 50), (9, 3, 1)],
)
def test_windows_cover_all_and_have_one_owner(tokens, room, stride):
    spans = window_spans(tokens, room, stride)
    assert spans[0][0] == 0 and spans[-1][1] == tokens
    assert all(end - begin == room for begin, end in spans[:-1])
    assert all(b - a == min(stride, room) for (a, _), (b, _) in zip(spans, spans[1:]))
    own = max_context_windows(spans, tokens)
    for at, k in enumerate(own):
        neighbourhood = [
            min(at - a, b - 1 - at) + 0.01 * (b - a) if a <= at < b else -1
            for a, b in spans
        ]
        assert neighbourhood[k] == max(neighbourhood)


def test_no_tokens_no_windows():
    assert window_spans(0, 4, 2) == [] and max_context_windows([], 0).tolist() == []


def test_rows_hold_the_question_and_a_part_of_the_context(vocabulary):
    outputs = windows(3, question("Paris"), vocabulary, Shape(16, 4, 5))
    ids = vocabulary.encode(CONTEXT)
    asked = vocabulary.encode("where is the tower")
    assert len(outputs) > 2
    for window, (begin, end) in zip(
        outputs, window_spans(len(ids), 16 - 4 - 3, 5), strict=True
    ):
        expected = [
            vocabulary.bos_id,
            *asked,
            vocabulary.eos_id,
            *ids[begin:end],
            vocabulary.eos_id,
        ]
        assert window.tokens.tolist() == expected and len(expected) <= 16
        assert window.token_types.tolist() == [0] * 6 + [1] * (len(expected) - 6)
        assert window.question == 3


@pytest.mark.parametrize(
    "answer",
    ["Paris", "old tower", "unaffable", "1889", "The", "wide.", "Paris  of 1889"],
)
@pytest.mark.parametrize("stride", [3, 8])
def test_spans_lead_back_to_the_characters_of_the_answer(answer, stride, vocabulary):
    asked = question(answer)
    results = 0
    for window in windows(0, asked, vocabulary, Shape(20, 8, stride)):
        start, end = window.span(asked.answers[0])
        features = window.features(asked.answers[0])
        assert (features["start"], features["end"]) == (start, end)
        if start:
            first, last = (
                window.offsets[start - window.context_start],
                window.offsets[end - window.context_start],
            )
            assert CONTEXT[first[0] : last[1]] == answer
            results += 1
        else:
            assert end == 0
    assert results


@pytest.mark.parametrize(
    "context, answer",
    [
        ("the cafe\u0301", "cafe\u0301"),  # NFD, at the end of the context
        ("the cafe\u0301 stands in paris", "the cafe\u0301"),
        (
            "in \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9",
            "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9",
        ),
        ("is \u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d", "\u0915\u094d"),
        ("of paris \u200b", "paris \u200b"),  # ends in what has no token
        ("\u200bthe river", "\u200bthe"),
    ],
)
@pytest.mark.parametrize("room", [1, 2, 9])
def test_answers_with_characters_that_have_no_token(context, answer, room, vocabulary):
    right = Answer(answer, context.index(answer))
    asked = Question("1", "where ?", context, (right,))
    shape = Shape(room + 5, 2, 1)
    num_tokens = len(vocabulary.encode(answer))
    spans = []
    for window in windows(0, asked, vocabulary, shape):
        start, end = window.span(right)
        if start:
            first, last = (
                window.offsets[k - window.context_start] for k in (start, end)
            )
            spans.append(context[first[0] : last[1]])
    visible = answer.strip(" \u200b")
    assert set(spans) == ({visible} if num_tokens <= room else set())


def test_a_truncated_answer_counts_as_absent(vocabulary):
    asked = question("unaffable, stands in Paris  of 1889")
    outputs = windows(0, asked, vocabulary, Shape(16, 8, 2))
    assert all(window.span(asked.answers[0]) == (0, 0) for window in outputs)
    assert outputs[0].features(None)["start"] == 0


def test_each_token_is_its_windows_own_once(vocabulary):
    outputs = windows(0, question("Paris"), vocabulary, Shape(14, 4, 3))
    owned = np.concatenate(
        [window.offsets[window.is_max_context] for window in outputs]
    )
    _, positions = vocabulary.encode_with_offsets(CONTEXT)
    assert sorted(map(tuple, owned)) == sorted(map(tuple, positions))


def test_no_room_for_a_context(vocabulary):
    with pytest.raises(
        DataError, match="no room for a context after a question of 5.*\n.*lower"
    ):
        windows(0, question("Paris"), vocabulary, Shape(8, 30, 3))
