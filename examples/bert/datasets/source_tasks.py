"""Tasks generated from Python source: exchanged assignments, and questions about functions.

    exchanged   Classify whether the sides of an assignment were exchanged. A bag of words has
                no information about it. A given fraction of labels is flipped, which
                limits the accuracy of any model.
    questions   What parameters does a function take? The context has the signatures of
                several functions; a question is about one of them, or about a function
                that is not in the context.

Both depend on their texts and on a random generator only.
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
    """Returns the non-empty lines of a text, stripped."""
    return [line for line in map(_plain, text.split("\n")) if line]


def _plain(line: str) -> str:
    """Returns a line stripped, with runs of spaces replaced by one space."""
    return " ".join(line.split())


def exchanged(
    texts: Iterable[str],
    count: int,
    flipped: float,
    draw: np.random.Generator,
    without: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """Returns pairs (label, assignment); half of the assignments are exchanged.

    Args:
      texts: the source; each distinct line is used once.
      count: maximum number of pairs.
      flipped: the fraction of labels that are wrong.
      draw: the random generator.
      without: lines that are not used.
    """
    excluded = set(without)
    lines = {
        line: None
        for text in texts
        for line in sentences(text)
        if len(line) < 80 and _ASSIGNMENT.fullmatch(line)
    }
    chosen = [line for line in lines if line not in excluded]
    draw.shuffle(chosen)
    pairs = []
    for k, line in enumerate(chosen[:count]):
        is_exchanged = k % 2
        label = LABELS[is_exchanged ^ int(draw.random() < flipped)]
        pairs.append((label, exchange(line) if is_exchanged else line))
    return pairs


def exchange(line: str) -> str:
    """Returns an assignment with its sides exchanged.

    >>> exchange("a.b = 1")
    '1 = a.b'
    """
    return _ASSIGNMENT.sub(r"\2 = \1", line)


class Signature(NamedTuple):
    """The signature of a function, with the first line of its docstring, or ""."""

    name: str
    parameters: str
    summary: str

    def text(self) -> str:
        """Returns it as source."""
        docstring = f' """{self.summary}"""' if self.summary else ""
        return f"def {self.name}({self.parameters}):{docstring}"


def signatures(text: str) -> Iterator[Signature]:
    """Yields the short signatures of a module's functions that have parameters besides
    self and cls.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            parameters = ast.unparse(node.args)
            docstring = ast.get_docstring(node) or ""
            summary = docstring.partition("\n")[0].replace('"', "").strip()
            is_short = len(parameters) < 40 and len(summary) < 50
            if parameters not in ("", "self", "cls") and is_short:
                yield Signature(node.name, parameters, summary)


def questions(
    texts: Sequence[str],
    paragraphs: int,
    functions: int,
    impossible: float,
    draw: np.random.Generator,
) -> dict[str, Any]:
    """Returns a task in the format of SQuAD 2.0, or of SQuAD 1.1 if `impossible` is 0.

    Args:
      texts: the source of modules.
      paragraphs: maximum number of contexts.
      functions: the number of signatures in a context.
      impossible: the fraction of questions about a function of another context.
      draw: the random generator.
    """
    modules = [_distinct_signatures(text) for text in texts]
    modules = [module for module in modules if len(module) >= functions]
    groups: list[list[Signature]] = []
    while len(groups) < paragraphs and modules:  # each pass groups them anew
        for module in modules:
            order = draw.permutation(len(module))
            for start in range(0, len(module) - functions + 1, functions):
                groups.append([module[k] for k in order[start : start + functions]])
    groups = [groups[k] for k in draw.permutation(len(groups))]
    entries = [
        _paragraph(k, group, groups[k - 1], impossible, draw)
        for k, group in enumerate(groups[:paragraphs])
    ]
    article = {
        "title": "Functions of Python's standard library",
        "paragraphs": entries,
    }
    return {"version": "v2.0" if impossible else "1.1", "data": [article]}


def _distinct_signatures(text: str) -> list[Signature]:
    """Returns signatures of a module with distinct names and distinct parameters."""
    by_parameters = {s.parameters: s for s in signatures(text)}
    return list({s.name: s for s in by_parameters.values()}.values())


def _paragraph(
    k: int,
    group: Sequence[Signature],
    other_group: Sequence[Signature],
    impossible: float,
    draw: np.random.Generator,
) -> dict[str, Any]:
    """Returns the context of a group of signatures with its questions, as in SQuAD."""
    context = " ".join(signature.text() for signature in group)
    entries = []
    for i, signature in enumerate(group):
        name = other_group[i % len(other_group)].name
        answers = []
        is_impossible = draw.random() < impossible and name not in context
        if not is_impossible:
            name = signature.name
            start = context.index(f"def {name}(") + len(f"def {name}(")
            answers = [{"text": signature.parameters, "answer_start": start}]
        entries.append(
            {
                "id": f"{k}-{i}",
                "question": f"what does {name} take?",
                "answers": answers,
                "is_impossible": is_impossible,
            }
        )
    return {"context": context, "qas": entries}
