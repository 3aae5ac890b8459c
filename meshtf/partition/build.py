"""Turns a graph into a program: the same computation with its communication made
explicit, for any number of devices.

    steps = build(graph.nodes, results, mesh).steps

`build` passes the nodes to a `Builder` in the order in which they were recorded.
Differentiation may replace a recorded node by one with more outputs, such as residuals:
`latest_version(node)` is the replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshtf.graph import Branch, Call, HostOp, Loop, Node, Store, Tensor, WriteOp
from meshtf.graph.recorder import latest_version
from meshtf.mesh import Layout, Mesh, Placement
from meshtf.mesh.once_per_mesh import log_once
from meshtf.partition.builder import Builder
from meshtf.partition.calls import plan_call
from meshtf.partition.loops_and_branches import plan_branch, plan_loop
from meshtf.partition.steps import Program
from meshtf.partition.steps.before_pipelines import sums_before_pipelines

# {type of op: function that plans a node of this type}, for ops that run other nodes.
PLANNERS = {Loop: plan_loop, Branch: plan_branch, Call: plan_call}


def build(
    nodes: Sequence[Node],
    results: Sequence[Tensor],
    mesh: Mesh,
    placement: Placement | None = None,
    finish: bool = True,
    prune: bool = True,
    stores: Mapping[Store, Store] | None = None,
    regions: Mapping[Layout, Layout] | None = None,
) -> Program:
    """Returns the program that computes `results`.

    Args:
      nodes: the recorded nodes, in the order in which they were recorded.
      results: the tensors to compute.
      mesh: the mesh that the program runs on: that of the tensors, or another one.
      placement: the placement that all results get; None: each result keeps the
        placement that the planner chose for it.
      finish: whether partial sums among the results are reduced, where `placement` is
        None.
      prune: whether to leave out nodes that neither a result nor an effect needs.
      stores: where the nodes were recorded on another mesh, for each variable and argument
        of them the one on `mesh` that takes its place.
      regions: likewise for layout changes; those that it lacks stay.
    """
    builder = Builder(mesh, PLANNERS, stores=stores, regions=regions)
    if prune:
        remaining_nodes = live_nodes(nodes, results)
    else:
        remaining_nodes = [latest_version(node) for node in nodes]
    for node in remaining_nodes:
        builder.add_node(node)
    values = []
    for tensor in results:
        target = placement
        if target is None:
            target = builder.placement_of(tensor)
            if finish:
                target = target.reduced()
        values.append(builder.reshard_to(tensor, target, node=None))
    # A note is a remark on a dimension that stays replicated though the layout shards it.
    for note in builder.notes:
        log_once(mesh, note)
    return Program(
        mesh=mesh,
        steps=tuple(sums_before_pipelines(builder.steps, values, mesh)),
        results=tuple(values),
        notes=tuple(builder.notes),
    )


def live_nodes(nodes: Sequence[Node], results: Iterable[Tensor]) -> list[Node]:
    """Returns the nodes that results or effects (writes, host ops) need, in order.

    A node needs the nodes that compute its inputs and its control dependency `wait_for`.
    """
    needed_nodes = {latest_version(x.node) for x in results}
    reversed_nodes = []
    for node in map(latest_version, reversed(nodes)):
        if node in needed_nodes or isinstance(node.op, (WriteOp, HostOp)):
            reversed_nodes.append(node)
            needed_nodes.update(latest_version(x.node) for x in node.inputs)
            if node.wait_for is not None:
                needed_nodes.add(latest_version(node.wait_for.node))
    return reversed_nodes[::-1]
