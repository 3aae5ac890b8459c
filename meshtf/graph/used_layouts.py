"""The dimensions and layout rules that programs use: to warn of misspelt rules.

    layout_use(graph.nodes).unmatched_rules(mesh)      # of one program
    recorded_layout_use(mesh).unmatched_rules(mesh)    # of all programs of a mesh so far

Both functions return a `LayoutUse`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

from meshtf.graph.op_kinds import ControlFlowOp, ReadOp, Store, WriteOp, is_variable
from meshtf.graph.tensor import Node
from meshtf.mesh import LayoutUse, Mesh
from meshtf.mesh.layout_use import Rule

# Mesh -> what all programs so far used of its layout. A `LayoutUse` consists of names, so it
# keeps no mesh alive, and has at most as many entries as the user's code has names.
_recorded: weakref.WeakKeyDictionary[Mesh, LayoutUse] = weakref.WeakKeyDictionary()
_NO_USE = LayoutUse()


def layout_use(nodes: Iterable[Node]) -> LayoutUse:
    """Returns the dimensions and rules that nodes and the bodies within them use."""
    dims: set[str] = set()
    rules: set[Rule] = set()
    for node in _with_bodies(nodes, visited_ids=set()):
        # `region`: the layout changes around the node. One without axes removes a rule.
        rules.update((name, axes) for name, axes in node.region.items() if axes)
        # Nodes of gradient rules have primals. Their tensors have the names of forward
        # tensors, which are counted already.
        if not node.primals:
            for y in node.outputs:
                dims.update(y.shape.names)
        for store in _stores(node):
            dims.update(store.spec.shape.names)
            if store.mesh is node.mesh and is_variable(store):
                rules.update(_rules_of(store))
    # Loops and gradients make names that begin with ".", which no rule can have.
    user_dims = frozenset(name for name in dims if not name.startswith("."))
    return LayoutUse(user_dims, frozenset(rules))


def record_layout_use(mesh: Mesh, use: LayoutUse) -> None:
    """Adds the use of a program to the use of a mesh, which `recorded_layout_use` returns."""
    total = recorded_layout_use(mesh)
    adds_nothing = use <= total  # `<=`: a subset
    if not adds_nothing:
        _recorded[mesh] = total | use


def recorded_layout_use(mesh: Mesh) -> LayoutUse:
    """Returns the dimensions and rules of all ops, variables and programs on a mesh so
    far.
    """
    return _recorded.get(mesh, _NO_USE)


def _with_bodies(nodes: Iterable[Node], visited_ids: set[int]) -> Iterator[Node]:
    """Yields nodes, and the nodes of the bodies within them.

    Args:
      nodes: the nodes.
      visited_ids: the ids of bodies that were visited, extended here; each body is visited once.
    """
    for node in nodes:
        yield node
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                if id(body) not in visited_ids:
                    visited_ids.add(id(body))
                    yield from _with_bodies(body.nodes, visited_ids)


def _stores(node: Node) -> Sequence[Store]:
    """Returns the variables or arguments that a node reads or writes."""
    if isinstance(node.op, ReadOp):
        return (node.op.store,)
    if isinstance(node.op, WriteOp):
        return node.op.variables
    return ()


def _rules_of(store: Store) -> Iterator[Rule]:
    """Yields the rules that shard a variable."""
    yield from store.placement.shards.items()
