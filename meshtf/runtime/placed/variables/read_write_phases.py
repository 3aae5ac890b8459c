"""Reorders the steps between two segments into phases, so that the reads, and the writes,
of many variables can each be one call.

    for reads, slices, remaining, writes in phases_of(segment.before, mesh): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    CallStep,
    LoopStep,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WriteStep,
)
from meshtf.partition.steps import dependencies_of, outputs_of


class Phase(NamedTuple):
    """Steps that may be executed in this order: reads, slices, remaining, writes.

    Attributes:
      reads: reads of variables.
      slices: slices of the values that `reads` read.
      remaining: all other steps.
      writes: writes of variables.
    """

    reads: list[ReadStep]
    slices: list[ReshardStep]
    remaining: list[Step]
    writes: list[WriteStep]


class _Numbering:
    """The phase of each step."""

    def __init__(self) -> None:
        self._available: dict[Value | Store, int] = {}  # first phase that can use it
        self._last_use: dict[Store | None, int] = {}  # None: the last host effect

    def phase_of(self, step: Step) -> int:
        """Returns the phase of the next step."""
        phase = max([0, *(self._available.get(v, 0) for v in dependencies_of(step))])
        if isinstance(step, ReadStep):
            phase = self._available.get(step.store, 0)
            last_use = self._last_use.get(step.store, 0)
            self._last_use[step.store] = max(phase, last_use)
        elif isinstance(step, WriteStep):
            stores = step.variables or (None,)
            phase = max([phase, *(self._last_use.get(store, 0) for store in stores)])
            self._last_use.update(dict.fromkeys(stores, phase))
            self._available.update(dict.fromkeys(step.variables, phase + 1))
        results_from = phase + isinstance(step, WriteStep)
        self._available.update(dict.fromkeys(outputs_of(step), results_from))
        return phase


def phases_of(steps: Sequence[Step], mesh: Mesh) -> list[Phase]:
    """Returns steps in phases. A read after a write of the same variable, and a use of a
    write's output, are in a later phase.
    """
    if any(isinstance(s, (LoopStep, BranchStep, CallStep)) for s in steps):
        return [Phase([], [], list(steps), [])]  # their bodies may read variables
    numbering = _Numbering()
    phases: dict[int, Phase] = {}
    values_read: set[Value] = set()
    for step in steps:
        phase = phases.setdefault(numbering.phase_of(step), Phase([], [], [], []))
        if _reads_variable(step, mesh):
            assert isinstance(step, ReadStep)
            phase.reads.append(step)
            values_read.add(step.out)
        elif _slices(step) and step.src in values_read:
            phase.slices.append(step)
        elif isinstance(step, WriteStep) and step.variables:
            phase.writes.append(step)
        else:
            phase.remaining.append(step)
    return [phases[index] for index in sorted(phases)]


def _slices(step: Step) -> TypeGuard[ReshardStep]:
    return isinstance(step, ReshardStep) and step.reshard.kind == "slice"


def _reads_variable(step: Step, mesh: Mesh) -> bool:
    """Returns whether a step reads a variable of the mesh."""
    if not isinstance(step, ReadStep) or not touches_variables(step):
        return False
    return step.store.mesh is mesh


def touches_variables(step: Step) -> bool:
    """Returns whether a step reads or writes variables, or may do so in a body."""
    if isinstance(step, ReadStep):
        return step.store.kind in ("parameter", "state")
    if isinstance(step, WriteStep):
        return bool(step.variables)
    return isinstance(step, (LoopStep, BranchStep, CallStep))
