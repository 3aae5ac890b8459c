"""Runs the steps of loops that are computed in two halves: see `partition.steps.halves`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.partition import BarrierStep, JoinHalvesStep, TakeHalfStep
from meshtf.runtime.lowering.single_replica import SingleReplica
from meshtf.runtime.lowering.stacks import local_shape_and_dtype
from meshtf.runtime.tf_internals.xla_ops import optimization_barrier


def take_half(replica: SingleReplica, step: TakeHalfStep) -> list[Any]:
    """Returns the half that a `TakeHalfStep` takes of this replica's shard."""
    sizes, _dtype = local_shape_and_dtype(step.out, replica.mesh)
    assert step.out.spec is not None
    axis = step.out.spec.shape.index(step.batch_half.dim)
    begin = [0] * len(sizes)
    begin[axis] = step.batch_half.half_index * sizes[axis]
    return [tf.slice(replica.values[step.src], begin, sizes)]


def join_halves(replica: SingleReplica, step: JoinHalvesStep) -> list[Any]:
    """Returns this replica's shard of what a `JoinHalvesStep` makes of halves."""
    first, second = (replica.values[value] for value in step.half_values)
    if not step.dim:
        return [first + second]
    assert step.out.spec is not None
    return [tf.concat([first, second], step.out.spec.shape.index(step.dim))]


def put_behind_barrier(replica: SingleReplica, step: BarrierStep) -> list[Any]:
    """Returns this replica's shards of some values, behind a barrier for all of them."""
    return optimization_barrier([replica.values[value] for value in step.values])
