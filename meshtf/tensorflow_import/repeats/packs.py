"""Finds operations that run alike on the values of all repeated layers: an optimizer's, above all.

    m_0 = m_0 + (g_0 - m_0) * 0.1
    m_1 = m_1 + (g_1 - m_1) * 0.1         as one: m + (g - m) * 0.1, of [layers, ...]
    m_2 = m_2 + (g_2 - m_2) * 0.1

Operations get an index by what they compute of what. Those with the same index, one of each layer,
are one operation of stacks. (Superword-level parallelism: S. Larsen and S. Amarasinghe, 2000.)
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
        location = numbering.computation_of(node) if is_uniform(node) else None
        if location is not None:
            computation, (group, layer) = location
            count = num_layers[group]
            nodes_of_layers = groups.setdefault(computation, [[] for _ in range(count)])
            nodes_of_layers[layer].append(node)
            group_of[computation] = group
    packs: list[list[Node]] = []
    for computation, nodes_of_layers in groups.items():
        for together in zip(*nodes_of_layers):
            if all(numbering.has_stacks(node, stacks) for node in together):
                packs.append(list(together))
                for values in zip(*(node.outputs for node in together)):
                    stacks.add(Stack(group_of[computation], values))
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
        self._indices: dict[Any, int] = {}
        # By a value's identity, the index of its computation, and its layer; None: of none.
        self._locations: dict[int, tuple[int, _Layer | None]] = {}
        for stack in stacks:
            computation = self._index_of(id(stack))
            for k, value in enumerate(stack.values if stack.is_complete else ()):
                if value is not None:
                    self._locations[id(value)] = (computation, (stack.group, k))

    def computation_of(self, node: Node) -> tuple[int, _Layer] | None:
        """Returns the index of what a node computes of what, and its layer; None: it is of none,
        or of several.
        """
        layers: set[_Layer] = set()
        operands: list[Any] = []
        for value in node.inputs:
            location = self._locations.get(id(value))
            if location is not None and location[1] is not None:
                layers.add(location[1])
            operands.append(
                _constant_or_value(value) if location is None else location[0]
            )
        if len(layers) > 1:
            return None
        layer = layers.pop() if layers else None
        attributes = repr(sorted(node.attributes.items()))
        shapes = tuple(v.shape for v in node.outputs)
        computation = self._index_of((node.kind, attributes, shapes, tuple(operands)))
        for k, value in enumerate(node.outputs):
            self._locations[id(value)] = (self._index_of((computation, k)), layer)
        return None if layer is None else (computation, layer)

    def has_stacks(self, node: Node, stacks: Stacks) -> bool:
        """Whether all that a node takes of its layer is in stacks."""
        locations = [self._locations.get(id(value)) for value in node.inputs]
        return all(
            location is None
            or location[1] is None
            or stacks.location_of(value) is not None
            for location, value in zip(locations, node.inputs)
        )

    def _index_of(self, key: Any) -> int:
        return self._indices.setdefault(key, len(self._indices))


def _constant_or_value(value: Value) -> Any:
    """Returns what two operands share that all layers have in common."""
    if value.constant is None:
        return ("value", id(value))
    array = np.asarray(value.constant)
    return (value.dtype, array.shape, array.tobytes())
