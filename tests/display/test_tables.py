"""Tables: aligned text, and HTML in which text is escaped."""

from __future__ import annotations

from meshtf.display import html_table, html_text, text_table


def test_text_is_aligned():
    rows = [("a", "1"), ("longer", "1,000")]
    assert text_table(("name", "size"), rows, align="<>").split("\n") == [
        "name     size",
        "a           1",
        "longer  1,000",
    ]


def test_html_is_escaped():
    text = html_table(("<b>",), [("a & b",)], align="<", title="<script>")
    assert "<script>" not in text
    assert "&lt;b&gt;" in text
    assert "a &amp; b" in text
    assert html_text("1 < 2") == '<pre style="line-height:1.2">1 &lt; 2</pre>'
