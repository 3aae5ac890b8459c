"""Operations that only move or repeat elements: most of them vanish."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.ops.indexing.gather import gather
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.variables.fill import full
from meshtf.ops.windows.shift import roll
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("ExpandDims", "Reshape", "Squeeze")
class Reshape(Rule):
    """The same atoms in other groups."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.regroup(node.inputs[0], node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0])


@rule("Transpose")
class Transpose(Rule):
    """The same axes in another order."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        analysis.set(node.outputs[0], [axes[k] for k in known(node, 1)])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0])


@rule("BroadcastTo")
class BroadcastTo(Rule):
    """More dimensions, along which elements repeat."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output = node.outputs[0]
        axes = analysis.of(node.inputs[0])
        axes = [()] * (len(output.shape) - len(axes)) + axes
        analysis.set(
            output,
            [axis or analysis.new(size) for axis, size in zip(axes, output.shape)],
        )

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return broadcast(
            lowering.tensor(node.inputs[0]), lowering.shape(node.outputs[0])
        )


@rule("Tile")
class Tile(BroadcastTo):
    """Repeats are a dimension of their own, outside of what is repeated."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        analysis.set(
            node.outputs[0],
            [
                (*analysis.new(int(count)), *axis)
                for axis, count in zip(axes, known(node, 1))
            ],
        )


@rule("Fill")
class Fill(Rule):
    """A tensor of one number."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.of(node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        value, output = lowering.value(node.inputs[1]), node.outputs[0]
        if hasattr(value, "shape"):
            return broadcast(value, lowering.shape(output))
        return full(lowering.mesh, lowering.shape(output), value, output.dtype.name)


@rule("Pack")
class Pack(Rule):
    """`stack`."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        output, axis = node.outputs[0], Pack.axis(node)
        axes = analysis.of(node.inputs[0])
        analysis.set(
            output, [*axes[:axis], analysis.new(len(node.inputs)), *axes[axis:]]
        )
        result = analysis.of(output)
        del result[axis]
        for value in node.inputs[1:]:
            analysis.unify_all(result, analysis.of(value))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axis = Pack.axis(node)
        axes = lowering.axes(node.outputs[0])
        new = axes.pop(axis)
        tensors = [lowering.aligned(v, axes) for v in node.inputs]
        tensors = [
            x if hasattr(x, "shape") else lowering.tensor(v)
            for x, v in zip(tensors, node.inputs)
        ]
        if not new:  # of one tensor
            return tensors[0]
        return stack(tensors, lowering.name(new, "stack"))

    @staticmethod
    def axis(node: Node) -> int:
        """Returns the new axis."""
        return node.attributes["axis"] % len(node.outputs[0].shape)


@rule("Unpack")
class Unpack(Rule):
    """`unstack`."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes = analysis.of(node.inputs[0])
        del axes[node.attributes["axis"] % len(axes)]
        for value in node.outputs:
            analysis.set(value, axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        axes = lowering.axes(node.inputs[0])
        axis = axes[node.attributes["axis"] % len(axes)]
        x = lowering.value(node.inputs[0])
        return unstack(x, lowering.name(axis, "unstack")) if axis else [x]


@rule("ReverseV2")
class Reverse(Rule):
    """The last element first."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        x, axes = lowering.tensor(node.inputs[0]), lowering.axes(node.inputs[0])
        for axis in np.atleast_1d(known(node, 1)):
            if axes[int(axis)]:
                name = lowering.name(axes[int(axis)], "reverse")
                backwards = np.arange(x.shape[name])[::-1].astype("int32")
                ids = constant(lowering.mesh, backwards, "reversed")
                x = rename(gather(x, ids, name), "reversed", name)
        return x


@rule("Roll")
class Roll(Reverse):
    """Elements shifted, those from the end to the front."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        x, axes = lowering.tensor(node.inputs[0]), lowering.axes(node.inputs[0])
        shifts, where = (np.atleast_1d(known(node, k)) for k in (1, 2))
        for by, axis in zip(shifts, where):
            if axes[int(axis)]:
                x = roll(x, lowering.name(axes[int(axis)], "roll"), int(by))
        return x


def known(node: Node, k: int) -> np.ndarray:
    """Returns an operand that must be known before the function runs.

    Raises:
        NoRule: It is computed from the arguments.
    """
    value = node.inputs[k].constant
    if value is None:
        raise NoRule(f"an operand of {node.kind} that is computed")
    return value
