"""The bytes of one shard of each value of a program.

sizes = value_sizes(program, under_xla=True)
"""

from __future__ import annotations

import collections

from meshtf.mesh import Mesh
from meshtf.partition import (
    Bucket,
    CallStep,
    Compute,
    GatherStatisticsStep,
    Program,
    ReadStep,
    Value,
)
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import outputs_of


def value_sizes(program: Program, under_xla: bool) -> dict[Value, float]:
    """Returns the bytes of one shard of every value that the program computes.

    Variables and arguments that a `ReadStep` reads count as 0: they are always live. Under
    XLA, so do the residuals of ops: they are computed anew from the inputs.
    """
    mesh = program.mesh
    sizes: dict[Value, float] = collections.defaultdict(float)
    results_of_calls: dict[Program, list[float]] = {}
    for step in program.steps:
        if isinstance(step, CallStep):
            if step.body not in results_of_calls:
                results_of_calls[step.body] = [size_of(y, mesh) for y in step.outs]
            sizes.update(zip(step.outs, results_of_calls[step.body], strict=True))
            continue
        for value in outputs_of(step):
            sizes[value] = 0.0 if isinstance(step, ReadStep) else size_of(value, mesh)
        if isinstance(step, GatherStatisticsStep):
            local_size = sum(
                local_bytes(spec, mesh.replicated, mesh) for spec in step.specs(mesh)
            )
            sizes[step.src] = local_size
            sizes[step.out] = local_size * step.num_shards(mesh)
        elif isinstance(step, Compute) and step.makes_statistics and not under_xla:
            # The step before the shards of an op exchange statistics. Residuals are the
            # tensors that the op needs again afterwards: their shapes are unknown, and the
            # largest input is the estimate.
            _statistics, residuals = step.outs
            sizes[residuals] = max((sizes[value] for value in step.ins), default=0.0)
    return sizes


def size_of(value: Value, mesh: Mesh) -> float:
    """Returns the bytes of one shard; 0 for statistics and residuals."""
    return 0.0 if value.spec is None else local_bytes(value.spec, value.placement, mesh)


def packed_sizes(step: Bucket, mesh: Mesh) -> dict[Value, float]:
    """Returns the bytes of each value in the packed buffer of a bucket."""
    values = [reduction.src for reduction in step.reductions]
    return {value: size_of(value, mesh) for value in values}
