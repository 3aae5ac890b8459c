"""The pipelines of a program: scans over sharded dimensions.

print(pipelines_of(program)[0])         # a drawing of its ticks
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.forecast.report_data import Pipeline, function_of
from meshtf.graph.control_flow.scan_dimension import TICK
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
