"""What one position holds at once, step by step of a program in the order of its
schedule.

A value is there from the step that makes it to the last one that uses it. Variables and
arguments are there all the time, and reading them takes nothing. An op whose output is
as large as an input that nobody needs afterwards takes that one's place, as TensorFlow
and XLA do for elementwise ops. Gradients wait until their bucket is full, as on devices
with memories of their own.

    peaks(program, gradients)[0].activations

Stages of a pipeline hold different things, so there is a peak for each of them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, OnStage, Placement
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    Step,
    Value,
    schedule,
)
from meshtf.partition.cost import local_bytes, local_shape
from meshtf.partition.steps import inputs_of, outputs_of

Bytes: TypeAlias = np.ndarray  # of each stage
T = TypeVar("T", Store, Value)


class Peaks(NamedTuple):
    """The most bytes that are alive at once on one position, variables and arguments
    left out.
    """

    everything: float
    activations: float  # all but the gradients that updates take


def peaks(program: Program, gradients: Set[Value]) -> list[Peaks]:
    """Returns the most that is alive at once while a program runs step by step, at each
    stage.

    Args:
      program: what runs.
      gradients: what does not count as activations.
    """
    return [Peaks(*most) for most in _peaks(program, gradients, {}).T.tolist()]


def _peaks(
    program: Program, gradients: Set[Value], bodies: dict[Program, Bytes]
) -> Bytes:
    """Returns the same as numbers: all bytes, and activations, of each stage.

    Args:
      program: what runs.
      gradients: what does not count as activations.
      bodies: what is known so far of programs within this one.
    """
    sizes = _sizes(program)
    segments = schedule(program, bucket_bytes=program.mesh.bucket_bytes)
    steps = [
        step for segment in segments for step in (*segment.before, *segment.computes)
    ]
    last = {value: i for i, step in enumerate(steps) for value in inputs_of(step)}
    last.update(dict.fromkeys(program.results, len(steps)))
    alive, most = np.zeros([2, 2, stages(program.mesh)])
    for i, step in enumerate(steps):
        dying = [v for v in dict.fromkeys(inputs_of(step)) if last[v] == i]
        more = _bytes(
            (v for v in outputs_of(step) if v in last), sizes, gradients, program.mesh
        )
        alive += more
        extra = _scratch(step, more, gradients, bodies, program.mesh)
        np.maximum(
            most, alive + (extra - _reused(step, dying, sizes, program.mesh)), out=most
        )
        alive -= _bytes(dying, sizes, gradients, program.mesh)
    return most


def _bytes(
    values: Iterable[Value],
    sizes: Mapping[Value, float],
    gradients: Set[Value],
    mesh: Mesh,
) -> Bytes:
    """Returns the bytes of values, and of those that are no gradients, at
    each stage.
    """
    found = np.zeros([2, stages(mesh)])
    for value in values:
        place = _place(value.placement)
        found[0, place] += sizes[value]
        if value not in gradients:
            found[1, place] += sizes[value]
    return found


def stages(mesh: Mesh) -> int:
    """Returns how many stages a mesh has."""
    return mesh.axes.get(mesh.stages, 1)


def at_stages(things: Iterable[T], mesh: Mesh) -> list[list[T]]:
    """Returns which of some values or variables each stage holds."""
    found: list[list[T]] = [[] for _ in range(stages(mesh))]
    for thing in things:
        for here in found[_place(thing.placement)]:
            here.append(thing)
    return found


def _place(placement: Placement) -> slice:
    """Returns the stages that hold what has this placement."""
    return _slice(
        next((s.coordinate for s in placement if isinstance(s, OnStage)), None)
    )


def _slice(stage: int | None) -> slice:
    return slice(None) if stage is None else slice(stage, stage + 1)


def _reused(
    step: Step, dying: Iterable[Value], sizes: Mapping[Value, float], mesh: Mesh
) -> Bytes:
    """Returns the bytes of inputs whose place the outputs take, at each stage."""
    found = np.zeros(stages(mesh))
    outs = [sizes[v] for v in step.outs] if isinstance(step, Compute) else []
    for value in dying:
        if sizes[value] in outs:
            place = _place(value.placement)
            found[place] = np.maximum(found[place], sizes[value])
    return found


def _scratch(
    step: Step,
    made: Bytes,
    gradients: Set[Value],
    bodies: dict[Program, Bytes],
    mesh: Mesh,
) -> Bytes:
    """Returns the bytes that an op holds while it runs, beside inputs and outputs."""
    found = np.zeros_like(made)
    if isinstance(step, (LoopStep, BranchStep, CallStep)):
        for body in step.bodies if isinstance(step, BranchStep) else (step.body,):
            if body not in bodies:
                bodies[body] = _peaks(body, gradients, bodies)
            np.maximum(found, bodies[body], out=found)
        # The results of a call are among what its body holds.
        return np.maximum(found - made, 0.0) if isinstance(step, CallStep) else found
    if isinstance(step, Bucket):  # packed, beside what is packed, before its results
        sizes = {move.src: _size(move.src, mesh) for move in step.reductions}
        packed = _bytes(sizes, sizes, gradients, mesh)
        return np.maximum(packed - made, 0.0)
    if isinstance(step, Compute) and not step.makes_statistics:
        local = [
            Spec(local_shape(v.spec.shape, v.placement, mesh), v.spec.dtype)
            for v in step.ins
            if v.spec is not None
        ]
        found[:, _slice(step.plan.stage)] = sum(
            local_bytes(s, mesh.replicated, mesh)
            for s in step.node.op.workspace_specs(*local)
        )
    return found


def _sizes(program: Program) -> dict[Value, float]:
    """Returns the bytes of every value; what is read from a store or made outside is
    there.
    """
    sizes: dict[Value, float] = collections.defaultdict(float)
    for step in program.steps:
        for value in outputs_of(step):
            sizes[value] = (
                0.0 if isinstance(step, ReadStep) else _size(value, program.mesh)
            )
        if isinstance(step, GatherStatisticsStep):
            told = sum(
                local_bytes(t, program.mesh.replicated, program.mesh)
                for t in step.specs(program.mesh)
            )
            sizes[step.src], sizes[step.out] = (
                told,
                told * step.num_shards(program.mesh),
            )
        elif isinstance(step, Compute) and step.makes_statistics:
            sizes[step.outs[1]] = max(
                (sizes[v] for v in step.ins), default=0.0
            )  # kept: at a guess
    return sizes


def _size(value: Value, mesh: Mesh) -> float:
    return 0.0 if value.spec is None else local_bytes(value.spec, value.placement, mesh)
