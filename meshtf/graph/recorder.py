"""Recording: the nodes that a function makes, in order.

Example:

    graph = Graph(mesh)
    with executing(graph):
      loss = model(x)
    graph.nodes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.graph.layout_check import check_layout
from meshtf.graph.op import Op
from meshtf.graph.tensor import Node, Tensor
from meshtf.mesh import Mesh


class Group:
    """Nodes that are computed again for the backward pass."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []


@dataclasses.dataclass(eq=False)
class Rule:
    """A gradient of a user's own: that of `outputs` by `inputs`, whatever lies between
    them.
    """

    inputs: tuple[Tensor, ...]
    captures: tuple[
        Tensor, ...
    ]  # what the outputs depend on besides: it gets no gradient
    outputs: tuple[Tensor, ...]
    beside: tuple[Tensor, ...]  # what was made on the way, which the gradient may need
    gradient: Callable[
        [Sequence[Any]], Sequence[Any]
    ]  # cotangents of outputs -> of inputs


class Graph:
    """The nodes of a traced function; an executor that runs nothing."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh
        self.nodes: list[Node] = []
        self._reads: dict[Any, Node] = {}

    def find(self, op: Op) -> Node | None:
        """Returns an earlier read of the same variable that no write came after."""
        return self._reads.get(op.stores[0])

    def continue_after(self, nodes: Sequence[Node]) -> None:
        """Takes nodes, of which none writes, for all that was recorded so far."""
        self.nodes[:] = nodes
        self._reads = {n.op.stores[0]: n for n in nodes if n.op.effect == "read"}

    def run(self, node: Node) -> None:
        """Records a node."""
        if self.mesh is None and node.mesh is not None:
            self.mesh = node.mesh
            self.settle_mesh()
        if node.op.effect == "read":
            self._reads[node.op.stores[0]] = node
        elif node.op.effect == "write":
            for store in node.op.stores:
                self._reads.pop(store, None)
        self.nodes.append(node)

    def settle_mesh(self) -> None:
        """Gives nodes that were made before the mesh was known their mesh. Raises
        LayoutError.
        """
        assert self.mesh is not None
        for node in self.nodes:
            for store in node.op.stores if node.op.effect == "read" else ():
                if store.mesh is None:
                    store.mesh = self.mesh
                    _ = (
                        store.placement
                    )  # refuses an argument that the layout cannot hold
            if node.mesh is None:
                node.mesh = self.mesh
                if not node.primals:
                    check_layout(
                        [y.spec for y in node.outputs],
                        self.mesh,
                        node.layout,
                        node.source,
                    )
