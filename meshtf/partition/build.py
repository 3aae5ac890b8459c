"""A program: a graph with its communication made explicit, for any number of devices.

`build` walks the nodes in order and lets the builder plan each.

    steps = build(graph.nodes, results, mesh).steps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshtf.graph import Branch, Call, HostOp, Loop, Node, Tensor, WriteOp
from meshtf.graph.recorder import latest
from meshtf.mesh import Mesh, Placement
from meshtf.mesh.once_per_mesh import log_once
from meshtf.mesh.state import finished
from meshtf.partition.builder import Builder
from meshtf.partition.calls import plan_call
from meshtf.partition.loops_and_branches import plan_branch, plan_loop
from meshtf.partition.steps import Program

PLANNERS = {Loop: plan_loop, Branch: plan_branch, Call: plan_call}


def build(
    nodes: Sequence[Node],
    results: Sequence[Tensor],
    mesh: Mesh,
    placement: Placement | None = None,
    finish: bool = True,
    prune: bool = True,
) -> Program:
    """Returns the program that makes `results`, from nodes in the order in which they
    were made.

    Args:
      nodes: what was recorded.
      results: tensors to make.
      mesh: their mesh.
      placement: where to bring the results; None: where the planner leaves them.
      finish: whether unfinished sums among the results are finished.
      prune: whether to leave out what no result and no effect needs.
    """
    builder = Builder(mesh, PLANNERS)
    for node in live(nodes, results) if prune else map(latest, nodes):
        builder.node(node)
    final = []
    for tensor in results:
        state = builder.state(tensor)
        target = placement or (finished(state) if finish else state)
        final.append(builder.reshard_to(tensor, target, None))
    for note in builder.notes:
        log_once(mesh, note)
    return Program(mesh, tuple(builder.steps), tuple(final), tuple(builder.notes))


def live(nodes: Sequence[Node], results: Iterable[Tensor]) -> list[Node]:
    """Returns the nodes that results or effects need."""
    needed = {latest(t.node) for t in results}
    kept = []
    for node in map(latest, reversed(nodes)):
        if node in needed or isinstance(node.op, (WriteOp, HostOp)):
            kept.append(node)
            needed.update(latest(x.node) for x in node.inputs)
            if node.wait_for is not None:
                needed.add(latest(node.wait_for.node))
    return kept[::-1]
