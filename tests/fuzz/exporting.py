"""Runs a step of a drawn program as an exported module, by PJRT's CPU devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import ShardedValue
from meshtf.graph.tensor import tensor_of_value
from tests.support.module_runner import Runner


def run_module(
    step: Callable[..., Any], mesh: mtf.Mesh, inputs: Sequence[mtf.Tensor]
) -> Any:
    """Exports a step, runs the module once on a CPU device for each replica, and
    returns what the step returns, with None where it has None."""
    structure: list[Any] = []

    def recorded(*inputs: mtf.Tensor) -> list[mtf.Tensor]:
        outputs = step(*inputs)
        structure[:] = tf.nest.map_structure(lambda x: x is not None, outputs)
        return [x for x in tf.nest.flatten(outputs) if x is not None]

    exported = mtf.export(mtf.function(recorded, mesh=mesh), *inputs)
    given = iter(inputs)
    held = [
        port.shard(exported.values[port.name], mesh)
        if port.name in exported.values
        else list(map(np.asarray, next(given).sharded_value.values))
        for port in exported.inputs
    ]
    result_shards = Runner(exported, quick=True)(*held)
    tensors = []
    for port, values in zip(exported.results, result_shards, strict=True):
        shards = ShardedValue(port.placement, list(map(tf.constant, values)))
        tensors.append(tensor_of_value(port.spec, shards, mesh))
    results = iter(tensors)
    return tf.nest.map_structure(
        lambda is_present: next(results) if is_present else None, structure
    )
