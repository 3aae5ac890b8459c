"""The phase of each op of a training step: forward, backward or update.

Ops that gradient rules record are backward. Ops that read the results of backward ops, such
as an optimizer's, are update; so are ops that only updates use, such as a learning rate, and
writes after that of a parameter, such as of its moving average. A loop over microbatches
contains forward and backward ops; ops that read its results are update.

A node is a recorded op. `latest_version(node)` is the node that replaced it in the recorded
graph, or the node itself. Nodes that a gradient rule recorded have `primals`: the tensors of
the forward op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from meshtf.forecast.report_data import Phase
from meshtf.graph import Body, Call, ControlFlowOp, Node, Tensor, WriteOp
from meshtf.graph.recorder import latest_version


def phases(nodes: Sequence[Node], results: Iterable[Tensor]) -> dict[Node, Phase]:
    """Returns the phase of each node, nodes of bodies included.

    Args:
      nodes: the recorded ops, in order.
      results: the results of the function.
    """
    phase_of: dict[Node, Phase] = {}
    # Loops, branches and calls that contain a backward pass.
    training_loops = {node for node in nodes if _has_backward_pass(node)}
    parameters_are_written = False
    for node in nodes:
        phase_of[node] = _phase(node, phase_of, training_loops)
        if isinstance(node.op, WriteOp):
            if parameters_are_written:  # such as the moving average of a parameter
                phase_of[node] = "update"
            elif node.op.variables[0].kind == "parameter":
                parameters_are_written = True
    outputs = training_loops | {latest_version(tensor.node) for tensor in results}
    _mark_inputs_of_updates(nodes, outputs, phase_of)
    for node in nodes:
        _add_bodies(node, phase_of)
    return phase_of


def _add_bodies(node: Node, phase_of: dict[Node, Phase]) -> None:
    """Adds the phases of nodes in the bodies of a loop, branch or call: backward for nodes
    of gradient rules, the phase of the loop, branch or call for all others.
    """
    for body in _bodies(node):
        for inner in body.nodes:
            phase: Phase = "backward" if _is_backward(inner) else phase_of[node]
            phase_of.setdefault(inner, phase)
            _add_bodies(inner, phase_of)


def _bodies(node: Node) -> tuple[Body, ...]:
    """Returns the bodies of a loop, branch or call; none for any other op."""
    return node.op.bodies if isinstance(node.op, ControlFlowOp) else ()


def _inner_nodes(node: Node) -> Iterator[Node]:
    """Yields the nodes of all bodies of a node, at any depth."""
    for body in _bodies(node):
        for inner in body.nodes:
            yield inner
            yield from _inner_nodes(inner)


def _has_backward_pass(node: Node) -> bool:
    """Returns whether a gradient rule recorded a node of a body of this node."""
    return any(inner.primals for inner in _inner_nodes(node))


def _is_backward(node: Node) -> bool:
    """Returns whether a gradient rule recorded a node."""
    if isinstance(node.op, Call) and node.op.call_id.backward:
        return True
    return bool(node.primals)


def _phase(node: Node, phase_of: dict[Node, Phase], training_loops: Set[Node]) -> Phase:
    """Returns the phase of a node.

    Args:
      node: the node.
      phase_of: the phases of all nodes before it.
      training_loops: nodes that contain a backward pass.
    """
    if _is_backward(node):
        return "backward"
    op = node.op
    if isinstance(op, WriteOp) and op.variables[0].kind == "parameter":
        return "update"
    for x in node.inputs:
        producer = latest_version(x.node)
        if producer in training_loops or phase_of.get(producer, "forward") != "forward":
            return "update"
    return "forward"


def _mark_inputs_of_updates(
    nodes: Sequence[Node], outputs: set[Node], phase_of: dict[Node, Phase]
) -> None:
    """Changes the phase of forward ops that only updates use to "update".

    Args:
      nodes: the recorded ops, in order.
      outputs: nodes whose phase does not change: those that compute results of the
        function or contain a backward pass.
      phase_of: the phase of each node; changed in place.
    """
    phases_of_users: dict[Node, set[Phase]] = {}
    for node in reversed(nodes):
        only_updates = phases_of_users.get(node) == {"update"}
        if phase_of[node] == "forward" and node not in outputs and only_updates:
            phase_of[node] = "update"
        for x in node.inputs:
            phases_of_users.setdefault(latest_version(x.node), set()).add(
                phase_of[node]
            )
