"""Chooses which of two clashing operands is renamed: flips sites while that saves renames."""

from __future__ import annotations

from collections.abc import Callable

from meshtf.tensorflow_import.dimensions.analysis import Analysis


def fewest_renames(analyse: Callable[[frozenset], Analysis]) -> Analysis:
    """Returns the analysis with the fewest renames. `analyse` makes one, given flipped sites."""
    flipped: frozenset = frozenset()
    best = analyse(flipped)
    for site in sorted(best.sites):
        analysis = analyse(flipped ^ {site})
        if len(analysis.renames) < len(best.renames):
            best, flipped = analysis, flipped ^ {site}
    return best
