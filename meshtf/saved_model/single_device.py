"""A program on one device alone, without meshes: what a plain TensorFlow process can
run.

    Alone(program, {w: variable, x: tensor}).run()       # while a tf.function is traced

All is whole, so nothing moves, and no device is named.
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


class Alone(SingleReplica):
    """Carries out a program for one position, on whatever device TensorFlow chooses.

    Args:
      program: what to run; its mesh has one position.
      given: the whole of each store, but of numbers: a tf.Variable, tensor or array.
    """

    def __init__(self, program: Program, given: Mapping[Store, Any]) -> None:
        super().__init__(program, MeshCoordinates({}), jit=False)
        self.given = given

    def _read(self, store: Store) -> Any:
        if store.kind == "number":
            return store.read()[0]
        return tf.convert_to_tensor(self.given[store])


def whole_of(store: Store) -> Any:
    """Returns the whole of what lies on a mesh: a tf.Variable of a variable, an array
    of others.
    """
    if isinstance(store, ArrayStore):
        return store.array.numpy()
    with tf.device(LOCAL_CPU):
        if not isinstance(store, Variable):
            assert store.mesh is not None
            held = ShardedValue(store.placement, store.read())
            return export(tensor_of_value(store.spec, held, store.mesh)).numpy()
        (_, first), *others = store.regions()
        whole = (
            store.numpy() if others else first.value_on(LOCAL_CPU)
        )  # which shares its memory
        return tf.Variable(whole, trainable=store.trainable, name=store.name)
