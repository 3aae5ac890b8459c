"""Operations that only move or repeat elements: most of them vanish."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshtf.graph import Tensor
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.shapes.reshape import flatten
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.variables.fill import full
from meshtf.ops.windows.shift import roll
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule, take
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import entries_at, known
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("ExpandDims", "Reshape", "Squeeze")
class Reshape(Rule):
    """The same atoms in other groups; some may be merged, and split in another way."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        analysis.regroup(node.inputs[0], node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        x = lowering.value(node.inputs[0])
        source, output = node.inputs[0], node.outputs[0]
        is_same = lowering.shape(source) == lowering.shape(output)
        if is_same or not hasattr(x, "shape"):
            return x
        # By atoms: one that goes and one that comes may have the same name, with two sizes.
        old, new = (lowering.analysis.atoms_of(v) for v in (source, output))
        gone = lowering.names([atom for atom in old if atom not in new])
        axis = tuple(atom for atom in new if atom not in old)
        return lowering.split(flatten(x, gone, "merged"), "merged", axis)


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

    def lower(self, lowering: Lowering, node: Node) -> Any:
        def reverse(x: Tensor, name: str) -> Tensor:
            return entries_at(lowering, x, name, np.arange(x.shape[name])[::-1])

        x, axes = lowering.tensor(node.inputs[0]), lowering.axes(node.inputs[0])
        for axis in [axes[k] for k in np.atleast_1d(known(node, 1))]:
            x = lowering.along(x, axis, reverse) if axis else x
        return x


@rule("Roll")
class Roll(Rule):
    """Elements shifted, those from the end to the front."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        x, axes = lowering.tensor(node.inputs[0]), lowering.axes(node.inputs[0])
        shifts, rolled = (np.atleast_1d(known(node, k)) for k in (1, 2))
        for shift, k in zip(shifts, rolled):
            if axes[k]:
                x = lowering.along(x, axes[k], functools.partial(roll, by=int(shift)))
        return x


@rule("DepthToSpace", "SpaceToDepth")
class DepthToSpace(Reshape):
    """Blocks of pixels as channels, or the other way round: other groups of the same atoms."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        if node.attributes["data_format"] != b"NHWC":
            raise NoRule("images whose channels come first")
        image = node.inputs[0]
        size = node.attributes["block_size"]
        batch, rows, columns, channels = map(list, analysis.of(image))
        if node.kind == "DepthToSpace":
            outer, inner = take(channels, size), take(channels, size)
        else:
            outer, inner = take(rows, size, last=True), take(columns, size, last=True)
        if outer is None or inner is None:
            raise NoRule("blocks that are factored in another way")
        if node.kind == "DepthToSpace":
            axes = [batch, [*rows, *outer], [*columns, *inner], channels]
        else:
            axes = [batch, rows, columns, [*outer, *inner, *channels]]
        analysis.set(node.outputs[0], [tuple(axis) for axis in axes])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return lowering.value(node.inputs[0])
