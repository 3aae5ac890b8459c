"""Objects as text and HTML: for terminals, and for notebooks (`_repr_html_`).

    tables.py       tables as text and as HTML
    mesh_grid.py    the positions of a mesh as a table with coloured entries

The functions take strings and numbers, not objects of meshtf. HTML has no scripts, and
all text in it is escaped.
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
