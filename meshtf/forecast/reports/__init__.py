"""Reports of a forecast: as text, JSON and HTML.

Contents:

    totals          sums over ops, and runs of equal ops
    text_report     as text, and as JSON
    html_report     as one HTML page, with the template `page.html`
    svg             frame and styles of SVG pictures
"""
