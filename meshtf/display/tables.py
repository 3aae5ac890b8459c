"""Tables as text and as HTML.

>>> rows = [("w", "1,024"), ("bias", "64")]
>>> print(text_table(("variable", "bytes"), rows, numeric_columns=1))
variable  bytes
w         1,024
bias         64
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_ENTRY_STYLE = "padding:2px 8px;border:1px solid #ccc;"


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric_columns: int = 0
) -> str:
    """Returns a table for a terminal.

    Args:
      columns: the titles of the columns.
      rows: for each row, a text for each column.
      numeric_columns: the number of columns, the last ones, that are aligned to the right.
    """
    lines = [columns, *rows]
    widths = [max(map(len, texts)) for texts in zip(*lines)]
    first_numeric = len(columns) - numeric_columns
    return "\n".join(_text_row(line, widths, first_numeric) for line in lines)


def _text_row(texts: Sequence[str], widths: Sequence[int], first_numeric: int) -> str:
    """Returns one row of a text table.

    Args:
      texts: a text for each column.
      widths: the width of each column.
      first_numeric: the index of the first column that is aligned to the right.
    """
    padded_texts = []
    for i, text in enumerate(texts):
        if i >= first_numeric:
            padded_texts.append(text.rjust(widths[i]))
        else:
            padded_texts.append(text.ljust(widths[i]))
    return "  ".join(padded_texts).rstrip()


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric_columns: int = 0,
    title: str = "",
) -> str:
    """Returns an HTML table for a notebook.

    Args:
      columns: the titles of the columns.
      rows: for each row, a text for each column.
      numeric_columns: the number of columns, the last ones, that are aligned to the right.
      title: the title of the table; "" for none.
    """
    first_numeric = len(columns) - numeric_columns
    lines = [_html_row("th", columns, first_numeric)]
    for row in rows:
        lines.append(_html_row("td", row, first_numeric))
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


def _html_row(tag: str, texts: Sequence[str], first_numeric: int) -> str:
    """Returns one row of an HTML table.

    Args:
      tag: "th" for a row of titles, "td" for other rows.
      texts: a text for each column.
      first_numeric: the index of the first column that is aligned to the right.
    """
    entries = []
    for i, text in enumerate(texts):
        align = "right" if i >= first_numeric else "left"
        style = f"{_ENTRY_STYLE}text-align:{align}"
        entries.append(f'<{tag} style="{style}">{html.escape(text)}</{tag}>')
    return f"<tr>{''.join(entries)}</tr>"


def html_text(text: str) -> str:
    """Returns text as HTML that keeps line breaks and spaces."""
    return f'<pre style="line-height:1.2">{html.escape(text)}</pre>'
