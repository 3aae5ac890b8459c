"""Calls: a body that many calls share is planned at its first call.

Sums over calls, such as gradients over microbatches, stay partial sums until after the
last call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set

from meshtf.graph import (
    Body,
    Call,
    ConstantOp,
    Node,
    Tensor,
)
from meshtf.mesh import OnStage, Partial, Placement, Sharded
from meshtf.mesh.state import reduced_placement
from meshtf.partition.builder import Builder, PlannedBody
from meshtf.partition.control_dependencies import with_stage
from meshtf.partition.loops_and_branches import (
    captured_values,
    hoist_invariant_steps,
    plan_body,
    set_outputs,
)
from meshtf.partition.planner import final, plan_node
from meshtf.partition.steps import CallStep, Compute, Program, Value


def plan_call(builder: Builder, node: Node) -> None:
    """Plans a call and appends its step. Later calls reshard their arguments to the
    placements of the first call.
    """
    op = node.op
    assert isinstance(op, Call)
    if op.body not in builder.planned_bodies:
        builder.planned_bodies[op.body] = _plan_first_call(builder, node, op)
    planned = builder.planned_bodies[op.body]
    arguments = []
    for x, value in zip(node.inputs, planned.arguments):
        arguments.append(_argument(builder, x, value.placement, node))
    outputs = []
    for y, result in zip(node.outputs, planned.program.results):
        outputs.append(Value(y.spec, result.placement))
    builder.steps.append(
        CallStep(
            node=node,
            body=planned.program,
            body_arguments=planned.arguments,
            arguments=tuple(arguments),
            captured_values=planned.captures,
            outs=tuple(outputs),
            wait_for=_waits(builder, node, op),
        )
    )
    set_outputs(builder, node, outputs)


def _waits(builder: Builder, node: Node, op: Call) -> tuple[Value, ...]:
    """Returns the values that a call waits for: those of the calls that it follows, and
    its own control dependency.
    """
    waits: list[Value] = []
    for x in op.wait_for:
        if x in builder.values:
            waits.extend(builder.values[x].values())
    wait_for = builder.control_dependencies.of_node(node)
    if wait_for is not None:
        waits.append(wait_for)
    return tuple(waits)


def _plan_first_call(builder: Builder, node: Node, op: Call) -> PlannedBody:
    """Plans the body of a call.

    The placements of sums are known only once the body is planned. If they differ from
    those of the arguments, the body is planned again.
    """
    stage = builder.preferred.stage(node)
    placements: dict[Tensor, Placement] = {}  # of the arguments of the body
    zeros = set()  # arguments that are zeros at the first call
    for x, argument in zip(node.inputs, op.body.arguments):
        placement = reduced_placement(builder.placement_of(x))
        placements[argument] = with_stage(builder.mesh, placement, stage)
        if _is_zero(x):
            zeros.add(argument)
    captures = node.inputs[len(op.body.arguments) :]

    def plan() -> tuple[list[Value], Builder]:
        arguments = []
        for x, placement in placements.items():
            arguments.append(Value(x.spec, placement))
        body_builder = plan_body(builder, node, op.body, arguments, captures)
        return arguments, body_builder

    arguments, inner = plan()
    sums = _sums(inner, op.body, zeros)
    planned_placements = dict(placements)
    placements.update(sums.values())
    if placements != planned_placements:
        arguments, inner = plan()
    results = []
    for x in op.body.results:
        placement = _result_placement(inner, x, sums)
        results.append(inner.reshard_to(x, placement, node))
    body = Program(builder.mesh, tuple(inner.steps), tuple(results))
    varying = set(arguments)
    body, invariant = hoist_invariant_steps(body, varying)
    builder.steps += invariant
    _share_captures(builder, node, op.body, captures, inner, varying)
    return PlannedBody(body, tuple(arguments), captured_values([body], varying))


def _share_captures(
    builder: Builder,
    node: Node,
    body: Body,
    captures: Sequence[Tensor],
    inner: Builder,
    varying: Set[Value],
) -> None:
    """Adds the values of captures that a body makes to the surrounding program, so that
    a parameter is gathered once for all calls.
    """
    for tensor, captured in zip(body.captures, captures):
        available = builder.available_values(captured, node)
        for placement, value in inner.values[tensor].items():
            if value not in varying:
                available.setdefault(placement, value)


def _sums(
    inner: Builder, body: Body, zeros: Set[Tensor]
) -> dict[Tensor, tuple[Tensor, Placement]]:
    """Returns the results of a body that are sums over calls, such as gradients of
    weights: {result: (total, placement of the sum)}.

    The total is the argument to which the body adds; it is zeros at the first call. The
    placement is that of the term, partial sums included. So a sum over calls is reduced
    or scattered once, after the last call.

    Args:
      inner: of the body.
      body: of the call.
      zeros: the arguments that are zeros at the first call.
    """
    sums = {}
    for result in body.results:
        for total, term in _addends(result):
            if total in zeros and term in inner.values:
                placement = next(iter(inner.values[term]))
                preferred = inner.preferred.placement(term.node, term)
                sums[result] = (total, _sum_placement(placement, preferred))
    return sums


def _addends(result: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (total, term) in both orders, if a result is the sum of two tensors."""
    add = result.node
    if add.op.linearity == "joint" and len(add.inputs) == 2:
        left, right = add.inputs
        yield left, right
        yield right, left


def _sum_placement(term: Placement, preferred: Placement) -> Placement:
    """Returns the placement of a sum over calls: as its term where that is sharded or a
    partial sum, else the preferred one.
    """
    preferred = reduced_placement(final(term, preferred))
    return tuple(
        t if t == Partial("sum") or isinstance(t, Sharded) else p
        for t, p in zip(term, preferred)
    )


def _result_placement(
    inner: Builder, x: Tensor, sums: Mapping[Tensor, tuple[Tensor, Placement]]
) -> Placement:
    """Returns the placement of a result of a call: that of the sum, for a sum over
    calls.
    """
    if x in sums:
        _, placement = sums[x]
        if placement in inner.values[x]:
            return placement
    return inner.placement_of(x)


def _is_zero(x: Tensor) -> bool:
    """Whether a tensor is made as zeros, which are a partial sum as well."""
    return isinstance(x.node.op, ConstantOp) and x.node.op.is_zero


def _argument(builder: Builder, x: Tensor, placement: Placement, node: Node) -> Value:
    """Returns an argument in a placement; zeros can be made as a partial sum."""
    reduced = reduced_placement(placement)
    if not _is_zero(x) or placement == reduced:
        return builder.reshard_to(x, placement, node)
    stages = [state.coordinate for state in placement if isinstance(state, OnStage)]
    plan = plan_node(
        x.node.op,
        builder.mesh,
        x.node.layout,
        (),
        (),
        (x.spec,),
        [reduced],
        stages[0] if stages else None,
    )
    plan = dataclasses.replace(plan, results=(placement,))
    value = Value(x.spec, placement)
    builder.steps.append(Compute(x.node, plan, (), (value,)))
    return value
