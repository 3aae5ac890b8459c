"""Strings such as "batch:8;d_model:512": pairs parted by `;`, `,`, `.` or blanks.

>>> from meshtf.names import parse_pairs
>>> parse_pairs("batch:data; d_ff:model", what="layout")
[('batch', 'data'), ('d_ff', 'model')]
"""

from __future__ import annotations

import re

from meshtf.errors import ParseError

_WORD = re.compile(r"[^;,.\s]+")
_PAIR = re.compile(r"([A-Za-z_][\w/-]*)(?::([\w+]*))?")
_CHANGE = re.compile(r"(\*(?=:$)|[A-Za-z_][\w/-]*):([\w+]*)")      # also "heads:" and "*:"


def parse_pairs(text: str, what: str, values: bool = True) -> list[tuple[str, str]]:
  """Returns the (name, value) pairs of `text`; without `values`, bare names and "" as values.

  Changes of a layout may say "heads:" and "*:", but no bare names.

  Raises:
    ParseError: a word is no pair; the message points at it with a caret.
  """
  text = re.sub(r"\s*:\s*", ":", text.strip())
  pairs = []
  pattern = _CHANGE if what == "change of layout" else _PAIR
  for word in _WORD.finditer(text):
    match = pattern.fullmatch(word.group())
    if match is None or (values and not match.group(2)):
      raise ParseError(_point_at(text, word.start(), len(word.group()), what))
    pairs.append((match.group(1), match.group(2) or ""))
  return pairs


def _point_at(text: str, start: int, length: int, what: str) -> str:
  examples = {"shape": "batch:8;d_model:512", "mesh": "data:4;model:2", "window": "h:k_h;w:k_w"}
  example = examples.get(what, "batch:data;d_ff:model")
  return (f"a {what} is written as pairs of name:value, such as {example!r}; this cannot be read:\n"
          f"  {text}\n  {' ' * start}{'^' * length}")
