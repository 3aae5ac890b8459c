"""What one position holds at once, step by step of a program in the order of its schedule.

A value is there from the step that makes it to the last one that uses it. Variables and arguments
are there all the time, and reading them takes nothing. An op whose output is as large as an input
that nobody needs afterwards takes that one's place, as TensorFlow and XLA do for elementwise ops.

    peaks(program, gradients)[0].activations

Stages of a pipeline hold different things, so there is a peak for each of them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Set
from typing import NamedTuple

from meshtf.graph import Spec
from meshtf.mesh import At, Mesh, Placement
from meshtf.partition import (
  BranchStep,
  CallStep,
  Compute,
  Load,
  LoopStep,
  Program,
  Step,
  Tell,
  Value,
  schedule,
)
from meshtf.partition.cost import local_bytes, local_shape
from meshtf.partition.steps import makes, reads


class Peaks(NamedTuple):
  """The most bytes that are alive at once on one position, variables and arguments left out."""

  everything: float
  activations: float      # all but the gradients that updates take


def peaks(program: Program, gradients: Set[Value],
          bodies: dict[Program, list[Peaks]] | None = None) -> list[Peaks]:
  """Returns the most that is alive at once while a program runs step by step, at each stage.

  Args:
    program: what runs.
    gradients: what does not count as activations.
    bodies: what is known so far of programs within this one.
  """
  inside = {} if bodies is None else bodies
  every = range(stages(program.mesh))
  sizes = _sizes(program)
  steps = [step for segment in schedule(program) for step in (*segment.before, *segment.computes)]
  last = {value: i for i, step in enumerate(steps) for value in reads(step)}
  last.update(dict.fromkeys(program.results, len(steps)))
  alive, most = ([Peaks(0.0, 0.0) for _ in every] for _ in range(2))
  for i, step in enumerate(steps):
    dying = [v for v in dict.fromkeys(reads(step)) if last[v] == i]
    made = [v for v in makes(step) if v in last]
    for k in _touched((*dying, *made), every):
      gone, new = ([v for v in values if lies(v.placement, k)] for values in (dying, made))
      more, less = (Peaks(sum(sizes[v] for v in values),
                          sum(sizes[v] for v in values if v not in gradients))
                    for values in (new, gone))
      extra = _scratch(step, k, more, gradients, inside, program.mesh)
      reused = _reused(step, gone, sizes)
      most[k] = Peaks(*(max(top, now + m + e - reused)
                        for top, now, m, e in zip(most[k], alive[k], more, extra)))
      alive[k] = Peaks(*(now + m - d for now, m, d in zip(alive[k], more, less)))
  return most


def stages(mesh: Mesh) -> int:
  """Returns how many stages a mesh has."""
  return mesh.axes.get(mesh.stages, 1)


def lies(placement: Placement, stage: int) -> bool:
  """Whether a stage holds what has this placement."""
  return all(not isinstance(s, At) or s.coordinate == stage for s in placement)


def _touched(values: Iterable[Value], every: range) -> Iterable[int]:
  """Returns the stages that hold some of the values."""
  found = {s.coordinate for v in values for s in v.placement if isinstance(s, At)}
  everywhere = any(not any(isinstance(s, At) for s in v.placement) for v in values)
  return every if everywhere else found


def _reused(step: Step, dying: list[Value], sizes: dict[Value, float]) -> float:
  """Returns the bytes of inputs whose place the outputs take."""
  if not isinstance(step, Compute):
    return 0.0
  outs = [sizes[v] for v in step.outs]
  return max((sizes[v] for v in dying if sizes[v] in outs), default=0.0)


def _scratch(step: Step, stage: int, made: Peaks, gradients: Set[Value],
             bodies: dict[Program, list[Peaks]], mesh: Mesh) -> Peaks:
  """Returns the bytes that an op holds while it runs, beside inputs and outputs."""
  if isinstance(step, (LoopStep, BranchStep, CallStep)):
    programs = step.bodies if isinstance(step, BranchStep) else (step.body,)
    for body in programs:
      if body not in bodies:
        bodies[body] = peaks(body, gradients, bodies)
    most = Peaks(*map(max, *(bodies[body][stage] for body in (*programs, programs[0]))))
    if isinstance(step, CallStep):         # its results are among what its body holds
      return Peaks(*(max(0.0, m - own) for m, own in zip(most, made)))
    return most
  if (not isinstance(step, Compute) or step.sharing
      or step.plan.stage not in (None, stage)):
    return Peaks(0.0, 0.0)
  local = [Spec(local_shape(v.spec.shape, v.placement, mesh), v.spec.dtype)
           for v in step.ins if v.spec is not None]
  size = sum(local_bytes(s, mesh.whole, mesh) for s in step.node.op.scratch(*local))
  return Peaks(size, size)


def _sizes(program: Program) -> dict[Value, float]:
  """Returns the bytes of every value; what is read from a store or made outside is there."""
  sizes: dict[Value, float] = collections.defaultdict(float)
  for step in program.steps:
    for value in makes(step):
      sizes[value] = 0.0 if isinstance(step, Load) else _size(value, program.mesh)
    if isinstance(step, Tell):
      told = sum(local_bytes(t, program.mesh.whole, program.mesh)
                 for t in step.tells(program.mesh))
      sizes[step.src], sizes[step.out] = told, told * step.slices(program.mesh)
    elif isinstance(step, Compute) and step.sharing:
      sizes[step.outs[1]] = max((sizes[v] for v in step.ins), default=0.0)     # kept: at a guess
  return sizes


def _size(value: Value, mesh: Mesh) -> float:
  return 0.0 if value.spec is None else local_bytes(value.spec, value.placement, mesh)
