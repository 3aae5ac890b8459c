"""The bytes of one shard of each value of a program.

sizes = value_sizes(program, under_xla=True)
"""

from __future__ import annotations

import collections

from meshtf.mesh import Mesh
from meshtf.partition import Program, Value
from meshtf.partition.cost import local_bytes


def value_sizes(program: Program, under_xla: bool) -> dict[Value, float]:
    """Returns the bytes of one shard of every value that the program computes.

    Variables and arguments count as 0: they are always live. Under XLA, so do the residuals of
    ops: they are computed anew from the inputs.
    """
    mesh = program.mesh
    sizes: dict[Value, float] = collections.defaultdict(float)
    results_of_calls: dict[Program, list[float]] = {}
    for step in program.steps:
        call = step.call
        if call is not None:
            if call.body not in results_of_calls:
                results_of_calls[call.body] = [size_of(y, mesh) for y in call.outs]
            sizes.update(zip(call.outs, results_of_calls[call.body], strict=True))
            continue
        for value in step.outputs:
            sizes[value] = 0.0 if step.reads else size_of(value, mesh)
        if not under_xla or step.collective is not None:
            sizes.update(step.tuple_bytes(sizes, mesh))
    return sizes


def size_of(value: Value, mesh: Mesh) -> float:
    """Returns the bytes of one shard; 0 for statistics and residuals."""
    return 0.0 if value.spec is None else local_bytes(value.spec, value.placement, mesh)
