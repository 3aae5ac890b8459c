"""The dimensions and layout rules that programs use: see `LayoutUse`.

layout_use(graph.nodes).unmatched_rules(mesh)      # of one program
recorded_layout_use(mesh).unmatched_rules(mesh)    # of all earlier programs of a mesh
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

from meshtf.graph.op_kinds import ControlFlowOp, ReadOp, Store, WriteOp
from meshtf.graph.tensor import Node
from meshtf.mesh import LayoutUse, Mesh, Sharded
from meshtf.mesh.layout_use import Rule

# By mesh. It has names only, so it keeps no mesh alive, and its size is bounded by the
# number of names in the user's code.
_recorded: weakref.WeakKeyDictionary[Mesh, LayoutUse] = weakref.WeakKeyDictionary()


def layout_use(nodes: Iterable[Node]) -> LayoutUse:
    """Returns the dimensions and rules of nodes and of the bodies that they run."""
    dims: set[str] = set()
    rules: set[Rule] = set()
    for node in _with_bodies(nodes, set()):
        rules.update((name, axes) for name, axes in node.region.items() if axes)
        if not node.primals:  # names of gradients are those of forward tensors
            dims.update(name for y in node.outputs for name in y.shape.names)
        for store in _stores(node):
            dims.update(store.spec.shape.names)
            if store.mesh is node.mesh and store.kind in ("parameter", "state"):
                rules.update(_rules_of(store))
    # Loops and gradients make names that begin with ".", which no rule can have.
    user_dims = frozenset(name for name in dims if not name.startswith("."))
    return LayoutUse(user_dims, frozenset(rules))


def record_layout_use(mesh: Mesh, use: LayoutUse) -> None:
    """Adds the use of a program to `recorded_layout_use(mesh)`."""
    total = recorded_layout_use(mesh)
    if not use <= total:
        _recorded[mesh] = total | use


def recorded_layout_use(mesh: Mesh) -> LayoutUse:
    """Returns the dimensions and rules of all ops, variables and programs on a mesh so
    far.
    """
    return _recorded.get(mesh, _NO_USE)


_NO_USE = LayoutUse()


def _with_bodies(nodes: Iterable[Node], seen: set[int]) -> Iterator[Node]:
    """Yields nodes, and the nodes of bodies that they run, each body once."""
    for node in nodes:
        yield node
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                if id(body) not in seen:
                    seen.add(id(body))
                    yield from _with_bodies(body.nodes, seen)


def _stores(node: Node) -> Sequence[Store]:
    """Returns the variables or arguments that a node reads or writes."""
    if isinstance(node.op, ReadOp):
        return (node.op.store,)
    if isinstance(node.op, WriteOp):
        return node.op.variables
    return ()


def _rules_of(store: Store) -> Iterator[Rule]:
    """Yields the rules that shard a variable."""
    assert store.mesh is not None
    for axis, state in zip(store.mesh.axes, store.placement, strict=True):
        if isinstance(state, Sharded):
            yield state.dim, (axis,)
