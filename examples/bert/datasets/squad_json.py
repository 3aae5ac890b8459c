"""Questions about texts in the JSON format of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016
and 2018).

    questions = read("dev-v2.0.json", negative=True)
    questions[0].context[a.start:a.end] == a.text           # for each of its answers

What is malformed is refused with its place in the file, such as
data[0].paragraphs[3].qas[1].
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from transformer import data


class Malformed(ValueError):
    """A part of a file that is not as it must be."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A part of a context."""

    text: str
    start: int  # its first character

    @property
    def end(self) -> int:
        """The character behind it."""
        return self.start + len(self.text)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context; without answers there is none in it."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read(
    path: str, negative: bool, on_bad: str = "refuse", answered: bool = True
) -> list[Question]:
    """Returns the questions of a file.

    Args:
      path: of the file.
      negative: whether there may be questions without an answer.
      on_bad: "refuse" questions that are malformed, or "skip" them and say how many.
      answered: whether answers are looked at, as for training and measuring.

    Raises:
      DataError: the file is no such JSON, or a question is refused.
    """
    questions = []
    skipped = []
    for place, context, entry in _entries(path):
        try:
            questions.append(_question(context, entry, negative, answered))
        except Malformed as error:
            if on_bad == "refuse":
                raise data.DataError(
                    f"{path}: {place} {error}.\n  Mend the file, or leave such "
                    "questions "
                    "out: --on_bad=skip."
                ) from error
            skipped.append(f"{place} {error}")
    if skipped:
        print(
            f"{path}: {len(skipped)} questions are malformed and left out; "
            f"{skipped[0]}",
            file=sys.stderr,
        )
    if len({question.id for question in questions}) < len(questions):
        raise data.DataError(f"{path}: two questions have one id.")
    if not questions:
        raise data.DataError(f"{path} holds no question.")
    return questions


def _entries(path: str) -> Iterator[tuple[str, str, Any]]:
    """Yields the place of each question, its context, and the question itself."""
    try:
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        for i, article in enumerate(_get(whole, "data", list)):
            for j, paragraph in enumerate(
                _get(article, "paragraphs", list, f"data[{i}]")
            ):
                place = f"data[{i}].paragraphs[{j}]"
                context = _get(paragraph, "context", str, place)
                for k, entry in enumerate(_get(paragraph, "qas", list, place)):
                    yield f"{place}.qas[{k}]", context, entry
    except json.JSONDecodeError as error:
        raise data.DataError(
            f"{path}:{error.lineno}: is no JSON: {error.msg}, at column {error.colno}."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise data.DataError(f"{path} cannot be read: {error}.") from error
    except Malformed as error:
        raise data.DataError(f"{path}: {error}.") from error


def _question(context: str, entry: Any, negative: bool, answered: bool) -> Question:
    id_ = _get(entry, "id", str)
    text = _get(entry, "question", str)
    if not answered:
        return Question(id_, text, context, ())
    given = [
        Answer(_get(one, "text", str), _get(one, "answer_start", int))
        for one in _get(entry, "answers", list)
    ]
    if entry.get("is_impossible"):
        given = []
    for answer in given:
        if context[answer.start : answer.end] != answer.text or answer.start < 0:
            raise Malformed(
                f"has the answer {answer.text!r:.60}, which is not at {answer.start} "
                "of the context"
            )
    given = [answer for answer in given if answer.text]
    if not given and not negative:
        raise Malformed(
            "has no answer; take --version_2_with_negative if that is meant"
        )
    return Question(id_, text, context, tuple(given))


def _get(where: Any, name: str, kind: type, place: str = "") -> Any:
    place = f"{place} " if place else ""
    if not isinstance(where, Mapping):
        raise Malformed(f"{place}is no object, but {type(where).__name__}")
    if name not in where:
        raise Malformed(
            f"{place}has no {name!r}, but {', '.join(map(repr, where)) or 'nothing'}"
        )
    if not isinstance(where[name], kind):
        raise Malformed(
            f"{place}has a {name!r} that is {type(where[name]).__name__} instead of "
            f"{kind.__name__}"
        )
    return where[name]
