"""What one position holds at once, step by step of a program in the order of its schedule.

A value is there from the step that makes it to the last one that uses it. Variables and arguments
are there all the time, and reading them takes nothing. An op whose output is as large as an input
that nobody needs afterwards takes that one's place, as TensorFlow and XLA do for elementwise ops.

    peaks(program, gradients).activations
"""

from __future__ import annotations

import collections
from collections.abc import Set
from typing import NamedTuple

from meshtf.graph import Spec
from meshtf.mesh import Mesh
from meshtf.partition import (
  BranchStep,
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


def peaks(program: Program, gradients: Set[Value]) -> Peaks:
  """Returns the most that is alive at once while a program runs step by step."""
  sizes = _sizes(program)
  steps = [step for segment in schedule(program) for step in (*segment.before, *segment.computes)]
  last = {value: i for i, step in enumerate(steps) for value in reads(step)}
  last.update(dict.fromkeys(program.results, len(steps)))
  alive = activations = most = most_activations = 0.0
  for i, step in enumerate(steps):
    dying = [v for v in dict.fromkeys(reads(step)) if last[v] == i]
    made = [v for v in makes(step) if v in last]
    new, reused = sum(sizes[v] for v in made), _reused(step, dying, sizes)
    kept = sum(sizes[v] for v in made if v in gradients)
    extra = new - reused + _scratch(step, program.mesh)
    most = max(most, alive + extra)
    most_activations = max(most_activations, activations + extra - kept)
    alive += new - sum(sizes[v] for v in dying)
    activations += new - kept - sum(sizes[v] for v in dying if v not in gradients)
  return Peaks(most, most_activations)


def _reused(step: Step, dying: list[Value], sizes: dict[Value, float]) -> float:
  """Returns the bytes of inputs whose place the outputs take."""
  if not isinstance(step, Compute):
    return 0.0
  outs = [sizes[v] for v in step.outs]
  return max((sizes[v] for v in dying if sizes[v] in outs), default=0.0)


def _scratch(step: Step, mesh: Mesh) -> float:
  """Returns the bytes that an op holds while it runs, beside inputs and outputs."""
  if isinstance(step, (LoopStep, BranchStep)):
    bodies = step.bodies if isinstance(step, BranchStep) else (step.body,)
    return max(peaks(body, set()).everything for body in bodies)
  if not isinstance(step, Compute) or step.sharing:
    return 0.0
  local = [Spec(local_shape(v.spec.shape, v.placement, mesh), v.spec.dtype)
           for v in step.ins if v.spec is not None]
  return sum(local_bytes(s, mesh.whole, mesh) for s in step.node.op.scratch(*local))


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
