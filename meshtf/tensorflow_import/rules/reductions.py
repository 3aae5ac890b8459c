"""Reductions, softmax, and what ranks elements."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.shapes import constant
from meshtf.tensorflow_import.rules.table import rule

_REDUCE = {
    "All": mtf.reduce_all,
    "Any": mtf.reduce_any,
    "Max": mtf.reduce_max,
    "Mean": mtf.reduce_mean,
    "Min": mtf.reduce_min,
    "Prod": mtf.reduce_prod,
    "Sum": mtf.reduce_sum,
}


def _axes(node: Node) -> set[int]:
    """Returns the axes that a reduction leaves out."""
    rank = len(node.inputs[0].shape)
    return {int(k) % rank for k in np.atleast_1d(constant(node, 1))}


@rule(*_REDUCE, "EuclideanNorm")
class Reduce:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
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

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        axes = lowering.axes(node.inputs[0])
        names = lowering.names([a for k in sorted(_axes(node)) for a in axes[k]])
        x = lowering.tensor(node.inputs[0])
        if node.kind == "EuclideanNorm":
            return mtf.sqrt(mtf.reduce_sum(mtf.square(x), names))
        return _REDUCE[node.kind](x, names) if names else x


@rule("L2Loss")
class L2Loss:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], [])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return mtf.reduce_sum(mtf.square(lowering.tensor(node.inputs[0]))) * 0.5


@rule("ArgMax", "ArgMin")
class ArgMax(Reduce):
    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        (axis,) = _axes(node)
        name = lowering.name(lowering.axes(node.inputs[0])[axis], node.kind)
        function = mtf.argmax if node.kind == "ArgMax" else mtf.argmin
        index = function(lowering.tensor(node.inputs[0]), name)
        return mtf.cast(index, node.outputs[0].dtype.name)


@rule("LogSoftmax", "Softmax")
class Softmax:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        name = lowering.name(lowering.axes(node.outputs[0])[-1], "softmax")
        function = mtf.softmax if node.kind == "Softmax" else mtf.log_softmax
        return function(lowering.tensor(node.inputs[0]), name)


@rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
class CrossEntropy:
    """The second output, the gradient, is not computed."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        logits, labels = node.inputs
        analysis.unify_all(analysis.of(logits), analysis.of(labels))
        axes = analysis.of(logits)
        analysis.set(node.outputs[0], axes[:1])
        analysis.set(node.outputs[1], axes)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        logits, labels = node.inputs
        axes = lowering.axes(logits)
        name = lowering.name(axes[-1], "cross entropy")
        if node.kind.startswith("Sparse"):
            axes = axes[:-1]
        wanted = lowering.aligned(labels, axes)
        return [mtf.cross_entropy(lowering.tensor(logits), wanted, name), None]


@rule("TopKV2")
class TopK:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        axes[-1] = analysis.new(node.outputs[0].shape[-1])
        for value in node.outputs:
            analysis.set(value, axes)

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        name = lowering.name(lowering.axes(node.inputs[0])[-1], "top_k")
        new = lowering.axes(node.outputs[0])[-1]
        x = lowering.tensor(node.inputs[0])
        if not new:
            return [mtf.reduce_max(x, name), mtf.argmax(x, name)]
        return mtf.top_k(x, name, lowering.shape_of(new))


@rule("InTopKV2")
class InTopK:
    """Whether the score of a target is among the largest k."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        scores, targets, _ = node.inputs
        analysis.unify_all(analysis.of(scores), analysis.of(targets))
        analysis.set(node.outputs[0], analysis.of(scores)[:1])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        scores, targets, _ = node.inputs
        axes, x = lowering.axes(scores), lowering.tensor(scores)
        name = lowering.name(axes[-1], "in_top_k")
        own = mtf.gather(x, lowering.aligned(targets, axes[:-1]), name)
        above = mtf.reduce_sum(mtf.cast(mtf.greater(x, own), "int32"), name)
        return mtf.less(above, int(constant(node, 2)))


@rule("Cumprod", "Cumsum")
class Cumulative:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        axis = lowering.axes(node.inputs[0])[int(constant(node, 1))]
        exclusive, reverse = (node.attributes[k] for k in ("exclusive", "reverse"))
        if not axis:
            raise NoRule("a cumulative sum of one element")
        name, x = lowering.name(axis, node.kind), lowering.tensor(node.inputs[0])
        function = mtf.cumsum if node.kind == "Cumsum" else mtf.math.cumprod
        return function(x, name, exclusive, reverse)
