"""Finds operations that run alike on the values of all repeated layers: an optimizer's, above all.

    m_0 = m_0 + (g_0 - m_0) * 0.1
    m_1 = m_1 + (g_1 - m_1) * 0.1         as one: m + (g - m) * 0.1, of [layers, ...]
    m_2 = m_2 + (g_2 - m_2) * 0.1

The operations of different layers are numbered by what they compute of what: those with one
number, one for each layer, are one operation of stacks. (Superword-level parallelism: S. Larsen and
S. Amarasinghe, 2000.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.repeats.stacks import Stack, Stacks


def packs_of(
    nodes: Sequence[Node],
    num_layers: Sequence[int],
    stacks: Stacks,
    is_uniform: Callable[[Node], bool],
) -> list[list[Node]]:
    """Returns nodes that run as one, one of each layer, and adds the stacks of their outputs.

    Args:
        nodes: In their order.
        num_layers: How many layers there are, of each group of repeated ones.
        stacks: Those of what is stacked so far.
        is_uniform: Whether a node computes the same of an entry of a stack as of the stack.
    """
    numbering = _Numbering(stacks)
    groups: dict[int, list[list[Node]]] = {}
    group_of: dict[int, int] = {}
    for node in nodes:
        place = numbering.number(node) if is_uniform(node) else None
        if place is not None:
            number, (group, layer) = place
            count = num_layers[group]
            nodes_of_layers = groups.setdefault(number, [[] for _ in range(count)])
            nodes_of_layers[layer].append(node)
            group_of[number] = group
    packs: list[list[Node]] = []
    for number, nodes_of_layers in groups.items():
        for together in zip(*nodes_of_layers):
            if all(numbering.has_stacks(node, stacks) for node in together):
                packs.append(list(together))
                for values in zip(*(node.outputs for node in together)):
                    stacks.add(Stack(group_of[number], values))
    return packs


# The index of a group of layers, and that of a layer in the group.
_Layer = tuple[int, int]


class _Numbering:
    """Numbers of values: the same for equal ones, and for those of layers that correspond to each
    other.

    Args:
        stacks: Values that correspond to each other.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._numbers: dict[Any, int] = {}
        # By a value's identity, its number, and its layer; None: it is of none.
        self._places: dict[int, tuple[int, _Layer | None]] = {}
        for stack in stacks:
            number = self._number_of(id(stack))
            for k, value in enumerate(stack.values if stack.is_complete else ()):
                if value is not None:
                    self._places[id(value)] = (number, (stack.group, k))

    def number(self, node: Node) -> tuple[int, _Layer] | None:
        """Returns a number of what a node computes of what, and its layer; None: it is of none,
        or of several.
        """
        layers: set[_Layer] = set()
        operands: list[Any] = []
        for value in node.inputs:
            place = self._places.get(id(value))
            if place is not None and place[1] is not None:
                layers.add(place[1])
            operands.append(_constant_or_value(value) if place is None else place[0])
        if len(layers) > 1:
            return None
        layer = layers.pop() if layers else None
        attributes = repr(sorted(node.attributes.items()))
        shapes = tuple(v.shape for v in node.outputs)
        number = self._number_of((node.kind, attributes, shapes, tuple(operands)))
        for k, value in enumerate(node.outputs):
            self._places[id(value)] = (self._number_of((number, k)), layer)
        return None if layer is None else (number, layer)

    def has_stacks(self, node: Node, stacks: Stacks) -> bool:
        """Whether all that a node takes of its layer is in stacks."""
        places = [self._places.get(id(value)) for value in node.inputs]
        return all(
            place is None or place[1] is None or stacks.place_of(value) is not None
            for place, value in zip(places, node.inputs)
        )

    def _number_of(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _constant_or_value(value: Value) -> Any:
    """Returns what two operands share that all layers have in common."""
    if value.constant is None:
        return ("value", id(value))
    array = np.asarray(value.constant)
    return (value.dtype, array.shape, array.tobytes())
