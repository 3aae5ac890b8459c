"""Plans loops and branches. Their bodies are planned with the placements that the captured
tensors have in the surrounding program.

The carries of a loop have the preferred placement of its outputs, so one plan of the body
fits all iterations. Partial sums are reduced before the loop. Steps that compute the same
values in all iterations, such as the cast of a weight or its all_gather, run once, before
the loop. Sums over iterations stay partial sums until after the loop.

The entries of a scanned input are its slices without the scanned dimension, one for each
iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from meshtf.graph import Body, Branch, Call, Loop, Node, Tensor
from meshtf.mesh import Partial, Placement, Varying
from meshtf.names import Dimension
from meshtf.partition.builder import Builder, Invariant
from meshtf.partition.sharded_loops import axes_of_iterations, first_entries
from meshtf.partition.steps import (
    BranchStep,
    LoopStep,
    Program,
    Step,
    Value,
)


def plan_loop(builder: Builder, node: Node) -> None:
    """Plans a loop and appends its step."""
    op = node.op
    assert isinstance(op, Loop)
    carry_placements = [
        builder.preferred.placement(node, y) for y in node.outputs[: op.num_carries]
    ]
    # The first inputs are the initial carries.
    initial_values = [
        builder.reshard_to(x, placement, node)
        for x, placement in zip(node.inputs, carry_placements)
    ]
    axes = axes_of_iterations(builder, node)
    scanned_inputs = _scanned_inputs(builder, node, op, axes)
    iteration, carries, entries = _body_arguments(
        builder, op, carry_placements, scanned_inputs, axes
    )
    arguments = (iteration, *carries, *entries)
    body = _plan_loop_body(builder, node, op, arguments, carry_placements, axes)
    test = _plan_test(builder, node, op, arguments=(iteration, *carries))
    # The values that differ between iterations; `hoist_invariant_steps` adds to them.
    varying = set(arguments)
    body, invariant_steps = hoist_invariant_steps(body, varying)
    builder.steps += invariant_steps
    if test is not None:
        test, invariant_steps = hoist_invariant_steps(test, varying)
        builder.steps += invariant_steps
    spares = first_entries(builder, node, scanned_inputs, axes)
    outs = tuple(
        Value(y.spec, _after_loop(op, k, body.results[k].placement, axes))
        for k, y in enumerate(node.outputs)
    )
    builder.steps.append(
        LoopStep(
            node=node,
            body=body,
            test=test,
            iteration=iteration,
            carries=carries,
            entries=entries,
            initial_values=tuple(initial_values),
            scanned_inputs=tuple(scanned_inputs),
            captured_values=captured_values([body, test], inner_values=varying),
            outs=outs,
            axes=axes,
            spares=spares,
            waits_for=builder.control_dependencies.of_node(node),
        )
    )
    set_outputs(builder, node, outs)


def _after_loop(
    op: Loop, index: int, placement: Placement, axes: tuple[str, ...]
) -> Placement:
    """Returns the placement of an output of a loop.

    Args:
      op: the loop.
      index: the index of the output.
      placement: that of the body's result.
      axes: the axes that divide the iterations.
    """
    if not axes:
        return placement
    # Iterations are divided only without carries, so outputs begin with the sums.
    if index < op.num_sums:
        return placement.along(axes, Partial("sum"))
    assert op.dim is not None
    return placement.sharded_over(op.dim.name, axes)


def _scanned_inputs(
    builder: Builder, node: Node, op: Loop, axes: tuple[str, ...]
) -> list[Value]:
    """Returns the values of a loop's scanned inputs, in placements that shard the scanned
    dimension along the axes that divide the iterations.
    """
    values = []
    for x in node.inputs[op.num_carries : op.num_carries + op.num_scanned]:
        placement = _unsharded(builder.placement_of(x), op.dim)
        if axes and op.dim is not None:
            placement = placement.sharded_over(op.dim.name, axes)
        values.append(builder.reshard_to(x, placement, node))
    return values


def _body_arguments(
    builder: Builder,
    op: Loop,
    carry_placements: Sequence[Placement],
    scanned_inputs: Sequence[Value],
    axes: tuple[str, ...],
) -> tuple[Value, tuple[Value, ...], tuple[Value, ...]]:
    """Returns the arguments of a loop's body: (index of the iteration, carries,
    entries of scanned inputs).

    Args:
      builder: the builder of the program around the loop.
      op: the loop.
      carry_placements: the placements of the carries.
      scanned_inputs: the values that the entries are taken from.
      axes: the axes that divide the iterations.
    """
    iteration, *arguments = op.body.arguments
    carries = tuple(
        Value(x.spec, placement)
        for x, placement in zip(arguments[: op.num_carries], carry_placements)
    )
    entries = tuple(
        Value(x.spec, scanned.placement.along(axes, Varying))
        for x, scanned in zip(arguments[op.num_carries :], scanned_inputs)
    )
    return Value(iteration.spec, builder.mesh.replicated), carries, entries


def _plan_loop_body(
    builder: Builder,
    node: Node,
    op: Loop,
    arguments: Sequence[Value],
    carry_placements: Sequence[Placement],
    axes: tuple[str, ...],
) -> Program:
    """Returns the program of one iteration.

    Args:
      builder: the builder of the program around the loop.
      node: the node of the loop.
      op: the loop.
      arguments: the arguments of the body.
      carry_placements: the placements of the carries.
      axes: the axes that divide the iterations.
    """
    captures = node.inputs[op.num_carries + op.num_scanned :]
    body_builder = plan_body(
        builder,
        node=node,
        body=op.body,
        arguments=arguments,
        captures=captures,
        varying=axes,
    )
    results = _loop_results(body_builder, node, op, carry_placements)
    return Program(builder.mesh, tuple(body_builder.steps), tuple(results))


def _plan_test(
    builder: Builder, node: Node, op: Loop, arguments: Sequence[Value]
) -> Program | None:
    """Returns the program that computes whether there is another iteration; None: the
    number of iterations is known.

    Args:
      builder: the builder of the program around the loop.
      node: the node of the loop.
      op: the loop.
      arguments: the index of the iteration, and the carries.
    """
    if op.condition is None:
        return None
    captures = node.inputs[op.num_carries + op.num_scanned + len(op.body.captures) :]
    test_builder = plan_body(
        builder, node=node, body=op.condition, arguments=arguments, captures=captures
    )
    (has_next,) = op.condition.results
    result = test_builder.reshard_to(has_next, builder.mesh.replicated, node)
    return Program(builder.mesh, tuple(test_builder.steps), (result,))


def _loop_results(
    body_builder: Builder, node: Node, op: Loop, carry_placements: Sequence[Placement]
) -> list[Value]:
    """Returns the results of a loop's body: the carries in `carry_placements`, the terms of
    sums and the stacked outputs in the placements that the planner chose, varying along the
    axes that divide the iterations.

    A term that is a partial maximum or minimum is reduced, since only partial sums can
    be added up over iterations. Reports attribute these reshards to the node of the loop.
    """
    carries = op.body.results[: op.num_carries]
    sums = op.body.results[op.num_carries : op.num_carries + op.num_sums]
    stacked = op.body.results[op.num_carries + op.num_sums :]
    results = []
    for x, placement in zip(carries, carry_placements):
        results.append(body_builder.reshard_to(x, placement, node))
    for x in sums:
        placement = body_builder.placement_of(x)
        if any(state.kind != "sum" for state in placement.partial.values()):
            placement = placement.reduced()
        placement = placement.along(body_builder.varying, Varying)
        results.append(body_builder.reshard_to(x, placement, node))
    for x in stacked:
        placement = body_builder.placement_of(x).along(body_builder.varying, Varying)
        results.append(body_builder.reshard_to(x, placement, node))
    return results


def plan_branch(builder: Builder, node: Node) -> None:
    """Plans a branch and appends its step."""
    op = node.op
    assert isinstance(op, Branch)
    predicate = builder.reshard_to(node.inputs[0], builder.mesh.replicated, node)
    placements = [builder.preferred.placement(node, y) for y in node.outputs]
    programs = []
    for body, captures in zip((op.then, op.otherwise), op.captures(node.inputs)):
        body_builder = plan_body(
            builder, node=node, body=body, arguments=[], captures=captures
        )
        results = [
            body_builder.reshard_to(x, placement, node)
            for x, placement in zip(body.results, placements)
        ]
        programs.append(
            Program(builder.mesh, tuple(body_builder.steps), tuple(results))
        )
    outs = tuple(Value(y.spec, p) for y, p in zip(node.outputs, placements))
    builder.steps.append(
        BranchStep(
            node=node,
            predicate=predicate,
            programs=(programs[0], programs[1]),
            captured_values=captured_values(programs, inner_values=set()),
            outs=outs,
            waits_for=builder.control_dependencies.of_node(node),
        )
    )
    set_outputs(builder, node, outs)


def plan_body(
    builder: Builder,
    node: Node,
    body: Body,
    arguments: Sequence[Value],
    captures: Sequence[Tensor],
    computed: Invariant | None = None,
    varying: tuple[str, ...] = (),
) -> Builder:
    """Returns a builder with the steps of a body.

    Captures are resharded to the pipeline stage where the body runs. Their cotangents are
    on that stage as well: a sum of cotangents over iterations or calls stays there, and is
    sent to another stage once, after the last iteration or call.

    Args:
      builder: the builder of the surrounding program.
      node: the node of the loop, branch or call.
      body: the body to plan.
      arguments: the value of each argument of the body.
      captures: the tensors of the surrounding program that the body captures.
      computed: {tensor: (its values by placement, the placement that planning assumes)}, for
        tensors that the body does not compute.
      varying: the axes along which devices run iterations of their own.
    """
    body_builder = Builder(
        builder.mesh,
        builder.planners,
        builder.notes,
        builder.stores,
        builder.regions,
        varying=(*builder.varying, *varying),
    )
    for tensor, value in zip(body.arguments, arguments):
        body_builder.add_tensor(tensor, {value.placement: value}, value.placement)
    for tensor, captured in zip(body.captures, captures):
        placement = builder.placement_of(captured).reduced()
        if node.stage is not None:
            stage = builder.preferred.stage(node)
            placement = placement.with_stage(builder.mesh.stages, stage)
        # Appends the reshard to the surrounding program; its result is among the values below.
        builder.reshard_to(captured, placement, node)
        values = dict(builder.available_values(captured, node))
        body_builder.add_tensor(tensor, values, placement)
        if isinstance(node.op, Call):
            # Forward and backward calls alternate, so the backward pass takes the same values:
            # gathered parameters are not freed.
            body_builder.backward_values[tensor] = body_builder.values[tensor]
    computed = computed or {}
    for body_node in body.nodes:
        if not all(y in computed for y in body_node.outputs):
            body_builder.add_node(body_node)
            continue
        for y in body_node.outputs:
            values, placement = computed[y]
            body_builder.add_tensor(y, dict(values), placement)
            body_builder.backward_values[y] = body_builder.values[y]
    return body_builder


def _unsharded(placement: Placement, dim: Dimension | None) -> Placement:
    """Returns a placement without partial sums, and not sharded along `dim`; None: there
    is no scanned dimension.
    """
    shards = dict(placement.shards)
    if dim is not None:
        shards.pop(dim.name, None)
    return Placement.of(shards, placement.other_states).reduced()


def hoist_invariant_steps(
    program: Program, varying: set[Value]
) -> tuple[Program, list[Step]]:
    """Returns (body, invariant steps): the body without the steps that compute the same
    values in all iterations, and these steps, which can run before the loop.

    Args:
      program: the body.
      varying: the arguments of the body; this function adds to the set all values of
        the body that depend on them.
    """
    invariant_steps: list[Step] = []
    varying_steps: list[Step] = []
    for step in program.steps:
        if step.has_effect or any(v in varying for v in step.needs):
            varying.update(step.outputs)
            varying_steps.append(step)
        else:
            # It waits for its own inputs only: other values may exist only within an iteration.
            invariant_steps.append(step.waiting_for(step.needs))
    return dataclasses.replace(program, steps=tuple(varying_steps)), invariant_steps


def captured_values(
    programs: Iterable[Program | None], inner_values: set[Value]
) -> tuple[Value, ...]:
    """Returns the values of the surrounding program that bodies use, each once.

    Args:
      programs: the bodies; None is skipped.
      inner_values: arguments of the bodies, and perhaps values that depend on them: they are
        not captured.
    """
    captures: dict[Value, None] = {}  # used as an ordered set
    for program in programs:
        if program is None:
            continue
        used_values = [value for step in program.steps for value in step.dependencies]
        used_values += program.results
        computed_values = {value for step in program.steps for value in step.outputs}
        for value in used_values:
            if value not in computed_values and value not in inner_values:
                captures[value] = None
    return tuple(captures)


def set_outputs(builder: Builder, node: Node, outs: Sequence[Value]) -> None:
    """Adds the outputs of a node, with their values, to a builder."""
    for y, value in zip(node.outputs, outs):
        builder.add_tensor(y, {value.placement: value}, value.placement)
