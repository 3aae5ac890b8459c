"""`Graph`: an executor that records the nodes of a function in order, without running them.

graph = Graph(mesh)
with executing(graph):
  loss = model(x)
graph.nodes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from meshtf.graph.layout_check import check_layout
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import ReadOp, WriteOp
from meshtf.graph.tensor import Node, Tensor
from meshtf.mesh import Mesh, Placement


class RecomputeGroup:
    """The nodes of one call of `mtf.recompute`, which the backward pass recomputes.

    Attributes:
      nodes: the nodes in order; `apply` adds to them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []


@dataclasses.dataclass(frozen=True, eq=False)
class CustomGradientRule:
    """The `GradientRule` of a function with a custom gradient; see there for attributes."""

    inputs: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]
    num_results: int
    intermediates: tuple[Tensor, ...]
    gradient: Callable[[Sequence[Any]], Sequence[Any]]


def latest(node: Node) -> Node:
    """Returns the last node that replaced a node by `Graph.replace`; if there is none, the
    node itself.
    """
    replacements = getattr(node.owner, "replacements", None)
    while replacements and node in replacements:
        node = replacements[node]
    return node


class Recorded(NamedTuple):
    """A recorded function, which a runtime can compile.

    Attributes:
      nodes: the nodes, in the order in which they were recorded.
      results: the tensors that the function returns.
      mesh: the mesh that the function runs on.
      name: the name of the function, for logs and profiles.
    """

    nodes: Sequence[Node]
    results: Sequence[Tensor]
    mesh: Mesh
    name: str = "program"


class Graph:
    """The nodes of a recorded function.

    Attributes:
      mesh: the mesh of the function; None: no tensor or variable has determined it yet.
      nodes: the nodes, in the order in which they were recorded.
      replacements: replaced node -> the node in its place.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh
        self.nodes: list[Node] = []
        self.replacements: dict[Node, Node] = {}
        # Variable -> the node that read it last; removed when the variable is written.
        self._reads: dict[Any, Node] = {}

    @property
    def owner(self) -> Graph:
        """The graph that owns the recorded nodes, through which gradients may go."""
        return self

    def recorder_of(self, op: Op) -> Graph:
        """Returns the graph that records an op: this one. Subclasses may differ."""
        return self

    def replace(self, node: Node, op: Op, specs: Sequence[Spec]) -> Node:
        """Replaces a node by one with additional outputs, such as residuals of a loop.

        Args:
          node: a node of this graph.
          op: the op of the new node: computes the outputs of `node`, followed by the
            additional outputs.
          specs: the specs of the additional outputs.

        Returns:
          The new node, which `latest(node)` returns from now on.
        """
        replacement = node.extended(op, specs)
        self.replacements[node] = replacement
        if node in self.nodes:
            self.nodes[self.nodes.index(node)] = replacement
        return replacement

    def find(self, op: ReadOp) -> Node | None:
        """Returns the node that read the same variable before; None if there is none, or if
        the variable was written after the read.
        """
        return self._reads.get(op.store)

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Replaces all nodes of the graph by `nodes`, none of which writes a variable."""
        self.nodes[:] = nodes
        self._reads = {
            node.op.store: node for node in nodes if isinstance(node.op, ReadOp)
        }

    def run(self, node: Node) -> tuple[Tensor, ...]:
        """Records a node, and returns its outputs."""
        if self.mesh is None and node.mesh is not None:
            self.mesh = node.mesh
            self.settle_mesh()
        if isinstance(node.op, ReadOp):
            self._reads[node.op.store] = node
        elif isinstance(node.op, WriteOp):
            for store in node.op.variables:
                self._reads.pop(store, None)
        self.nodes.append(node)
        return node.outputs

    def settle_mesh(self) -> None:
        """Gives the mesh to arguments that were recorded before it was known, and checks all
        nodes against the mesh's layout.

        Raises:
          LayoutError: the layout cannot shard a tensor.
        """
        assert self.mesh is not None
        for node in self.nodes:
            if isinstance(node.op, ReadOp) and node.op.store.mesh is None:
                node.op.store.mesh = self.mesh
                # Raises LayoutError for an argument that the layout cannot shard.
                _ = node.op.store.placement
            # Tensors of gradient rules are not checked; see `layout_check.py`.
            if not node.primals:
                specs = [y.spec for y in node.outputs]
                check_layout(specs, self.mesh, node.layout, node.source)


class EagerStore:
    """An eager tensor as a `Store`: a recorded program reads it like an argument."""

    kind: Literal["argument"] = "argument"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.name = "a tensor"
        self.spec = tensor.spec
        self.mesh = tensor.mesh

    @property
    def placement(self) -> Placement:
        """The placement of the tensor."""
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.placement

    def read(self) -> Sequence[Any]:
        """Returns the shard of each mesh position."""
        assert self.tensor.sharded_value is not None
        return self.tensor.sharded_value.values
