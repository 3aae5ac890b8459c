"""Sums of what an inner loop stacks, which need no stack beside the sum.

    for tick in ticks:                      # the outer loop sums
        for layer in layers:                # the inner loop stacks
            gradient[layer] = ...
        total += gradient

    for tick in ticks:                      # the same numbers, without `gradient`
        for layer in layers:
            total[layer] += ...

Such are the gradients of scanned layers over microbatches, and those of a pipeline over ticks,
with a map over stages between the two loops.

    summed_stack(loop.body, term)           # the stack of an inner loop that a term of a sum is
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import NamedTuple

from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.step import Program, Value


class SummedStack(NamedTuple):
    """A stacked output of an inner loop, each of whose entries can be added to a sum at once.

    Attributes:
      loop: the inner loop.
      stack: the output.
      views: the values that are `stack` under other names or in another shape, the last of
        which is the term of the sum.
    """

    loop: LoopStep
    stack: Value
    views: tuple[Value, ...]

    @property
    def entry(self) -> Value:
        """The result of the body of the inner loop that it stacks."""
        entries = self.loop.body.results[-len(self.loop.stacked) :]
        return entries[self.loop.stacked.index(self.stack)]


def summed_stack(body: Program, term: Value) -> SummedStack | None:
    """Returns the stack that a result of a body is, if nothing else reads it; None: it is none.

    Args:
      body: the body of a loop.
      term: a result of the body, to be added to a sum.
    """
    made_by = {value: step for step in body.steps for value in step.outputs}
    readers = collections.Counter(body.results)
    for step in body.steps:
        readers.update(step.dependencies)
    views: list[Value] = []
    while term in made_by and readers[term] == 1:
        step = made_by[term]
        if step.loop is not None and term in step.loop.stacked:
            summed = SummedStack(step.loop, term, tuple(views))
            is_alone = step.loop.body.results.count(summed.entry) == 1
            return summed if is_alone else None
        if not step.is_view:
            break
        views.insert(0, term)
        term = step.inputs[0]
    return None


def values_in_sums(loop: LoopStep) -> Iterator[Value]:
    """Yields the values of the body of a loop, and of the bodies in it, that are never stored,
    as inner loops add them to the sums of this one.
    """
    op = loop.op
    for term in loop.body.results[op.num_carries : op.num_carries + op.num_sums]:
        yield from _values_in_sum(loop.body, term)


def _values_in_sum(body: Program, term: Value) -> Iterator[Value]:
    """Yields those of the values of a body, and of bodies in it, for one term."""
    summed = summed_stack(body, term)
    if summed is not None:
        yield summed.stack
        yield from summed.views
        yield from _values_in_sum(summed.loop.body, summed.entry)
