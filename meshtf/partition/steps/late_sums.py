"""Sums over devices, an iteration late: the collective of one layer's gradients runs while the
backward pass computes those of the next one.

    for layer in reversed(layers):        # as planned: nothing hides the sums behind the loop
        partial[layer] = gradient
    total = all_reduce(partial)

    pending = zeros                       # late: as `with_late_sums` rewrites it
    for layer in reversed(layers):
        total[layer + 1] = all_reduce(pending)     # nothing in this iteration needs it
        pending = gradient
    total[0] = all_reduce(pending)

A compiler that schedules collectives beside computations hides each sum but the last behind the
products of an iteration. A sum within the iteration that computed it would be waited for at its
end. The first iteration reduces zeros, which costs one more collective; to peel it would compile
the layer twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from meshtf.graph import Spec
from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.collectives import ReshardStep
from meshtf.partition.steps.local import (
    Compute,
    WriteEntryStep,
    ZerosStep,
    with_specs,
)
from meshtf.partition.steps.step import Program, Step, Value


class _Sum(NamedTuple):
    """A reduction of what a loop stacks.

    Attributes:
      conversion: what converts the stack before, if something does.
      reduction: the reduction.
    """

    conversion: Compute | None
    reduction: ReshardStep


def with_late_sums(program: Program) -> Program:
    """Returns a program with the sums behind its loops moved into them, an iteration late. Its
    results have the same numbers.
    """
    rewritten: dict[Step, list[Step]] = {}
    texts: list[str] = []
    for step in program.steps:
        sums = _late_sums(step.loop, program) if step.loop else {}
        if step.loop and sums:
            rewritten[step] = _with_sums_within(step.loop, sums)
            count = f"{len(sums)} sum{'s'[: len(sums) - 1]}"
            texts.append(
                f"{count} over devices of {step.loop.node.source}: beside the next iteration"
            )
            for conversion, reduction in sums.values():
                rewritten[reduction] = []
                if conversion is not None:
                    rewritten[conversion] = []
    if not rewritten:
        return program
    steps = [new for step in program.steps for new in rewritten.get(step, [step])]
    overlap = (*program.overlap, *texts)
    return dataclasses.replace(program, steps=tuple(steps), overlap=overlap)


def _late_sums(loop: LoopStep, program: Program) -> dict[int, _Sum]:
    """Returns the reductions of what a loop stacks, by the index of the output: those that leave
    the stacked dimension as it is, if nothing else reads the partial sums.
    """
    dim = loop.op.dim
    # Iterations that devices divide among them stack sums of different entries.
    if dim is None or dim.size < 2 or loop.axes or loop.is_pipeline:
        return {}
    readers = _only_readers(program)
    sums = {}
    for index in range(loop.num_unstacked, len(loop.outs)):
        reader = readers.get(loop.outs[index])
        conversion = None
        if reader is not None and reader.is_conversion:
            conversion = reader.computation
            reader = readers.get(reader.outputs[0])
        for reduction in () if reader is None else reader.reductions:
            if not reduction.out.placement.axes_of(dim.name):
                sums[index] = _Sum(conversion, reduction)
    return sums


def _only_readers(program: Program) -> dict[Value, Step]:
    """Returns for each value that a single step reads, and that is no result, this step."""
    readers: dict[Value, list[Step]] = {}
    for step in program.steps:
        for value in dict.fromkeys(step.dependencies):
            readers.setdefault(value, []).append(step)
    return {
        value: steps[0]
        for value, steps in readers.items()
        if len(steps) == 1 and value not in program.results
    }


def _with_sums_within(loop: LoopStep, sums: Mapping[int, _Sum]) -> list[Step]:
    """Returns the steps that take the place of a loop and of reductions behind it.

    Args:
      loop: the loop.
      sums: the reductions, by the index of the loop's output.
    """
    assert loop.op.dim is not None
    dim = loop.op.dim
    last = 0 if loop.op.reverse else dim.size - 1
    results = list(loop.body.results)
    outs = list(loop.outs)
    before: list[ZerosStep] = []
    within: list[ReshardStep] = []
    behind: list[Step] = []
    conversions: list[Step] = []
    terms: list[Value] = []
    partial: list[Value] = []
    for index, (conversion, reduction) in sums.items():
        term, out = results[index], reduction.out
        if conversion is not None:
            step = _of_entry(conversion, term, dim.name)
            conversions.append(step)
            (term,) = step.outs
        zeros, waiting, late = (Value(term.spec, term.placement) for _ in range(3))
        total, last_total = (Value(term.spec, out.placement) for _ in range(2))
        results[index] = total
        outs[index] = Value(out.spec, out.placement)
        before.append(ZerosStep(zeros, loop.node))
        within.append(_reduced(reduction, waiting, total))
        terms.append(term)
        partial.append(late)
        behind.append(_reduced(reduction, late, last_total))
        behind.append(
            WriteEntryStep(dim.name, last, outs[index], last_total, out, loop.node)
        )
    num_carries = len(loop.carries)
    new_loop = dataclasses.replace(
        loop,
        body=dataclasses.replace(
            loop.body,
            steps=(*within, *loop.body.steps, *conversions),
            results=(*results[:num_carries], *terms, *results[num_carries:]),
        ),
        carries=(*loop.carries, *(step.src for step in within)),
        initial_values=(*loop.initial_values, *(step.out for step in before)),
        outs=(*outs[:num_carries], *partial, *outs[num_carries:]),
        late=(*loop.late, *(step.out for step in within)),
    )
    return [*before, new_loop, *behind]


def _reduced(reduction: ReshardStep, src: Value, out: Value) -> ReshardStep:
    """Returns the same reduction of another value."""
    return dataclasses.replace(reduction, src=src, out=out, waits_for=())


def _of_entry(conversion: Compute, entry: Value, dim: str) -> Compute:
    """Returns the conversion of an entry of a stack.

    Args:
      conversion: that of the stack.
      entry: the entry.
      dim: the stacked dimension, which the entry lacks.
    """
    node = with_specs(conversion.node, lambda x: Spec(x.shape.without(dim), x.dtype))
    plan = conversion.plan
    sizes = tuple(size for size in plan.sizes if size[0] != dim)
    return dataclasses.replace(
        conversion,
        node=node,
        plan=dataclasses.replace(plan, sizes=sizes),
        ins=(entry,),
        outs=(Value(node.outputs[0].spec, entry.placement),),
        waits_for=(),
    )
