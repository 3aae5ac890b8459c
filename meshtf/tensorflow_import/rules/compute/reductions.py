"""Reductions, softmax, and what ranks elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.ops.elementwise.arithmetic import greater, less
from meshtf.ops.elementwise.unary import sqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import one_hot
from meshtf.ops.indexing.top_k import argmax, argmin, top_k
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.nn.softmax import log_softmax, softmax
from meshtf.ops.reductions import reduce
from meshtf.ops.reductions.moments import reduce_prod
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum
from meshtf.ops.scans.cumulative import cumprod, cumsum
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule

# Kinds that have one function, `reduce_sum` and so on.
_REDUCE = {
    kind: getattr(reduce, f"reduce_{kind.lower()}")
    for kind in ("All", "Any", "Max", "Mean", "Min", "Sum")
} | {"Prod": reduce_prod}


def _axes(node: Node) -> set[int]:
    """Returns the axes that a reduction leaves out."""
    rank = len(node.inputs[0].shape)
    return {int(k) % rank for k in np.atleast_1d(known(node, 1))}


@rule(*_REDUCE, "EuclideanNorm")
class Reduce(Rule):
    """A sum, mean, maximum or the like over some axes."""

    is_uniform = True

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

    is_uniform = True

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], [])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        names = lowering.names(lowering.analysis.atoms_of(node.inputs[0]))
        squares = square(lowering.tensor(node.inputs[0]))
        return (reduce_sum(squares, names) if names else squares) * 0.5


@rule("ArgMax", "ArgMin")
class ArgMax(Reduce):
    """The place of the largest or smallest element."""

    is_uniform = False

    def lower(self, lowering: Lowering, node: Node) -> Any:
        (axis,) = _axes(node)
        function = argmax if node.kind == "ArgMax" else argmin
        source = node.inputs[0]
        x, axes = lowering.tensor(source), lowering.axes(source)
        index = lowering.along(x, axes[axis], function)
        return cast(index, node.outputs[0].dtype.name)


@rule("LogSoftmax", "Softmax")
class Softmax(Rule):
    """Softmax over the last axis, or its logarithm."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        function = softmax if node.kind == "Softmax" else log_softmax
        axis = lowering.axes(node.outputs[0])[-1]
        return lowering.along(lowering.tensor(node.inputs[0]), axis, function)


@rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
class CrossEntropy(Rule):
    """The second output, the gradient, is what TensorFlow's gradient reads."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        logits, labels = node.inputs
        analysis.unify_all(analysis.of(logits), analysis.of(labels))
        axes = analysis.of(logits)
        analysis.set(node.outputs[0], axes[:1])
        analysis.set(node.outputs[1], axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        logits, labels = node.inputs
        axes = lowering.axes(logits)
        x, name = lowering.merged(lowering.tensor(logits), axes[-1], "classes")
        if node.kind.startswith("Sparse"):
            targets = lowering.aligned(labels, axes[:-1])
        else:
            targets = lowering.full(labels, logits)
            targets, _ = lowering.merged(targets, axes[-1], name)
        y = cross_entropy(x, targets, name)
        if not lowering.is_used(node.outputs[1]):
            return [y, None]
        if node.kind.startswith("Sparse"):
            targets = one_hot(targets, f"{name}:{x.shape[name]}", x.dtype)
        difference = softmax(x, name) - targets
        return [y, lowering.split(difference, name, axes[-1])]


@rule("TopKV2")
class TopK(Rule):
    """The largest elements of the last axis, and their places."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        axes[-1] = analysis.new(node.outputs[0].shape[-1])
        for value in node.outputs:
            analysis.set(value, axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axis = lowering.axes(node.inputs[0])[-1]
        x, name = lowering.merged(lowering.tensor(node.inputs[0]), axis, "ranked")
        new = lowering.axes(node.outputs[0])[-1]
        if not new:
            return [reduce_max(x, name), argmax(x, name)]
        if len(new) == 1:
            return list(top_k(x, name, lowering.shape_of(new)))
        results = top_k(x, name, f"largest:{node.outputs[0].shape[-1]}")
        return [lowering.split(y, "largest", new) for y in results]


@rule("InTopKV2")
class InTopK(Rule):
    """Whether the score of a target is among the largest k."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        scores, targets, _ = node.inputs
        analysis.unify_all(analysis.of(scores), analysis.of(targets))
        analysis.set(node.outputs[0], analysis.of(scores)[:1])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        scores, targets, _ = node.inputs
        axes = lowering.axes(scores)
        x, name = lowering.merged(lowering.tensor(scores), axes[-1], "classes")
        target_score = gather(x, lowering.aligned(targets, axes[:-1]), name)
        above = reduce_sum(cast(greater(x, target_score), "int32"), name)
        return less(above, int(known(node, 2)))


@rule("Cumprod", "Cumsum")
class Cumulative(Rule):
    """Sums or products of the elements before."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axis = lowering.axes(node.inputs[0])[int(known(node, 1))]
        exclusive, reverse = (node.attributes[k] for k in ("exclusive", "reverse"))
        function = cumsum if node.kind == "Cumsum" else cumprod
        return lowering.along(
            lowering.tensor(node.inputs[0]),
            axis,
            lambda x, name: function(x, name, exclusive, reverse),
        )
