"""The sections of docstrings, for the meanings of parameters.

>>> from benchmarks.reference.docstrings import parameters, summary
>>> text = '''Adds two numbers.
...
...     Args:
...       x: the first
...         number.
...       y: the second one.
...
...     Raises:
...       ValueError: there is none.
...     '''
>>> summary(text), parameters(text)
('Adds two numbers.', {'x': 'the first number.', 'y': 'the second one.'})
"""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$")
_ENTRY = re.compile(
    r"^  \*{0,2}(\w+): (.*)$"
)  # "  name: meaning", also "  **name: ..."


def summary(docstring: str) -> str:
    """Returns the first paragraph of a docstring, as one line."""
    return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())


def parameters(docstring: str) -> dict[str, str]:
    """Returns the meanings in the sections Args and Attributes, by parameter."""
    meanings: dict[str, str] = {}
    section = name = ""
    for line in inspect.cleandoc(docstring).split("\n"):
        heading = _SECTION.match(line)
        entry = _ENTRY.match(line)
        if heading:
            section = heading.group(1)
        elif section not in ("Args", "Attributes"):
            continue
        elif entry:
            name, meaning = entry.groups()
            meanings[name] = meaning
        elif line.startswith("    "):  # continues the last entry
            meanings[name] += f" {line.strip()}"
    return meanings
