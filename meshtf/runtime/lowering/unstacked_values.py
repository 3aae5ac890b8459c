"""Which stacked outputs of loops stay lists of elements, because only other loops read
them, one element in each iteration.

    ys = mtf.scan(layer_1, xs)      # a list of elements, never stacked
    zs = mtf.scan(layer_2, ys)      # stacked: a result of the program
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from meshtf.partition import LoopStep, Step, Value


def unstacked_values(steps: Collection[Step], results: Iterable[Value]) -> set[Value]:
    """Returns the stacked outputs of loops that are used only as scanned inputs of other
    loops, along their first dimension.

    A runtime can keep such a value as a list of its elements, and never stack them.

    Args:
      steps: the steps of a program.
      results: the results of the program.
    """
    stacked_outputs = {
        value for step in steps if step.loop is not None for value in step.loop.stacked
    }
    for step in steps:
        if step.loop is not None:
            stacked_outputs.difference_update(_tensor_inputs(step.loop))
        else:
            stacked_outputs.difference_update(step.dependencies)
    return stacked_outputs.difference(results)


def _tensor_inputs(step: LoopStep) -> Iterator[Value]:
    """Yields the inputs of a loop that it cannot take as lists of elements: all but the
    scanned inputs whose first dimension is the scanned one.
    """
    yield from step.initial_values
    yield from step.captured_values
    yield from step.waits_for
    for value in step.scanned_inputs:
        assert value.spec is not None and step.op.dim is not None
        if value.spec.shape.names[0] != step.op.dim.name:
            yield value
