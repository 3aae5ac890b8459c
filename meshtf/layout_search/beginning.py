"""The beginning of a recorded program: its first nodes, which a layout can be judged by.

    forward = Beginning(forward_nodes(nodes))        # up to the last loop over layers
    gradient = Beginning(nodes_before_updates(nodes))
    program = gradient.plan(mesh)                    # on another mesh than that of recording

The planner sees no later node, so the plan of a beginning is the beginning of the plan, and
its ops run at the same times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from meshtf.graph import Loop, Node, ReadOp, Store, Tensor, WriteOp
from meshtf.mesh import NO_CHANGES, Mesh, Placement
from meshtf.partition import Program, build


def nodes_before_updates(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields the nodes before the first one that writes a variable, or that has a layout of
    its own, as the gradients that an optimizer reduces.
    """
    for node in nodes:
        if isinstance(node.op, WriteOp) or node.region != NO_CHANGES:
            return
        yield node


def forward_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes of the forward pass up to its last loop; all of them if it has none.
    If gradients are computed in a loop over microbatches, this is a loop whose body is its
    forward pass, and the last node.
    """
    result: list[Node] = []
    for node in nodes_before_updates(nodes):
        if node.primals:
            break
        if isinstance(node.op, Loop) and has_gradient(node.op):
            if not node.op.num_carries and node.op.condition is None:
                return [*result, _forward_loop(node, node.op)]
            break
        result.append(node)
    loops = [i for i, node in enumerate(result) if isinstance(node.op, Loop)]
    if loops:
        result = result[: loops[-1] + 1]
    used = {x for node in result for x in node.inputs}
    return [
        _without_residuals(node, node.op, used) if isinstance(node.op, Loop) else node
        for node in result
    ]


def _without_residuals(node: Node, loop: Loop, used: Set[Tensor]) -> Node:
    """Returns a loop without the last stacked outputs that are not among `used`."""
    count = loop.num_carries + loop.num_sums
    for y in node.outputs[count:]:
        if y in used:
            count = y.index + 1
    body = dataclasses.replace(loop.body, results=loop.body.results[:count])
    op = dataclasses.replace(loop, body=body)
    return node.copy_with(op=op, outputs=node.outputs[:count])


def has_gradient(loop: Loop) -> bool:
    """Returns whether the body of a loop computes a gradient, as that over microbatches."""
    return any(node.primals for node in loop.body.nodes)


def _forward_loop(node: Node, loop: Loop) -> Node:
    """Returns a loop without carries, with the forward pass of its body, and no results."""
    nodes = tuple(forward_nodes(loop.body.nodes))
    body = dataclasses.replace(loop.body, recorded_nodes=nodes, results=())
    op = dataclasses.replace(loop, body=body, num_sums=0)
    return node.copy_with(op=op, outputs=())


class Stores:
    """The variables and arguments of a recorded program.

    Args:
      nodes: the nodes of the program.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        # Dicts as ordered sets.
        self._stores: dict[Store, None] = {}
        self._slots: dict[Store, None] = {}
        for node in nodes:
            if isinstance(node.op, ReadOp):
                self._stores[node.op.store] = None
            elif isinstance(node.op, WriteOp):
                self._stores.update(dict.fromkeys(node.op.variables))
                # An update writes a variable and its slots.
                self._slots.update(dict.fromkeys(node.op.variables[1:]))

    def are_like(self, other: Stores) -> bool:
        """Returns whether another recording of the program has equal stores."""
        return self._signature() == other._signature()

    def _signature(self) -> list[Any]:
        return [
            (
                store.kind,
                store.spec,
                store in self._slots,
                getattr(store, "changes", None),
            )
            for store in self._stores
        ]

    def placements(self, mesh: Mesh) -> dict[Store, Placement]:
        """Returns their placements on a mesh, by its layouts."""
        result = {}
        for store in self._stores:
            region = getattr(store, "changes", NO_CHANGES)
            if store in self._slots:
                layout = mesh.layout_in(region, "slot")
            elif store.kind in ("parameter", "state"):
                layout = mesh.layout_in(region, "variable")
            else:
                layout = mesh.layout
            result[store], _conflicts = mesh.place(store.spec.shape, layout)
        return result


class Beginning:
    """The first nodes of a program, to be planned on many meshes.

    Args:
      nodes: the nodes; the last one may be a loop over microbatches.
      stores: the variables and arguments that they read.

    Attributes:
      nodes: the nodes.
    """

    def __init__(self, nodes: Iterable[Node], stores: Stores) -> None:
        self.nodes = list(nodes)
        self._stores = stores

    def plan(self, mesh: Mesh) -> Program:
        """Returns the plan of the nodes on a mesh."""
        placements = self._stores.placements(mesh)
        return build(self.nodes, [], mesh, prune=False, store_placements=placements)

    def is_like(self, other: Beginning) -> bool:
        """Returns whether another recording of the program begins with the same ops."""
        return _signature(self.nodes) == _signature(other.nodes)


def _signature(nodes: Iterable[Node]) -> list[Any]:
    """Returns the ops of nodes, and of bodies within them, with the specs of their outputs."""
    result: list[Any] = []
    for node in nodes:
        result.append((type(node.op), tuple(y.spec for y in node.outputs)))
        if isinstance(node.op, Loop):
            result.extend(_signature(node.op.body.nodes))
    return result
