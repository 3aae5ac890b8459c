"""Prints and assertions in a graph: operations that are read although no result needs them."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from meshtf.errors import explain_error
from meshtf.tensorflow_import.graph.patterns.row_division import divides_rows
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.graph.refusals import readable

EFFECTS = ("Assert", "CheckNumerics", "Print", "PrintV2")
# Of the branch in which TensorFlow puts an assertion that is false.
_OF_ASSERTIONS = {"Assert", "Const", "Identity", "NoOp"}

# An assertion shows larger tensors by their shapes: to show them would gather them in each step.
_SHOWN = 64


class Effects:
    """The prints and assertions of a function."""

    def __init__(self, keep: bool) -> None:
        """Starts with a function.

        Args:
            keep: Whether prints and assertions outside of loops and branches run. Others are
                left out, with a warning.
        """
        # By identity of a text, the node that makes it.
        self._formats: dict[int, Node] = {}
        self._keep = keep
        self._left_out: list[str] = []

    @contextlib.contextmanager
    def within_body(self) -> Iterator[None]:
        """Within, the body of a loop or branch is read, where nothing can have an effect."""
        before, self._keep = self._keep, False
        try:
            yield
        finally:
            self._keep = before

    def note_text(self, node: Node) -> None:
        """Notes a node, if it makes a text of tensors: what a print shows."""
        if node.kind == "StringFormat":
            self._formats[id(node.outputs[0])] = node

    def read(self, node: Node) -> list[Node]:
        """Returns what is to run of a print or assertion; nothing if it is left out. Its inputs
        are tensors of numbers, and its attribute "shown" has texts, and these inputs.
        """
        condition: list[Value] = []
        shown: list[Value | str] = []
        attributes, values = node.attributes, node.inputs
        if node.kind == "Assert":
            condition, values = values[:1], values[1:]
            if condition[0].constant:
                return []
        elif node.kind == "PrintV2" and id(values[0]) in self._formats:
            text = self._formats[id(values[0])]
            attributes, values = attributes | text.attributes, text.inputs
        is_known = all(v.dtype != tf.string or v.constant is not None for v in values)
        is_of_version_1 = node.kind == "Print"
        if is_of_version_1 or not is_known or not self._keep:
            self.leave_out(node)
            return []
        shown = [_shown(v, node.kind) for v in values]
        inputs = [*condition, *(v for v in shown if isinstance(v, Value))]
        attributes = {**attributes, "shown": shown}
        return [Node(node.kind, inputs, [], attributes, _path(node))]

    def leave_out(self, node: Node) -> None:
        """Notes a print or assertion that does not run."""
        self._left_out.append(f"{node.kind} at {_path(node)}")

    def warn(self) -> None:
        """Warns of what was left out."""
        if self._left_out:
            warnings.warn(
                explain_error(
                    "prints and assertions of this TensorFlow function do not run on the mesh: "
                    "those of a Keras step do, outside of loops and branches.",
                    operations="\n".join(dict.fromkeys(self._left_out)),
                    way_out="Use a callback of Keras, or look at what the function returns; "
                    "with mtf.check_numerics() finds the operation that makes NaN.",
                ),
                stacklevel=2,
            )


def _path(node: Node) -> str:
    """Returns where a print or assertion is, without the branch around it."""
    return readable(node.path).partition("/AssertGuard/")[0]


def _shown(value: Value, kind: str) -> Value | str:
    """Returns what is shown of an operand: itself, or a text."""
    if value.dtype == tf.string:
        return b" ".join(np.ravel(value.constant)).decode()
    if kind == "Assert" and math.prod(value.shape) > _SHOWN:
        return f"{value.dtype.name} of shape {value.shape}"
    return value


def takes_second_body(
    node: Node, nodes: Sequence[Node], kinds_of: Callable[[str], set[str]]
) -> bool:
    """Whether a branch is read as its second body, whatever its first operand is.

    Args:
        node: The node.
        nodes: Those before it.
        kinds_of: Returns the kinds of operations of a function.
    """
    return is_assertion(node, kinds_of) or divides_rows(node, nodes, kinds_of)


def is_assertion(node: Node, kinds_of: Callable[[str], set[str]]) -> bool:
    """Whether a branch only asserts: its second body, which runs if the first operand is false.

    Args:
        node: The node.
        kinds_of: Returns the kinds of operations of a function.
    """
    if "else_branch" not in node.attributes:
        return False
    then_kinds, else_kinds = (
        kinds_of(node.attributes[k].name) for k in ("then_branch", "else_branch")
    )
    return "Assert" in else_kinds and else_kinds | then_kinds <= _OF_ASSERTIONS


def computable(
    nodes: list[Node], effects: Effects, is_refused: Callable[[Node], bool]
) -> list[Node]:
    """Returns nodes without the prints and assertions of what no mesh can compute."""
    unknown: set[int] = set()
    remaining = []
    for node in nodes:
        inner = [each for body in node.bodies.values() for each in body.nodes]
        depends = any(id(v) in unknown for v in node.inputs)
        if depends and node.kind in EFFECTS:
            effects.leave_out(node)
            continue
        if depends or is_refused(node) or any(map(is_refused, inner)):
            unknown.update(id(v) for v in node.outputs)
        remaining.append(node)
    return remaining
