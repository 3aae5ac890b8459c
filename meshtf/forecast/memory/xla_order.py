"""The order in which XLA runs the steps of a program, where it is not that of the plan.

XLA schedules a program from its end, and hides each collective behind what its neighbours do not
need: matrix products run as late as they can.

1. *Products before their readers.* A product runs right before the step that first reads its
   result, and what the product reads lives until then. In attention the product of the softmax
   and its cotangent runs behind the gradient of the softmax.
2. *Products behind loops.* So a product whose result nothing needs before a loop has ended, a
   gradient of a variable, runs behind the loop, and what it reads lives through the loop. The
   reduction of such a product runs with it, if what reads the sum also reads what the loop
   computes: the gradient of tied logits, to which that of the embedding is added.

This was read from XLA's schedules for GPUs (jax 0.10.2), as the rules of `xla_buffers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshtf.forecast.memory.xla_buffers import is_elementwise
from meshtf.graph import contracted_factors
from meshtf.partition import (
    Bucket,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    ReshardStep,
    Step,
    Value,
    WindowStep,
)
from meshtf.partition.buckets import is_reduction
from meshtf.partition.steps import inputs_of, outputs_of

_COLLECTIVES = (Bucket, GatherStatisticsStep, ReshardStep, WindowStep)


def in_xla_order(steps: Sequence[Step], results: Iterable[Value]) -> Sequence[Step]:
    """Returns the steps of a program in the order in which XLA runs them.

    Args:
      steps: the steps in the order of the plan.
      results: the results of the program.
    """
    steps = _before_their_readers(steps)
    late = _late_steps(steps, results)
    if not late:
        return steps
    ordered: list[Step] = []
    for index, step in enumerate(steps):
        if index not in late:
            ordered.append(step)
        if isinstance(step, LoopStep):
            behind = [i for i, loop in late.items() if loop == index]
            ordered.extend(steps[i] for i in behind)
    return ordered


def _before_their_readers(steps: Sequence[Step]) -> Sequence[Step]:
    """Returns steps in an order in which matrix products run right before their readers, or
    before a loop in between.
    """
    first_read: dict[Value, int] = {}
    waiting: dict[
        int, list[Step]
    ] = {}  # the index of a reader -> products, the last one first
    next_loop = len(steps)
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        read_at = index
        if isinstance(step, LoopStep):
            next_loop = index
        if isinstance(step, Compute) and _is_product(step):
            read_at = min((first_read.get(x, index) for x in step.outs), default=index)
            read_at = min(read_at, next_loop)
            if read_at > index:
                waiting.setdefault(read_at, []).append(step)
        for value in inputs_of(step):
            first_read[value] = min(read_at, first_read.get(value, read_at))
    late = {step for products in waiting.values() for step in products}
    ordered: list[Step] = []
    for index, step in enumerate(steps):
        ordered.extend(reversed(waiting.get(index, ())))
        if step not in late:
            ordered.append(step)
    return ordered


def _late_steps(steps: Sequence[Step], results: Iterable[Value]) -> dict[int, int]:
    """Returns the steps that run behind a loop: the index of each, in order, and that of the
    loop.
    """
    loops = _loops_before_collectives(steps)
    if not loops:
        return {}
    joined = _read_with_results_of(steps, loops[-1])
    # When a value is first read: at the index of a step, or a half behind that of a loop.
    first_read: dict[Value, float] = dict.fromkeys(results, len(steps))
    late: dict[int, int] = {}
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        read_at: float = index
        needed_at = min((first_read.get(x, index) for x in outputs_of(step)), default=0)
        ended = [loop for loop in loops if index < loop < needed_at]
        if ended and _may_wait(step, joined):
            late[index] = ended[-1]
            read_at = ended[-1] + 0.5
        for value in inputs_of(step):
            first_read[value] = min(read_at, first_read.get(value, read_at))
    return _products_of(steps, late)


def _loops_before_collectives(steps: Sequence[Step]) -> list[int]:
    """Returns the indices of the loops behind which there are collectives to hide."""
    loops = [i for i, step in enumerate(steps) if isinstance(step, LoopStep)]
    if not loops:
        return []  # as in most programs
    collectives = (i for i, step in enumerate(steps) if isinstance(step, _COLLECTIVES))
    last = max(collectives, default=0)
    return [loop for loop in loops if loop < last]


def _may_wait(step: Step, joined: set[Value]) -> bool:
    """Returns whether a step is a matrix product, or else elementwise or a reduction, which
    products need: see `_products_of`.

    Args:
      step: the step.
      joined: what steps read that also read the results of the loop.
    """
    if is_reduction(step):
        return step.out in joined
    return isinstance(step, Compute) and (is_elementwise(step) or _is_product(step))


def _is_product(step: Compute) -> bool:
    """Returns whether a step multiplies matrices."""
    if step.plan.maps:
        return False  # as most ops
    return bool(contracted_factors(step.node.op, [x.spec for x in step.node.inputs]))


def _read_with_results_of(steps: Sequence[Step], loop: int) -> set[Value]:
    """Returns the values that only elementwise steps read, which also read what a loop computes.

    A conversion counts as the step that reads it.

    Args:
      steps: the steps of a program.
      loop: the index of the loop.
    """
    computed = set(outputs_of(steps[loop]))
    for step in steps[loop + 1 :]:
        if not computed.isdisjoint(inputs_of(step)):
            computed.update(outputs_of(step))
    read_jointly: set[Value] = set()
    read_alone: set[Value] = set()
    for step in reversed(steps):
        inputs = set(inputs_of(step))
        jointly = isinstance(step, Compute) and is_elementwise(step)
        if len(inputs) == 1:
            outputs = outputs_of(step)
            jointly &= read_jointly.issuperset(outputs)
            jointly &= read_alone.isdisjoint(outputs)
        else:
            jointly &= not computed.isdisjoint(inputs)
        (read_jointly if jointly else read_alone).update(inputs)
    return read_jointly - read_alone


def _products_of(steps: Sequence[Step], late: dict[int, int]) -> dict[int, int]:
    """Returns those of some steps that are matrix products or computed from these, in order."""
    computed: set[Value] = set()
    products: dict[int, int] = {}
    for index in sorted(late):
        step = steps[index]
        is_product = isinstance(step, Compute) and _is_product(step)
        if is_product or not computed.isdisjoint(inputs_of(step)):
            products[index] = late[index]
            computed.update(outputs_of(step))
    return products
