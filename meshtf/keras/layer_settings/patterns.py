"""Which layers of a model have settings of their own: regular expressions of their paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from meshtf.errors import ArgumentError, LayoutError, explain_error
from meshtf.keras.layer_settings.repeated import RepeatedLayers
from meshtf.keras.layout_map import check_axes, similar_paths
from meshtf.mesh import NO_CHANGES, Layout, Mesh

_WAY_OUT = (
    "A layer's path is `layer.path`; a pattern is a regular expression of all of it."
)


class LayerSettings:
    """What a user has said of the layers of a model.

    Attributes:
        regions: By pattern, changes of the layout for the layers that it matches.
        recompute: Patterns of the layers that the backward pass computes again.
        repeated: Groups of layers that the model repeats.
        matched: By pattern, and by the path of a layer that it matches, identities of the
            layer's variables.
    """

    def __init__(
        self, regions: Any, recompute: Any, mesh: Mesh, repeated: Any = None
    ) -> None:
        """Reads patterns.

        Args:
            regions: By pattern, changes of the layout; None: there are none.
            recompute: Patterns, or one; None: there are none.
            mesh: Where the model runs.
            repeated: Patterns of layers that the model repeats, or one; None: there are none.

        Raises:
            ArgumentError: One of them has another type, or a pattern is no regular expression.
            LayoutError: A layout names an axis that the mesh lacks and that is not optional.
            ParseError: A layout cannot be read.
        """
        if not isinstance(regions or {}, Mapping):
            raise ArgumentError(
                "`regions` gives layouts by patterns of layers, such as "
                f'{{"decoder/.*": "length:model"}}; it is a {type(regions).__name__}'
            )
        self.regions = {
            _checked(pattern, "regions"): Layout.changes(changes)
            for pattern, changes in (regions or {}).items()
        }
        check_axes(mesh, self.regions.values())
        for changes in self.regions.values():
            mesh.layout_in(changes)  # checks it
        self.recompute = _patterns(recompute, "recompute")
        self.repeated = [
            RepeatedLayers(pattern) for pattern in _patterns(repeated, "repeated")
        ]
        self.matched: dict[str, dict[str, set[int]]] = {}
        self._paths: dict[int, str] = {}
        self._of_variables: dict[int, Layout] = {}
        self._paths_within: dict[str, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.regions or self.recompute or self.repeated)

    def region_of(self, path: str) -> Layout:
        """Returns the changes of the layout for a layer, by its path; "" is none."""
        for pattern, changes in self.regions.items():
            if path and re.fullmatch(pattern, path):
                return changes
        return NO_CHANGES

    def recomputed_group(self, path: str) -> tuple[str | None, ...] | None:
        """Returns what the groups of a pattern match in the path of a layer that the backward
        pass computes again; None if it does not.
        """
        for pattern in self.recompute:
            match = re.fullmatch(pattern, path) if path else None
            if match:
                return match.groups()
        return None

    def region_of_variable(self, key: int | None) -> Layout:
        """Returns the changes of the layout for a variable, by its identity: those of the
        layers that it belongs to.
        """
        return self._of_variables.get(key or 0, NO_CHANGES)

    def use(self, model: Any) -> None:
        """Finds the layers of a built model.

        Raises:
            ArgumentError: A pattern of `recompute` matches no layer.
            LayoutError: One of `regions` matches none, or two match one layer.
        """
        layers = list(layers_within(model))
        self._check([path for _, path in layers])
        for repeated in self.repeated:
            repeated.use(layers)
        self._paths = {id(layer): path for layer, path in layers}
        for pattern in (*self.regions, *self.recompute):
            matched = self.matched.setdefault(pattern, {})
            within = self._paths_within.setdefault(pattern, set())
            for layer, path in layers:
                if re.fullmatch(pattern, path):
                    variables = {id(v) for v in layer.weights}
                    matched.setdefault(path, set()).update(variables)
                    inner = [each for each, _ in layers_within(layer)]
                    within.update(self._paths[id(each)] for each in [layer, *inner])
        for layer, path in layers:
            changes = self.region_of(path)
            for variable in layer.weights:
                outer = self.region_of_variable(id(variable))
                self._of_variables[id(variable)] = outer.then(changes)

    def paths_within(self, pattern: str) -> set[str]:
        """Returns the paths of the layers that a pattern matches, and of those within them."""
        return self._paths_within.get(pattern, set())

    def variables_of(self, pattern: str) -> set[int]:
        """Returns the identities of the variables of the layers that a pattern matches."""
        return set().union(*self.matched.get(pattern, {}).values())

    def path_of(self, layer: Any) -> str:
        """Returns the path of a layer of the model; "" of other layers."""
        return self._paths.get(id(layer), "")

    def _check(self, paths: Sequence[str]) -> None:
        """Raises an error for a pattern without a layer, and for a layer with two regions."""
        for pattern in self.recompute:
            if not any(re.fullmatch(pattern, path) for path in paths):
                raise ArgumentError(_unmatched("recompute", pattern, paths))
        for pattern in self.regions:
            if not any(re.fullmatch(pattern, path) for path in paths):
                raise LayoutError(_unmatched("regions", pattern, paths))
        for path in paths:
            matching = [p for p in self.regions if re.fullmatch(p, path)]
            if len(matching) > 1:
                raise LayoutError(
                    explain_error(
                        f"two patterns of `regions` match the layer {path}.",
                        patterns=", ".join(matching),
                        way_out="Narrow one of them: each layer has one region. (Those of "
                        "the layers around it hold as well.)",
                    )
                )


def is_built(model: Any) -> bool:
    """Whether a model has all of its layers and their paths. (One with a step of its own may
    never be called itself.)
    """
    layers = [layer for layer, _ in layers_within(model)]
    return model.built or bool(layers and all(layer.built for layer in layers))


def layers_within(layer: Any) -> Iterator[tuple[Any, str]]:
    """Yields the layers within a layer, each once, the outer ones first, and their paths. A
    layer that builds nothing has no path in Keras: it has that of the layer around it, and its
    name.
    """
    seen = {id(layer)}
    queue = [(layer, "")]
    for outer, path in queue:
        for inner in inner_layers(vars(outer).values()):
            if id(inner) not in seen:
                seen.add(id(inner))
                own_path = inner.path or "/".join(filter(None, [path, inner.name]))
                queue.append((inner, own_path))
                yield inner, own_path


def inner_layers(values: Iterable[Any]) -> Iterator[Any]:
    """Yields layers among values, and in lists and dictionaries of them."""
    for value in values:
        if isinstance(value, keras.Layer):
            yield value
        elif isinstance(value, dict):
            yield from inner_layers(value.values())
        elif isinstance(value, (list, tuple)):
            yield from inner_layers(value)


def _patterns(patterns: Any, argument: str) -> list[str]:
    """Returns patterns of layers: an argument that is one, a list of them, or None.

    Raises:
        ArgumentError: It is something else.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns or ()
    if not isinstance(patterns, Sequence):
        raise ArgumentError(
            f"`{argument}` is a pattern of layers, or a list of them, such as "
            f'"encoder/layer_\\d+"; it is a {type(patterns).__name__}'
        )
    return [_checked(pattern, argument) for pattern in patterns]


def _checked(pattern: Any, argument: str) -> str:
    """Returns a pattern.

    Raises:
        ArgumentError: It is no regular expression.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ArgumentError(
            f"`{argument}` has {pattern!r}, which is no regular expression: {error}"
        ) from None
    return str(pattern)


def _unmatched(argument: str, pattern: str, paths: Sequence[str]) -> str:
    return explain_error(
        f'`{argument}` has a pattern "{pattern}" that matches no layer.',
        similar=similar_paths(pattern, paths),
        layers=", ".join(paths[:5]) + (", ..." if len(paths) > 5 else ""),
        way_out=_WAY_OUT,
    )
