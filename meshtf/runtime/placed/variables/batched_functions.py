"""Functions that read, update or slice many shards of variables on one device.

    function = read_function(slots)
    values = function.body(shards, function.inputs)      # one `ShardVariable` for each slot

A function is traced once for all devices whose functions have equal keys. A slot stores one
shard of a variable on one device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import WriteOp
from meshtf.mesh import Mesh, Sharded
from meshtf.partition import ReshardStep
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.op_names import as_scope
from meshtf.runtime.lowering.variable_writes import ShardVariable, write
from meshtf.runtime.storage.slot import TensorFlowSlot


class Update(NamedTuple):
    """One execution of an op that writes variables, on one device.

    Attributes:
      op: the op.
      slots: the slot of each variable that the op writes.
      inputs: the tensors that the op takes.
      num_outputs: the number of outputs of the op.
    """

    op: WriteOp
    slots: list[TensorFlowSlot]
    inputs: list[Any]
    num_outputs: int


class VariableFunction(NamedTuple):
    """A function of shards of variables and of tensors.

    Attributes:
      key: a key that is equal for functions which compute the same.
      body: the function (shards, tensors) -> list of tensors.
      slots: the slots of the shards.
      inputs: the tensors.
      writes: whether the function writes the shards.
    """

    key: tuple[Any, ...]
    body: Callable[[Sequence[ShardVariable], Sequence[Any]], list[Any]]
    slots: list[TensorFlowSlot]
    inputs: list[Any]
    writes: bool


def read_function(slots: Sequence[TensorFlowSlot]) -> VariableFunction:
    """Returns the function that reads slots."""

    def read(shards: Sequence[ShardVariable], inputs: Sequence[Any]) -> list[Any]:
        del inputs  # other functions of variables take tensors too
        return [shard.value() for shard in shards]

    key = tuple((slot.shape, slot.dtype) for slot in slots)
    return VariableFunction(
        key=key, body=read, slots=list(slots), inputs=[], writes=False
    )


def update_function(updates: Sequence[Update]) -> VariableFunction:
    """Returns the function that executes updates, and returns the outputs of all ops.

    A slot that several ops write is one argument, so that TensorFlow keeps their order.
    """
    slots = list(dict.fromkeys(slot for update in updates for slot in update.slots))
    index_of = {slot: k for k, slot in enumerate(slots)}
    # For each update, the indices of its slots among all slots.
    indices_of_updates = [
        [index_of[slot] for slot in update.slots] for update in updates
    ]

    def execute(shards: Sequence[ShardVariable], inputs: Sequence[Any]) -> list[Any]:
        remaining_inputs = iter(inputs)
        outputs: list[Any] = []
        for update, slot_indices in zip(updates, indices_of_updates):
            variables = [shards[k] for k in slot_indices]
            values = [next(remaining_inputs) for _ in update.inputs]
            with _name_scope(update.op):
                outputs += write(
                    update.op, variables, values, num_outputs=update.num_outputs
                )
        return outputs

    key = tuple(
        (id(update.op), *slot_indices)
        for update, slot_indices in zip(updates, indices_of_updates)
    )
    inputs = [x for update in updates for x in update.inputs]
    return VariableFunction(
        key=key, body=execute, slots=slots, inputs=inputs, writes=True
    )


def _name_scope(op: WriteOp) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which names of TensorFlow ops start with the names of the
    variable and of the update.
    """
    if tf.executing_eagerly() or not op.variables:
        return contextlib.nullcontext()
    scope = as_scope(f"update/{op.variables[0].name}/{op.display_name}")
    return tf.name_scope(f"{scope}/")


def slice_function(
    steps: Sequence[ReshardStep], axes: Sequence[str], mesh: Mesh
) -> Callable[..., list[Any]]:
    """Returns a function that takes the mesh coordinates along `axes` and the tensors that
    `steps` slice, and returns the slice for each step.
    """

    def slice_all(*coordinates_and_tensors: Any) -> list[Any]:
        coordinates = MeshCoordinates(dict(zip(axes, coordinates_and_tensors)))
        tensors = coordinates_and_tensors[len(axes) :]
        # Slices with equal start indices share the op that computes these indices.
        starts: dict[Any, Any] = {}
        shards = []
        for step, x in zip(steps, tensors):
            # The state of x along the mesh axis, once it is sliced.
            state = step.reshard.after
            mesh_axes = step.reshard.axes
            assert isinstance(state, Sharded) and step.src.spec is not None
            axis = step.src.spec.shape.index(state.dim)
            sizes = x.shape.as_list()
            sizes[axis] //= mesh.group_size(*mesh_axes)
            # All that the start indices depend on.
            key = mesh_axes, axis, sizes[axis], len(sizes)
            if key not in starts:
                start = [0] * len(sizes)
                start[axis] = coordinates.index(mesh_axes, mesh) * sizes[axis]
                starts[key] = tf.stack(start)
            shards.append(tf.slice(x, starts[key], sizes))
        return shards

    return slice_all
