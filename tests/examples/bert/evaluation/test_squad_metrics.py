"""Exact matches, F1 and thresholds, with numbers counted by hand."""

from __future__ import annotations

import doctest

import pytest

from examples.bert.datasets import squad_windows
from examples.bert.datasets.squad_json import Answer, Question
from examples.bert.evaluation.squad_metrics import best_threshold, score
from transformer.inference import answer_metrics
from transformer.inference.answer_metrics import exact_match, f1, normalize_answer


def question(id_, *answers):
    return Question(id_, "what?", "a text", tuple(Answer(text, 0) for text in answers))


@pytest.mark.parametrize("module", [answer_metrics, squad_windows])
def test_what_docstrings_say(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(
    "text, same",
    [
        ("The Tower.", "tower"),
        ("an  Apple", "apple"),
        ("U.S.A.", "usa"),
        ("a\tb\nthe c", "b c"),
        ("anthem", "anthem"),
        ("the", ""),
        ("don't", "dont"),
        ("Ångström", "ångström"),
    ],
)
def test_texts_are_normalised(text, same):
    assert normalize_answer(text) == same


def test_the_best_answer_counts():
    assert exact_match("the Eiffel tower!", ["Paris", "Eiffel Tower"]) == 1.0
    assert exact_match("tower", ["Paris", "Eiffel Tower"]) == 0.0
    assert f1("tower", ["Paris", "Eiffel Tower"]) == pytest.approx(
        2 / 3
    )  # 1 of 1 and 1 of 2
    assert f1("x y y z", ["y y w"]) == pytest.approx(
        2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)
    )
    assert f1("x", ["y"]) == 0.0


def test_nothing_is_right_where_there_is_no_answer():
    assert (exact_match("", []), f1("", [])) == (1.0, 1.0)
    assert (exact_match("x", []), f1("x", [])) == (0.0, 0.0)
    assert (exact_match("", ["x"]), f1("", ["x"])) == (0.0, 0.0)
    assert (
        exact_match("", ["the", "x"]) == 0.0
    )  # an answer of which nothing is left is passed over
    assert exact_match("", ["the"]) == f1("an", ["the"]) == 1.0


def test_scores_are_means_in_percent_of_each_kind():
    asked = [
        question("1", "old tower"),
        question("2", "rome"),
        question("3"),
        question("4"),
    ]
    results = score(asked, {"1": "tower", "2": "rome", "3": "", "4": "x"})
    assert results == pytest.approx(
        {
            "exact": 50.0,
            "f1": 100 * (2 / 3 + 1 + 1 + 0) / 4,
            "total": 4,
            "HasAns_exact": 50.0,
            "HasAns_f1": 100 * (2 / 3 + 1) / 2,
            "HasAns_total": 2,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "NoAns_total": 2,
        }
    )
    assert score(asked[:2], {"2": "Rome."}) == {"exact": 50.0, "f1": 50.0, "total": 2}


def test_the_best_threshold():
    asked = [
        question("1", "rome"),
        question("2"),
        question("3", "paris"),
        question("4"),
    ]
    texts = {"1": "rome", "2": "x", "3": "berlin", "4": "y"}
    odds = {"1": -5.0, "3": -1.0, "2": 0.5, "4": 2.0}
    # Nothing above -5: questions 1, 2 and 4 are right. Below it: 2 and 4. Above 0.5: 1
    # and 4.
    assert best_threshold(asked, texts, odds, exact_match) == (75.0, -5.0)
    output = {id_: "" if odds[id_] > -5.0 else text for id_, text in texts.items()}
    assert score(asked, output)["exact"] == 75.0


def test_equal_odds_are_not_separated():
    asked = [question("1", "rome"), question("2"), question("3")]
    texts, odds = {"1": "rome", "2": "x", "3": "x"}, dict.fromkeys("123", 1.0)
    assert best_threshold(asked, texts, odds, exact_match) == (
        pytest.approx(200 / 3),
        0.0,
    )


def test_every_threshold_is_no_better():
    asked = [question(str(k), *(["rome"] if k % 3 else [])) for k in range(12)]
    texts = {q.id: "rome" if int(q.id) % 2 else "old rome" for q in asked}
    odds = {q.id: float((7 * int(q.id)) % 5) for q in asked}
    best, threshold = best_threshold(asked, texts, odds, f1)
    tried = {
        t: score(asked, {i: "" if odds[i] > t else texts[i] for i in texts})["f1"]
        for t in (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0)
    }
    assert best == pytest.approx(max(tried.values()))
    assert tried[threshold] == pytest.approx(best)
