"""Strings such as "batch:8;d_model:512": pairs separated by `;`, `,`, `.` or blanks.

>>> from meshtf.names import parse_pairs
>>> parse_pairs("batch:data; d_ff:model", kind="layout")
[('batch', 'data'), ('d_ff', 'model')]
"""

from __future__ import annotations

import re

from meshtf.errors import ArgumentError, ParseError, explain_error
from meshtf.names.arguments import described
from meshtf.names.source import Source

_WORD = re.compile(r"[^;,.\s]+")
_PAIR = re.compile(r"([A-Za-z_][\w/-]*)(?::([\w+]*))?")
_CHANGE = re.compile(r"(\*(?=:$)|[A-Za-z_][\w/-]*):([\w+]*)")  # also "heads:" and "*:"


def parse_pairs(text: str, kind: str, values: bool = True) -> list[tuple[str, str]]:
    """Returns the (name, value) pairs of a string.

    Args:
      text: the string.
      kind: what it describes, such as "shape", for errors. A "change of layout" may
        contain "heads:" and "*:", but no names without a colon.
      values: whether each name must have a value; otherwise the value may be missing,
        and is "".

    Raises:
      ArgumentError: `text` is not a string.
      ParseError: a word is not a pair; the message points at it with a caret.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            explain_error(
                f"a {kind} is written as a string, not as {described(text)}.",
                **{"from": Source.of_caller()},
                way_out=f"Write it as {_example(kind)!r}.",
            )
        )
    text = re.sub(r"\s*:\s*", ":", text.strip())
    pairs = []
    pattern = _CHANGE if kind == "change of layout" else _PAIR
    for word in _WORD.finditer(text):
        match = pattern.fullmatch(word.group())
        if match is None or (values and not match.group(2)):
            raise ParseError(_point_at(text, word.start(), len(word.group()), kind))
        pairs.append((match.group(1), match.group(2) or ""))
    return pairs


def _point_at(text: str, start: int, length: int, kind: str) -> str:
    return (
        f"a {kind} is written as pairs of name:value, such as {_example(kind)!r}; this "
        f"cannot be read, from {Source.of_caller()}:\n"
        f"  {text}\n  {' ' * start}{'^' * length}"
    )


def _example(kind: str) -> str:
    examples = {
        "shape": "batch:8;d_model:512",
        "mesh": "data:4;model:2",
        "window": "h:k_h;w:k_w",
    }
    return examples.get(kind, "batch:data;d_ff:model")
