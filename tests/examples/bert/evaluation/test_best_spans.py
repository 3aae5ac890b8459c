"""Answers of logits: limits, owners of tokens, nothing, and probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples.bert.datasets.squad_json import Question
from examples.bert.datasets.squad_windows import Shape, windows
from examples.bert.evaluation.best_spans import answer

CONTEXT = "the tower stands in paris of old"
ASKED = Question("1", "where", CONTEXT, ())
SHAPE = Shape(12, 4, 4)  # [CLS] where [SEP], and up to 8 tokens of the context
FIRST = 3


def logits(length, **high):
    found = np.zeros(length, np.float32)
    for name, value in high.items():
        found[int(name[1:])] = value
    return found


def tell(start, end, vocabulary, shape=SHAPE, size=5, longest=30):
    made = windows(0, ASKED, vocabulary, shape)
    assert len(made) == len(start)
    return answer(ASKED, made, start, end, size, longest)


def test_the_best_span_is_told(vocabulary):
    found = tell([logits(12, _4=5.0, _0=1.0)], [logits(12, _5=4.0, _0=2.0)], vocabulary)
    assert found.best[0] == ("tower stands", 5.0, 4.0)
    assert found.null_odds == 3.0 - 9.0
    assert found.text(None) == found.text(-6.0) == "tower stands"
    assert found.text(-6.1) == ""  # nothing, where the odds are above the threshold


def test_a_span_ends_behind_its_beginning_inside_of_the_context(vocabulary):
    start = logits(12, _7=5.0, _1=9.0, _11=9.0)
    end = logits(12, _4=5.0, _8=1.0, _2=9.0, _10=9.0)
    assert tell([start], [end], vocabulary).best[0].text == "paris of"


def test_a_span_is_not_too_long(vocabulary):
    start = logits(12, _3=5.0, _8=1.0)
    end = logits(12, _9=5.0, _4=2.0)
    assert tell([start], [end], vocabulary, longest=7).best[0].text == CONTEXT
    assert tell([start], [end], vocabulary, longest=6).best[0].text == "the tower"


def test_equal_texts_count_once_and_few_are_kept(vocabulary):
    found = tell([np.arange(12.0)], [np.arange(12.0)], vocabulary, size=4)
    assert len(found.best) == 4 and len({span.text for span in found.best}) == 4
    scores = [span.score for span in found.best]
    assert scores == sorted(scores, reverse=True)


def test_a_token_begins_an_answer_in_its_own_window_alone(vocabulary):
    made = windows(0, ASKED, vocabulary, Shape(8, 4, 2))
    start = [logits(8) for _ in made]
    end = [logits(8) for _ in made]
    other = 0
    own = 1
    at = 2  # "stands" is the last but one of window 0 and the first of window 1
    k = next(i for i, w in enumerate(made) if w.is_max_context[2 if i == 0 else 0])
    assert made[own].offsets[0][0] == made[other].offsets[at][0] and k in (other, own)
    start[1 - k][FIRST + (at if k else 0)] = (
        9.0  # of the window that it does not belong to
    )
    found = tell(start, end, vocabulary, Shape(8, 4, 2))
    assert all(span.start_logit == 0.0 for span in found.best)
    start[k][FIRST + (0 if k else at)] = 7.0
    assert (
        tell(start, end, vocabulary, Shape(8, 4, 2)).best[0].text.startswith("stands")
    )


def test_nothing_is_as_good_as_the_least_that_a_window_says(vocabulary):
    shape = Shape(8, 4, 3)
    made = windows(0, ASKED, vocabulary, shape)
    start = [logits(8, _0=3.0 - k) for k in range(len(made))]
    found = tell(start, [logits(8)] * len(made), vocabulary, shape)
    assert found.null.score == 3.0 - (len(made) - 1)


def test_probabilities_of_the_list(vocabulary):
    found = tell([logits(12, _4=5.0, _0=4.0)], [logits(12, _5=4.0)], vocabulary, size=3)
    nbest = found.nbest(3, negative=True)
    assert [one["text"] for one in nbest].count("") == 1 and len(nbest) == 4
    assert sum(one["probability"] for one in nbest) == pytest.approx(1.0)
    ratio = (
        nbest[0]["probability"] / next(o for o in nbest if not o["text"])["probability"]
    )
    assert ratio == pytest.approx(math.exp(9.0 - 4.0))
    assert "" not in [one["text"] for one in found.nbest(3, negative=False)]


def test_a_context_without_tokens():
    found = answer(ASKED, [], [], [], 5, 30)
    assert found.best[0].text == "empty" and found.null_odds == 0.0
