"""What targets of a tape depend on, as far as gradients flow: through what it has recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.keras.tapes.recording import Recording, variable_of
from meshtf.tensorflow_import.graph.patterns.recompute_grad import first_recomputed
from meshtf.tensorflow_import.graph.program import Mark

_BARRIERS = ("StopGradient", "PreventGradient", "ZerosLike", "OnesLike")
_PASS_ON = ("Identity", "Cast", "ReadVariableOp")


@dataclasses.dataclass
class Uses:
    """How targets use a source.

    Attributes:
        rows: Reads of some rows of a variable: what was read, and the ids.
        other_uses: How many other operations use it.
    """

    rows: list[tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(default_factory=list)
    other_uses: int = 0

    def __bool__(self) -> bool:
        return bool(self.rows) or self.other_uses > 0


class Dependencies:
    """The operations of a graph that targets depend on."""

    def __init__(
        self, targets: Sequence[Any], marks: Sequence[Mark], recording: Recording
    ) -> None:
        """Walks from targets back.

        Args:
            targets: Tensors. Those of no graph, and those that a tape has not recorded, depend
                on nothing.
            marks: Gradients that were marked before: they depend on their loss.
            recording: What the tape has recorded.
        """
        self._recording = recording
        self._recorded = recording.operations()
        self._marked = {
            gradient.ref(): [mark.loss, *(x for x in mark.sources if _is_tensor(x))]
            for mark in marks
            for gradient in mark.gradients
        }
        self._targets = [x for x in targets if self._is_of_graph(x)]
        self._tensors: dict[Any, tf.Tensor] = {}
        self._operations: set[str] = set()
        self._constants: list[tf.Tensor] = []
        for tensor in self._walk(self._targets, within_recording=True):
            self._tensors[tensor.ref()] = tensor
            if tensor.op.name in self._recorded:
                self._operations.add(tensor.op.name)
            elif tensor.op.inputs:
                self._constants.append(tensor)

    def uses_of(self, source: Any) -> Uses:
        """Returns how the targets use a variable or a tensor, if the tape watches it."""
        variable = variable_of(source)
        if variable is None:
            is_needed = self._is_of_graph(source) and source.ref() in self._tensors
            is_needed = is_needed and self._is_watched(source)
            return Uses(other_uses=int(is_needed))
        uses = Uses()
        if self._recording.watches(variable):
            self._add_uses(uses, _handle_in_graph(variable))
        return uses

    def constants_above(self, sources: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the tensors that are constants for the tape, since it did not record them,
        although they depend on sources.
        """
        used = {x.ref() for x in sources if _is_tensor(x)}
        for variable in map(variable_of, sources):
            if variable is not None:
                used.add(_handle_in_graph(variable).ref())
        return [
            constant
            for constant in self._constants
            if any(
                tensor.ref() in used
                for tensor in self._walk([constant], within_recording=False)
            )
        ]

    def _walk(
        self, start: Sequence[tf.Tensor], within_recording: bool
    ) -> Iterator[tf.Tensor]:
        """Yields tensors, and what gradients flow to from them.

        Args:
            start: The tensors.
            within_recording: Whether gradients flow through recorded operations only.
        """
        seen, stack = set(), list(start)
        while stack:
            tensor = stack.pop()
            if tensor.ref() in seen:
                continue
            seen.add(tensor.ref())
            yield tensor
            operation = tensor.op
            if within_recording and operation.name not in self._recorded:
                continue
            stack += self._marked.get(tensor.ref(), ())
            if operation.type not in _BARRIERS:
                stack += [x for x in operation.inputs if _has_gradient(x)]

    def _is_watched(self, source: tf.Tensor) -> bool:
        """Whether a tensor is watched, or computed from what is."""
        watched = self._recording.watched
        return any(
            tensor.ref() in watched or tensor.dtype == tf.resource
            for tensor in self._walk([source], within_recording=True)
        )

    def _is_of_graph(self, x: Any) -> bool:
        return getattr(x, "graph", None) is self._recording.graph

    def _add_uses(self, uses: Uses, tensor: tf.Tensor) -> None:
        uses.other_uses += any(tensor is target for target in self._targets)
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


def _handle_in_graph(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's resource in the present graph."""
    probe = variable.read_value()
    while probe.op.type != "ReadVariableOp":
        probe = probe.op.inputs[0]
    return probe.op.inputs[0]


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
