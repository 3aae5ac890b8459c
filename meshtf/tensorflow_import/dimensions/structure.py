"""Names of dimensions by what operations do with them: attention and feed-forward layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Atom, Axis, flat
from meshtf.tensorflow_import.dimensions.hints import ROLE, STRUCTURE, TABLE
from meshtf.tensorflow_import.graph.program import Value

_MOVES = ("Cast", "ExpandDims", "Reshape", "Squeeze", "Transpose")
_WINDOWS = (
    "AvgPool",
    "Conv2D",
    "Conv2DBackpropInput",
    "DepthwiseConv2dNative",
    "MaxPool",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
)


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product: atoms of both operands that are summed over, of both and the result
    ("shared"), and of the result and one operand only.
    """

    is_layer: bool  # one operand is a variable
    outputs: frozenset[Atom]  # of the result and the variable
    summed: frozenset[Atom]
    shared: frozenset[Atom]
    first: frozenset[Atom]
    second: frozenset[Atom]


def hint_structure(analysis: Analysis) -> tuple[set[Atom], set[Atom]]:
    """Proposes names for dimensions of attention, feed-forward layers and images.

    Returns the atoms that are positions of queries, and those of keys and values.
    """
    products = list(_products(analysis))
    outputs = {atom for p in products for atom in p.outputs}
    positions = _hint_attention([p for p in products if not p.is_layer], outputs)
    _hint_feed_forward([p for p in products if p.is_layer], analysis)
    _hint_images(analysis)
    return positions


def _hint_attention(
    products: list[_Product], outputs: set[Atom]
) -> tuple[set[Atom], set[Atom]]:
    """Scores are a product whose result's axis is summed over in a later one, beside the
    same heads: that axis is the keys' positions.

    Args:
        products: Those of no variable.
        outputs: What layers make: heads are among them.
    """
    keys: set[Atom] = set()
    positions: set[Atom] = set()
    for k, scores in enumerate(products):
        for values in products[k + 1 :]:
            if not values.summed or len(scores.first) * len(scores.second) == 0:
                continue
            if values.shared != scores.shared:
                continue
            if values.summed == scores.second:
                queries, head = scores.first, values.first | values.second
            elif values.summed == scores.first:
                queries, head = scores.second, values.first | values.second
            else:
                continue
            keys |= values.summed
            positions |= queries
            _hint(queries, "length")
            _hint(values.summed, "length")
            _hint(scores.summed, "d_head")
            _hint(head - queries, "d_head")
            _hint(scores.shared & outputs, "heads")
            break
    return positions, keys


def _hint_feed_forward(products: list[_Product], analysis: Analysis) -> None:
    """What layers make of d_model, and make d_model of, is d_ff."""
    hinted = {a: _names(a, ROLE) | _names(a, TABLE) for a in analysis.all_atoms()}
    models = {a for a, names in hinted.items() if "d_model" in names}
    outputs = {a for p in products if p.summed & models for a in p.outputs}
    used = {a for p in products if p.outputs & models for a in p.summed}
    for atom in (outputs & used) - models:
        if not _names(atom, ROLE) and "d_head" not in _names(atom, STRUCTURE):
            if "heads" not in _names(atom, STRUCTURE):
                atom.hint(STRUCTURE, "d_ff")


def _hint_images(analysis: Analysis) -> None:
    """Names what windows slide over."""
    for node in analysis.program.all_nodes():
        image = node.inputs[2 if node.kind == "Conv2DBackpropInput" else 0 : 3]
        if node.kind not in _WINDOWS or not image or id(node) in analysis.replicated:
            continue
        _, rows, columns, _ = analysis.of(image[0])
        names = ("height", "width") if rows else ("", "length")
        for axis, name in zip((rows, columns), names):
            for atom in axis if len(axis) == 1 else ():
                atom.hint(STRUCTURE, name)


def _hint(atoms: set[Atom] | frozenset[Atom], name: str) -> None:
    for atom in atoms:
        atom.hint(STRUCTURE, name)


def _names(atom: Atom, trust: int) -> set[str]:
    return {name for (t, name) in atom.hints if t == trust}


def _products(analysis: Analysis) -> Iterator[_Product]:
    variables = variables_by_value(analysis)
    for node, (first, second, result) in analysis.products:
        a, b, c = (_atoms(axes) for axes in (first, second, result))
        both = [letter for letter in first if letter in second]
        summed = _atoms({k: first[k] for k in both if k not in result})
        shared = _atoms({k: result[k] for k in both if k in result})
        is_weight = [id(v) in variables for v in node.inputs]
        activations = b if is_weight[0] else a
        yield _Product(
            is_layer=any(is_weight),
            outputs=c - activations if any(is_weight) else frozenset(),
            summed=summed or (a & b) - c,
            shared=shared,
            first=_atoms({k: result[k] for k in result if k not in second}),
            second=_atoms({k: result[k] for k in result if k not in first}),
        )


def _atoms(axes: dict[str, Axis]) -> frozenset[Atom]:
    return frozenset(atom for axis in axes.values() for atom in flat(axis))


def variables_by_value(analysis: Analysis) -> dict[int, Value]:
    """Returns, by its identity, the variable that a value has the elements of: its own value,
    and what only moves its elements.
    """
    variables = {id(v): v for v in analysis.program.on_entry.values()}
    for node in analysis.program.all_nodes():
        if node.kind in _MOVES and id(node.inputs[0]) in variables:
            variable = variables[id(node.inputs[0])]
            variables.update((id(v), variable) for v in node.outputs)
    return variables
