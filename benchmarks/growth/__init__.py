"""How cost grows with devices, layers, experts and tokens: see `benchmarks.growth`.

Contents:

    cases       the cases: for each panel, groups of cases of one size
    worker      runs one case in a separate process
    planning    recording and planning only, without devices and processes
    measure     measures a panel, and prints it as a table
    theory      the growth that theory predicts, fitted to the measurements
    chart       charts with logarithmic axes, as SVG
    panels      the charts of each panel
"""
