"""Lists of tensors, which loops read and fill: tuples of named tensors."""

from __future__ import annotations

from typing import Any

from meshtf.ops.shapes.stack import stack, unstack
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("TensorListFromTensor")
class FromTensor(Rule):
    """A tensor's entries along its first axis."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set_list(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        first, x = lowering.axes(source)[0], lowering.tensor(source)
        items = unstack(x, lowering.name(first, "a list")) if first else (x,)
        return [tuple(items)]


@rule("TensorListReserve")
class Reserve(Rule):
    """A list without items."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        """Nothing is known before the first item is set."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return [(None,) * int(lowering.value(node.inputs[1]))]


@rule("TensorListGetItem")
class GetItem(Rule):
    """An item of a list."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0])[1:])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0])[lowering.value(node.inputs[1])]


@rule("TensorListSetItem")
class SetItem(Rule):
    """A list with another item."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        source, _, item = node.inputs[:3]
        axes = analysis.of(item)
        if analysis.is_met(source):
            items = analysis.of(source)
            analysis.unify_all(items[1:], axes)
            analysis.set_list(node.outputs[0], items)
        else:
            count = analysis.new(source.items[0])
            analysis.set_list(node.outputs[0], [count, *axes])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        items = list(lowering.value(node.inputs[0]))
        items[lowering.value(node.inputs[1])] = lowering.tensor(node.inputs[2])
        return [tuple(items)]


@rule("TensorListStack")
class Stack(Rule):
    """A tensor of the items."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        count = analysis.new(output.shape[0])
        analysis.set(output, [count, *analysis.of(node.inputs[0])[1:]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        items = lowering.value(node.inputs[0])
        new = lowering.axes(node.outputs[0])[0]
        return stack(items, lowering.name(new, "a list")) if new else items[0]
