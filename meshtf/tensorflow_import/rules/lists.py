"""Lists of tensors, which loops read and fill: tuples of named tensors."""

from __future__ import annotations

from typing import Any

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import rule


@rule("TensorListFromTensor")
class FromTensor:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set_list(node.outputs[0], analysis.of(node.inputs[0]))

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        first, x = lowering.axes(source)[0], lowering.tensor(source)
        items = mtf.unstack(x, lowering.name(first, "a list")) if first else (x,)
        return [tuple(items)]


@rule("TensorListReserve")
class Reserve:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        """Nothing is known before the first item is set."""

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return [(None,) * int(lowering.value(node.inputs[1]))]


@rule("TensorListGetItem")
class GetItem:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0])[1:])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0])[lowering.value(node.inputs[1])]


@rule("TensorListSetItem")
class SetItem:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        source, _, item = node.inputs[:3]
        axes = analysis.of(item)
        if analysis.is_met(source):
            items = analysis.of(source)
            analysis.unify_all(items[1:], axes)
            analysis.set_list(node.outputs[0], items)
        else:
            count = analysis.new(source.items[0])
            analysis.set_list(node.outputs[0], [count, *axes])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        items = list(lowering.value(node.inputs[0]))
        items[lowering.value(node.inputs[1])] = lowering.tensor(node.inputs[2])
        return [tuple(items)]


@rule("TensorListStack")
class Stack:
    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        count = analysis.new(output.shape[0])
        analysis.set(output, [count, *analysis.of(node.inputs[0])[1:]])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        items = lowering.value(node.inputs[0])
        new = lowering.axes(node.outputs[0])[0]
        return mtf.stack(items, lowering.name(new, "a list")) if new else items[0]
