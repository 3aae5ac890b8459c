"""Tasks made of source in Python: exchanged words, and questions about functions.

    exchanged   is an assignment as it was written, or were its sides exchanged? A bag of words
                cannot tell. Labels are flipped for a stated share, so that no one can
                be right more often than for the rest.
    questions   what does a function take, and what does it say of itself? The context has the heads
                of several; each question is about one of them, or about none.

Both are functions of (texts, seed).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

LABELS = ("kept", "exchanged")
_ASSIGNMENT = re.compile(r"([^=#]+) = ([^=#]+)")


def sentences(text: str) -> list[str]:
    """Returns the lines of a text that are not empty, without spaces around."""
    return [line for line in map(_plain, text.split("\n")) if line]


def _plain(line: str) -> str:
    """Returns a line without spaces around, and with one space for each stretch of them
    inside.
    """
    return " ".join(line.split())


def exchanged(
    texts: Iterable[str],
    number: int,
    flipped: float,
    draw: np.random.Generator,
    without: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """Returns pairs of label and assignment, half of them exchanged.

    Args:
      texts: where lines are taken from, each once.
      number: the most pairs.
      flipped: the part of labels that are wrong.
      draw: makes random numbers.
      without: lines that are left out.
    """
    left_out = set(without)
    lines = {
        line: None
        for text in texts
        for line in sentences(text)
        if len(line) < 80 and _ASSIGNMENT.fullmatch(line)
    }
    chosen = [line for line in lines if line not in left_out]
    draw.shuffle(chosen)
    found = []
    for k, line in enumerate(chosen[:number]):
        kind = (k % 2) ^ int(draw.random() < flipped)
        found.append((LABELS[kind], exchange(line) if k % 2 else line))
    return found


def exchange(line: str) -> str:
    """Returns an assignment with its sides exchanged.

    >>> exchange("a.b = 1")
    '1 = a.b'
    """
    return _ASSIGNMENT.sub(r"\2 = \1", line)


class Head(NamedTuple):
    """The head of a function."""

    name: str
    takes: str  # between its brackets
    says: str  # the first line of its docstring, or ""

    def text(self) -> str:
        """Returns it as source."""
        return f"def {self.name}({self.takes}):" + (
            f' """{self.says}"""' if self.says else ""
        )


def heads(text: str) -> Iterator[Head]:
    """Yields the heads of a module's functions; those that take something short besides
    self.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            takes = ast.unparse(node.args)
            says = (
                (ast.get_docstring(node) or "")
                .partition("\n")[0]
                .replace('"', "")
                .strip()
            )
            if takes not in ("", "self", "cls") and len(takes) < 40 and len(says) < 50:
                yield Head(node.name, takes, says)


def questions(
    texts: Sequence[str],
    paragraphs: int,
    functions: int,
    impossible: float,
    draw: np.random.Generator,
) -> dict[str, Any]:
    """Returns a task in the format of SQuAD 2.0, which is that of 1.1 if nothing is
    impossible.

    Args:
      texts: modules.
      paragraphs: the most contexts.
      functions: how many heads there are in a context.
      impossible: the part of questions that are about a function of another context.
      draw: makes random numbers.
    """
    modules = [found for found in map(_different, texts) if len(found) >= functions]
    groups: list[list[Head]] = []
    while (
        len(groups) < paragraphs and modules
    ):  # the same ones again, grouped otherwise
        for found in modules:
            order = draw.permutation(len(found))
            groups += [
                [found[k] for k in order[at : at + functions]]
                for at in range(0, len(found) - functions + 1, functions)
            ]
    groups = [groups[k] for k in draw.permutation(len(groups))]
    made = [
        _paragraph(k, group, groups[k - 1], impossible, draw)
        for k, group in enumerate(groups[:paragraphs])
    ]
    return {
        "version": "v2.0" if impossible else "1.1",
        "data": [
            {"title": "Functions of Python's standard library", "paragraphs": made}
        ],
    }


def _different(text: str) -> list[Head]:
    """Returns the heads of a module's functions that differ in names and in what they
    take.
    """
    by_takes = {head.takes: head for head in heads(text)}
    return list({head.name: head for head in by_takes.values()}.values())


def _paragraph(
    k: int,
    group: Sequence[Head],
    others: Sequence[Head],
    impossible: float,
    draw: np.random.Generator,
) -> dict[str, Any]:
    context = " ".join(head.text() for head in group)
    asked = []
    for i, head in enumerate(group):
        stranger = others[i % len(others)].name
        if draw.random() < impossible and stranger not in context:
            asked.append(
                {
                    "id": f"{k}-{i}",
                    "question": f"what does {stranger} take?",
                    "answers": [],
                    "is_impossible": True,
                }
            )
            continue
        start = context.index(f"def {head.name}(") + len(f"def {head.name}(")
        answers = [{"text": head.takes, "answer_start": start}]
        asked.append(
            {
                "id": f"{k}-{i}",
                "question": f"what does {head.name} take?",
                "answers": answers,
                "is_impossible": False,
            }
        )
    return {"context": context, "qas": asked}
