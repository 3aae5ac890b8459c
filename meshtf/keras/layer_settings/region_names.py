"""Which dimensions the layers of a region have: its layout must shard some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshtf.errors import LayoutError, explain_error, near_misses
from meshtf.keras.layer_settings.patterns import LayerSettings
from meshtf.mesh import Layout
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.named_program import NamedProgram


class RegionNames:
    """The names of dimensions of regions, in the steps so far."""

    def __init__(self, settings: LayerSettings) -> None:
        """Prepares for the regions of a model's layers."""
        self._settings = settings
        self._names: dict[str, set[str]] = {}

    def add(self, named: NamedProgram) -> None:
        """Adds those of a program.

        Raises:
            LayoutError: A region has a rule for a name that none of its layers has, so that it
                would do nothing.
        """
        for pattern, changes in self._settings.regions.items():
            names = self._names.setdefault(pattern, set())
            for value in self._values(named, pattern):
                if value.is_tensor and named.analysis.is_met(value):
                    names.update(named.names_of(value))
            for name, _ in changes.items():
                # Layers that the step does not call have no names yet.
                if names and name not in names and name != "*":
                    raise LayoutError(_without_effect(pattern, changes, name, names))

    def of(self, pattern: str) -> set[str]:
        """Returns the names that the layers of a region have."""
        return self._names.get(pattern, set())

    def _values(self, named: NamedProgram, pattern: str) -> Iterator[Value]:
        """Yields the tensors that a region's layers take, make and have as variables."""
        paths = self._settings.paths_within(pattern)
        variables = self._settings.variables_of(pattern)
        for key, value in named.program.on_entry.items():
            if key in variables:
                yield value
        for node in _nodes_of(named.program.nodes, paths, False):
            yield from (*node.inputs, *node.outputs)


def _nodes_of(nodes: Sequence[Node], paths: set[str], within: bool) -> Iterator[Node]:
    """Yields nodes of some layers. Those in bodies are of the loop's or branch's layer, unless
    they have one of their own.
    """
    for node in nodes:
        is_within = within or (node.section is not None and node.section.layer in paths)
        if is_within and not node.bodies:
            yield node
        for body in node.bodies.values():
            yield from _nodes_of(body.nodes, paths, is_within)


def _without_effect(pattern: str, changes: Layout, name: str, names: set[str]) -> str:
    return explain_error(
        f'the region "{pattern}" has a rule for "{name}", a name that no dimension of its '
        "layers has.",
        region=changes,
        similar=near_misses(name, names) or "none",
        dimensions=", ".join(sorted(names)),
        way_out="Name one of these dimensions, match other layers, or delete the rule.",
    )
