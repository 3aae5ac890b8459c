"""Runs cases (the programs that a benchmark compares) in separate processes, and times them
in rounds.

Contents:

    rounds        starts a process for each case, and lets all take steps in turn
    case_server   the side of such a process: answers requests about its case
    clocks        wall time and processor time
    report        the measurements as a table of ratios
"""
