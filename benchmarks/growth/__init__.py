"""How cost grows: what `benchmarks.growth` measures and draws.

Contents:

    cases       what is measured: for each part groups of cases of one size
    worker      a case in a process of its own
    planning    recording and planning alone, which need neither devices nor processes
    measure     measures a part, and prints it as a table
    chart       panels with logarithmic axes, as SVG
    panels      which panels a part is drawn as
"""
