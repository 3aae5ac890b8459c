"""Optimizer updates of the rows of a table that lookups have touched, and of no others.

    op = RowsUpdate(AdagradUpdate(table, accumulator, epsilon=1e-10))
    apply_all(op, rate, ids, gradients)         # ids [rows], gradients [rows, d_model]

A row is an entry of the first dimension of a variable, such as [vocab, d_model]. The rule is
that of an `OptimizerUpdate`, applied to the touched rows of the variable and of its slots. So
time and memory are in proportion to the ids, and not to the table. Each device updates the rows
of its shard: it needs all ids, and drops those of other shards, and those out of range, which
are errors of the lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import LocalTensors, RowsWriteOp, Spec, Specs, Store
from meshtf.ops.variables.optimizer_updates import OptimizerUpdate


class RowsUpdate(RowsWriteOp):
    """The update of some rows of a variable and of its slots.

    The inputs are the learning rate, and one or several pairs of ids [*lookups] and gradients
    [*lookups, *rest]. Unless the rule is linear in the gradient (`is_linear`), no id that is
    in range occurs twice.

    Attributes:
      update: the rule.
    """

    update: OptimizerUpdate

    @property
    def variables(self) -> tuple[Store, ...]:
        return self.update.variables

    @property
    def display_name(self) -> str:
        return f"{self.update.display_name} of rows"

    def output_specs(self, *xs: Spec) -> Specs:
        return ()

    def num_touched(self, *xs: Spec) -> int:
        return sum(ids.shape.size for ids in xs[1::2])

    def workspace_specs(self, *xs: Spec) -> Specs:
        # The rows that are read and written.
        return tuple(xs[2::2]) * len(self.variables)

    def new_values(self, rate: Any, *lookups_and_values: Any) -> LocalTensors:
        num_variables = len(self.variables)
        values = lookups_and_values[-num_variables:]
        num_rows = values[0].shape[0]
        ids, gradients = _joined(lookups_and_values[:-num_variables])
        is_local = (ids >= 0) & (ids < num_rows)
        # XLA drops updates whose index is out of range, and so do kernels with this policy.
        targets = tf.where(is_local, ids, num_rows)[:, None]
        if self.update.is_linear:
            (step,) = self.update.new_values(gradients, rate, tf.zeros_like(rate))
            return (_scatter(tf.raw_ops.TensorScatterAdd, values[0], targets, step),)
        rows = [tf.gather(x, tf.where(is_local, ids, 0)) for x in values]
        new_rows = self.update.new_values(gradients, rate, *rows)
        scatter_update = tf.raw_ops.TensorScatterUpdate
        return tuple(
            _scatter(scatter_update, x, targets, y) for x, y in zip(values, new_rows)
        )

    def write_in_place(self, handles: Sequence[Any], *inputs: Any) -> bool:
        rate, *lookups = inputs
        ids, gradients = _joined(lookups)
        num_rows = tf.raw_ops.VariableShape(input=handles[0], out_type=tf.int64)[0]
        local = tf.where((ids >= 0) & (ids < num_rows))[:, 0]
        ids = tf.gather(ids, local)
        gradients = tf.gather(gradients, local)
        if self.update.is_linear:
            (handle,) = handles
            (step,) = self.update.new_values(gradients, rate, tf.zeros_like(rate))
            tf.raw_ops.ResourceScatterAdd(resource=handle, indices=ids, updates=step)
        else:
            rows = [
                tf.raw_ops.ResourceGather(
                    resource=handle, indices=ids, dtype=store.spec.dtype
                )
                for handle, store in zip(handles, self.variables, strict=True)
            ]
            new_rows = self.update.new_values(gradients, rate, *rows)
            for handle, y in zip(handles, new_rows, strict=True):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=handle, indices=ids, updates=y
                )
        for handle in handles:
            # Otherwise each later read of the complete variable would be a copy.
            tf.raw_ops.DisableCopyOnRead(resource=handle)
        return True


def _joined(lookups_and_start: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the ids of all lookups, int64 [rows], relative to the first row of the shard, and
    their gradients, [rows, *rest].

    Args:
      lookups_and_start: ids [*lookups] and gradients [*lookups, *rest] in turn, then the index of
        the first row.
    """
    *lookups, start = lookups_and_start
    all_ids = []
    all_gradients = []
    for ids, gradients in zip(lookups[::2], lookups[1::2], strict=True):
        row_sizes = gradients.shape[len(ids.shape) :]
        all_ids.append(tf.reshape(tf.cast(ids, tf.int64), [-1]))
        all_gradients.append(tf.reshape(gradients, [-1, *row_sizes]))
    return tf.concat(all_ids, 0) - start, tf.concat(all_gradients, 0)


def _scatter(kernel: Any, x: Any, indices: Any, updates: Any) -> Any:
    """Returns x, with updates of the rows at indices [rows, 1] that are in range."""
    return kernel(
        tensor=x, indices=indices, updates=updates, bad_indices_policy="IGNORE"
    )
