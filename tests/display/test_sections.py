"""Sections: lines of text and HTML of the same data."""

from __future__ import annotations

from meshtf.display import Section, Table, section_html, section_lines

SIZES = Table(("memory", ""), [("  peak", "3 B"), ("  <all>", "6 B")], "{:<8}{:>6}")


def section(*tables):
    """A section of tables."""
    return Section("Memory", "A note & more.", tables)


def test_text_and_html_have_the_same_rows():
    sizes = section(SIZES)
    assert section_lines(sizes) == [
        "memory        ",
        "  peak     3 B",
        "  <all>    6 B",
    ]
    assert section_html(sizes) == (
        '<section><h2>Memory</h2><p class="lead">A note &amp; more.</p><table>'
        "<tr><th>memory</th><th></th></tr><tr><td>  peak</td><td>3 B</td></tr>"
        "<tr><td>  &lt;all&gt;</td><td>6 B</td></tr></table></section>"
    )


def test_objects_are_shown_as_the_report_wants():
    entries = section(Table((), [(("2 x ", 7, "<"),)], "{}"))
    assert section_lines(entries, lambda number: f"[{number}]") == ["2 x [7]<"]
    html = section_html(entries, lambda number: f"<b>{number}</b>")
    assert "<td>2 x <b>7</b>&lt;</td>" in html
    assert "<tr></tr>" not in html


def test_pages_fold_the_rows_that_text_leaves_out():
    many = Table(("n",), [(str(i),) for i in range(5)], "{}", max_rows=2)
    assert section_lines(section(many)) == ["n", "0", "1", "    ... and 3 more"]
    shown, folded = section_html(section(many)).split("<details>")
    assert "<td>1</td>" in shown and "<td>2</td>" not in shown
    assert folded.startswith("<summary>3 more</summary>") and "<td>4</td>" in folded


def test_folded_tables_and_bars():
    table = Table(("w", "bytes"), [("a", "1")], "{} {}", folded=True, bars=(0.5,))
    html = section_html(section(table))
    assert "<details><summary>w</summary><table>" in html
    assert '<i style="width:50.0%"></i>' in html
