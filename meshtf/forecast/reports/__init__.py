"""Reports of a forecast: as text, JSON and HTML.

Contents:

    totals          sums over ops, and runs of equal ops
    modules         sums by module path
    units           amounts as text: "1.50 KiB"
    op_table        the table of all ops, as text
    text_report     the report as text, and as JSON
    html_report     the report as one HTML page, from the template `page.html`
    html_tables     the tables of the HTML page
    op_rows         the op table of the HTML page
    shape_html      shapes as HTML
    svg             frame and styles of SVG pictures
"""
