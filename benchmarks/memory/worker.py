"""One layout's training step on one mesh position, for `benchmarks.memory`.

Only position 0 of the mesh runs: its segments, and in place of each collective an op that
takes and returns tensors of the same sizes. So all allocated memory is that of one
position. The values that it computes are wrong, and are not used. It writes "begin" and
"end" to standard error around the measured step, and the exactly known sizes to standard
output.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

import meshtf as mtf
from benchmarks.step.layouts import LAYOUTS, MEDIUM, ONE
from meshtf.graph import Store
from meshtf.mesh import Sharded, State
from meshtf.partition import (
    Bucket,
    GatherStatisticsStep,
    Program,
    ReadStep,
    ReshardStep,
    Segment,
    Step,
    WriteStep,
)
from meshtf.runtime.placed import program_function
from meshtf.runtime.placed.batched_variables import BatchedVariables
from meshtf.runtime.placed.collectives import bucketed
from meshtf.runtime.placed.collectives.primitives import combine
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.program.tensor_ops import identity, stack
from meshtf.runtime.variable import Variable


class FirstPosition(PlacedExecutor):
    """Executes a program for the first position of the mesh only."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.devices = self.devices[:1]
        self.variables = BatchedVariables(
            self.mesh,
            self.devices,
            self.segments,
            self.program,
        )

    def _execute_before(self, steps: Sequence[Step]) -> None:
        # One by one: there are no other positions whose calls could be shared.
        for step in steps:
            self._execute_in_scope(step)

    def _read(self, store: Store) -> list[Any]:
        return super()._read(store)[:1]

    def _call(self, segment: Segment) -> None:
        device = self.devices[0]
        ys, _ = self.make_caller(segment, self.mesh)(
            device,
            {axis: self._constant(0, device) for axis in self.mesh.axes},
            [self.values[v][0] for v in segment.ins],
        )
        self.values.update((value, [y]) for value, y in zip(segment.outs, ys))

    def _reshard(self, step: ReshardStep) -> list[Any]:
        assert step.src.spec is not None
        (x,) = self.values[step.src]
        num_shards = self.mesh.axes[step.reshard.axis]
        if step.wait_for is not None:
            x = identity(x, self.devices[0], self.values[step.wait_for][0])
        split_axis = _axis(step, step.reshard.after)
        concat_axis = _axis(step, step.reshard.before)
        kind = step.reshard.kind
        return [self._add_stand_in(kind, x, num_shards, split_axis, concat_axis)]

    def _add_stand_in(
        self,
        kind: str,
        x: Any,
        num_shards: int,
        split_axis: int,
        concat_axis: int,
    ) -> Any:
        """Adds the ops of `_stand_in` to the program, and returns their result."""

        def run(x: Any) -> Any:
            with tf.device(self.devices[0]):
                return _stand_in(kind, x, num_shards, split_axis, concat_axis)

        return self._run_in_section(run, x)

    def _bucket(self, step: Bucket) -> list[list[Any]]:
        reshard = step.reductions[0].reshard
        split_axes = [
            _axis(reduction, reduction.reshard.after) for reduction in step.reductions
        ]
        num_shards = self.mesh.axes[reshard.axis]

        def collective(xs: list[Any], *_: Any) -> list[Any]:
            return [self._add_stand_in(reshard.kind, xs[0], num_shards, 0, 0)]

        algorithm = SimpleNamespace(all_reduce=collective, reduce_scatter=collective)
        xs = [[self.values[reduction.src][0] for reduction in step.reductions]]
        devices = self.devices * num_shards
        if reshard.kind == "all_reduce":
            outputs = bucketed.all_reduce(algorithm, xs, devices, "sum")
        else:
            outputs = bucketed.reduce_scatter(algorithm, xs, devices, "sum", split_axes)
        return [[y] for y in outputs[0]]

    def _gather_statistics(self, step: GatherStatisticsStep) -> list[Any]:
        (statistics,) = self.values[step.src]
        copies = step.num_shards(self.mesh)
        device = self.devices[0]
        return [tuple(stack([x] * copies, device) for x in statistics)]


def _axis(step: ReshardStep, state: State) -> int:
    """Returns the index of the dimension that a state shards; 0 if it shards none."""
    assert step.src.spec is not None
    if isinstance(state, Sharded):
        return step.src.spec.shape.names.index(state.dim)
    return 0


def _stand_in(
    kind: str,
    x: Any,
    num_shards: int,
    split_axis: int,
    concat_axis: int,
) -> Any:
    """Returns a tensor of the size of a collective's result, by ops that allocate as much
    memory as the algorithm of a ring does on one device.

    Args:
      kind: the kind of the collective.
      x: the shard of this position.
      num_shards: the number of positions along the axis.
      split_axis: the index of the dimension that the result is sharded along.
      concat_axis: the index of the dimension that is gathered.
    """
    if kind == "collective_permute":
        return tf.identity(x)
    if kind == "slice":
        return tf.split(x, num_shards, split_axis)[0]
    if kind == "all_gather":
        return tf.concat([x] * num_shards, concat_axis)
    if kind == "all_to_all":
        return tf.concat(tf.split(x, num_shards, split_axis), concat_axis)
    if kind == "reduce_scatter":
        chunk_0, chunk_1, *_ = tf.split(x, num_shards, split_axis)
        return combine("sum", chunk_0, chunk_1, "/device:CPU:0")
    # An all-reduce: chunks of nearly equal size are summed, then concatenated.
    size = x.shape.num_elements()
    ends = [size * (j + 1) // num_shards for j in range(num_shards)]
    sizes = [end - start for start, end in zip([0, *ends], ends)]
    sums = [chunk + chunk for chunk in tf.split(tf.reshape(x, [-1]), sizes)]
    return tf.reshape(tf.concat(sums, 0), x.shape)


def variable_bytes(program: Program) -> int:
    """Returns the bytes of the first position's slots that a program reads or writes."""
    stores = {s.store for s in program.steps if isinstance(s, ReadStep)}
    stores.update(
        store
        for s in program.steps
        if isinstance(s, WriteStep)
        for store in s.variables
    )
    slots = (s.slots()[0] for s in stores if isinstance(s, Variable))
    return sum(math.prod(slot.shape) * tf.as_dtype(slot.dtype).size for slot in slots)


def main() -> None:
    """Runs one layout."""
    mtf.configure_process()
    settings = json.loads(sys.argv[1])
    size = dataclasses.replace(MEDIUM, batch=settings["batch"])
    case = LAYOUTS.get(settings["name"], ONE)
    # Only one position runs, and may use all cores.
    tf.config.threading.set_intra_op_parallelism_threads(max(2, os.cpu_count() or 1))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    program_function.PlacedExecutor = FirstPosition
    step, args = case.build(
        size,
        devices="separate:8" if case is not ONE else None,
        dropout=settings["dropout"],
        **settings["settings"],
    )
    memory = step.explain(*args).memory
    program = step.lower(*args)
    for _ in range(2):
        step(*args)
    os.write(2, b"\nbegin\n")
    step(*args)
    os.write(2, b"\nend\n")
    print(
        json.dumps(
            {
                "variables": variable_bytes(program.program),
                "forecast variables": memory.parameters
                + memory.optimizer_state
                + memory.other_variables,
                "arguments": memory.arguments,
                "forecast peak": memory.peak,
            }
        )
    )


if __name__ == "__main__":
    main()
