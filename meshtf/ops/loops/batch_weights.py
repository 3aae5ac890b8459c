"""Weights of a batch in the layers of a pipeline: `mtf.mean_over_microbatches`.

    weight = mtf.mean_over_microbatches(mtf.reduce_sum(mask))     # mask [batch], from outside
    loss = mtf.reduce_sum(losses * mask) / weight                 # a mean over microbatches

A stage has one microbatch, and the weight is of all. So what it depends on is computed before the
first tick: its ops are applied again, to each microbatch of what they read from outside.

The sum of a microbatch over the weight is to be averaged over microbatches, and not added up. The
power of the weight in a tensor is its *degree*: `degree_after`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshtf.errors import PlanError, explain_error
from meshtf.graph import Graph, Node, Op, Source, Tensor, apply_all, context, executing
from meshtf.graph.context import Context
from meshtf.graph.op_kinds import ConversionOp
from meshtf.names import Dimension
from meshtf.ops.control.batch_means import mean_over_microbatches
from meshtf.ops.control.masked_gradient import MaskedGradient
from meshtf.ops.control.microbatch import MICROBATCH
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.scalar_op import Scalar
from meshtf.ops.elementwise.where_cast_clip import Clip
from meshtf.ops.loops.recorded_scan import recorded_scan


@dataclasses.dataclass(frozen=True)
class LayerInputs:
    """What the layers of a stage use from outside.

    Attributes:
      graph: the graph that records the scan.
      context: the context of the scan.
      num_microbatches: the number of microbatches.
      sources: the tensor that the layers use -> the one outside, [..., microbatch, ...] if it is
        split, and whether it is.
    """

    graph: Graph
    context: Context
    num_microbatches: int
    sources: dict[Tensor, tuple[Tensor, bool]] = dataclasses.field(default_factory=dict)


def computation_of(
    x: Tensor, layer_inputs: LayerInputs
) -> tuple[list[Node], list[Tensor]]:
    """Returns the nodes that compute a tensor [...] of the layers, in order, and the tensors from
    outside that they begin with.

    Raises:
      PlanError: x depends on what comes through the layers, or on their weights.
    """
    nodes: dict[Node, None] = {}
    leaves: dict[Tensor, None] = {}
    _visit(x, layer_inputs, nodes, leaves)
    return list(nodes), list(leaves)


def mean_of_microbatches(
    x: Tensor, nodes: list[Node], leaves: list[Tensor], layer_inputs: LayerInputs
) -> Tensor:
    """Returns the mean over microbatches [...] of a tensor that layers compute, as a tensor
    outside of them.

    Args:
      x: the tensor.
      nodes: the nodes that compute it, and
      leaves: the tensors that they begin with: see `computation_of`.
      layer_inputs: where these are from.
    """
    split = [leaf for leaf in leaves if layer_inputs.sources[leaf][1]]
    values: dict[Tensor, Tensor] = {
        leaf: layer_inputs.sources[leaf][0] for leaf in leaves
    }

    def term(_: None, entries: list[Tensor]) -> tuple[None, Tensor, None]:
        values.update(zip(split, entries))
        for node in nodes:
            inputs = [values[y] for y in node.inputs]
            values.update(zip(node.outputs, apply_all(node.op, *inputs)))
        return None, values[x], None

    settings = {**vars(layer_inputs.context), "microbatches": None}
    with executing(layer_inputs.graph), context(**settings):
        count = layer_inputs.num_microbatches
        stacked = [layer_inputs.sources[leaf][0] for leaf in split]
        _, total, _ = recorded_scan(term, None, stacked, Dimension(MICROBATCH, count))
        # The batch of the scan may be a microbatch itself.
        return mean_over_microbatches(total * (1.0 / count))


def _visit(
    x: Tensor,
    layer_inputs: LayerInputs,
    nodes: dict[Node, None],
    leaves: dict[Tensor, None],
) -> None:
    """Adds the nodes that x [...] depends on, in order, and the tensors that they begin with."""
    if x in layer_inputs.sources:
        leaves[x] = None
        return
    node = x.node
    if node in nodes:
        return
    if not node.inputs:
        raise PlanError(
            explain_error(
                "a weight of the batch, of which a layer of a pipeline needs the mean over "
                "microbatches, depends on what comes through the layers.",
                tensor=repr(x),
                source=Source.of_caller(),
                way_out="Compute it before the layers, from their inputs.",
            )
        )
    for y in node.inputs:
        _visit(y, layer_inputs, nodes, leaves)
    nodes[node] = None


def degree_after(op: Op, degrees: Sequence[int]) -> int | None:
    """Returns the power of the weight of a batch in the outputs of an op, from those in its
    inputs; None: it is none.
    """
    if isinstance(op, Binary) and op.fn in ("divide", "divide_no_nan"):
        return degrees[0] - degrees[1]
    if isinstance(op, Scalar) and op.fn == "divide" and op.swapped:
        return -degrees[0]
    if op.linearity in ("first", "sparse"):
        return degrees[0] if not any(degrees[1:]) else None
    if op.linearity == "each":
        return sum(degrees)
    one_degree = len(set(degrees)) == 1
    # A bound keeps a weight above zero.
    keeps = op.linearity == "joint" or isinstance(
        op, (Clip, ConversionOp, MaskedGradient)
    )
    return degrees[0] if one_degree and keeps else None


def reduction_of_degree(kind: str, degree: int) -> str | None:
    """Returns how a sum or mean over a microbatch, times a power of the weight, is made that of
    the batch: "sum" or "mean"; None: in neither way.

    Args:
      kind: "sum" or "mean".
      degree: the power.
    """
    kinds: dict[int, Any] = {0: "mean", 1: "sum"}
    return kinds.get((1 if kind == "sum" else 0) + degree)
