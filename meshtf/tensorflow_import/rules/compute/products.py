"""Matrix products and einsums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.ops.linear.einsum import einsum
from meshtf.ops.shapes.reshape import rename
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Axes, Axis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

_MATMULS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul")


@rule("Einsum", *_MATMULS)
class Product(Rule):
    """An einsum of one or two operands: a letter stands for one dimension."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        operands = [analysis.of(v) for v in node.inputs]
        *letters, result = _equation(node, operands)
        by_letter: dict[str, Axis] = {}
        for names, axes in zip(letters, operands):
            for letter, axis in zip(names, axes):
                if axis or letter not in by_letter:
                    by_letter.setdefault(letter, axis)
                    if not by_letter[letter]:
                        by_letter[letter] = axis
        analysis.set(node.outputs[0], [by_letter[letter] for letter in result])
        for names, axes in zip(letters, operands):
            for letter, axis in zip(names, axes):
                if axis and by_letter[letter]:
                    analysis.unify(by_letter[letter], axis)
        if len(operands) == 2:
            axes_of = [dict(zip(k, axes)) for k, axes in zip(letters, operands)]
            axes_of.append(dict(zip(result, analysis.of(node.outputs[0]))))
            analysis.products.append((node, axes_of))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        operands = [lowering.axes(v) for v in node.inputs]
        *letters, result = _equation(node, operands)
        by_letter = dict(zip(result, lowering.axes(node.outputs[0])))
        for names, axes in zip(letters, operands):
            for letter, axis in zip(names, axes):
                if not by_letter.get(letter):
                    by_letter[letter] = axis
        if any(_has_doubles(lowering, names, by_letter) for names in letters):
            return _with_new_names(lowering, node, letters, result, by_letter)
        tensors = [
            lowering.aligned(v, [by_letter[letter] for letter in names])
            for v, names in zip(node.inputs, letters)
        ]
        expected = lowering.names_of(node.outputs[0])
        return einsum(tensors, expected)


def _has_doubles(
    lowering: Lowering, letters: Sequence[str], by_letter: dict[str, Axis]
) -> bool:
    """Whether an operand would have a name twice (A @ A)."""
    names = lowering.names([a for letter in letters for a in by_letter[letter]])
    return len(set(names)) < len(names)


def _with_new_names(
    lowering: Lowering,
    node: Node,
    letters: Sequence[Sequence[str]],
    result: Sequence[str],
    by_letter: dict[str, Axis],
) -> Any:
    """Returns the product with new names for the dimensions that it sums over."""
    tensors = []
    for value, operand in zip(node.inputs, letters):
        pairs = {}
        for letter, axis in zip(operand, lowering.axes(value)):
            for old, new in zip(
                lowering.names(axis), lowering.names(by_letter[letter])
            ):
                pairs[old] = new if letter in result else f"sum_{new}"
        pairs = {a: b for a, b in pairs.items() if a != b}
        x = lowering.tensor(value)
        tensors.append(rename(x, pairs) if pairs else x)
    return einsum(tensors, lowering.names_of(node.outputs[0]))


def _equation(node: Node, operands: Sequence[Axes]) -> list[list[str]]:
    """Returns the letters of each operand, then those of the result."""
    rank = len(node.outputs[0].shape)
    if node.kind in _MATMULS:
        prefix = "transpose_" if node.kind == "MatMul" else "adj_"
        first, second = (
            node.attributes[prefix + end]
            for end in (("a", "b") if node.kind == "MatMul" else ("x", "y"))
        )
        batches = [
            [f"b{rank - len(axes) + k}" for k in range(len(axes) - 2)]
            for axes in operands
        ]
        return [
            batches[0] + (["k", "m"] if first else ["m", "k"]),
            batches[1] + (["n", "k"] if second else ["k", "n"]),
            [f"b{k}" for k in range(rank - 2)] + ["m", "n"],
        ]
    equation = node.attributes["equation"].decode().replace(" ", "")
    left, result = equation.split("->")
    letters = [
        _letters(operand, len(axes)) for operand, axes in zip(left.split(","), operands)
    ]
    if any(len(set(names)) < len(names) for names in letters):
        raise NoRule("an einsum of a diagonal")
    return [*letters, _letters(result, rank)]


def _letters(operand: str, rank: int) -> list[str]:
    """Returns the letters of an operand; axes of "..." are counted from their last one."""
    if "..." not in operand:
        return list(operand)
    before, after = operand.split("...")
    count = rank - len(before) - len(after)
    return [*before, *(f"~{k - count}" for k in range(count)), *after]
