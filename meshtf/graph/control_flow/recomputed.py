"""What the backward pass of a loop computes again, so that the forward pass need not store it.

    nodes = recomputed_nodes(body, needed, available, stacked)

The backward pass of an iteration reads tensors of the forward pass, and each of them is stacked
over all iterations, unless it can be computed from others. An elementwise op reads as much as it
writes, so computing it again costs no more than reading its stacked output. Matrix products,
sums, random numbers and everything that communicates are never computed again: that is a choice
of users (`mtf.recompute`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshtf.graph.control_flow.body import (
    Body,
    dependencies,
    invariant_nodes,
    outputs_of_nodes,
)
from meshtf.graph.op_kinds import ConversionOp, ElementwiseOp, RenamingOp
from meshtf.graph.recorder import latest_version
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import dtype_bytes

_MAX_DEPTH = 16  # of elementwise ops that are computed again for one tensor


def recomputed_nodes(
    body: Body,
    needed: Iterable[Tensor],
    available: Iterable[Tensor],
    stacked: Iterable[Tensor],
) -> list[Node]:
    """Returns the nodes of the forward body that each iteration of the backward loop computes
    again, in order: those that compute the same in all iterations, those that are marked
    (`RecomputeGroup.in_loops`), and elementwise ops where less is stacked then.

    Args:
      body: the body of the forward loop.
      needed: the tensors that the backward pass of an iteration reads.
      available: those that it has without stacking them, such as captures.
      stacked: the results of the body that are stacked in any case.
    """
    choice = _Choice(body, available, stacked)
    return choice.nodes(needed)


class _Choice:
    """Chooses which tensors of the forward body are stored.

    Args:
      body, available, stacked: see `recomputed_nodes`.
    """

    def __init__(
        self, body: Body, available: Iterable[Tensor], stacked: Iterable[Tensor]
    ) -> None:
        # The backward loop has the index of the iteration, too.
        self.available = {body.arguments[0], *available}
        self.stacked = set(stacked)
        self.stored: set[Tensor] = set()
        self.forward = [latest_version(node) for node in body.nodes]
        self.always = {latest_version(node) for node in invariant_nodes(body)}
        self.always.update(filter(_is_marked, self.forward))
        self.arguments = set(body.arguments)
        self.forward_tensors = {*outputs_of_nodes(self.forward), *self.arguments}

    def nodes(self, needed: Iterable[Tensor]) -> list[Node]:
        """Returns the nodes to compute again."""
        self._store(needed)
        recomputed = []
        # Backwards, so that the inputs of a node are decided on after its outputs.
        for node in reversed(self.forward):
            outputs = [y for y in node.outputs if y in self.stored]
            if outputs and self._pays(node, outputs):
                self.stored.difference_update(outputs)
                self._store(dependencies(node))
                recomputed.append(node)
        return recomputed[::-1]

    def _store(self, tensors: Iterable[Tensor]) -> None:
        """Adds tensors to those that are stored."""
        self.stored.update(
            x for x in tensors if x in self.forward_tensors and x not in self.available
        )

    def _pays(self, node: Node, outputs: Sequence[Tensor]) -> bool:
        """Whether a node with these stored outputs is computed again."""
        if node in self.always:
            return True
        if not _is_elementwise(node) or not self.stacked.isdisjoint(outputs):
            return False
        return self._missing_bytes(node, _MAX_DEPTH, {}) < sum(map(_bytes, outputs))

    def _missing_bytes(self, node: Node, depth: int, known: dict[Tensor, int]) -> int:
        """Returns how many bytes an iteration would have to store in addition, to compute a node
        again.

        Args:
          node: the node.
          depth: the number of nodes before it that may be computed again as well.
          known: tensor -> the bytes to have it, for those that were looked at.
        """
        total = 0
        for x in dict.fromkeys(dependencies(node)):
            if x not in known:
                known[x] = self._bytes_to_have(x, depth, known)
            total += known[x]
        return total

    def _bytes_to_have(self, x: Tensor, depth: int, known: dict[Tensor, int]) -> int:
        """Returns how many bytes an iteration would have to store in addition, to have x [...] in
        the backward pass; the other arguments are those of `_missing_bytes`.
        """
        if x not in self.forward_tensors or x in self.available:
            return 0
        if x in self.stored or x in self.stacked:
            return 0
        if x in self.arguments or not depth:
            return _bytes(x)
        node = latest_version(x.node)
        if node in self.always:
            return self._missing_bytes(node, depth - 1, known)
        if not _is_elementwise(node):
            return _bytes(x)
        return min(_bytes(x), self._missing_bytes(node, depth - 1, known))


def _is_marked(node: Node) -> bool:
    """Whether users of the loop marked a node: see `RecomputeGroup.in_loops`."""
    group = node.recompute_group
    return group is not None and group.in_loops


def _is_elementwise(node: Node) -> bool:
    """Whether each element of the outputs of a node is computed from one of each input."""
    return isinstance(node.op, ElementwiseOp | ConversionOp | RenamingOp)


def _bytes(x: Tensor) -> int:
    """Returns the size of x [...] on all devices together, in bytes."""
    return x.shape.size * dtype_bytes(x.dtype)
