"""SVG pictures: frame, fonts, and colours for light and dark pages.

    line = text(x=26, y=80, kind="note", words="what it shows")
    document("A title", width=1000, height=400, body=[line])

A picture is a self-contained SVG document with a background, so that it can be read on
pages of any colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

MARGIN = 26
# CSS rules. The classes p0 to p3 are four colours that tell bars, boxes or curves apart; each
# picture says which class is for what.
LIGHT = """
    .back { fill: #fbfbfa } .rule { stroke: #d5dade; fill: none }
    text { fill: #1f2933; font: 14px "DejaVu Sans", Helvetica, Arial, sans-serif }
    .title { font-weight: bold; font-size: 17px } .name { font-weight: bold }
    .note { fill: #52606d; font-size: 12.5px }
    .code { font: 12px "DejaVu Sans Mono", Menlo, monospace; fill: #52606d }
    .p0 { fill: #3d7fc1; stroke: #2c5f93 } .p1 { fill: #dd8531; stroke: #a8611b }
    .p2 { fill: #43a06b; stroke: #2e7a4f } .p3 { fill: #9a69c7; stroke: #73489b }
"""
DARK = """\
      .back { fill: #161b22 } .rule { stroke: #343c46 }
      text { fill: #e6edf3 } .note, .code { fill: #a5b1bd }
"""


def document(
    title: str,
    width: float,
    height: float,
    body: Iterable[str],
    light: str = "",
    dark: str = "",
) -> str:
    """Returns a picture as an SVG document.

    Args:
      title: the title at the top left.
      width: the width in pixels.
      height: the height in pixels.
      body: the SVG elements below the title.
      light: CSS rules in addition to `LIGHT`.
      dark: CSS rules in addition to `DARK`, for pages with a dark colour scheme.
    """
    dark_rules = "    @media (prefers-color-scheme: dark) {\n" + DARK + dark + "    }\n"
    style = LIGHT + light + dark_rules
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} '
            f'{height:g}">',
            f"  <title>{escape(title)}</title>",
            f"  <style>{style}  </style>",
            f'  <rect class="back" width="{width:g}" height="{height:g}" rx="10"/>',
            text(x=MARGIN, y=38, kind="title", words=title),
            *body,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, kind: str, words: str, anchor: str = "start") -> str:
    """Returns a text element.

    Args:
      x: the distance from the left in pixels.
      y: the distance of the baseline from the top in pixels.
      kind: the CSS class, such as "title" or "note".
      words: the text.
      anchor: which end of the text is at `x`: "start", "middle" or "end".
    """
    attributes = f'x="{x:g}" y="{y:g}"'
    if anchor != "start":
        attributes += f' text-anchor="{anchor}"'
    return f'  <text class="{kind}" {attributes}>{escape(words)}</text>'
