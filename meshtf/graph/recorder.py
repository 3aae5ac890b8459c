"""`Graph`: an executor that records the nodes of a function in order, without running them.

    graph = Graph(mesh)
    with executing(graph):
      loss = model(x)
    graph.nodes

A gradient may need an additional output of a recorded node, such as the residuals of a loop.
Then `Graph.replace` puts a node with more outputs in its place. Tensors still refer to the
former node; `latest_version(node)` returns the replacement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from meshtf.graph.layout_check import check_layout
from meshtf.graph.op import Op, Spec
from meshtf.graph.op_kinds import ReadOp, Store, WriteOp, contracted_factors
from meshtf.graph.tensor import Node, Tensor
from meshtf.mesh import Layout, Mesh, Placement


class RecomputeGroup:
    """The nodes of one call of `mtf.recompute`: the backward pass computes them again, so
    that their outputs need not be kept in memory until then.

    Args:
      in_loops: whether only the backward pass of a loop does so, and instead of storing an output
        for each iteration: for nodes that cost no more than reading what they would store.
      stored: the names of modules whose matrix products are stored all the same.

    Attributes:
      nodes: the nodes in order; `apply` adds to them.
      modules: the names of modules that have matrix products.
    """

    def __init__(self, in_loops: bool = False, stored: Collection[str] = ()) -> None:
        self.nodes: list[Node] = []
        self.in_loops = in_loops
        self.stored = frozenset(stored)
        self.modules: set[str] = set()

    def stores(self, op: Op, inputs: Sequence[Spec], path: Sequence[str]) -> bool:
        """Returns whether the outputs of an op are stored.

        Args:
          op: the op.
          inputs: the specs of its inputs.
          path: the names of the enclosing modules.
        """
        if not self.stored or not contracted_factors(op, inputs):
            return False
        self.modules.update(path)
        return not self.stored.isdisjoint(path)


@dataclasses.dataclass(frozen=True, eq=False)
class CustomGradientRule:
    """The `GradientRule` of a function with a custom gradient.

    Attributes:
      inputs: the arguments of the function, which get cotangents.
      captures: other tensors that its results depend on, which get none.
      num_results: the number of its results.
      intermediates: tensors of the forward pass that `gradient` may read.
      gradient: the function from the cotangents of the results to those of the inputs.
    """

    inputs: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]
    num_results: int
    intermediates: tuple[Tensor, ...]
    gradient: Callable[[Sequence[Any]], Sequence[Any]]


def latest_version(node: Node) -> Node:
    """Returns the node that is in the place of a node after all calls of `Graph.replace`:
    the last replacement, or the node itself.
    """
    # Nodes of eager ops, whose owner is no graph, are never replaced.
    replacements = getattr(node.owner, "replacements", None)
    while replacements and node in replacements:
        node = replacements[node]
    return node


class Recorded(NamedTuple):
    """A recorded function, which a runtime compiles and runs.

    Attributes:
      nodes: the nodes, in the order in which they were recorded.
      results: the tensors that the function returns.
      mesh: the mesh that the function runs on.
      name: the name of the function, for logs and profiles.
      stores: if the nodes were recorded on another mesh, their stores -> those of `mesh`.
      regions: likewise their layout changes -> those on `mesh`, where they are others.
    """

    nodes: Sequence[Node]
    results: Sequence[Tensor]
    mesh: Mesh
    name: str = "program"
    stores: Mapping[Store, Store] = MappingProxyType({})
    regions: Mapping[Layout, Layout] = MappingProxyType({})


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
        # Variable or argument -> the node that read it. Removed when the variable is
        # written, so that the next read has a node of its own.
        self._reads: dict[Any, Node] = {}

    @property
    def owner(self) -> Graph:
        """The executor that `Node.owner` names for the nodes recorded here: this graph. The
        gradients of a graph flow through the nodes that it owns.
        """
        return self

    def recorder_of(self, op: Op) -> Graph:
        """Returns the graph that records an op: this one, or in subclasses an outer one."""
        return self

    def replace(self, node: Node, op: Op, specs: Sequence[Spec]) -> Node:
        """Replaces a node by one with additional outputs, such as residuals of a loop.

        Args:
          node: a node of this graph.
          op: the op of the new node: computes the outputs of `node`, followed by the
            additional outputs.
          specs: the specs of the additional outputs.

        Returns:
          The new node, which `latest_version(node)` returns from now on.
        """
        replacement = node.with_extra_outputs(op, specs)
        self.replacements[node] = replacement
        if node in self.nodes:  # not if `set_nodes` has removed it meanwhile
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
            self._propagate_mesh()
        if isinstance(node.op, ReadOp):
            self._reads[node.op.store] = node
        elif isinstance(node.op, WriteOp):
            for store in node.op.variables:
                self._reads.pop(store, None)
        self.nodes.append(node)
        return node.outputs

    def _propagate_mesh(self) -> None:
        """Gives the mesh to arguments that were recorded before it was known, and checks all
        nodes against the mesh's layout.

        Raises:
          LayoutError: the layout cannot shard a tensor.
        """
        assert self.mesh is not None
        for node in self.nodes:
            if isinstance(node.op, ReadOp) and node.op.store.mesh is None:
                node.op.store.mesh = self.mesh
                # Computed for its errors only: LayoutError, if the layout cannot shard the
                # argument.
                _ = node.op.store.placement
            # Only nodes that gradient rules made have `primals`, the tensors that they are
            # gradients of; they are not checked: see `layout_check.py`.
            if not node.primals:
                specs = [y.spec for y in node.outputs]
                check_layout(specs, self.mesh, layout=node.layout, source=node.source)


class EagerStore:
    """An eager tensor as a `Store`: a recorded program reads it like an argument.

    Args:
      tensor: the eager tensor.
    """

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
