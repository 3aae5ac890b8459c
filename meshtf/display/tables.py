"""Tables as text and as HTML.

>>> rows = [("w", "1,024"), ("bias", "64")]
>>> print(text_table(("variable", "bytes"), rows, align="<>"))
variable  bytes
w         1,024
bias         64
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_ENTRY_STYLE = "padding:2px 8px;border:1px solid #ccc;text-align:"
_ALIGNMENTS = {"<": "left", ">": "right"}


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], align: str
) -> str:
    """Returns a table for a terminal; each column is as wide as its longest text.

    Args:
      columns: the titles of the columns.
      rows: for each row, a text for each column.
      align: for each column, "<" or ">": texts are aligned to the left or to the right.
    """
    lines = [columns, *rows]
    formats = []
    for sign, texts in zip(align, zip(*lines)):
        width = max(map(len, texts))
        formats.append(f"{{:{sign}{width}}}")
    template = "  ".join(formats)
    return "\n".join(template.format(*line).rstrip() for line in lines)


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    title: str = "",
) -> str:
    """Returns an HTML table for a notebook.

    Args:
      columns: the titles of the columns.
      rows: for each row, a text for each column.
      align: for each column, "<" or ">": texts are aligned to the left or to the right.
      title: the title of the table; "" for none.
    """
    lines = [_html_row("th", columns, align)]
    for row in rows:
        lines.append(_html_row("td", row, align))
    return html_rows(title, lines)


def html_rows(title: str, rows: Sequence[str]) -> str:
    """Returns an HTML table with a title.

    Args:
      title: the title as text; "" for none.
      rows: the rows as HTML.
    """
    caption = ""
    if title:
        caption = f"<caption>{html.escape(title)}</caption>"
    body = "".join(rows)
    return f'<table style="border-collapse:collapse">{caption}{body}</table>'


def _html_row(tag: str, texts: Sequence[str], align: str) -> str:
    """Returns one row of an HTML table.

    Args:
      tag: "th" for a row of titles, "td" for other rows.
      texts: a text for each column.
      align: "<" or ">" for each column.
    """
    entries = []
    for sign, text in zip(align, texts):
        style = _ENTRY_STYLE + _ALIGNMENTS[sign]
        entries.append(f'<{tag} style="{style}">{html.escape(text)}</{tag}>')
    return f"<tr>{''.join(entries)}</tr>"


def html_text(text: str) -> str:
    """Returns text as HTML that keeps line breaks and spaces."""
    return f'<pre style="line-height:1.2">{html.escape(text)}</pre>'
