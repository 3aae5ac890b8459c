"""Names of TensorFlow ops: the module path and the op of the node that they compute.

    scope_of(node)            # "stack/block_3/feed_forward/einsum"
    shared_scope_of(node)     # "stack/block_N/feed_forward/einsum"
    common_path(nodes)        # "stack/block_3"

They are what profilers and traces show. Equal segments, such as those of equal blocks,
share one traced function, so names in it have N for the index of a block; the node that
calls the function has the index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from meshtf.graph import Node

_INDEX = re.compile(r"_\d+(?=/|$)")  # of a block, in a module path
_NOT_ALLOWED = re.compile(r"[^\w./-]")  # in the names of TensorFlow ops


def scope_of(node: Node) -> str:
    """Returns the module path and the op of a node. Ops of gradients begin with
    "gradients/", since a forward op has the same path.
    """
    gradients = ("gradients",) if node.primals else ()
    return as_scope("/".join((*gradients, *node.path, node.op.display_name)))


def shared_scope_of(node: Node) -> str:
    """Returns `scope_of(node)` with N for indices in the path."""
    return _INDEX.sub("_N", scope_of(node))


def common_path(nodes: Iterable[Node]) -> str:
    """Returns the beginning that the scopes of nodes have in common; "" if none."""
    paths = []
    for node in nodes:
        *path, _ = scope_of(node).split("/")
        paths.append(path)
    return "/".join(os.path.commonprefix(paths))


def as_scope(name: str) -> str:
    """Returns a name that TensorFlow accepts as a scope."""
    name = _NOT_ALLOWED.sub("_", name)
    return name if name[:1].isalnum() else f"op{name}"
