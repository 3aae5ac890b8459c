"""What programs have to do with layouts: see `LayoutUse`.

layout_use(graph.nodes).unmatched_rules(mesh)      # of one program
earlier_use(mesh).unmatched_rules(mesh)            # of all that came before
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence

from meshtf.graph.op_kinds import ControlFlowOp, ReadOp, Store, WriteOp
from meshtf.graph.tensor import Node
from meshtf.mesh import LayoutUse, Mesh, Sharded
from meshtf.mesh.layout_use import Rule

# Of each mesh; names alone, so it keeps no mesh alive, and is as large as a user's
# vocabulary.
_earlier: weakref.WeakKeyDictionary[Mesh, LayoutUse] = weakref.WeakKeyDictionary()


def layout_use(nodes: Iterable[Node]) -> LayoutUse:
    """Returns what nodes, and the bodies that they run, have to do with layouts."""
    dims: set[str] = set()
    rules: set[Rule] = set()
    for node in _with_bodies(nodes, set()):
        rules.update((name, axes) for name, axes in node.region.items() if axes)
        if not node.primals:  # gradients have the names of what they are of
            dims.update(name for y in node.outputs for name in y.shape.names)
        for store in _stores(node):
            dims.update(store.spec.shape.names)
            if store.mesh is node.mesh and store.kind in ("parameter", "state"):
                rules.update(_rules_of(store))
    # No rule can have a name that begins with ".": loops and gradients make such.
    return LayoutUse(
        frozenset(name for name in dims if not name.startswith(".")), frozenset(rules)
    )


def record_layout_use(mesh: Mesh, use: LayoutUse) -> None:
    """Adds to what `recorded_layout_use` returns."""
    known = recorded_layout_use(mesh)
    if not use <= known:
        _earlier[mesh] = known | use


def recorded_layout_use(mesh: Mesh) -> LayoutUse:
    """Returns what all ops, variables and programs on a mesh so far had to do with
    layouts.
    """
    return _earlier.get(mesh, _NO_USE)


_NO_USE = LayoutUse()


def _with_bodies(nodes: Iterable[Node], seen: set[int]) -> Iterator[Node]:
    """Yields nodes and those of the bodies that they run, each body once."""
    for node in nodes:
        yield node
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                if id(body) not in seen:
                    seen.add(id(body))
                    yield from _with_bodies(body.nodes, seen)


def _stores(node: Node) -> Sequence[Store]:
    if isinstance(node.op, ReadOp):
        return (node.op.store,)
    return node.op.variables if isinstance(node.op, WriteOp) else ()


def _rules_of(store: Store) -> Iterator[Rule]:
    """Yields the rules by which a variable lies as it does."""
    assert store.mesh is not None
    for axis, state in zip(store.mesh.axes, store.placement, strict=True):
        if isinstance(state, Sharded):
            yield state.dim, (axis,)
