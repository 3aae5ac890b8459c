"""Names of TensorFlow ops: the module path and the op of the node that they compute (a node
is an op with its inputs in the graph).

    scope_of(node)            # "stack/block_3/feed_forward/einsum"
    shared_scope_of(node)     # "stack/block_N/feed_forward/einsum"
    common_path(nodes)        # "stack/block_3"

    step_scope(step)          # "move/all_reduce/model/stack/block_3/attention/einsum/"

Profilers and traces show these names. Equal segments (sequences of ops without
communication), such as those of equal blocks, share one traced function, so names in the
function have N for the index of a block. The TensorFlow op that calls the function has the
index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from meshtf.graph import Node
from meshtf.partition import Step

_INDEX = re.compile(r"_\d+(?=/|$)")  # the index of a block in a module path
_NOT_ALLOWED = re.compile(r"[^\w./-]")  # characters that TensorFlow refuses in names


def scope_of(node: Node) -> str:
    """Returns the module path and the op of a node, such as "stack/block_3/einsum". An op of
    the backward pass has the path of the forward op, after "gradients/".
    """
    gradients = ("gradients",) if node.primals else ()
    return as_scope("/".join((*gradients, *node.path, node.op.display_name)))


def shared_scope_of(node: Node) -> str:
    """Returns `scope_of(node)` with N for indices in the path."""
    return _INDEX.sub("_N", scope_of(node))


def common_path(nodes: Iterable[Node]) -> str:
    """Returns the longest module path that is a prefix of the paths of all nodes; "" if
    there is none.
    """
    paths = set()
    for node in nodes:
        *path, _name = scope_of(node).split("/")
        paths.add(tuple(path))
    return "/".join(os.path.commonprefix(sorted(paths)))


def step_scope(step: Step) -> str:
    """Returns the name scope of a step's TensorFlow ops, for profilers and counts of
    bytes: a collective, its mesh axis, and the module and op that need the result.
    """
    origin = "" if step.node is None else f"{scope_of(step.node)}/"
    collective = step.collective
    if collective is not None:
        return f"move/{collective.kind}/{'.'.join(collective.axes)}/{origin}"
    if step.call is not None:
        op = step.call.op
        return f"call/{op.display_name}.{op.call_id.microbatch}/"
    if step.bodies:
        return origin
    return "load/" if step.reads else "put/"


def as_scope(name: str) -> str:
    """Returns a name that TensorFlow accepts as a scope."""
    name = _NOT_ALLOWED.sub("_", name)
    return name if name[:1].isalnum() else f"op{name}"
