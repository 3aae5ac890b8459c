"""What a loop adds to a sum in place: without an array as large as the sum beside it.

    for tick in ticks:                      # the outer loop sums
        for layer in layers:                # an inner loop stacks
            gradient[layer] = ...
        total += gradient

    for tick in ticks:                      # the same numbers, without `gradient`
        for layer in layers:
            total[layer] += ...

A term of a sum is added in place if it is, perhaps under other names, and nothing else reads it:

    a stack of an inner loop      total[i] += ...   in iteration i of that loop
    one entry, zeros elsewhere    total[id] += x    (an `EntryOp`, as the gradient of table[id])
    a sum of an inner loop        that loop begins with the total in place of zeros, and adds
                                  to it, if it adds its own terms in place

Such are the gradients of scanned layers over microbatches; and in a pipeline, with a map over
stages between the loops, those over ticks: of weights, which the layers stack, and of a tensor
with the batch that layers use, of which a stage takes one microbatch in each tick.

    added_in_place(loop.body, term)         # how a term of a sum is added in place
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import NamedTuple

from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.step import Program, Step, Value


class Addend(NamedTuple):
    """An output of a step, which the step adds to a sum in place.

    Attributes:
      step: the step: a loop, or the computation of an `EntryOp`.
      value: the output.
      aliases: the values that are `value` under other names, in another shape or converted to
        the data type of the sum. The last of them, if there are any, is the term of the sum.
    """

    step: Step
    value: Value
    aliases: tuple[Value, ...]

    @property
    def result(self) -> Value | None:
        """The result of the body of the loop that is added in each iteration; None: the step is
        no loop.
        """
        loop = self.step.loop
        return None if loop is None else loop.body.results[loop.outs.index(self.value)]


def added_in_place(body: Program, term: Value) -> Addend | None:
    """Returns what of a result of a body is added to a sum in place; None: nothing is.

    Args:
      body: the body of a loop.
      term: a result of the body, to be added to a sum.
    """
    made_by = {value: step for step in body.steps for value in step.outputs}
    readers = collections.Counter(body.results)
    for step in body.steps:
        readers.update(step.dependencies)
    aliases: list[Value] = []
    is_converted = False
    while term in made_by and readers[term] == 1:
        step = made_by[term]
        if step.is_entry:
            return Addend(step, term, tuple(aliases))
        # A converted sum is no sum of converted terms, but of a converted entry the zeros, too,
        # are those of the entry converted.
        if is_converted:
            break
        if step.loop is not None and _adds_in_place(step.loop, term):
            return Addend(step, term, tuple(aliases))
        if not (step.is_view or step.is_conversion):
            break
        is_converted = step.is_conversion
        aliases.insert(0, term)
        term = step.inputs[step.outputs.index(term)]
    return None


def _adds_in_place(loop: LoopStep, output: Value) -> bool:
    """Returns whether a loop can add an output to a sum in place."""
    index = loop.outs.index(output)
    result = loop.body.results[index]
    if index < len(loop.carries) or loop.body.results.count(result) > 1:
        return False
    if output in loop.stacked:
        return True
    # Where devices have different numbers of iterations, not all terms count.
    return not loop.is_uneven and added_in_place(loop.body, result) is not None


def values_in_sums(loop: LoopStep) -> Iterator[Value]:
    """Yields the values of the body of a loop, and of the bodies in it, that are never stored,
    as they are added to the sums of this loop in place.
    """
    if loop.is_uneven:
        return
    for term in loop.body.results[len(loop.carries) : loop.num_unstacked]:
        yield from _values_in_sum(loop.body, term)


def _values_in_sum(body: Program, term: Value) -> Iterator[Value]:
    """Yields those of the values of a body, and of bodies in it, for one term."""
    addend = added_in_place(body, term)
    if addend is None:
        return
    yield addend.value
    yield from addend.aliases
    inner = addend.step.loop
    if inner is not None and addend.result is not None and not inner.is_uneven:
        yield from _values_in_sum(inner.body, addend.result)
