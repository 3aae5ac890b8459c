"""The phase of each op: forward, backward, or update.

What gradient rules make is backward; what depends on it, or serves nothing but updates,
is update. A loop over microbatches has both inside, and what depends on it is update as
well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from meshtf.forecast.report_data import Phase
from meshtf.graph import Body, Call, ControlFlowOp, Node, Tensor, WriteOp
from meshtf.graph.recorder import latest


def phases(nodes: Sequence[Node], results: Iterable[Tensor]) -> dict[Node, Phase]:
    """Returns the phase of each node."""
    found: dict[Node, Phase] = {}
    learn = {node for node in nodes if any(inside.primals for inside in _inside(node))}
    for node in nodes:
        found[node] = _phase(node, found, learn)
    _serves_updates_alone(nodes, learn | {latest(t.node) for t in results}, found)
    for node in nodes:
        _fill_in(node, found)
    return found


def _fill_in(node: Node, found: dict[Node, Phase]) -> None:
    """Adds the phases of what is inside a node: of a loop that is no forward pass, the
    loop's.
    """
    for body in _bodies(node):
        for inside in body.nodes:
            backward = (
                inside.primals
                or isinstance(inside.op, Call)
                and inside.op.which.backward
            )
            found.setdefault(inside, "backward" if backward else found[node])
            _fill_in(inside, found)


def _bodies(node: Node) -> tuple[Body, ...]:
    """Returns what a loop, branch or call runs."""
    return node.op.bodies if isinstance(node.op, ControlFlowOp) else ()


def _inside(node: Node) -> Iterator[Node]:
    """Yields the nodes of bodies, those of loops within loops too."""
    for body in _bodies(node):
        for inside in body.nodes:
            yield inside
            yield from _inside(inside)


def _phase(node: Node, before: dict[Node, Phase], learn: Set[Node]) -> Phase:
    if node.primals or isinstance(node.op, Call) and node.op.which.backward:
        return "backward"
    op = node.op
    trains = isinstance(op, WriteOp) and op.variables[0].kind == "parameter"
    if trains or any(
        before.get(maker, "forward") != "forward" or maker in learn
        for maker in (latest(x.node) for x in node.inputs)
    ):
        return "update"
    return "forward"


def _serves_updates_alone(
    nodes: Sequence[Node], kept: set[Node], found: dict[Node, Phase]
) -> None:
    """Makes update what only updates use, such as a learning rate."""
    users: dict[Node, set[Phase]] = {}
    for node in reversed(nodes):
        if (
            found[node] == "forward"
            and node not in kept
            and users.get(node) == {"update"}
        ):
            found[node] = "update"
        for x in node.inputs:
            users.setdefault(latest(x.node), set()).add(found[node])
