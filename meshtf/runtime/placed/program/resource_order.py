"""The order in which the nodes of a program read and write variables.

    controls = order.before(["handle"], writes=True)     # the nodes after which to run
    order.add(["AssignVariableOp"], ["handle"], writes=True)

Nodes and resources are known by their names in the FunctionDef of the program.
"""

from __future__ import annotations

from collections.abc import Iterable


class ResourceOrder:
    """Keeps reads and writes of resources (variable handles) in program order: a read runs
    after the last write before it; a write runs after the last write and all reads since.
    """

    def __init__(self) -> None:
        # {resource: the nodes of its last write, and the nodes that read it since}.
        self._writes: dict[str, list[str]] = {}
        self._reads: dict[str, list[str]] = {}

    def before(self, resources: Iterable[str], writes: bool) -> list[str]:
        """Returns the names of the nodes after which a new user of resources must run.

        Args:
          resources: the resources that the new node uses.
          writes: whether the new node writes them.
        """
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
        """Records that nodes use resources, and whether they write them."""
        names = list(nodes)
        for resource in resources:
            if writes:
                self._writes[resource] = names
                self._reads[resource] = []
            else:
                self._reads.setdefault(resource, []).extend(names)
