"""Reports of a forecast: as text, JSON and HTML.

Contents:

    totals          sums over ops, and runs of equal ops
    modules         sums by module path
    units           amounts as text: "1.50 KiB"
    user_lines      lines of the user's program as text: "mlp.py:3"
    shapes          shapes as text and as HTML
    contents        what the reports say, as sections
    op_rows         the ops as rows
    op_table        the ops as text
    text_report     the report as text, and as JSON
    static_page     the sections and the ops as HTML
    html_report     the report as one HTML page, from the template `page.html`
"""
