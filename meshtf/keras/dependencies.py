"""What a tensor of a graph depends on, as far as gradients flow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.tensorflow_import.graph.program import Mark
from meshtf.tensorflow_import.graph.recompute_grad import first_recomputed

_BARRIERS = ("StopGradient", "PreventGradient", "ZerosLike", "OnesLike")
_PASS_ON = ("Identity", "Cast", "ReadVariableOp")


@dataclasses.dataclass
class Uses:
    """How a loss uses a variable.

    Attributes:
        rows: Reads of some rows: what was read, and the ids.
        other_uses: How many other operations use it.
    """

    rows: list[tuple[tf.Tensor, tf.Tensor]]
    other_uses: int = 0


class Dependencies:
    """The operations of a graph that a loss depends on."""

    def __init__(self, loss: tf.Tensor, marks: Sequence[Mark]) -> None:
        """Walks from a loss back.

        Args:
            loss: The loss.
            marks: Gradients that were marked before: they depend on their loss.
        """
        self._loss = loss
        self._tensors: set[Any] = set()
        self._operations: set[str] = set()
        losses = {
            gradient.ref(): [mark.loss, *(x for x in mark.sources if _is_tensor(x))]
            for mark in marks
            for gradient in mark.gradients
        }
        stack = [loss]
        while stack:
            tensor = stack.pop()
            if tensor.ref() in self._tensors:
                continue
            self._tensors.add(tensor.ref())
            stack += losses.get(tensor.ref(), ())
            operation = tensor.op
            if operation.type in _BARRIERS or operation.name in self._operations:
                continue
            self._operations.add(operation.name)
            stack += [x for x in operation.inputs if _has_gradient(x)]

    def of_tensor(self, tensor: tf.Tensor) -> bool:
        """Whether the loss depends on a tensor."""
        return tensor.ref() in self._tensors

    def uses_of(self, variable: Any) -> Uses:
        """Returns how the loss uses a variable."""
        uses = Uses([])
        read = variable.value if hasattr(variable, "path") else variable
        probe = read.read_value()
        while probe.op.type != "ReadVariableOp":
            probe = probe.op.inputs[0]
        self._add_uses(uses, probe.op.inputs[0])
        return uses

    def _add_uses(self, uses: Uses, tensor: tf.Tensor) -> None:
        uses.other_uses += tensor is self._loss
        for operation in tensor.consumers():
            if operation.name not in self._operations:
                continue
            if operation.type in _PASS_ON:
                self._add_uses(uses, operation.outputs[0])
            elif operation.type == "IdentityN" and first_recomputed(operation):
                # Variables are among the arguments of a function that is computed again.
                for x, y in zip(operation.inputs, operation.outputs):
                    if x is tensor:
                        self._add_uses(uses, y)
            elif _reads_rows(operation, tensor):
                uses.rows.append((operation.outputs[0], operation.inputs[1]))
            else:
                uses.other_uses += 1


def _is_tensor(x: Any) -> bool:
    return isinstance(x, tf.Tensor)


def _has_gradient(tensor: tf.Tensor) -> bool:
    """Whether gradients may flow to a tensor: through resources to variables."""
    dtype = tensor.dtype
    return dtype.is_floating or dtype.is_complex or dtype in (tf.resource, tf.variant)


def _reads_rows(operation: tf.Operation, table: tf.Tensor) -> bool:
    """Whether an operation gathers rows, so that TensorFlow's gradient is one of rows."""
    if operation.type not in ("GatherV2", "ResourceGather"):
        return False
    if operation.get_attr("batch_dims") or operation.inputs[0] is not table:
        return False
    if operation.type == "ResourceGather":
        return True
    return tf.get_static_value(operation.inputs[2]) == 0
