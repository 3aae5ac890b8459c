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

from meshtf.graph import contracted_factors
from meshtf.partition import Step, Value


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
        if step.loop is not None:
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
        if step.loop is not None:
            next_loop = index
        if _is_product(step):
            reads = (first_read.get(x, index) for x in step.outputs)
            read_at = min(reads, default=index)
            read_at = min(read_at, next_loop)
            if read_at > index:
                waiting.setdefault(read_at, []).append(step)
        for value in step.needs:
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
        needed_at = min((first_read.get(x, index) for x in step.outputs), default=0)
        ended = [loop for loop in loops if index < loop < needed_at]
        if ended and _may_wait(step, joined):
            late[index] = ended[-1]
            read_at = ended[-1] + 0.5
        for value in step.needs:
            first_read[value] = min(read_at, first_read.get(value, read_at))
    return _products_of(steps, late)


def _loops_before_collectives(steps: Sequence[Step]) -> list[int]:
    """Returns the indices of the loops behind which there are collectives to hide."""
    loops = [i for i, step in enumerate(steps) if step.loop is not None]
    if not loops:
        return []  # as in most programs
    collectives = (i for i, step in enumerate(steps) if step.collective is not None)
    last = max(collectives, default=0)
    return [loop for loop in loops if loop < last]


def _may_wait(step: Step, joined: set[Value]) -> bool:
    """Returns whether a step is a matrix product, or else elementwise or a reduction, which
    products need: see `_products_of`.

    Args:
      step: the step.
      joined: what steps read that also read the results of the loop.
    """
    if step.reductions:
        return joined.issuperset(step.outputs)
    return step.is_elementwise or _is_product(step)


def _is_product(step: Step) -> bool:
    """Returns whether a step multiplies matrices."""
    compute = step.computation
    if compute is None or compute.plan.maps:
        return False  # as most ops
    node = compute.node
    return bool(contracted_factors(node.op, [x.spec for x in node.inputs]))


def _read_with_results_of(steps: Sequence[Step], loop: int) -> set[Value]:
    """Returns the values that only elementwise steps read, which also read what a loop computes.

    A conversion counts as the step that reads it.

    Args:
      steps: the steps of a program.
      loop: the index of the loop.
    """
    computed = set(steps[loop].outputs)
    for step in steps[loop + 1 :]:
        if not computed.isdisjoint(step.needs):
            computed.update(step.outputs)
    read_jointly: set[Value] = set()
    read_alone: set[Value] = set()
    for step in reversed(steps):
        inputs = set(step.needs)
        jointly = step.is_elementwise
        if len(inputs) == 1:
            outputs = step.outputs
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
        if _is_product(step) or not computed.isdisjoint(step.needs):
            products[index] = late[index]
            computed.update(step.outputs)
    return products
