"""Steps that compute a half of what planned steps compute: see `halves`.

half_of_compute(step, half_of_node(step.node, "batch"), Half("batch", 0), renamed)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from meshtf.graph import Node, Spec
from meshtf.partition.steps.local import Compute, Half, TakeHalfStep, with_specs
from meshtf.partition.steps.step import Value


def half_of_spec(spec: Spec, dim: str) -> Spec:
    """Returns the spec of a half of a tensor; of one without the dimension, its own spec."""
    if dim not in spec.shape:
        return spec
    return Spec(spec.shape.resize(dim, spec.shape[dim] // 2), spec.dtype)


def half_of_value(value: Value, dim: str) -> Value:
    """Returns a new value: a half of a value, or another one like it if it lacks the dimension."""
    assert value.spec is not None
    return Value(half_of_spec(value.spec, dim), value.placement)


def take_halves(value: Value, dim: str, node: Node) -> list[TakeHalfStep]:
    """Returns the steps that take both halves of a value; `node` is that of the loop."""
    return [
        TakeHalfStep(Half(dim, index), value, half_of_value(value, dim), node)
        for index in range(2)
    ]


def halves_of_value(value: Value, dim: str) -> tuple[Value, Value]:
    """Returns a new value for each half of a value."""
    return half_of_value(value, dim), half_of_value(value, dim)


def half_of_node(node: Node, dim: str) -> Node:
    """Returns a node that is applied to halves of tensors."""
    return with_specs(node, lambda spec: half_of_spec(spec, dim))


def half_of_compute(
    step: Compute, node: Node, batch_half: Half, renamed: Callable[[Value], Value]
) -> Compute:
    """Returns the step that computes a half of what a step computes.

    Args:
      step: the step.
      node: its node, of halves.
      batch_half: which half.
      renamed: a function that returns the half of a value; it makes one of outputs.
    """
    sizes = tuple(
        (factor, size // 2 if factor == batch_half.dim else size)
        for factor, size in step.plan.sizes
    )
    return dataclasses.replace(
        step,
        node=node,
        plan=dataclasses.replace(step.plan, sizes=sizes),
        ins=tuple(map(renamed, step.ins)),
        outs=tuple(map(renamed, step.outs)),
        batch_half=batch_half,
    )
