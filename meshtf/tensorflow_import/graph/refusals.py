"""What no program of tensors on a mesh can do: strings, tables, files, sizes that depend on
values. All such operations of a function are listed in one error.
"""

from __future__ import annotations

import re

import tensorflow as tf

from meshtf.errors import ArgumentError, explain_error
from meshtf.tensorflow_import.graph.infer import is_known
from meshtf.tensorflow_import.graph.program import Node, Program

_STRINGS = "strings have no place on a mesh"
_RESOURCE = "it uses a table or another resource that is no variable"
_STATE = "it has a state, or runs Python, which a mesh does not"
_CANDIDATES = (
    "it draws by a state, which a mesh does not have; give the loss candidates of your own, "
    "by tf.random.uniform: sampled_values=(ids, expected counts of labels and of ids)"
)
_ACCIDENTAL_HITS = (
    "its size depends on values; give the loss remove_accidental_hits=False"
)
_SIZE = "the size of its result depends on values, and sizes on a mesh are fixed"
_LOOP_GRADIENT = (
    "it belongs to the gradient of a loop as TensorFlow takes it, in a branch, a loop, a "
    "tf.function with a signature or tf.gradients; open the tape in train_step itself, "
    "where it is meshtf's"
)
# Only such gradients have lists that grow, and ask for the shape of a variable.
_OF_LOOP_GRADIENTS = (
    "EmptyTensorList",
    "TensorListPopBack",
    "TensorListPushBack",
    "VariableShape",
)
_WAY_OUT = (
    "Do this before the function, in the dataset or on the host, and pass it the result: "
    "docs/learn/keras.md#what-is-refused. For sizes, mask or pad instead of selecting."
)


class Refusals:
    """The operations of a function that cannot run on a mesh."""

    def __init__(self) -> None:
        self._effects: list[str] = []
        self._reasons: dict[int, str] = {}

    def concerns(self, node: Node) -> bool:
        """Whether a node cannot run on a mesh. It matters only if a result needs the node, or
        if it has no results.
        """
        reason = _reason(node)
        if reason is None:
            return False
        self._reasons[id(node)] = reason
        if not node.outputs:
            self._effects.append(_line(node.kind, node.path, reason))
        return True

    def concerns_resource(self, kind: str, path: str) -> None:
        """Notes a read of or write to a resource that is none of the function's variables."""
        self._effects.append(_line(kind, path, _RESOURCE))

    def concerns_later(self, kind: str, path: str) -> None:
        """Notes an operation that is created after one that reads it."""
        self._effects.append(_line(kind, path, _LOOP_GRADIENT))

    def has(self, node: Node) -> bool:
        """Whether a node that was read cannot run on a mesh."""
        return self._reason_of(node) is not None

    def _reason_of(self, node: Node) -> str | None:
        size = _SIZE if _has_unknown_size(node) else None
        return self._reasons.get(id(node), size)

    def check(self, program: Program) -> None:
        """Raises ArgumentError if a pruned program has such operations; it lists them."""
        lines = list(self._effects)
        for node in program.all_nodes():
            reason = self._reason_of(node)
            if reason is not None:
                lines.append(_line(node.kind, node.path, reason))
        if lines:
            raise ArgumentError(
                explain_error(
                    "operations of this TensorFlow function cannot run on a mesh.",
                    operations="\n".join(dict.fromkeys(lines)),
                    way_out=_WAY_OUT,
                )
            )


def _reason(node: Node) -> str | None:
    values = [*node.inputs, *node.outputs]
    if node.kind in _OF_LOOP_GRADIENTS:
        return _LOOP_GRADIENT
    if node.kind.endswith("CandidateSampler"):
        return _CANDIDATES
    if node.kind == "ComputeAccidentalHits":
        return _ACCIDENTAL_HITS
    if any(v.dtype == tf.resource for v in values):
        return _RESOURCE
    if any(v.dtype == tf.string for v in values):
        return _STRINGS
    if node.definition is None:
        return None
    if node.definition.is_stateful and not node.kind.startswith("Random"):
        return _STATE
    return None


def _has_unknown_size(node: Node) -> bool:
    """Whether a node makes a size unknown that is known in its operands."""
    return (
        not node.bodies
        and all(map(is_known, node.inputs))
        and not all(map(is_known, node.outputs))
    )


def _line(kind: str, path: str, reason: str) -> str:
    return f"{kind} at {readable(path)}: {reason}"


def readable(path: str) -> str:
    """Returns an operation's path without the calls that have no name of their own."""
    return re.sub(r"(^|/)(Stateful)?PartitionedCall(_\d+)?(?=/)", "", path).lstrip("/")
