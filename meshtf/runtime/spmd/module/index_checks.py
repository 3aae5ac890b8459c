"""Checks that indices are in range, such as the ids of a gather, in a compiled module. XLA's
ops cannot raise errors, so a check that fails leaves a record in an output of the module,
which the host reads after the run.

    checks = IndexChecks()
    ...                                  # ops call checks.add(node, is_valid, ids, "[0, 8)")
    checks.reduce(mesh)                  # the record of the first failure on any replica
    checks.failure(record)               # on the host: the error, or None

The record is a pair of integers [check, index]: the number of the first check that failed, and
the largest of its indices that are errors. It is a tf.Variable, so checks may also be in
loops and branches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.graph import Node, Spec
from meshtf.mesh import Mesh
from meshtf.names import Shape
from meshtf.runtime.lowering.op_errors import with_line
from meshtf.runtime.spmd.module import stablehlo_collectives

RECORD_SPEC = Spec(Shape("record:2"), "int64")
_LARGEST = np.iinfo(np.int64).max
NO_FAILURE = np.array([_LARGEST, 0])  # the record while no check has failed


class _Check(NamedTuple):
    """A check of the indices of one op.

    Attributes:
      node: the node that uses the indices.
      interval: the indices that it takes, in words.
    """

    node: Node
    interval: str


class IndexChecks:
    """The checks of one module, in the order in which its ops are traced.

    Attributes:
      record: the variable with the record; the module has it as an input and output if
        there is a check.
    """

    def __init__(self) -> None:
        self.record = tf.Variable(NO_FAILURE, dtype=tf.int64)
        self._checks: list[_Check] = []

    def __len__(self) -> int:
        return len(self._checks)

    def add(self, node: Node, is_valid: Any, ids: Any, interval: str) -> None:
        """Adds the ops of a check to the module.

        Args:
          node: the node that uses the indices.
          is_valid: a boolean tensor that is false for indices that are errors.
          ids: the indices, of the same shape.
          interval: the indices that the node takes, in words.
        """
        check_index = tf.constant(len(self._checks), tf.int64)
        self._checks.append(_Check(node, interval))
        record = self.record.read_value()
        fails_first = ~tf.reduce_all(is_valid) & (check_index < record[0])
        smallest = tf.constant(-_LARGEST, tf.int64)
        wrong_ids = tf.where(is_valid, smallest, tf.cast(ids, tf.int64))
        failure = tf.stack([check_index, tf.reduce_max(wrong_ids)])
        self.record.assign(tf.where(fails_first, failure, record))

    def reduce(self, mesh: Mesh) -> None:
        """Makes the record that of the first check that failed on any replica."""
        if not self._checks or mesh.size == 1:
            return
        groups = mesh.groups(*mesh.axes)
        records = stablehlo_collectives.stack(self.record.read_value(), groups)
        self.record.assign(tf.gather(records, tf.argmin(records[:, 0])))

    def failure(
        self, record: np.ndarray, consequence: str = ""
    ) -> tf.errors.OpError | None:
        """Returns the error of the check that failed first; None: none failed.

        Args:
          record: the value of the record after a run.
          consequence: a sentence about the state after the run.
        """
        check_index, index = record.tolist()
        if check_index == _LARGEST:
            return None
        node, interval = self._checks[check_index]
        message = f"the index {index} is not in {interval}"
        error = tf.errors.InvalidArgumentError(node_def=None, op=None, message=message)
        return with_line(node, error, consequence)
