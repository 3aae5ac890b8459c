"""Plans `Call` nodes: calls of a body, such as the forward pass of a pipeline stage for one
microbatch. The body is planned at its first call, and all calls share the plan.

A sum over calls, such as a gradient that is summed over microbatches, stays a partial
sum until after the last call, so that it is reduced once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from meshtf.graph import (
    Body,
    Call,
    ConstantOp,
    Node,
    Tensor,
)
from meshtf.mesh import Placement
from meshtf.partition.builder import Builder, Invariant, PlannedBody
from meshtf.partition.loops_and_branches import (
    captured_values,
    hoist_invariant_steps,
    plan_body,
    set_outputs,
)
from meshtf.partition.planner import plan_node
from meshtf.partition.preferred_placement import final_placement
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
        arguments.append(_as_argument(builder, x, value.placement, node))
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
            waits_for=_values_to_wait_for(builder, node, op),
        )
    )
    set_outputs(builder, node, outputs)


def _values_to_wait_for(builder: Builder, node: Node, op: Call) -> tuple[Value, ...]:
    """Returns the values that must exist before a call runs: the results of the calls
    that it follows (`Call.wait_for`), and the control dependency of the node.
    """
    values: list[Value] = []
    for x in op.wait_for:
        if x in builder.values:
            values.extend(builder.values[x].values())
    return (*values, *builder.control_dependencies.of_node(node))


def _plan_first_call(builder: Builder, node: Node, op: Call) -> PlannedBody:
    """Returns the plan of a call's body, for the arguments of the first call.

    The placements of sums over calls are known only once the body is planned. If they
    differ from the placements of the corresponding arguments, the body is planned again.
    """
    placements = _argument_placements(builder, node, op)
    # The arguments of the body that are zeros at the first call: sums over calls, perhaps.
    zeros = {
        argument for x, argument in zip(node.inputs, op.body.arguments) if _is_zero(x)
    }
    captures = node.inputs[len(op.body.arguments) :]
    computed = _computed_by_other_bodies(builder, op.body, captures)

    def plan() -> tuple[list[Value], Builder]:
        """Returns (arguments of the body, builder of the body) for `placements`."""
        arguments = [Value(x.spec, placement) for x, placement in placements.items()]
        body_builder = plan_body(
            builder,
            node=node,
            body=op.body,
            arguments=arguments,
            captures=captures,
            computed=computed,
        )
        return arguments, body_builder

    arguments, body_builder = plan()
    sums = _sums_over_calls(body_builder, op.body, zeros)
    of_sums = {x.argument: x.placement for x in sums.values()}
    if placements != placements | of_sums:
        placements |= of_sums
        arguments, body_builder = plan()
    results = []
    for x in op.body.results:
        placement = _result_placement(body_builder, x, sums)
        results.append(body_builder.reshard_to(x, placement, node))
    program = Program(builder.mesh, tuple(body_builder.steps), tuple(results))
    varying = set(arguments)
    # Adds to `varying` the values that depend on the arguments.
    program, invariant_steps = hoist_invariant_steps(program, varying)
    builder.steps += invariant_steps
    _share_captures(
        builder,
        node=node,
        body=op.body,
        captures=captures,
        body_builder=body_builder,
        varying=varying,
    )
    return PlannedBody(
        program=program,
        arguments=tuple(arguments),
        captures=captured_values([program], inner_values=varying),
        invariant=_invariant_tensors(op.body, captures, body_builder, varying),
    )


def _computed_by_other_bodies(
    builder: Builder, body: Body, captures: Sequence[Tensor]
) -> Invariant:
    """Returns the invariant tensors of bodies that were planned before, if they and `body` have
    the same captures. So weights are cast once for the forward and the backward calls.
    """
    computed: Invariant = {}
    if _captures_itself(body, captures):
        for planned in builder.planned_bodies.values():
            computed.update(planned.invariant)
    return computed


def _captures_itself(body: Body, captures: Sequence[Tensor]) -> bool:
    """Whether a call passes the tensors that the body captured, and no others for them."""
    return all(x is y for x, y in zip(body.captures, captures))


def _invariant_tensors(
    body: Body, captures: Sequence[Tensor], body_builder: Builder, varying: Set[Value]
) -> Invariant:
    """Returns `PlannedBody.invariant`: the tensors none of whose values is in `varying`, those
    that depend on the arguments of the body.
    """
    if not _captures_itself(body, captures):
        return {}
    invariant = {}
    for node in body.nodes:
        for y in node.outputs:
            values = body_builder.values[y]
            if varying.isdisjoint(values.values()):
                invariant[y] = values, body_builder.placements[y]
    return invariant


def _argument_placements(
    builder: Builder, node: Node, op: Call
) -> dict[Tensor, Placement]:
    """Returns the placement of each argument of a call's body, in order: that of the input
    of the first call, on the stage of the call, and with partial sums reduced.
    """
    stage = builder.preferred.stage(node)
    placements = {}
    for x, argument in zip(node.inputs, op.body.arguments):
        placement = builder.placement_of(x).reduced()
        placements[argument] = placement.with_stage(builder.mesh.stages, stage)
    return placements


def _share_captures(
    builder: Builder,
    node: Node,
    body: Body,
    captures: Sequence[Tensor],
    body_builder: Builder,
    varying: Set[Value],
) -> None:
    """Makes the resharded captures of a body available to the surrounding program, so
    that a parameter is gathered once for all calls.

    Args:
      builder: the builder of the surrounding program.
      node: the node of the call.
      body: the body of the call.
      captures: the tensors of the surrounding program that the body captures.
      body_builder: the builder of the body.
      varying: the values of the body that depend on its arguments, and so differ from
        call to call.
    """
    for tensor, captured in zip(body.captures, captures):
        available_values = builder.available_values(captured, node)
        for placement, value in body_builder.values[tensor].items():
            if value not in varying:
                available_values.setdefault(placement, value)


class _SumOverCalls(NamedTuple):
    """A sum to which each call adds a term: the body returns `argument` + term.

    Attributes:
      argument: the argument of the body that is the sum over earlier calls.
      placement: the placement of the sum: partial along the axes where the term is.
    """

    argument: Tensor
    placement: Placement


def _sums_over_calls(
    body_builder: Builder, body: Body, zeros: Set[Tensor]
) -> dict[Tensor, _SumOverCalls]:
    """Returns {result: sum}, for the results of a body that are sums over calls, such as
    gradients of weights.

    A sum has the placement of its term, partial sums included. So it is reduced or
    scattered once, after the last call.

    Args:
      body_builder: the builder of the body.
      body: the body of the call.
      zeros: the arguments of the body that are zeros at the first call.
    """
    sums = {}
    for result in body.results:
        for argument, term in _addends(result):
            if argument in zeros and term in body_builder.values:
                # The first value in the dict is the one that the node of the term computes;
                # values that are resharded from it follow.
                term_placement = next(iter(body_builder.values[term]))
                preferred = body_builder.preferred.placement(term.node, term)
                placement = _sum_placement(term_placement, preferred)
                sums[result] = _SumOverCalls(argument, placement)
    return sums


def _addends(result: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the pair of addends in both orders, if a result is the sum of two tensors;
    nothing otherwise.
    """
    add = result.node
    if add.op.linearity == "joint" and len(add.inputs) == 2:
        left, right = add.inputs
        yield left, right
        yield right, left


def _sum_placement(term: Placement, preferred: Placement) -> Placement:
    """Returns the placement of a sum over calls: along each axis the state of its term
    if that is Sharded or a partial sum, else the state of the preferred placement.
    """
    sums = {a: state for a, state in term.partial.items() if state.kind == "sum"}
    of_term = Placement.of(term.shards, sums)
    return of_term.filled_from(final_placement(term, preferred).reduced())


def _result_placement(
    body_builder: Builder, x: Tensor, sums: Mapping[Tensor, _SumOverCalls]
) -> Placement:
    """Returns the placement of a result of a body.

    If the result is a sum over calls, and the body computes it in the placement of the sum,
    it is that placement; otherwise the placement that the planner chose.
    """
    if x in sums and sums[x].placement in body_builder.values[x]:
        return sums[x].placement
    return body_builder.placement_of(x)


def _is_zero(x: Tensor) -> bool:
    """Whether a tensor is a constant of zeros."""
    return isinstance(x.node.op, ConstantOp) and x.node.op.is_zero


def _as_argument(
    builder: Builder, x: Tensor, placement: Placement, node: Node
) -> Value:
    """Returns x in the placement that a body needs for its argument.

    The first argument for a sum over calls is zeros. They are computed again in the
    placement of the sum, so that no device stores more than its shard of them. Zeros on
    every device are also a partial sum of zeros, which no reshard could make of them.
    """
    if not _is_zero(x) or placement == builder.placement_of(x):
        return builder.reshard_to(x, placement, node)
    plan = plan_node(
        op=x.node.op,
        mesh=builder.mesh,
        layout=builder.layout_of(x.node),
        ins=(),
        placements=(),
        outs=(x.spec,),
        preferred=[placement.reduced()],
        stage=placement.stage,
    )
    plan = dataclasses.replace(plan, results=(placement,))
    value = Value(x.spec, placement)
    builder.steps.append(Compute(node=x.node, plan=plan, ins=(), outs=(value,)))
    return value
