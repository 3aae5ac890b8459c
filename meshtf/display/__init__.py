"""Text and HTML for objects of meshtf, in terminals and notebooks (`_repr_html_`).

    tables.py       tables as text and as HTML
    sections.py     sections of a report: tables as plain data, rendered as text and as HTML
    svg.py          frame and styles of SVG pictures
    mesh_grid.py    the positions of a mesh as an HTML table with coloured entries

The functions take strings and numbers, not objects of meshtf. The HTML has no scripts, and
text is escaped.
"""

from meshtf.display.mesh_grid import (
    MAX_POSITIONS,
    html_mesh,
    html_placement,
    placement_text,
)
from meshtf.display.sections import (
    Entry,
    Section,
    Table,
    entry_html,
    entry_text,
    section_html,
    section_lines,
)
from meshtf.display.tables import html_table, html_text, text_table

__all__ = [
    "MAX_POSITIONS",
    "Entry",
    "Section",
    "Table",
    "entry_html",
    "entry_text",
    "html_mesh",
    "html_placement",
    "html_table",
    "html_text",
    "placement_text",
    "section_html",
    "section_lines",
    "text_table",
]
