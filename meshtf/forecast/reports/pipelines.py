"""The pipelines of a program, and a drawing of their ticks.

pipeline over stage              32 layers in 4 stages, 6 microbatches
    9 ticks, 33.3% bubble, for each at stack.py:190
    stage 0  ######...
    stage 1  .######..
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.forecast.report_data import Pipeline, function_of
from meshtf.graph.control_flow.scan_dimension import TICK
from meshtf.partition import LoopStep, Program, walk


def pipelines_of(program: Program) -> tuple[Pipeline, ...]:
    """Returns the pipelines of a program: those of forward passes."""
    loops = [step.loop for step, _times in walk(program)]
    return tuple(_pipeline(loop) for loop in loops if loop and _is_forward(loop))


def _is_forward(step: LoopStep) -> bool:
    """Whether a loop runs the ticks of a forward pass: the backward pass runs them in reverse."""
    dim = step.op.dim
    return dim is not None and dim.name == TICK and not step.op.reverse


def _pipeline(ticks: LoopStep) -> Pipeline:
    """Returns the pipeline whose ticks a loop runs."""
    stages = next(step for step in _loops(ticks) if step.axes)
    layers = next(_loops(stages))
    assert ticks.op.dim is not None and stages.op.dim is not None
    num_stages = stages.op.dim.size
    source = ticks.node.source
    return Pipeline(
        dim=stages.op.dim.name,
        axes=stages.axes,
        stages=num_stages,
        layers=layers.num_iterations or 0,
        microbatches=ticks.op.dim.size - num_stages + 1,
        function=function_of(source),
        file=source.file,
        line=source.line,
    )


def _loops(step: LoopStep) -> Iterator[LoopStep]:
    """Yields the loops in the body of a loop."""
    for inner in step.body.steps:
        if inner.loop:
            yield inner.loop
