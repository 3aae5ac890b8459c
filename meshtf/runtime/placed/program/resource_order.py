"""The order of nodes that read and write variables."""

from __future__ import annotations

from collections.abc import Iterable


class ResourceOrder:
    """In which order nodes use resources: reads wait for the last write, writes for
    that and for the reads since.
    """

    def __init__(self) -> None:
        self._writes: dict[str, list[str]] = {}  # by resource: the nodes of the last
        self._reads: dict[str, list[str]] = {}  # and those that read since

    def before(self, resources: Iterable[str], writes: bool) -> list[str]:
        """Returns the nodes after which one that uses these resources may run."""
        nodes: dict[str, None] = {}
        for resource in resources:
            nodes.update(dict.fromkeys(self._writes.get(resource, ())))
            if writes:
                nodes.update(dict.fromkeys(self._reads.get(resource, ())))
        return list(nodes)

    def add(self, nodes: Iterable[str], resources: Iterable[str], writes: bool) -> None:
        """Adds nodes that use resources."""
        new = list(nodes)
        for resource in resources:
            if writes:
                self._writes[resource], self._reads[resource] = new, []
            else:
                self._reads.setdefault(resource, []).extend(new)
