"""Reductions, softmax, and what ranks elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.ops.elementwise.arithmetic import greater, less
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.top_k import argmax, argmin, top_k
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.softmax import log_softmax, softmax
from meshtf.ops.reductions.moments import reduce_prod
from meshtf.ops.reductions.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from meshtf.ops.scans.cumulative import cumprod, cumsum
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.reshapes import known
from meshtf.tensorflow_import.rules.table import Rule, rule

_REDUCE = {
    "All": reduce_all,
    "Any": reduce_any,
    "Max": reduce_max,
    "Mean": reduce_mean,
    "Min": reduce_min,
    "Prod": reduce_prod,
    "Sum": reduce_sum,
}


def _axes(node: Node) -> set[int]:
    """Returns the axes that a reduction leaves out."""
    rank = len(node.inputs[0].shape)
    return {int(k) % rank for k in np.atleast_1d(known(node, 1))}


@rule(*_REDUCE, "EuclideanNorm")
class Reduce(Rule):
    """A sum, mean, maximum or the like over some axes."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        gone, axes = _axes(node), analysis.of(node.inputs[0])
        keeps = node.attributes.get("keep_dims")
        analysis.set(
            node.outputs[0],
            [
                () if k in gone else axis
                for k, axis in enumerate(axes)
                if keeps or k not in gone
            ],
        )

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axes = lowering.axes(node.inputs[0])
        names = lowering.names([a for k in sorted(_axes(node)) for a in axes[k]])
        x = lowering.tensor(node.inputs[0])
        if node.kind == "EuclideanNorm":
            return sqrt(reduce_sum(square(x), names))
        return _REDUCE[node.kind](x, names) if names else x


@rule("L2Loss")
class L2Loss(Rule):
    """Half of the sum of squares."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], [])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return reduce_sum(square(lowering.tensor(node.inputs[0]))) * 0.5


@rule("ArgMax", "ArgMin")
class ArgMax(Reduce):
    """The place of the largest or smallest element."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        (axis,) = _axes(node)
        name = lowering.name(lowering.axes(node.inputs[0])[axis], node.kind)
        function = argmax if node.kind == "ArgMax" else argmin
        index = function(lowering.tensor(node.inputs[0]), name)
        return cast(index, node.outputs[0].dtype.name)


@rule("LogSoftmax", "Softmax")
class Softmax(Rule):
    """Softmax over the last axis, or its logarithm."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        name = lowering.name(lowering.axes(node.outputs[0])[-1], "softmax")
        function = softmax if node.kind == "Softmax" else log_softmax
        return function(lowering.tensor(node.inputs[0]), name)


@rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
class CrossEntropy(Rule):
    """The second output, the gradient, is not computed."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        logits, labels = node.inputs
        analysis.unify_all(analysis.of(logits), analysis.of(labels))
        axes = analysis.of(logits)
        analysis.set(node.outputs[0], axes[:1])
        analysis.set(node.outputs[1], axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        logits, labels = node.inputs
        axes = lowering.axes(logits)
        name = lowering.name(axes[-1], "cross entropy")
        if node.kind.startswith("Sparse"):
            axes = axes[:-1]
        aligned_labels = lowering.aligned(labels, axes)
        return [cross_entropy(lowering.tensor(logits), aligned_labels, name), None]


@rule("TopKV2")
class TopK(Rule):
    """The largest elements of the last axis, and their places."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        axes[-1] = analysis.new(node.outputs[0].shape[-1])
        for value in node.outputs:
            analysis.set(value, axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        name = lowering.name(lowering.axes(node.inputs[0])[-1], "top_k")
        new = lowering.axes(node.outputs[0])[-1]
        x = lowering.tensor(node.inputs[0])
        if not new:
            return [reduce_max(x, name), argmax(x, name)]
        return top_k(x, name, lowering.shape_of(new))


@rule("InTopKV2")
class InTopK(Rule):
    """Whether the score of a target is among the largest k."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        scores, targets, _ = node.inputs
        analysis.unify_all(analysis.of(scores), analysis.of(targets))
        analysis.set(node.outputs[0], analysis.of(scores)[:1])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        scores, targets, _ = node.inputs
        axes, x = lowering.axes(scores), lowering.tensor(scores)
        name = lowering.name(axes[-1], "in_top_k")
        target_score = gather(x, lowering.aligned(targets, axes[:-1]), name)
        above = reduce_sum(cast(greater(x, target_score), "int32"), name)
        return less(above, int(known(node, 2)))


@rule("Cumprod", "Cumsum")
class Cumulative(Rule):
    """Sums or products of the elements before."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axis = lowering.axes(node.inputs[0])[int(known(node, 1))]
        exclusive, reverse = (node.attributes[k] for k in ("exclusive", "reverse"))
        if not axis:
            raise NoRule("a cumulative sum of one element")
        name, x = lowering.name(axis, node.kind), lowering.tensor(node.inputs[0])
        function = cumsum if node.kind == "Cumsum" else cumprod
        return function(x, name, exclusive, reverse)
