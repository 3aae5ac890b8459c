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

_WORD = re.compile(r"[^;,.\s]+")  # the text between separators
_PAIR = re.compile(r"([A-Za-z_][\w/-]*)(?::([\w+]*))?")  # "batch:8" or "batch"
# A pair in a change of a layout: "heads:model", or "heads:" and "*:", which remove rules.
_CHANGE = re.compile(r"(\*(?=:$)|[A-Za-z_][\w/-]*):([\w+]*)")


def parse_pairs(text: str, kind: str, values: bool = True) -> list[tuple[str, str]]:
    """Returns the (name, value) pairs of a string.

    Args:
      text: the string.
      kind: what the string describes, such as "shape", for errors. A "change of layout"
        may contain "heads:" and "*:", but no names without a colon.
      values: whether each name must have a value; if not, a missing value is "".

    Raises:
      ArgumentError: `text` is not a string.
      ParseError: a word is not a pair; the message points at it with a caret.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            explain_error(
                f"a {kind} is written as a string, not as {described(text)}.",
                source=Source.of_caller(),
                way_out=f"Write it as {_example(kind)!r}.",
            )
        )
    text = re.sub(r"\s*:\s*", ":", text.strip())
    pairs = []
    pattern = _CHANGE if kind == "change of layout" else _PAIR
    for word in _WORD.finditer(text):
        match = pattern.fullmatch(word.group())
        if match is None:
            raise ParseError(_pointing_message(text, word, kind))
        name, value = match.groups(default="")
        if values and not value:
            raise ParseError(_pointing_message(text, word, kind))
        pairs.append((name, value))
    return pairs


def _pointing_message(text: str, word: re.Match[str], kind: str) -> str:
    """Returns the message of the error for a word of a text, with carets below the word."""
    indent = " " * word.start()
    carets = "^" * len(word.group())
    return (
        f"a {kind} is written as pairs of name:value, such as {_example(kind)!r}; this "
        f"cannot be read, from {Source.of_caller()}:\n"
        f"  {text}\n  {indent}{carets}"
    )


def _example(kind: str) -> str:
    """Returns an example of a string of this kind."""
    examples = {
        "shape": "batch:8;d_model:512",
        "mesh": "data:4;model:2",
        "window": "h:k_h;w:k_w",
    }
    return examples.get(kind, "batch:data;d_ff:model")
