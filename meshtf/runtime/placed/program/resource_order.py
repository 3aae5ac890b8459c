"""The order of nodes that read and write variables."""

from __future__ import annotations

from collections.abc import Iterable


class ResourceOrder:
    """The order in which nodes use resources: a read waits for the last write; a write
    waits for the last write and for all reads after it.
    """

    def __init__(self) -> None:
        self._writes: dict[str, list[str]] = {}  # resource -> nodes of the last write
        self._reads: dict[str, list[str]] = {}  # resource -> nodes that read after it

    def before(self, resources: Iterable[str], writes: bool) -> list[str]:
        """Returns the nodes that a new user of resources waits for."""
        nodes: dict[str, None] = {}
        for resource in resources:
            nodes.update(dict.fromkeys(self._writes.get(resource, ())))
            if writes:
                nodes.update(dict.fromkeys(self._reads.get(resource, ())))
        return list(nodes)

    def add(
        self,
        nodes: Iterable[str],
        resources: Iterable[str],
        writes: bool,
    ) -> None:
        """Adds nodes that use resources."""
        new = list(nodes)
        for resource in resources:
            if writes:
                self._writes[resource] = new
                self._reads[resource] = []
            else:
                self._reads.setdefault(resource, []).extend(new)
