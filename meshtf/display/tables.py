"""Tables as text and as HTML.

>>> print(text_table(("variable", "bytes"), [("w", "1,024"), ("bias", "64")], numbers=1))
variable  bytes
w         1,024
bias         64
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_CELL = "padding:2px 8px;border:1px solid #ccc;"


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0
) -> str:
    """Returns a table for a terminal.

    Args:
      columns: the titles.
      rows: a text for each column.
      numbers: how many of the last columns are numbers, which are aligned to the right.
    """
    lines = [tuple(columns), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    first_number = len(columns) - numbers
    text = []
    for line in lines:
        cells = [
            cell.rjust(width) if i >= first_number else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: int = 0,
    title: str = "",
) -> str:
    """Returns a table for a notebook; arguments are those of `text_table`."""
    first_number = len(columns) - numbers
    lines = [_html_row("th", columns, first_number)]
    lines += [_html_row("td", row, first_number) for row in rows]
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    body = "".join(lines)
    return f'<table style="border-collapse:collapse">{caption}{body}</table>'


def _html_row(tag: str, cells: Sequence[str], first_number: int) -> str:
    """Returns one row of an HTML table."""
    texts = []
    for i, cell in enumerate(cells):
        align = "right" if i >= first_number else "left"
        style = f"{_CELL}text-align:{align}"
        texts.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(texts)}</tr>"


def html_text(text: str) -> str:
    """Returns text with its line breaks and spaces."""
    return f'<pre style="line-height:1.2">{html.escape(text)}</pre>'
