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
    results = np.zeros(length, np.float32)
    for name, value in high.items():
        results[int(name[1:])] = value
    return results


def tell(start, end, vocabulary, shape=SHAPE, size=5, longest=30):
    outputs = windows(0, ASKED, vocabulary, shape)
    assert len(outputs) == len(start)
    return answer(ASKED, outputs, start, end, size, longest)


def test_the_best_span(vocabulary):
    results = tell(
        [logits(12, _4=5.0, _0=1.0)], [logits(12, _5=4.0, _0=2.0)], vocabulary
    )
    assert results.best[0] == ("tower stands", 5.0, 4.0)
    assert results.null_odds == 3.0 - 9.0
    assert results.text(None) == results.text(-6.0) == "tower stands"
    assert results.text(-6.1) == ""  # nothing, where the odds are above the threshold


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
    results = tell([np.arange(12.0)], [np.arange(12.0)], vocabulary, size=4)
    assert len(results.best) == 4 and len({span.text for span in results.best}) == 4
    scores = [span.score for span in results.best]
    assert scores == sorted(scores, reverse=True)


def test_a_token_begins_an_answer_only_in_its_own_window(vocabulary):
    outputs = windows(0, ASKED, vocabulary, Shape(8, 4, 2))
    start = [logits(8) for _ in outputs]
    end = [logits(8) for _ in outputs]
    other = 0
    own = 1
    at = 2  # "stands" is the last but one of window 0 and the first of window 1
    k = next(i for i, w in enumerate(outputs) if w.is_max_context[2 if i == 0 else 0])
    assert outputs[own].offsets[0][0] == outputs[other].offsets[at][0] and k in (
        other,
        own,
    )
    start[1 - k][FIRST + (at if k else 0)] = (
        9.0  # of the window that it does not belong to
    )
    results = tell(start, end, vocabulary, Shape(8, 4, 2))
    assert all(span.start_logit == 0.0 for span in results.best)
    start[k][FIRST + (0 if k else at)] = 7.0
    assert (
        tell(start, end, vocabulary, Shape(8, 4, 2)).best[0].text.startswith("stands")
    )


def test_nothing_is_as_good_as_the_least_that_a_window_says(vocabulary):
    shape = Shape(8, 4, 3)
    outputs = windows(0, ASKED, vocabulary, shape)
    start = [logits(8, _0=3.0 - k) for k in range(len(outputs))]
    results = tell(start, [logits(8)] * len(outputs), vocabulary, shape)
    assert results.null.score == 3.0 - (len(outputs) - 1)


def test_probabilities_of_the_list(vocabulary):
    results = tell(
        [logits(12, _4=5.0, _0=4.0)], [logits(12, _5=4.0)], vocabulary, size=3
    )
    nbest = results.nbest(3, include_null=True)
    assert [one["text"] for one in nbest].count("") == 1 and len(nbest) == 4
    assert sum(one["probability"] for one in nbest) == pytest.approx(1.0)
    ratio = (
        nbest[0]["probability"] / next(o for o in nbest if not o["text"])["probability"]
    )
    assert ratio == pytest.approx(math.exp(9.0 - 4.0))
    assert "" not in [one["text"] for one in results.nbest(3, include_null=False)]


def test_a_context_without_tokens():
    results = answer(ASKED, [], [], [], 5, 30)
    assert results.best[0].text == "empty" and results.null_odds == 0.0
