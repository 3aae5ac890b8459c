"""Questions in JSON: what is read, and what is refused with its place."""

from __future__ import annotations

import json

import pytest

from examples.bert.datasets import squad_json
from examples.bert.evaluation.rule_baseline import best_rule, fixed_rules
from transformer.data import DataError


def entry(id_="1", text="paris", start=9, **extra):
    return {
        "id": id_,
        "question": "where?",
        "answers": [{"text": text, "answer_start": start}],
        **extra,
    }


def write(folder, *qas, context="it is in paris of old", **extra):
    path = folder / "questions.json"
    article = {"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}
    path.write_text(json.dumps({"version": "1", "data": [article], **extra}))
    return str(path)


def test_questions_are_read(tmp_path):
    path = write(
        tmp_path,
        entry(),
        entry("2", is_impossible=True),
        entry("3", "", 0),
        {"id": "4", "question": "who?", "answers": []},
    )
    results = squad_json.read(path, negative=True)
    assert [q.id for q in results] == ["1", "2", "3", "4"]
    assert [len(q.answers) for q in results] == [1, 0, 0, 0]
    answer = results[0].answers[0]
    assert results[0].context[answer.start : answer.end] == answer.text == "paris"


def test_is_impossible_may_be_a_text(tmp_path):
    values = ["false", "False", False, 0, None, "true", True, 1]
    entries = [entry(str(k), is_impossible=value) for k, value in enumerate(values)]
    results = squad_json.read(write(tmp_path, *entries), negative=True)
    assert [len(q.answers) for q in results] == [1] * 5 + [0] * 3
    path = write(tmp_path, entry(is_impossible="maybe"))
    with pytest.raises(DataError, match="'is_impossible' that is 'maybe'"):
        squad_json.read(path, negative=True)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = write(tmp_path, entry())
    text = (tmp_path / "questions.json").read_text()
    (tmp_path / "questions.json").write_text("\ufeff" + text, encoding="utf-8")
    assert len(squad_json.read(path, negative=False)) == 1


def test_answers_are_optional(tmp_path):
    path = write(tmp_path, {"id": "4", "question": "who?"})
    assert squad_json.read(path, negative=False, answered=False)[0].answers == ()


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            entry("2", "rome"),
            r"qas\[1\] has the answer 'rome', which is not at 9 of the context",
        ),
        (entry("2", "paris", -12), "not at -12"),
        (
            {"id": "2", "question": "?"},
            r"data\[0\].paragraphs\[0\].qas\[1\] has no 'answers'",
        ),
        ({"question": "?", "answers": []}, "has no 'id', but 'question', 'answers'"),
        (
            {"id": 5, "question": "?", "answers": []},
            "a 'id' that is int instead of str",
        ),
        ("text", "is no object, but str"),
        (
            {"id": "2", "question": "?", "answers": []},
            "no answer; give --version_2_with_negative",
        ),
        (entry("2", "paris", "9"), "'answer_start' that is str instead of int"),
    ],
)
def test_a_malformed_question_is_refused_or_left_out(tmp_path, capsys, wrong, says):
    path = write(tmp_path, entry(), wrong)
    with pytest.raises(DataError, match=says) as caught:
        squad_json.read(path, negative=False)
    assert path in str(caught.value) and "--on_bad=skip" in str(caught.value)
    assert [q.id for q in squad_json.read(path, negative=False, on_bad="skip")] == ["1"]
    assert "1 questions are malformed and left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, says",
    [
        ('{\n "data": [\n', "questions.json:3: is no JSON"),
        ("[]", "is no object, but list"),
        ("{}", "has no 'data'"),
        ('{"data": [{"title": "t"}]}', r"data\[0\] has no 'paragraphs', but 'title'"),
        (
            '{"data": [{"paragraphs": [{"qas": []}]}]}',
            r"paragraphs\[0\] has no 'context'",
        ),
        ('{"data": []}', "has no questions"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, text, says):
    path = tmp_path / "questions.json"
    path.write_text(text)
    with pytest.raises(DataError, match=says):
        squad_json.read(str(path), negative=True, on_bad="skip")
    with pytest.raises(DataError, match="cannot be read: .*No such file"):
        squad_json.read(str(tmp_path / "absent.json"), negative=True)


def test_ids_are_not_double(tmp_path):
    with pytest.raises(DataError, match="one id"):
        squad_json.read(write(tmp_path, entry(), entry()), negative=False)


def test_the_best_fixed_rule(tmp_path):
    context = "def f(x, y): def g(z): def h(w):"
    qas = [
        entry(str(k), text, context.index(text))
        for k, text in enumerate(["x, y", "z", "w"])
    ]
    asked = squad_json.read(write(tmp_path, *qas, context=context), negative=False)
    rules = fixed_rules(asked)
    assert {rule(context) for rule in rules.values()} == {"", "x, y"}
    name, scores = best_rule(asked, asked)
    assert name in ("what is first between '(' and ')'", "always 'x, y'")
    assert scores["exact"] == pytest.approx(100 / 3)
