"""The pipeline stages on which a step runs, and the values that it computes on.

    stages_of_step(step, mesh)           # (1,); (0, 1) for a step of all stages
    data_inputs(step)                    # without values that it only waits for
    is_transfer(step)                    # whether it copies a value to other stages

A loop, branch or call runs on one stage, or on all of them: a value cannot go to another
stage within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from meshtf.errors import PlanError, explain_error
from meshtf.mesh import Mesh, OnStage
from meshtf.partition import (
    BranchStep,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WriteStep,
    walk,
)
from meshtf.partition.preferred_placement import stage_state
from meshtf.partition.steps import inputs_of, outputs_of
from meshtf.runtime.spmd.stages.stage_meshes import num_stages, stages_of


def is_transfer(step: Step) -> TypeGuard[ReshardStep]:
    """Whether a step copies a value from one stage to others."""
    return isinstance(step, ReshardStep) and step.reshard.kind in ("send", "broadcast")


def is_drop(step: Step) -> TypeGuard[ReshardStep]:
    """Whether a step keeps a value that all stages have on a single stage only."""
    return isinstance(step, ReshardStep) and step.reshard.kind == "drop"


def is_chunk_pass(step: Step) -> TypeGuard[CallStep]:
    """Whether a step is the pass of one microbatch, forward or backward, through a chunk: the
    consecutive layers of a pipeline that one stage runs at a time.
    """
    return isinstance(step, CallStep) and step.node.stage is not None


def is_host_step(step: Step) -> TypeGuard[WriteStep]:
    """Whether the host runs a step, such as a print."""
    return isinstance(step, WriteStep) and not step.variables


def data_inputs(step: Step) -> tuple[Value, ...]:
    """Returns the values that a step computes on, without those that it only waits for."""
    if isinstance(step, CallStep):
        return (*step.arguments, *step.captured_values)
    inputs = list(inputs_of(step))
    if isinstance(step, (Compute, LoopStep, BranchStep)) and step.wait_for is not None:
        inputs.pop()  # the `inputs` of these three classes end with `wait_for`
    return tuple(inputs)


def stages_of_step(step: Step, mesh: Mesh) -> tuple[int, ...]:
    """Returns the stages on which a step runs.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    if isinstance(step, (LoopStep, BranchStep, CallStep)):
        return _stages_of_bodies(step, mesh)
    if isinstance(step, WriteStep):
        if is_host_step(step):
            return (0,)
        return stages_of(mesh, step.variables[0].placement)
    if isinstance(step, (Compute, GatherStatisticsStep)):
        if step.plan.stage is None:
            return tuple(range(num_stages(mesh)))
        return (step.plan.stage,)
    (out,) = outputs_of(step)
    return stages_of(mesh, out.placement)


def _stages_of_bodies(
    step: LoopStep | BranchStep | CallStep, mesh: Mesh
) -> tuple[int, ...]:
    """Returns the stages of a step with bodies: the one stage that its bodies name, or all
    stages if they name none.

    Raises:
      PlanError: the bodies name several stages.
    """
    stages: set[int] = set()
    program = Program(mesh, steps=(step,), results=())
    for inner_step, _ in walk(program):
        stages.update(_named_stages(inner_step, mesh))
    if not stages:
        return tuple(range(num_stages(mesh)))
    if len(stages) > 1:
        raise several_stages(step, mesh, stages)
    return tuple(stages)


def several_stages(
    step: LoopStep | BranchStep | CallStep, mesh: Mesh, stages: Iterable[int]
) -> PlanError:
    """Returns the error for a step within which a value goes from stage to stage."""
    return PlanError(
        explain_error(
            f"{step.node.op.display_name} runs on several pipeline stages: a value goes "
            "from one to another within it, which a live mesh cannot do.",
            source=step.node.source,
            mesh=str(mesh),
            stages=", ".join(map(str, sorted(stages))),
            way_out="Put all of it on one stage (mtf.stage), or run it on TensorFlow's "
            'devices: a mesh without devices="spmd".',
        )
    )


def _named_stages(step: Step, mesh: Mesh) -> Iterator[int]:
    """Yields the single stages that the plan of a step, or the placement of one of its values,
    names. All stages together have no name.
    """
    values = [*data_inputs(step), *outputs_of(step)]
    if isinstance(step, (LoopStep, BranchStep, CallStep)):
        values = list(step.outs)
    if isinstance(step, ReadStep):
        values = []
    for value in values:
        state = stage_state(mesh, value.placement)
        if isinstance(state, OnStage):
            yield state.coordinate
    if isinstance(step, (Compute, GatherStatisticsStep)):
        if step.plan.stage is not None:
            yield step.plan.stage
