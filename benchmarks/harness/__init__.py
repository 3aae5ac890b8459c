"""Runs cases (the programs that a benchmark compares) in separate processes, and times them
in rounds.
"""
