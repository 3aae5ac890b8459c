"""Text and HTML for objects of meshtf, in terminals and notebooks (`_repr_html_`).

    tables.py       tables as text and as HTML
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
from meshtf.display.tables import html_table, html_text, text_table

__all__ = [
    "MAX_POSITIONS",
    "html_mesh",
    "html_placement",
    "html_table",
    "html_text",
    "placement_text",
    "text_table",
]
