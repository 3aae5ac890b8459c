"""Ops that write variables, on one device: fused and in place where an op can, else by
the values that it returns.

    outputs = write(op, [slot.variable for slot in slots], inputs)

An op sees resource handles and tensors, never a tf.Variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import WriteOp
from meshtf.runtime.tf_internals.switches import private
from meshtf.runtime.tf_internals.variable_handles import temporary_handle


class ShardVariable(NamedTuple):
    """A shard of a variable within a function: all that is asked of a tf.Variable."""

    handle: Any
    shape: tf.TensorShape
    dtype: tf.DType

    def value(self) -> Any:
        """Returns the present value."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
        value.set_shape(self.shape)  # a handle that is an argument knows none
        return value

    def assign(self, value: Any, read_value: bool = False) -> None:
        """Gives it a new value."""
        assert not read_value
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


def write(
    op: WriteOp,
    variables: Sequence[Any],
    inputs: Sequence[Any],
    outputs: int,
    temporaries: bool = True,
) -> Sequence[Any]:
    """Writes one device's shards of an op's variables, and returns its outputs.

    Args:
      op: the op.
      variables: what holds the shards: tf.Variables or `ShardVariable`s.
      inputs: shards of its inputs.
      outputs: how many outputs it has; the last inputs hold what these start from.
      temporaries: whether outputs may be computed in temporary resources, for a fused
        op to write: XLA has none.
    """
    handles = [variable.handle for variable in variables]
    temporaries = temporaries and private("bare_handles")
    if outputs and (tf.executing_eagerly() or not temporaries):
        # An eager temporary takes longer to make than a fused op saves.
        return _write_new_values(op, variables, inputs, outputs)
    split = len(inputs) - outputs
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(temporary_handle(x)) for x in inputs[split:]]
        if op.write_in_place([*made, *handles], *inputs[:split]):
            return [
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=x.dtype)
                for handle, x in zip(made, inputs[split:])
            ]
    return _write_new_values(op, variables, inputs, outputs)


def _write_new_values(
    op: WriteOp, variables: Sequence[Any], inputs: Sequence[Any], outputs: int
) -> Sequence[Any]:
    present = [variable.value() for variable in variables]
    values = op.new_values(*inputs, *present)
    for variable, value in zip(variables, values[outputs:], strict=True):
        variable.assign(value, read_value=False)
    return values[:outputs]
