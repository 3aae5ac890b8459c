"""Which collectives XLA merges.

It makes one all_reduce of those along the same axes that do not wait for each other: the bytes
stay, and one latency remains. On CPUs, where it keeps no barriers, a second gather of the same
tensor, such as FSDP's for the backward pass, is the first one.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshtf.partition import Step, Value

_Axes = tuple[str, ...]


def merged_reductions(steps: Iterable[Step]) -> set[int]:
    """Returns the `id` of each reduction that runs together with an earlier one.

    The level of a reduction is how many reductions along the same axes it waits for, one
    after the other. Those of equal axes and level run as one.

    Args:
      steps: the steps of a program, in order.
    """
    # Value -> axes -> how many reductions along these axes it waits for.
    levels: dict[Value, dict[_Axes, int]] = {}
    known: set[tuple[_Axes, int]] = set()
    merged: set[int] = set()
    for step in steps:
        current: dict[_Axes, int] = {}
        if levels:
            for value in step.dependencies:
                for axes, level in levels.get(value, {}).items():
                    current[axes] = max(level, current.get(axes, 0))
        axes = _axes_of_reduction(step)
        if axes:
            level = current.get(axes, 0)
            if (axes, level) in known:
                merged.add(id(step))
            known.add((axes, level))
            current[axes] = level + 1
        if current:
            levels.update(dict.fromkeys(step.outputs, current))
    return merged


def _axes_of_reduction(step: Step) -> _Axes:
    """Returns the axes of an all_reduce; () for any other step."""
    collective = step.collective
    if collective is None or collective.kind != "all_reduce":
        return ()
    return collective.axes


def repeated_gathers(steps: Iterable[Step]) -> set[int]:
    """Returns the `id` of each all_gather whose result an earlier one has computed.

    Args:
      steps: the steps of a program, in order.
    """
    known: set[tuple[Value, _Axes]] = set()
    repeated: set[int] = set()
    for step in steps:
        for reshard in step.reshards:
            if reshard.kind == "all_gather":
                key = reshard.src, reshard.axes
                if key in known:
                    repeated.add(id(step))
                known.add(key)
    return repeated
