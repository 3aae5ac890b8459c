"""The program of one replica, the device at one position of the mesh. Every device runs it.

    results = Replica(program, variables, inputs).run()

Reshards are XLA collectives among groups of replicas. The replica's coordinates on the mesh
are computed from its id, and each variable is the shard of this replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import RowsWriteOp, Store
from meshtf.mesh import Mesh, Partial, Sharded
from meshtf.partition import (
    BarrierStep,
    GatherStatisticsStep,
    JoinHalvesStep,
    LoopStep,
    Program,
    ReshardStep,
    TakeHalfStep,
    Value,
    WindowStep,
    WriteStep,
)
from meshtf.runtime.lowering.control_flow import run_loop
from meshtf.runtime.lowering.local_context import (
    CheckRecorder,
    MeshCoordinates,
    Stored,
)
from meshtf.runtime.lowering.padding.shard_blocks import ReshardBlocks, TensorFlowOps
from meshtf.runtime.lowering.single_replica import SingleReplica
from meshtf.runtime.lowering.stacks import local_shape_and_dtype
from meshtf.runtime.lowering.variable_writes import first_row, write
from meshtf.runtime.spmd.module import stablehlo_collectives
from meshtf.runtime.spmd.module.halves import (
    join_halves,
    put_behind_barrier,
    take_half,
)
from meshtf.runtime.spmd.module.shared_functions import SharedFunctions
from meshtf.runtime.spmd.module.window_exchange import exchange
from meshtf.runtime.tf_internals.xla_ops import optimization_barrier, replica_id, stored


class Replica(SingleReplica):
    """Executes a program on one replica, while TensorFlow traces it.

    Args:
      program: the program.
      variables: {variable: the tf.Variable with this replica's shard}.
      inputs: {other store, such as an argument: this replica's shard}.
      checks: an object to which checks of indices are added; None: no index is checked.
      shared_functions: takes the functions that equal ops share.
      platform: what the devices are: see `Stored`.
    """

    adds_in_place = True  # XLA does so in place

    def __init__(
        self,
        program: Program,
        variables: Mapping[Store, tf.Variable],
        inputs: Mapping[Store, Any],
        checks: CheckRecorder | None,
        shared_functions: SharedFunctions,
        platform: str,
    ) -> None:
        coordinates = MeshCoordinates(_coordinates(program.mesh))
        super().__init__(
            program,
            coordinates,
            jit=True,
            checks=checks,
            outline=shared_functions.outline,
            stored=Stored(stored, platform),
        )
        self.platform = platform
        self.variables = variables
        self.inputs = inputs
        # The inputs of ops that run on the host, in the order of these ops.
        self.host_inputs: list[Any] = []

    def _read(self, store: Store) -> Any:
        if store in self.variables:
            return self.variables[store].read_value()
        if store in self.inputs:
            return self.inputs[store]
        # Other stores, such as Python numbers, have one value for all replicas.
        return store.read()[0]

    def _write(self, step: WriteStep) -> Sequence[Any]:
        variables = [self.variables[store] for store in step.variables]
        inputs = [self.values[v] for v in step.values]
        if not variables:
            self.host_inputs += inputs
            return ()
        op = step.write_op
        if isinstance(op, RowsWriteOp):
            start = first_row(step.variables[0], self.mesh, self.coordinates.tensors)
            inputs.append(tf.cast(start, tf.int64))
        num_outputs = len(step.outs)
        return write(op, variables, inputs, num_outputs, compiled=True)

    def _reshard(self, step: ReshardStep) -> Any:
        assert step.src.spec is not None
        x = self.values[step.src]
        for value in step.waits_for:
            x = optimization_barrier([x, self.values[value]])[0]
        reshard = step.reshard
        shape = step.src.spec.shape
        before = reshard.before
        after = reshard.after
        concat_axis = shape.index(before.dim) if isinstance(before, Sharded) else -1
        split_axis = shape.index(after.dim) if isinstance(after, Sharded) else -1
        reduction = before.kind if isinstance(before, Partial) else ""
        groups = self.mesh.groups(*reshard.axes)
        if reshard.kind in ("drop", "send", "broadcast", "copy", "keep"):
            # But for the last, these copy arrays between pipeline stages. Within a module, which
            # is the program of one stage, all devices already have x.
            return x
        if reshard.kind == "collective_permute":
            pairs = reshard.permuted_positions(self.mesh)
            return stablehlo_collectives.permute(x, pairs)
        blocks = ReshardBlocks(step, self.mesh)
        ops = TensorFlowOps()
        x = blocks.before(x, ops)
        if reshard.kind == "slice":
            return self._slice(x, reshard.axes, split_axis)
        if reshard.kind == "all_reduce":
            return stablehlo_collectives.all_reduce(x, groups, reduction)
        if reshard.kind == "reduce_scatter":
            return stablehlo_collectives.reduce_scatter(
                x, groups, reduction, split_axis
            )
        if reshard.kind == "all_gather":
            if concat_axis and self.platform != "cpu":
                x = _in_row_major_order(x)
            y = stablehlo_collectives.all_gather(x, groups, concat_axis)
            return blocks.after(y, ops)
        assert reshard.kind == "all_to_all", reshard
        y = stablehlo_collectives.all_to_all(x, groups, split_axis, concat_axis)
        return blocks.after(y, ops)

    def _slice(
        self,
        x: Any,
        mesh_axes: Sequence[str],
        axis: int,
    ) -> Any:
        """Returns this replica's shard of a tensor that is replicated along mesh axes.

        Args:
          x: the tensor.
          mesh_axes: the names of the mesh axes.
          axis: the axis of x that the mesh axes shard.
        """
        sizes = x.shape.as_list()
        sizes[axis] //= self.mesh.group_size(*mesh_axes)
        begin: list[Any] = [0] * len(sizes)
        begin[axis] = self.coordinates.index(mesh_axes, self.mesh) * sizes[axis]
        return tf.slice(x, begin, sizes)

    def _loop(self, step: LoopStep) -> Sequence[Any]:
        """Returns the results of a loop. XLA keeps no control dependencies: a pipeline gets its
        initial values from a barrier behind what it waits for.
        """
        if step.is_pipeline and step.waits_for:
            awaited = [self.values[value] for value in step.waits_for]
            initial_values = [self.values[value] for value in step.initial_values]
            delayed = optimization_barrier([*initial_values, *awaited])
            self.values.update(zip(step.initial_values, delayed))
        return run_loop(self, step)

    def empty_after(self, array: Any, num_entries: int, value: Value, x: Any) -> Any:
        """Returns an empty tf.TensorArray for shards of a value, made after x is computed. XLA
        would make those of several loops in one kernel, which holds their memory from the first
        loop on: of the gradients of an encoder during the backward pass of the decoder.
        """
        sizes, dtype = local_shape_and_dtype(value, self.mesh)
        zero, _ = optimization_barrier([tf.zeros([], dtype), x])
        return array.unstack(tf.broadcast_to(zero, [num_entries, *sizes]))

    def _gather_statistics(self, step: GatherStatisticsStep) -> tuple[Any, ...]:
        groups = self.mesh.groups(*step.axes)
        return tuple(
            stablehlo_collectives.stack(x, groups) for x in self.values[step.src]
        )

    def _exchange_window(self, step: WindowStep) -> Any:
        assert step.src.spec is not None
        return exchange(
            self.values[step.src],
            axis=step.src.spec.shape.index(step.dim),
            window=step.window,
            size=step.factor_size,
            input_size=step.src.spec.shape[step.dim],
            fill=step.window.fill,
            shard_index=self.coordinates.index(step.axes, self.mesh),
            groups=self.mesh.groups(*step.axes),
        )


Replica.table[LoopStep] = lambda executor, step: executor._loop(step)
Replica.table[TakeHalfStep] = take_half
Replica.table[JoinHalvesStep] = join_halves
Replica.table[BarrierStep] = put_behind_barrier


def _in_row_major_order(x: Any) -> Any:
    """Returns x, which XLA stores in row-major order. For the gather of another dimension than the
    first it would prefer another order, and copy the whole stack that a loop takes x from (not on
    CPUs, which have one order).
    """
    flat = optimization_barrier([tf.reshape(x, [-1])])[0]
    return tf.reshape(flat, x.shape)


def _coordinates(mesh: Mesh) -> dict[str, Any]:
    """Returns the coordinate of this replica along each mesh axis, as scalar tensors."""
    # Replica ids are in row-major order of the coordinates: the last axis varies fastest.
    remaining = replica_id()
    coordinates = {}
    for axis, size in reversed(mesh.axes.items()):
        coordinates[axis] = remaining % size
        remaining = remaining // size
    return coordinates
