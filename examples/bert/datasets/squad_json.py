"""Questions about texts in the JSON format of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016
and 2018).

    questions = read("dev-v2.0.json", negative=True)
    questions[0].context[a.start:a.end] == a.text           # for each of its answers

Errors say where in the file a question is malformed, such as
data[0].paragraphs[3].qas[1].
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from transformer import data


class MalformedError(ValueError):
    """An entry of a file does not have the form of SQuAD's entries."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: a span of the context.

    Attributes:
      text: the text of the answer.
      start: the index of the answer's first character in the context.
    """

    text: str
    start: int

    @property
    def end(self) -> int:
        """The index in the context of the character after the answer's last one."""
        return self.start + len(self.text)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
      id: the id of the question, which is unique in a file.
      text: the question.
      context: the text that has the answer.
      answers: all right answers; () if the context has none, or if they were not read.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def read(
    path: str,
    negative: bool,
    on_bad: str = "refuse",
    answered: bool = True,
) -> list[Question]:
    """Returns the questions of a file.

    Args:
      path: the path of the file.
      negative: whether questions without an answer are allowed.
      on_bad: "refuse" to read a file with malformed questions, or "skip" these and print
        how many there are.
      answered: whether to read the answers, as for training and evaluation.

    Raises:
      DataError: the file is not JSON of this form, or a question is refused.
    """
    questions = []
    skipped = []
    for location, context, entry in _entries(path):
        try:
            question = _question(context, entry, negative=negative, answered=answered)
            questions.append(question)
        except MalformedError as error:
            if on_bad == "refuse":
                raise data.DataError(
                    f"{path}: {location} {error}.\n  Correct the file, or leave such "
                    "questions out: --on_bad=skip."
                ) from error
            skipped.append(f"{location} {error}")
    if skipped:
        print(
            f"{path}: {len(skipped)} questions are malformed and left out; "
            f"{skipped[0]}",
            file=sys.stderr,
        )
    if len({question.id for question in questions}) < len(questions):
        raise data.DataError(f"{path}: two questions have one id.")
    if not questions:
        raise data.DataError(f"{path} has no questions.")
    return questions


def _entries(path: str) -> Iterator[tuple[str, str, Any]]:
    """Yields the location of each question in the file, its context, and its JSON object."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = json.load(file)
        for i, article in enumerate(_get(content, "data", list)):
            paragraphs = _get(article, "paragraphs", list, location=f"data[{i}]")
            for j, paragraph in enumerate(paragraphs):
                location = f"data[{i}].paragraphs[{j}]"
                context = _get(paragraph, "context", str, location=location)
                entries = _get(paragraph, "qas", list, location=location)
                for k, entry in enumerate(entries):
                    yield f"{location}.qas[{k}]", context, entry
    except json.JSONDecodeError as error:
        raise data.DataError(
            f"{path}:{error.lineno}: is no JSON: {error.msg}, at column {error.colno}."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise data.DataError(f"{path} cannot be read: {error}.") from error
    except MalformedError as error:
        raise data.DataError(f"{path}: {error}.") from error


def _question(
    context: str,
    entry: Any,
    negative: bool,
    answered: bool,
) -> Question:
    """Returns the question of a JSON object.

    Args:
      context: the context of the question.
      entry: the object.
      negative: whether questions without an answer are allowed.
      answered: whether to read the answers.

    Raises:
      MalformedError: the object does not have the form of SQuAD's.
    """
    id_ = _get(entry, "id", str)
    text = _get(entry, "question", str)
    if not answered:
        return Question(id_, text, context, answers=())
    answers = [
        Answer(text=_get(answer, "text", str), start=_get(answer, "answer_start", int))
        for answer in _get(entry, "answers", list)
    ]
    if _is_impossible(entry):
        answers = []
    for answer in answers:
        if context[answer.start : answer.end] != answer.text or answer.start < 0:
            raise MalformedError(
                f"has the answer {answer.text!r:.60}, which is not at {answer.start} "
                "of the context"
            )
    answers = [answer for answer in answers if answer.text]  # without empty ones
    if not answers and not negative:
        raise MalformedError(
            "has no answer; give --version_2_with_negative if that is intended"
        )
    return Question(id_, text, context, answers=tuple(answers))


def _is_impossible(entry: Mapping[str, Any]) -> bool:
    """Returns whether an entry says that its question has no answer: by a boolean, or by its
    text, as some programs write it.

    Raises:
      MalformedError: it says something else.
    """
    value = entry.get("is_impossible", False)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if value is None:
        return False
    if not isinstance(value, bool) and value not in (0, 1):
        raise MalformedError(f"has an 'is_impossible' that is {value!r:.40}")
    return bool(value)


def _get(
    entry: Any,
    name: str,
    kind: type,
    location: str = "",
) -> Any:
    """Returns a value of a JSON object.

    Args:
      entry: the object.
      name: the key of the value.
      kind: the type that the value must have.
      location: the location of the object in the file, for errors.

    Raises:
      MalformedError: the value is missing or of another type.
    """
    subject = f"{location} " if location else ""
    if not isinstance(entry, Mapping):
        raise MalformedError(f"{subject}is no object, but {type(entry).__name__}")
    if name not in entry:
        keys = ", ".join(map(repr, entry)) or "nothing"
        raise MalformedError(f"{subject}has no {name!r}, but {keys}")
    value = entry[name]
    if not isinstance(value, kind):
        raise MalformedError(
            f"{subject}has a {name!r} that is {type(value).__name__} instead of "
            f"{kind.__name__}"
        )
    return value
