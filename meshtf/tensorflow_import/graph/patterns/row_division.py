"""Keras' division of some rows of a table (`tf.IndexedSlices`) by a tensor.

    tf.cond(any row of x has a zero or NaN, the rows and these, divided; the rows, divided)

So where x has zeros or NaNs, the result has more rows: as many as x has such ones. On a mesh sizes
do not depend on values, and the second branch is read: only the rows that were there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshtf.tensorflow_import.graph.infer import is_known
from meshtf.tensorflow_import.graph.program import Node

# The rows of x, and the quotient; indices may be converted.
_ROWS_DIVIDED = {"GatherV2", "RealDiv"}
_BRANCHES = ("then_branch", "else_branch")
_BESIDE = {"Cast", "Const", "Identity"}


def divides_rows(
    node: Node, nodes: Sequence[Node], kinds_of: Callable[[str], set[str]]
) -> bool:
    """Whether a node is this branch.

    Args:
        node: The node.
        nodes: Those before it.
        kinds_of: Returns the kinds of operations of a function.
    """
    if "then_branch" not in node.attributes or all(map(is_known, node.outputs)):
        return False
    extended, rows = (kinds_of(node.attributes[k].name) for k in _BRANCHES)
    if "Where" not in extended or rows - _BESIDE != _ROWS_DIVIDED:
        return False
    made_by = {id(value): maker for maker in nodes for value in maker.outputs}
    inputs = node.inputs
    for kind in ("Any", "Any", "LogicalOr"):
        maker = made_by.get(id(inputs[0]))
        if maker is None or maker.kind != kind:
            return False
        inputs = maker.inputs
    makers = [made_by[id(value)] for value in inputs if id(value) in made_by]
    tests = {maker.kind: maker.inputs for maker in makers}
    if set(tests) != {"Equal", "IsNan"}:
        return False
    x, zero = tests["Equal"]
    return x is tests["IsNan"][0] and x in node.inputs and zero.constant == 0
