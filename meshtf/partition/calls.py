"""Calls: a body that many calls share is planned at its first one.

What calls add up, such as gradients over microbatches, stays a partial sum until after
the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set

from meshtf.graph import (
    Body,
    Call,
    ConstantOp,
    Node,
    Tensor,
)
from meshtf.mesh import OnStage, Partial, Placement, Sharded
from meshtf.mesh.state import finished
from meshtf.partition.builder import Builder, PlannedBody
from meshtf.partition.control_dependencies import restaged
from meshtf.partition.loops_and_branches import (
    captured_values,
    hoist_invariant_steps,
    plan_body,
    set_outputs,
)
from meshtf.partition.planner import final, plan_node
from meshtf.partition.steps import CallStep, Compute, Program, Value


def plan_call(builder: Builder, node: Node) -> None:
    """Plans a call and writes its step; later ones bring arguments to where the first
    one's lie.
    """
    op = node.op
    assert isinstance(op, Call)
    arguments = node.inputs[: len(op.body.arguments)]
    if op.body not in builder.called:
        builder.called[op.body] = _first_call(builder, node, op)
    called = builder.called[op.body]
    passed = tuple(
        _passed(builder, x, v.placement, node)
        for x, v in zip(arguments, called.arguments)
    )
    outs = tuple(
        Value(y.spec, v.placement) for y, v in zip(node.outputs, called.program.results)
    )
    follows = [
        v
        for x in op.wait_for
        if x in builder.versions
        for v in builder.versions[x].values()
    ]
    after = builder.waiting.before(node)
    if after is not None:
        follows.append(after)
    builder.steps.append(
        CallStep(
            node,
            called.program,
            called.arguments,
            passed,
            called.captures,
            outs,
            tuple(follows),
        )
    )
    set_outputs(builder, node, outs)


def _first_call(builder: Builder, node: Node, op: Call) -> PlannedBody:
    stage = builder.wanted.stage(node)
    places = {
        inside: restaged(builder.mesh, finished(builder.state(x)), stage)
        for x, inside in zip(node.inputs, op.body.arguments)
    }
    captures = node.inputs[len(op.body.arguments) :]

    def planned() -> tuple[list[Value], Builder]:
        given = [Value(inside.spec, place) for inside, place in places.items()]
        return given, plan_body(builder, node, op.body, given, captures)

    given, inner = planned()
    sums = _sums(
        inner,
        op.body,
        {inside for x, inside in zip(node.inputs, places) if _is_zero(x)},
    )
    if any(places[total] != place for total, place in sums.values()):
        places |= dict(sums.values())
        given, inner = planned()
    results = [
        inner.reshard_to(x, _left(inner, x, sums), node) for x in op.body.results
    ]
    body = Program(builder.mesh, tuple(inner.steps), tuple(results))
    varies = set(given)
    body, invariant = hoist_invariant_steps(body, varies)
    builder.steps += invariant
    for inside, x in zip(op.body.captures, captures):  # gathered once for all calls
        for place, value in inner.versions[inside].items():
            if value not in varies:
                builder.at_hand(x, node).setdefault(place, value)
    return PlannedBody(body, tuple(given), captured_values([body], varies))


def _sums(
    inner: Builder, body: Body, zeros: Set[Tensor]
) -> dict[Tensor, tuple[Tensor, Placement]]:
    """Returns by results that add to zeros, such as weights' cotangents, these and
    where to add up.

    That is where what is added was made: unfinished, too. So what calls add up is
    reduced over positions, or scattered, once, after the last call.
    """
    found = {}
    for result in body.results:
        add = result.node
        for total, more in (
            zip(add.inputs, add.inputs[::-1]) if add.op.linearity == "joint" else ()
        ):
            if len(add.inputs) == 2 and total in zeros and more in inner.versions:
                made = next(iter(inner.versions[more]))
                wish = final(made, inner.wanted.placement(more.node, more))
                found[result] = (
                    total,
                    tuple(
                        m if m == Partial("sum") or isinstance(m, Sharded) else w
                        for m, w in zip(made, finished(wish))
                    ),
                )
    return found


def _left(
    inner: Builder, x: Tensor, sums: Mapping[Tensor, tuple[Tensor, Placement]]
) -> Placement:
    """Returns where a result of a call is left: sums where they are added up."""
    place = sums[x][1] if x in sums else inner.state(x)
    return place if place in inner.versions[x] else inner.state(x)


def _is_zero(x: Tensor) -> bool:
    """Whether a tensor is made as zeros, which are partial sums as well."""
    return isinstance(x.node.op, ConstantOp) and x.node.op.is_zero


def _passed(builder: Builder, x: Tensor, placement: Placement, node: Node) -> Value:
    """Returns an argument in a placement; zeros are an unfinished sum, if that is asked
    for.
    """
    if not _is_zero(x) or placement == finished(placement):
        return builder.reshard_to(x, placement, node)
    stage = next((s.coordinate for s in placement if isinstance(s, OnStage)), None)
    plan = plan_node(
        x.node.op,
        builder.mesh,
        x.node.layout,
        (),
        (),
        (x.spec,),
        [finished(placement)],
        stage,
    )
    value = Value(x.spec, placement)
    builder.steps.append(
        Compute(x.node, dataclasses.replace(plan, results=(placement,)), (), (value,))
    )
    return value
