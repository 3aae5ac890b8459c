"""Runs ops that write variables, on one device: by a fused in-place kernel if the op has
one, otherwise by assigning the values that it computes.

    outputs = write(op, [slot.variable for slot in slots], inputs, num_outputs=1)

A slot is the storage of one shard of a variable on one device, here a tf.Variable. Ops get
its resource handle and tensors, never a tf.Variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import RowsWriteOp, Store, WriteOp
from meshtf.mesh import Mesh
from meshtf.mesh.shard_sizes import start_of_shard
from meshtf.runtime.tf_internals.switches import private
from meshtf.runtime.tf_internals.variable_handles import temporary_handle


class ShardVariable(NamedTuple):
    """A shard of a variable within a traced function, with the members of tf.Variable
    that `write` uses.

    Attributes:
      handle: the resource handle of the shard's tf.Variable.
      shape: the shape of the shard.
      dtype: the data type of the shard.
    """

    handle: Any
    shape: tf.TensorShape
    dtype: tf.DType

    def value(self) -> Any:
        """Returns the current value."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        # A handle that is the argument of a function has no shape.
        value.set_shape(self.shape)
        return value

    def assign(self, value: Any, read_value: bool = False) -> None:
        """Assigns a new value. `read_value`, as tf.Variable has it, must be False: there is
        no tensor to return.
        """
        assert not read_value
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


def write(
    op: WriteOp,
    variables: Sequence[Any],
    inputs: Sequence[Any],
    num_outputs: int,
    compiled: bool = False,
) -> Sequence[Any]:
    """Writes the shards of an op's variables on one device, and returns its outputs.

    Args:
      op: the op.
      variables: the shards: tf.Variables or `ShardVariable`s.
      inputs: the shards of the op's inputs.
      num_outputs: the number of the op's outputs. The op updates them like variables: the
        last `num_outputs` inputs are their initial values.
      compiled: whether XLA compiles the op. It does not support temporary resources, handles
        of variables that exist during the call, in which a fused op may compute outputs.
    """
    if compiled and isinstance(op, RowsWriteOp):
        return _write_new_values(op, variables, inputs, num_outputs)
    handles = [variable.handle for variable in variables]
    # `private`: whether this TensorFlow has the internal function that creates handles.
    temporaries = not compiled and private("bare_handles")
    if num_outputs and (tf.executing_eagerly() or not temporaries):
        # Creating a temporary resource eagerly takes longer than a fused op saves.
        return _write_new_values(op, variables, inputs, num_outputs)
    num_read_only = len(inputs) - num_outputs
    initial_outputs = inputs[num_read_only:]
    with contextlib.ExitStack() as stack:
        output_handles = [
            stack.enter_context(temporary_handle(x)) for x in initial_outputs
        ]
        written_handles = [*output_handles, *handles]
        if op.write_in_place(written_handles, *inputs[:num_read_only]):
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=x.dtype)
                for handle, x in zip(output_handles, initial_outputs)
            ]
    return _write_new_values(op, variables, inputs, num_outputs)


def first_row(store: Store, mesh: Mesh, coordinates: Mapping[str, Any]) -> Any:
    """Returns the index of the first entry of a shard of a variable along its first dimension:
    the last input of a `RowsWriteOp`.

    Args:
      store: the variable.
      mesh: the mesh.
      coordinates: by mesh axis, the coordinate of the shard: an integer, or a scalar tensor.
    """
    dim = store.spec.shape.names[0]
    axes = store.placement.axes_of(dim)
    axis_sizes = [mesh.axes[axis] for axis in axes]
    coordinates_of_shard = [coordinates[axis] for axis in axes]
    return start_of_shard(store.spec.shape[dim], axis_sizes, coordinates_of_shard)


def _write_new_values(
    op: WriteOp,
    variables: Sequence[Any],
    inputs: Sequence[Any],
    num_outputs: int,
) -> Sequence[Any]:
    """Computes new values, assigns them, and returns the outputs of the op."""
    current_values = [variable.value() for variable in variables]
    # The outputs of the op, followed by the new values of the variables.
    new_values = op.new_values(*inputs, *current_values)
    for variable, value in zip(variables, new_values[num_outputs:], strict=True):
        variable.assign(value, read_value=False)
    return new_values[:num_outputs]
