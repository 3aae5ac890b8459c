"""One layout's training step on one mesh position, for `benchmarks.memory`.

A program is a list of steps: segments (computations without communication, which are one
function each) and, between them, collectives. Usually it runs on all positions of the mesh,
its virtual devices. Here only position 0 runs: its segments and, in place of each collective,
a stand-in, an op that takes and returns tensors of the same sizes. So all allocated memory is
that of one position. The results are wrong, and are not used. The process writes "begin" and
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
    ReshardStep,
    Segment,
    Step,
)
from meshtf.runtime.placed import program_function
from meshtf.runtime.placed.batched_variables import BatchedVariables
from meshtf.runtime.placed.collectives import bucketed
from meshtf.runtime.placed.collectives.primitives import combine
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.program.tensor_ops import identity, stack
from meshtf.runtime.variable import Variable


class FirstPosition(PlacedExecutor):
    """Executes a program for the first position of the mesh only.

    It overrides those methods of `PlacedExecutor` that execute steps on several positions.
    `self.values` has for each value (a tensor that the program computes) the list of its
    shards, one for each position: here the list has one entry.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.devices = self.devices[:1]
        # Made again, for one device.
        self.variables = BatchedVariables(
            self.mesh,
            self.devices,
            self.segments,
            self.program,
        )

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment, one by one: there are no other positions that
        could share a call.
        """
        for step in steps:
            self._execute_in_scope(step)

    def _read(self, store: Store) -> list[Any]:
        """Returns the shard of a store (an argument or a variable) on the first position."""
        return super()._read(store)[:1]

    def _call(self, segment: Segment) -> None:
        """Calls a segment on the first position, whose mesh coordinates are 0."""
        device = self.devices[0]
        call = self.make_caller(segment, self.mesh)
        coordinates = {axis: self._constant(0, device) for axis in self.mesh.axes}
        inputs = [self.values[value][0] for value in segment.ins]
        outputs = call(device, coordinates, inputs).outputs
        for value, output in zip(segment.outs, outputs):
            self.values[value] = [output]

    def _reshard(self, step: ReshardStep) -> list[Any]:
        """Returns the result of the stand-in of a collective."""
        assert step.src.spec is not None
        (x,) = self.values[step.src]
        for value in step.waits_for:  # the collective may only start after them
            x = identity(x, self.devices[0], self.values[value][0])
        result = self._add_stand_in(
            step.reshard.kind,
            x,
            num_shards=self.mesh.group_size(*step.reshard.axes),
            split_axis=_axis(step, step.reshard.after),
            concat_axis=_axis(step, step.reshard.before),
        )
        return [result]

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
            """Runs the ops of the stand-in on the first device."""
            with tf.device(self.devices[0]):
                return _stand_in(kind, x, num_shards, split_axis, concat_axis)

        return self._run_in_section(run, x)

    def _bucket(self, step: Bucket) -> list[list[Any]]:
        """Returns the results of several reductions, whose tensors are packed into one, by
        one stand-in.
        """
        reshard = step.reductions[0].reshard
        num_shards = self.mesh.group_size(*reshard.axes)

        def collective(packed: list[Any], *_: Any) -> list[Any]:
            """Takes and returns a list with one tensor: that of the first position."""
            result = self._add_stand_in(
                reshard.kind, packed[0], num_shards, split_axis=0, concat_axis=0
            )
            return [result]

        # An object with the functions of the module `collectives.ring`, in its place.
        algorithms = SimpleNamespace(all_reduce=collective, reduce_scatter=collective)
        tensors = tuple(self.values[reduction.src][0] for reduction in step.reductions)
        # The number of devices determines the number of shards.
        devices = self.devices * num_shards
        if reshard.kind == "all_reduce":
            results = bucketed.all_reduce(algorithms, [tensors], devices, "sum")
        else:
            split_axes = [
                _axis(reduction, reduction.reshard.after)
                for reduction in step.reductions
            ]
            results = bucketed.reduce_scatter(
                algorithms, [tensors], devices, "sum", split_axes
            )
        return [[x] for x in results[0]]

    def _gather_statistics(self, step: GatherStatisticsStep) -> list[Any]:
        """Returns the statistics of this position, stacked as often as there are shards."""
        (statistics,) = self.values[step.src]
        num_shards = step.num_shards(self.mesh)
        device = self.devices[0]
        return [tuple(stack([x] * num_shards, device) for x in statistics)]


def _axis(step: ReshardStep, state: State) -> int:
    """Returns the index of the dimension of a reshard's tensor that a state of its mesh axis
    shards; 0 if it shards none.
    """
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
        first_shard, *_ = tf.split(x, num_shards, axis=split_axis)
        return first_shard
    if kind == "all_gather":
        return tf.concat([x] * num_shards, axis=concat_axis)
    if kind == "all_to_all":
        chunks = tf.split(x, num_shards, axis=split_axis)
        return tf.concat(chunks, axis=concat_axis)
    if kind == "reduce_scatter":
        # The sum of any two chunks has the size of the result.
        chunk_0, chunk_1, *_ = tf.split(x, num_shards, axis=split_axis)
        return combine("sum", chunk_0, chunk_1, "/device:CPU:0")
    # An all-reduce: chunks of nearly equal size are summed, then concatenated.
    size = x.shape.num_elements()
    ends = [size * (j + 1) // num_shards for j in range(num_shards)]
    chunk_sizes = [end - start for start, end in zip([0, *ends], ends)]
    chunks = tf.split(tf.reshape(x, [-1]), chunk_sizes)
    sums = [chunk + chunk for chunk in chunks]
    return tf.reshape(tf.concat(sums, 0), x.shape)


def variable_bytes(program: Program) -> int:
    """Returns the bytes on the first position of the variables that a program reads or
    writes.
    """
    num_bytes = 0
    for store in program.stores:  # arguments and variables
        if isinstance(store, Variable):
            slot = store.slots()[0]  # the stored shard of the first position
            num_bytes += math.prod(slot.shape) * tf.as_dtype(slot.dtype).size
    return num_bytes


def main() -> None:
    """Runs one layout, given by the JSON in the first argument of the command line."""
    mtf.configure_process()
    settings = json.loads(sys.argv[1])
    size = dataclasses.replace(MEDIUM, batch=settings["batch"])
    case = LAYOUTS.get(settings["name"], ONE)
    # Only one position runs, and may use all cores.
    tf.config.threading.set_intra_op_parallelism_threads(max(2, os.cpu_count() or 1))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    program_function.PlacedExecutor = FirstPosition  # executes all programs below
    step, args = case.build(
        size,
        devices="separate:8" if case is not ONE else None,
        dropout=settings["dropout"],
        **settings["settings"],
    )
    memory = step.explain(*args).memory
    program = step.lower(*args)
    for _ in range(2):  # the first call traces
        step(*args)
    # Without a buffer, so that the lines are in order with those of TensorFlow's log.
    stderr = sys.stderr.fileno()
    os.write(stderr, b"\nbegin\n")
    step(*args)
    os.write(stderr, b"\nend\n")
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
