"""Lists of tensors, which loops read and fill."""

from __future__ import annotations

from typing import Any

from meshtf.graph import Tensor
from meshtf.ops.indexing.gather import gather
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


class TensorList:
    """A list of tensors: one tensor, or its entries apart."""

    def __init__(
        self,
        *,
        entries: tuple[Tensor | None, ...] | None = None,
        tensor: Tensor | None = None,
        name: str = "",
    ) -> None:
        """Makes a list.

        Args:
            entries: Its tensors; None for those that are not set yet.
            tensor: All entries along the dimension `name`.
            name: That dimension.
        """
        self._entries = entries
        self._tensor: Any = tensor
        self._name = name

    def entries(self) -> tuple[Any, ...]:
        """Returns the tensors apart."""
        if self._entries is None:
            self._entries = tuple(unstack(self._tensor, self._name))
        return self._entries

    def stacked(self, name: str) -> Tensor:
        """Returns one tensor of all entries."""
        if self._tensor is None:
            return stack(self.entries(), name)
        if name == self._name:
            return self._tensor
        return rename(self._tensor, self._name, name)

    def at(self, index: Any) -> Tensor:
        """Returns the entry at a number or a scalar tensor."""
        if isinstance(index, int):
            return self.entries()[index]
        return gather(self.stacked("entries"), index, "entries")


@rule("TensorListFromTensor")
class FromTensor(Rule):
    """A tensor's entries along its first axis."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set_list(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source = node.inputs[0]
        first, x = lowering.axes(source)[0], lowering.tensor(source)
        if not first:
            return [TensorList(entries=(x,))]
        return [TensorList(tensor=x, name=lowering.name(first, "a list"))]


@rule("TensorListReserve")
class Reserve(Rule):
    """A list without items."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        """Nothing is known before the first item is set."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return [TensorList(entries=(None,) * int(lowering.value(node.inputs[1])))]


@rule("TensorListGetItem")
class GetItem(Rule):
    """An item of a list."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0])[1:])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0]).at(lowering.value(node.inputs[1]))


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
        source, index, item = node.inputs[:3]
        entries = list(lowering.value(source).entries())
        axes = lowering.axes(node.outputs[0])[1:]
        entries[lowering.value(index)] = lowering.full(item, item, axes)
        return [TensorList(entries=tuple(entries))]


@rule("TensorListStack")
class Stack(Rule):
    """A tensor of the items."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        items = lowering.value(node.inputs[0])
        new = lowering.axes(node.outputs[0])[0]
        if not new:
            return items.entries()[0]
        return items.stacked(lowering.name(new, "a list"))
