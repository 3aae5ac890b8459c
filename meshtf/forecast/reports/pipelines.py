"""The pipelines of a program: scans over sharded dimensions.

print(pipelines_of(program)[0])         # a drawing of its ticks
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.forecast.report_data import Pipeline, function_of
from meshtf.graph.control_flow.scan_dimension import REPEAT, TICK
from meshtf.partition import LoopStep, Program, walk


def pipelines_of(program: Program) -> tuple[Pipeline, ...]:
    """Returns the pipelines of a program: those of forward passes."""
    pipelines = []
    for step, _times in walk(program):
        if step.loop and _is_forward(step.loop):
            # None is divided within a loop that the same axes divide already.
            for stages in filter(lambda loop: loop.axes, _loops(step.loop)):
                pipelines.append(_pipeline(step.loop, stages))
    return tuple(pipelines)


def _is_forward(step: LoopStep) -> bool:
    """Whether a loop runs the ticks of a forward pass: the backward pass runs them in reverse."""
    dim = step.op.dim
    return dim is not None and dim.name == TICK and not step.op.reverse


def _pipeline(ticks: LoopStep, stages: LoopStep) -> Pipeline:
    """Returns the pipeline whose ticks a loop runs, and whose stages one in its body."""
    layers = next(_loops(stages))
    assert ticks.op.dim is not None and stages.op.dim is not None
    num_stages = stages.op.dim.size
    repeats = max(
        (x.shape[REPEAT] for x in stages.op.body.arguments if REPEAT in x.shape),
        default=1,
    )
    source = ticks.node.source
    return Pipeline(
        dim=stages.op.dim.name,
        axes=stages.axes,
        stages=num_stages,
        repeats=repeats,
        layers=layers.num_iterations or 0,
        microbatches=_num_microbatches(ticks.op.dim.size, num_stages, repeats),
        ticks=ticks.op.dim.size,
        function=function_of(source),
        file=source.file,
        line=source.line,
    )


def _num_microbatches(num_ticks: int, num_stages: int, repeats: int) -> int:
    """Returns the number of microbatches: see `Schedule.num_ticks`. In all repeats but the last
    it is rounded up to a multiple of the stages.
    """
    num_busy = num_ticks - num_stages + 1
    before_last = num_busy - (repeats - 1) * num_stages
    rounds = (before_last - 1) // (repeats * num_stages)
    return before_last - (repeats - 1) * rounds * num_stages


def _loops(step: LoopStep) -> Iterator[LoopStep]:
    """Yields the loops in the body of a loop."""
    for inner in step.body.steps:
        if inner.loop:
            yield inner.loop
