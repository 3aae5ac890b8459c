"""Tasks generated from Python source: exchanged assignments, and questions about functions.

    exchanged   Classify whether the sides of an assignment were exchanged. A bag of words has
                no information about the order. A fraction of labels is flipped, which
                limits the accuracy of any model.
    questions   What parameters does a function take? The context has the signatures of
                several functions; a question is about one of these functions, or
                about a function that is not in the context.

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
    """Returns the non-empty lines of a text, with normalized spaces."""
    return [line for line in map(_normalize_spaces, text.split("\n")) if line]


def _normalize_spaces(line: str) -> str:
    """Returns a line stripped, with runs of spaces replaced by one space."""
    return " ".join(line.split())


def exchanged_assignments(
    texts: Iterable[str],
    count: int,
    flipped_fraction: float,
    rng: np.random.Generator,
    excluded: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """Returns pairs (label, assignment); half of the assignments are exchanged.

    Args:
      texts: the source; each distinct line is used once.
      count: maximum number of pairs.
      flipped_fraction: the fraction of labels that are wrong.
      rng: the random generator.
      excluded: lines that are not used.
    """
    excluded_lines = set(excluded)
    assignments: dict[str, None] = {}  # an ordered set
    for text in texts:
        for line in sentences(text):
            if len(line) < 80 and _ASSIGNMENT.fullmatch(line):
                assignments[line] = None
    candidates = [line for line in assignments if line not in excluded_lines]
    rng.shuffle(candidates)
    pairs = []
    for k, line in enumerate(candidates[:count]):
        is_exchanged = k % 2 == 1
        is_flipped = rng.random() < flipped_fraction
        label = LABELS[int(is_exchanged != is_flipped)]
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
        """Returns the signature as source: one line."""
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
    impossible_fraction: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Returns a task in the format of SQuAD 2.0, or of SQuAD 1.1 if all questions have an
    answer.

    Args:
      texts: the source of modules.
      paragraphs: maximum number of contexts.
      functions: the number of signatures in a context.
      impossible_fraction: the fraction of questions about a function of another context.
      rng: the random generator.
    """
    groups = _groups(texts, count=paragraphs, functions=functions, rng=rng)
    entries = []
    for k, group in enumerate(groups[:paragraphs]):
        entry = _paragraph(
            k,
            group,
            # The previous group; for the first one, the last of all.
            other_group=groups[k - 1],
            impossible_fraction=impossible_fraction,
            rng=rng,
        )
        entries.append(entry)
    article = {
        "title": "Functions of Python's standard library",
        "paragraphs": entries,
    }
    version = "v2.0" if impossible_fraction else "1.1"
    return {"version": version, "data": [article]}


def _groups(
    texts: Sequence[str], count: int, functions: int, rng: np.random.Generator
) -> list[list[Signature]]:
    """Returns groups of signatures, in random order; those of a group are of one module.

    Args:
      texts: the source of modules.
      count: the number of groups, at least; there are none if no module is large enough.
      functions: the number of signatures of a group.
      rng: the random generator.
    """
    modules = [_distinct_signatures(text) for text in texts]
    modules = [module for module in modules if len(module) >= functions]
    groups: list[list[Signature]] = []
    # Each pass over the modules groups the signatures of a module at random again.
    while len(groups) < count and modules:
        for module in modules:
            order = rng.permutation(len(module))
            for start in range(0, len(module) - functions + 1, functions):
                indices = order[start : start + functions]
                groups.append([module[k] for k in indices])
    return [groups[k] for k in rng.permutation(len(groups))]


def _distinct_signatures(text: str) -> list[Signature]:
    """Returns signatures of a module with distinct names and distinct parameters."""
    # Of signatures with equal keys, a dict keeps the last one.
    by_parameters = {signature.parameters: signature for signature in signatures(text)}
    by_name = {signature.name: signature for signature in by_parameters.values()}
    return list(by_name.values())


def _paragraph(
    k: int,
    group: Sequence[Signature],
    other_group: Sequence[Signature],
    impossible_fraction: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Returns a context and its questions, as in SQuAD.

    Args:
      k: the index of the paragraph; the ids of its questions are "k-0", "k-1", ...
      group: the signatures in the context.
      other_group: signatures of another context, for questions without an answer.
      impossible_fraction: the fraction of questions that are about `other_group`.
      rng: the random generator.
    """
    context = " ".join(signature.text() for signature in group)
    entries = []
    for i, signature in enumerate(group):
        name = other_group[i % len(other_group)].name
        answers = []
        is_impossible = rng.random() < impossible_fraction and name not in context
        if not is_impossible:
            name = signature.name
            before_parameters = f"def {name}("
            start = context.index(before_parameters) + len(before_parameters)
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
