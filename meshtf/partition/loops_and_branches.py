"""Loops and branches: their bodies planned, with what is known of the tensors around
them.

Carries of a loop lie where the layout puts them, so one plan of the body serves all
iterations. Partial sums from outside are finished before. What no iteration changes (a
cast of a weight, its gathering) is computed before the loop; what iterations add up
stays a partial sum until after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from meshtf.graph import Body, Branch, Call, Loop, Node, Tensor
from meshtf.mesh import Partial, Placement, Replicated, Sharded
from meshtf.mesh.state import finished
from meshtf.names import Dimension
from meshtf.partition.builder import Builder
from meshtf.partition.control_dependencies import restaged
from meshtf.partition.steps import (
    BranchStep,
    LoopStep,
    Program,
    ReshardStep,
    Step,
    Value,
    WriteStep,
    dependencies_of,
    inputs_of,
    outputs_of,
)


def plan_loop(builder: Builder, node: Node) -> None:
    """Plans a loop and writes its step."""
    op = node.op
    assert isinstance(op, Loop)
    wishes = [builder.wanted.placement(node, y) for y in node.outputs[: op.num_carries]]
    starts = [builder.reshard_to(x, p, node) for x, p in zip(node.inputs, wishes)]
    walked = [
        builder.reshard_to(x, _without(builder.state(x), op.dim), node)
        for x in node.inputs[op.num_carries : op.num_carries + op.num_scanned]
    ]
    turn, *formal = op.body.arguments
    given = [
        Value(x.spec, p)
        for x, p in zip(formal, (*wishes, *(v.placement for v in walked)))
    ]
    turned = Value(turn.spec, builder.mesh.replicated)
    captures = node.inputs[op.num_carries + op.num_scanned :]
    body = plan_body(builder, node, op.body, [turned, *given], captures)
    results = _results(body, node, op, wishes)
    inner = Program(builder.mesh, tuple(body.steps), tuple(results))
    tested = _planned_test(builder, node, op, [turned, *given[: op.num_carries]])
    varies = {turned, *given}
    inner, invariant = hoist_invariant_steps(inner, varies)
    builder.steps += invariant
    if tested is not None:
        tested, invariant = hoist_invariant_steps(tested, varies)
        builder.steps += invariant
    outs = tuple(
        Value(y.spec, v.placement) for y, v in zip(node.outputs, inner.results)
    )
    builder.steps.append(
        LoopStep(
            node,
            inner,
            tested,
            turned,
            tuple(given[: op.num_carries]),
            tuple(given[op.num_carries :]),
            tuple(starts),
            tuple(walked),
            captured_values([inner, tested], varies),
            outs,
            builder.waiting.before(node),
        )
    )
    set_outputs(builder, node, outs)


def _planned_test(
    builder: Builder, node: Node, op: Loop, arguments: Sequence[Value]
) -> Program | None:
    """Returns the program that says whether a loop goes on; None: its count is known.

    Args:
      builder: of the program around the loop.
      node: the loop's.
      op: the loop.
      arguments: the iteration's index, and the carry.
    """
    if op.condition is None:
        return None
    captures = node.inputs[op.num_carries + op.num_scanned + len(op.body.captures) :]
    test = plan_body(builder, node, op.condition, arguments, captures)
    goes_on = test.reshard_to(op.condition.results[0], builder.mesh.replicated, node)
    return Program(builder.mesh, tuple(test.steps), (goes_on,))


def _results(
    body: Builder, node: Node, op: Loop, wishes: Sequence[Placement]
) -> list[Value]:
    """Returns states where they started, sums and what is stacked where the planner
    leaves them.

    They are moved for the loop, `node`: those that made them in the body ran before.
    """
    states, others = (
        op.body.results[: op.num_carries],
        op.body.results[op.num_carries :],
    )
    found = [body.reshard_to(x, p, node) for x, p in zip(states, wishes)]
    for i, x in enumerate(others):
        place = body.state(x)
        if i < op.num_sums and any(
            isinstance(s, Partial) and s.kind != "sum" for s in place
        ):
            place = finished(place)
        found.append(body.reshard_to(x, place, node))
    return found


def plan_branch(builder: Builder, node: Node) -> None:
    """Plans a branch and writes its step."""
    op = node.op
    assert isinstance(op, Branch)
    predicate = builder.reshard_to(node.inputs[0], builder.mesh.replicated, node)
    wishes = [builder.wanted.placement(node, y) for y in node.outputs]
    programs = []
    for body, captures in zip((op.then, op.otherwise), op.captures(node.inputs)):
        inner = plan_body(builder, node, body, [], captures)
        results = [inner.reshard_to(x, p, node) for x, p in zip(body.results, wishes)]
        programs.append(Program(builder.mesh, tuple(inner.steps), tuple(results)))
    outs = tuple(Value(y.spec, p) for y, p in zip(node.outputs, wishes))
    builder.steps.append(
        BranchStep(
            node,
            predicate,
            (programs[0], programs[1]),
            captured_values(programs, set()),
            outs,
            builder.waiting.before(node),
        )
    )
    set_outputs(builder, node, outs)


def plan_body(
    builder: Builder,
    node: Node,
    body: Body,
    given: Sequence[Value],
    captures: Sequence[Tensor],
) -> Builder:
    """Plans the nodes of a body.

    Captures are brought to the stage where it runs, which makes that the stage of their
    cotangents as well: what iterations or calls add up stays there, and is sent on
    once, afterwards.
    """
    inner = Builder(builder.mesh, builder.planners, builder.notes)
    for tensor, value in zip(body.arguments, given):
        inner.given(tensor, {value.placement: value}, value.placement)
    for tensor, outside in zip(body.captures, captures):
        state = finished(builder.state(outside))
        if node.stage is not None:
            state = restaged(builder.mesh, state, builder.wanted.stage(node))
        builder.reshard_to(outside, state, node)
        inner.given(tensor, dict(builder.at_hand(outside, node)), state)
        if isinstance(
            node.op, Call
        ):  # forward and backward calls take turns: nothing is freed
            inner.gathered[tensor] = inner.versions[tensor]
    for inside in body.nodes:
        inner.node(inside)
    return inner


def _without(placement: Placement, dim: Dimension | None) -> Placement:
    """Returns a finished placement that leaves `dim`, which a loop walks
    along, whole.
    """
    return tuple(
        Replicated if dim is not None and s == Sharded(dim.name) else s
        for s in finished(placement)
    )


def hoist_invariant_steps(
    program: Program, varies: set[Value]
) -> tuple[Program, list[Step]]:
    """Returns a body without the steps that no iteration changes, and these.

    Args:
      program: the body.
      varies: what each iteration is given anew; what is computed of it is added.
    """
    invariant: list[Step] = []
    remaining: list[Step] = []
    for step in program.steps:
        if isinstance(step, WriteStep) or any(v in varies for v in inputs_of(step)):
            varies.update(outputs_of(step))
            remaining.append(step)
        elif isinstance(step, ReshardStep):  # it need not wait for its iteration
            invariant.append(dataclasses.replace(step, wait_for=None))
        else:
            invariant.append(step)
    return dataclasses.replace(program, steps=tuple(remaining)), invariant


def captured_values(
    programs: Iterable[Program | None], given: set[Value]
) -> tuple[Value, ...]:
    """Returns what programs use of the values around them."""
    taken: dict[Value, None] = {}
    for program in programs:
        if program is not None:
            made = {v for step in program.steps for v in outputs_of(step)}
            used = (
                *(v for step in program.steps for v in dependencies_of(step)),
                *program.results,
            )
            taken.update(
                dict.fromkeys(v for v in used if v not in made and v not in given)
            )
    return tuple(taken)


def set_outputs(builder: Builder, node: Node, outs: Sequence[Value]) -> None:
    """Tells the builder where the outputs of a node lie."""
    for y, value in zip(node.outputs, outs):
        builder.given(y, {value.placement: value}, value.placement)
