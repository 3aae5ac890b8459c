"""How cost grows: what `benchmarks.growth` measures and draws.

Contents:

    cases.py      what is measured: for each part groups of cases of one size
    worker.py     a case in a process of its own
    planning.py   recording and planning alone, which need neither devices nor processes
    measured.py   measures a part, and tells it as a table
    chart.py      panels with logarithmic axes, as SVG
    pictures.py   which panels a part is drawn as
"""
