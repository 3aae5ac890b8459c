"""Runs a program on a single device, as ops of a graph that TensorFlow can run without
meshtf.

    # While a tf.function is traced; w and x are stores, objects that the program reads from:
    results = SingleDevice(program, {w: variable, x: tensor}).run()

All tensors are unsharded, so there is no communication, and no op names a device. A program
is for a mesh; here it has one position, which is one virtual device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import GradientBarrier, RowsWriteOp, ShardedValue, Store
from meshtf.graph.tensor import tensor_of_value
from meshtf.partition import Compute, Program, WriteStep
from meshtf.runtime.devices.names import LOCAL_CPU
from meshtf.runtime.eager import export
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.single_replica import SingleReplica
from meshtf.runtime.storage.argument_storage import ArrayStore
from meshtf.runtime.variable import Variable


class SingleDevice(SingleReplica):
    """Runs a program of a mesh with one position, on the device that TensorFlow chooses.

    Args:
      program: the program to run.
      values: the unsharded value of each store that the program reads, except of kind
        "number": a tf.Variable, a tensor or an array.

    Attributes:
      store_values: the value of each store; those of variables that the program has written
        are tensors.
    """

    def __init__(self, program: Program, values: Mapping[Store, Any]) -> None:
        no_axes = MeshCoordinates({})  # the coordinates of the only position
        super().__init__(program, no_axes, jit=False)
        self.store_values = dict(values)

    def _read(self, store: Store) -> Any:
        """Returns the value of a store as a tensor; the base class calls it for each read."""
        if store.kind == "number":
            (value,) = store.read()  # a tensor for each position of the mesh
            return value
        return tf.convert_to_tensor(self.store_values[store])

    def _write(self, step: WriteStep) -> Sequence[Any]:
        """Computes the new values of variables, which later reads see; assigns nothing."""
        inputs = [self.values[value] for value in step.values]
        if isinstance(step.write_op, RowsWriteOp):
            inputs.append(tf.constant(0, tf.int64))  # the first row: there is one shard
        before = [self._read(store) for store in step.variables]
        results = step.write_op.new_values(*inputs, *before)
        num_outputs = len(step.outs)
        self.store_values.update(zip(step.variables, results[num_outputs:]))
        return results[:num_outputs]

    def _compute(self, step: Compute) -> Sequence[Any]:
        """Returns the outputs of an op. Gradients are TensorFlow's, which knows no barriers of
        ours.
        """
        outputs = super()._compute(step)
        if isinstance(step.node.op, GradientBarrier):
            return [tf.stop_gradient(y) for y in outputs]
        return outputs


def unsharded_value(store: Store) -> Any:
    """Returns the unsharded value of a store on any mesh: a tf.Variable if the store is a
    variable, otherwise an array.
    """
    if isinstance(store, ArrayStore):
        return store.array.numpy()
    with tf.device(LOCAL_CPU):
        if not isinstance(store, Variable):
            assert store.mesh is not None
            shards = ShardedValue(store.placement, store.read())
            tensor = tensor_of_value(store.spec, shards, store.mesh)
            return export(tensor).numpy()
        # Pairs of a region, the elements of a shard, and the slot that stores the shard.
        regions = store.regions()
        if len(regions) == 1:
            # Replicated. The value may share the slot's memory, which saves a copy.
            ((_region, slot),) = regions
            value = slot.value_on(LOCAL_CPU)
        else:
            value = store.numpy()
        return tf.Variable(value, trainable=store.trainable, name=store.name)
