"""Layers that a model repeats: which they are, and which of their variables correspond."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshtf.errors import ArgumentError, explain_error
from meshtf.keras.layer_settings.slots import slots_by_variable
from meshtf.tensorflow_import.graph.state import path_of
from meshtf.tensorflow_import.repeats.stacks import Repeated

# What a pattern's groups match in a layer's path, or the path.
_Key = tuple[str | None, ...]


class RepeatedLayers:
    """Layers that a pattern matches, in the order in which a step calls them.

    Attributes:
        pattern: A regular expression of paths.
    """

    def __init__(self, pattern: str) -> None:
        """Prepares for the layers of a model."""
        self.pattern = pattern
        self._layers: dict[_Key, list[Any]] = {}
        self._indices: dict[_Key, int] = {}
        self._repeated: Repeated | None = None

    def key_of(self, path: str) -> _Key | None:
        """Returns what tells a repeated layer from others, by the path of a layer; None: it is
        none.
        """
        match = re.fullmatch(self.pattern, path) if path else None
        return None if match is None else match.groups() or (path,)

    def use(self, layers: Sequence[tuple[Any, str]]) -> None:
        """Finds the layers, among those of a model and their paths.

        Raises:
            ArgumentError: The pattern matches no layers, or one.
        """
        for layer, path in layers:
            key = self.key_of(path)
            if key is not None:
                self._layers.setdefault(key, []).append(layer)
        if len(self._layers) < 2:
            paths = [path for _, path in layers]
            raise ArgumentError(
                explain_error(
                    f'`repeated` has a pattern "{self.pattern}", by which '
                    f"{len(self._layers) or 'no'} layer is repeated.",
                    layers=", ".join(paths[:5]) + (", ..." if len(paths) > 5 else ""),
                    way_out="A layer's path is `layer.path`; a pattern is a regular expression "
                    "of all of it. If it has groups, the layers for which they match the same "
                    "are one.",
                )
            )

    def index_of(self, key: _Key) -> int:
        """Returns the index of a repeated layer that is called: in the first step they are
        counted.
        """
        return self._indices.setdefault(key, len(self._indices))

    def variables(self, optimizer: Any, trainable: Sequence[Any]) -> Repeated:
        """Returns the layers, with the variables that correspond to each other: their own, and
        the optimizer's.

        Args:
            optimizer: The model's optimizer; None: it has none.
            trainable: The model's trainable variables.

        Raises:
            ArgumentError: Layers have other variables than the first one.
        """
        keys = sorted(self._layers, key=self.index_of)
        by_layer = [_variables_of(self._layers[key]) for key in keys]
        count: dict[int, int] = {}
        for variables in by_layer:
            for variable in variables:
                count[id(variable)] = count.get(id(variable), 0) + 1
        alone = [[v for v in variables if count[id(v)] == 1] for variables in by_layer]
        for variables in alone[1:]:
            self._check_same(alone[0], variables)
        together = [list(group) for group in zip(*alone)]
        if optimizer is not None:
            slots = slots_by_variable(optimizer, trainable)
            for group in list(together):
                together += _slots_of(group, slots)
        return Repeated(len(keys), together)

    def _check_same(self, first: Sequence[Any], other: Sequence[Any]) -> None:
        for a, b in zip(first, other):
            if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
                raise self._refusal(
                    f"{_label_of(b)}, where the first one has {_label_of(a)}"
                )
        if len(first) != len(other):
            longer = max(first, other, key=len)
            raise self._refusal(
                f"{len(other)} variables, where the first one has {len(first)}, such as "
                f"{_label_of(longer[min(len(first), len(other))])}"
            )

    def _refusal(self, difference: str) -> ArgumentError:
        return ArgumentError(
            explain_error(
                f'the layers that `repeated` matches ("{self.pattern}") are not equal: one has '
                f"{difference}.",
                way_out="Match only layers of equal sizes and settings.",
            )
        )


def _label_of(variable: Any) -> str:
    return f"{path_of(variable)} {list(variable.shape)}"


def _variables_of(layers: Sequence[Any]) -> list[Any]:
    """Returns the variables of layers, each once."""
    variables = [v for layer in layers for v in layer.variables]
    return list({id(v): v for v in variables}.values())


def _slots_of(group: Sequence[Any], slots: Any) -> list[list[Any]]:
    """Returns the slots of variables that correspond to each other, if all have the same.

    Args:
        group: One variable of each layer.
        slots: By a variable's resource, its slots by name; see `slots_by_variable`.
    """
    of_variables = [slots.get(id(v.value.handle)) for v in group]
    if None in of_variables or any(
        s.keys() != of_variables[0].keys() for s in of_variables
    ):
        return []
    names = [name for name in of_variables[0] if name]
    return [[of_layer[name] for of_layer in of_variables] for name in names]
