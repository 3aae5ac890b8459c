"""Blocks of space as more of a batch, and back: what dilated convolutions are made of."""

from __future__ import annotations

from typing import Any

from meshtf.ops.shapes.reshape import flatten, unflatten
from meshtf.ops.shapes.slice import pad
from meshtf.ops.shapes.slice import slice as slice_dimension
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Axes, flat
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("SpaceToBatchND")
class SpaceToBatch(Rule):
    """The places in a block are the outer factors of the first axis."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        source, output = node.inputs[0], node.outputs[0]
        axes, blocks = analysis.of(source), known(node, 1)
        factors = [analysis.new(int(b)) for b in blocks]
        space = [
            analysis.new(output.shape[k], axes[k]) for k in range(1, len(blocks) + 1)
        ]
        batch = tuple(atom for axis in factors for atom in axis) + axes[0]
        analysis.set(output, [batch, *space, *axes[len(blocks) + 1 :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        x, axes = lowering.tensor(node.inputs[0]), lowering.axes(node.inputs[0])
        result, blocks, pads = lowering.axes(output), known(node, 1), known(node, 2)
        factors = _factors(result[0], blocks)
        for k, block in enumerate(blocks, start=1):
            before, after = (int(size) for size in pads[k - 1])
            x, name = lowering.merged(x, axes[k], f"space_{k}")
            if before or after:
                x = pad(x, name, before, after)
            outer, inner = f"outer_{k}", f"inner_{k}"
            x = unflatten(x, name, f"{outer}:{output.shape[k]}; {inner}:{block}")
            x = lowering.split(x, outer, result[k])
            x = lowering.split(x, inner, factors[k - 1])
        return x


@rule("BatchToSpaceND")
class BatchToSpace(Rule):
    """The outer factors of the first axis are places in a block."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        source, output = node.inputs[0], node.outputs[0]
        axes, blocks = analysis.of(source), known(node, 1)
        factors = [analysis.new(int(b)) for b in blocks]
        batch = analysis.new(output.shape[0])
        analysis.unify([a for axis in [*factors, batch] for a in axis], axes[0])
        axes = analysis.of(source)
        _factors(axes[0], blocks)
        count = sum(int(b) > 1 for b in blocks)
        space = [
            analysis.new(output.shape[k], axes[k]) for k in range(1, len(blocks) + 1)
        ]
        analysis.set(output, [axes[0][count:], *space, *axes[len(blocks) + 1 :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source, output = node.inputs[0], node.outputs[0]
        x, axes = lowering.tensor(source), lowering.axes(source)
        blocks = known(node, 1)
        factors = _factors(axes[0], blocks)
        for k, (before, _) in enumerate(known(node, 2), start=1):
            names = lowering.names([*axes[k], *factors[k - 1]])
            if len(names) > 1:
                x = flatten(x, names, f"space_{k}")
                name = f"space_{k}"
            else:
                x, name = lowering.merged(x, (*axes[k], *factors[k - 1]), f"space_{k}")
            if x.shape[name] != output.shape[k]:
                x = slice_dimension(x, name, int(before), output.shape[k])
            x = lowering.split(x, name, lowering.axes(output)[k])
        return x


def _factors(axis: Any, blocks: Any) -> list[Any]:
    """Returns the axis of each block, the outer factors of a batch.

    Raises:
        NoRule: It has other factors.
    """
    atoms = flat(axis)
    factors: Axes = []
    for block in blocks:
        if block == 1:
            factors.append(())
        elif atoms and atoms[0].size == block:
            factors.append((atoms.pop(0),))
        else:
            raise NoRule("a batch whose blocks are factored in another way")
    return factors
