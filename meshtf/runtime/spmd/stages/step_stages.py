"""The pipeline stages on which the steps of a program run.

    stages_of_step(step, mesh)           # (1,); (0, 1) for a step of all stages
    chunk_pass_of(step)                  # the step, if it is the pass of a microbatch

A loop, branch or call runs on one stage, or on all of them: a value cannot go to another
stage within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshtf.errors import PlanError, explain_error
from meshtf.mesh import Mesh
from meshtf.partition import CallStep, Program, Step, walk


def chunk_pass_of(step: Step) -> CallStep | None:
    """Returns the step if it is the pass of one microbatch, forward or backward, through a
    chunk: the consecutive layers of a pipeline that one stage runs at a time.
    """
    call = step.call
    return None if call is None or call.node.stage is None else call


def stages_of_step(step: Step, mesh: Mesh) -> tuple[int, ...]:
    """Returns the stages on which a step runs.

    Raises:
      PlanError: a value goes from stage to stage in the body of a loop, branch or call.
    """
    stage = step.stage
    if step.host_op is not None:
        stage = 0
    elif step.bodies:
        stage = _stage_of_bodies(step, mesh)
    return tuple(range(mesh.num_stages)) if stage is None else (stage,)


def _stage_of_bodies(step: Step, mesh: Mesh) -> int | None:
    """Returns the one stage that the bodies of a step name; None: they name none, so that it
    runs on all of them.

    Raises:
      PlanError: the bodies name several stages.
    """
    stages: set[int] = set()
    program = Program(mesh, steps=(step,), results=())
    for inner_step, _ in walk(program):
        stages.update(_named_stages(inner_step))
    if len(stages) > 1:
        raise several_stages(step, mesh, stages)
    return next(iter(stages), None)


def several_stages(step: Step, mesh: Mesh, stages: Iterable[int]) -> PlanError:
    """Returns the error for a step within which a value goes from stage to stage."""
    node = step.node
    assert node is not None
    return PlanError(
        explain_error(
            f"{node.op.display_name} runs on several pipeline stages: a value goes "
            "from one to another within it, which a live mesh cannot do.",
            source=node.source,
            mesh=str(mesh),
            stages=", ".join(map(str, sorted(stages))),
            way_out="Put all of it on one stage (mtf.stage), or run it on TensorFlow's "
            'devices: a mesh without devices="spmd".',
        )
    )


def _named_stages(step: Step) -> Iterator[int]:
    """Yields the single stages that a step or the placement of one of its values names. All
    stages together have no name.
    """
    if step.reads:
        return
    inputs = () if step.bodies else step.inputs
    stages = [value.placement.stage for value in (*inputs, *step.outputs)]
    if not step.bodies:
        stages.append(step.stage)
    yield from (stage for stage in stages if stage is not None)
