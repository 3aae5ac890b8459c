"""Runs a program on a single device, as ops of a graph that TensorFlow can run without
meshtf.

    # While a tf.function is traced:
    results = SingleDevice(program, {w: variable, x: tensor}).run()

All tensors are unsharded, so there is no communication, and no op names a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from meshtf.graph import ShardedValue, Store
from meshtf.graph.tensor import tensor_of_value
from meshtf.partition import Program
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
    """

    def __init__(self, program: Program, values: Mapping[Store, Any]) -> None:
        super().__init__(program, MeshCoordinates({}), jit=False)
        self.store_values = values

    def _read(self, store: Store) -> Any:
        if store.kind == "number":
            return store.read()[0]
        return tf.convert_to_tensor(self.store_values[store])


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
            return export(tensor_of_value(store.spec, shards, store.mesh)).numpy()
        regions = store.regions()
        if len(regions) == 1:
            _, slot = regions[0]
            value = slot.value_on(LOCAL_CPU)  # may share the variable's memory
        else:
            value = store.numpy()
        return tf.Variable(value, trainable=store.trainable, name=store.name)
