"""Pipeline parallelism: layers split into stages, batches split into microbatches, and
the order in which stages work on them.

>>> from meshtf.pipeline import gpipe, simulate, split
>>> split([3, 1, 1, 1, 2, 2], stages=2)
(3, 3)
>>> simulate(gpipe(stages=2, microbatches=8)).speed_up
1.7777777777777777
"""

from meshtf.pipeline.drawing import split_svg, split_text, timeline_svg, timeline_text
from meshtf.pipeline.gpipe import GPipe
from meshtf.pipeline.partition import Layer, split
from meshtf.pipeline.schedule import (
    Schedule,
    Task,
    gpipe,
    interleaved,
    one_f_one_b,
    peak_activations,
)
from meshtf.pipeline.simulator import Span, Timeline, ideal_speed_up, simulate

__all__ = [
    "GPipe",
    "Layer",
    "Schedule",
    "Span",
    "Task",
    "Timeline",
    "gpipe",
    "peak_activations",
    "ideal_speed_up",
    "interleaved",
    "one_f_one_b",
    "simulate",
    "split",
    "split_svg",
    "split_text",
    "timeline_svg",
    "timeline_text",
]


def __dir__() -> list[str]:
    return sorted(__all__)
