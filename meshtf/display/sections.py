"""Sections of a report as plain data, with two renderers: lines of text, and HTML.

    section = Section("Memory", "On one device.", (Table(("peak", ""), rows, "  {:<20}{:>12}"),))
    section_lines(section)          # ["  peak", ...]
    section_html(section)           # "<section><h2>Memory</h2>..."

An entry of a table is a text, or a tuple of texts and other objects. `show` turns such an
object into text or HTML. Text is escaped in HTML.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TypeAlias

Entry: TypeAlias = str | tuple[object, ...]
Show: TypeAlias = Callable[[Any], str]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a section.

    Attributes:
      columns: the titles of the columns; the first one is the title of the table in text. ():
        the table has none.
      rows: for each row, an entry for each column.
      template: the format of a line of text, such as "  {:<20}{:>12}".
      max_rows: the number of rows in text, at most; pages fold the rest. None: all.
      folded: whether a page shows the table only after a click on its title.
      bars: a length from 0 to 1 for each row, which pages draw.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Entry, ...]]
    template: str
    max_rows: int | None = None
    folded: bool = False
    bars: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """Tables under a title.

    Attributes:
      title: the title on a page; "" for none.
      note: an introduction, on a page.
      tables: the tables.
    """

    title: str
    note: str
    tables: tuple[Table, ...]


def section_lines(section: Section, show: Show = str) -> list[str]:
    """Returns the tables of a section as lines of text.

    Args:
      section: the section.
      show: returns the text of an object in an entry.
    """
    lines = []
    for table in section.tables:
        if table.columns:
            lines.append(table.template.format(*table.columns))
        shown = table.rows[: table.max_rows]
        for row in shown:
            texts = [entry_text(entry, show) for entry in row]
            lines.append(table.template.format(*texts))
        if len(table.rows) > len(shown):
            lines.append(f"    ... and {len(table.rows) - len(shown)} more")
    return lines


def escaped(x: object) -> str:
    """Returns the text of an object as HTML."""
    return escape(str(x))


def section_html(section: Section, show: Show = escaped) -> str:
    """Returns a section as HTML.

    Args:
      section: the section.
      show: returns the HTML of an object in an entry.
    """
    heading = ""
    if section.title:
        heading = f"<h2>{escape(section.title)}</h2>"
        heading += f'<p class="lead">{escape(section.note)}</p>'
    tables = "".join(_table_html(table, show) for table in section.tables)
    return f"<section>{heading}{tables}</section>"


def _table_html(table: Table, show: Show) -> str:
    """Returns a table as HTML, with the rows after `max_rows` folded."""
    head = _row_html("th", [escape(title) for title in table.columns])
    rows = []
    for row, length in itertools.zip_longest(table.rows, table.bars):
        entries = [entry_html(entry, show) for entry in row]
        if length is not None:
            width = f"width:{length:.1%}"
            entries.append(f'<div class="bar"><i style="{width}"></i></div>')
        rows.append(_row_html("td", entries))
    shown = rows[: table.max_rows]
    content = _table_element(head, shown)
    if len(rows) > len(shown):
        omitted = rows[len(shown) :]
        content += _folded(f"{len(omitted)} more", _table_element(head, omitted))
    return _folded(table.columns[0], content) if table.folded else content


def _table_element(head: str, rows: Sequence[str]) -> str:
    """Returns an HTML table of rows under a row of titles."""
    return f"<table>{head}{''.join(rows)}</table>"


def _row_html(tag: str, entries: Sequence[str]) -> str:
    """Returns a row of elements with a tag; "" if there are none."""
    if not entries:
        return ""
    elements = [f"<{tag}>{entry}</{tag}>" for entry in entries]
    return f"<tr>{''.join(elements)}</tr>"


def _folded(title: str, content: str) -> str:
    """Returns HTML that is shown after a click on its title."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def entry_text(entry: Entry, show: Show = str) -> str:
    """Returns an entry as text; `show` returns the text of an object."""
    return _joined(entry, str, show)


def entry_html(entry: Entry, show: Show = escaped) -> str:
    """Returns an entry as HTML; `show` returns the HTML of an object."""
    return _joined(entry, escape, show)


def _joined(entry: Entry, text_as: Callable[[str], str], show: Show) -> str:
    """Returns an entry as one string: its texts through `text_as`, all else through `show`."""
    if isinstance(entry, str):
        return text_as(entry)
    return "".join(
        text_as(item) if isinstance(item, str) else show(item) for item in entry
    )
