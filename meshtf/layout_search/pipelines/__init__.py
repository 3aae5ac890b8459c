"""Pipelines, estimated from the program without stages.

Contents:

    estimate            the time and memory of all sizes of a structure with stages
    staged_memory       the memory alone
    layer_split         how many layers each stage has
    loops_over_layers   what of the program without stages a pipeline computes once for all
                        microbatches
"""

from meshtf.layout_search.pipelines.estimate import (
    can_be_estimated,
    estimate,
    staged_seconds,
)
from meshtf.layout_search.pipelines.loops_over_layers import (
    without_collectives_of_weights,
)
from meshtf.layout_search.pipelines.staged_memory import staged_memory

__all__ = [
    "can_be_estimated",
    "estimate",
    "staged_memory",
    "staged_seconds",
    "without_collectives_of_weights",
]
