"""The order in which steps between two segments run, so that reads and writes of many
variables come side by side.

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
    """Steps, in an order that keeps what the program computes."""

    reads: list[ReadStep]  # of variables
    slices: list[ReshardStep]  # of what `reads` read
    remaining: list[Step]
    writes: list[WriteStep]


class _Numbering:
    """The phase of each step."""

    def __init__(self) -> None:
        self._available: dict[Value | Store, int] = {}  # from which phase on
        self._last_use: dict[Store | None, int] = {}  # None: of what has host effects

    def phase_of(self, step: Step) -> int:
        """Returns the phase of the next step."""
        phase = max([0, *(self._available.get(v, 0) for v in dependencies_of(step))])
        if isinstance(step, ReadStep):
            phase = self._available.get(step.store, 0)
            last_use = self._last_use.get(step.store, 0)
            self._last_use[step.store] = max(phase, last_use)
        elif isinstance(step, WriteStep):
            written = step.variables or (None,)
            phase = max([phase, *(self._last_use.get(store, 0) for store in written)])
            self._last_use.update(dict.fromkeys(written, phase))
            self._available.update(dict.fromkeys(step.variables, phase + 1))
        results_from = phase + isinstance(step, WriteStep)
        self._available.update(dict.fromkeys(outputs_of(step), results_from))
        return phase


def phases_of(steps: Sequence[Step], mesh: Mesh) -> list[Phase]:
    """Returns steps in phases: a read after a write, or a use of a write's output,
    starts another.
    """
    if any(isinstance(s, (LoopStep, BranchStep, CallStep)) for s in steps):
        return [Phase([], [], list(steps), [])]  # bodies may read
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
    return [phases[number] for number in sorted(phases)]


def _slices(step: Step) -> TypeGuard[ReshardStep]:
    return isinstance(step, ReshardStep) and step.reshard.kind == "slice"


def _reads_variable(step: Step, mesh: Mesh) -> bool:
    """Whether a step reads a variable of the mesh."""
    if not isinstance(step, ReadStep) or not touches_variables(step):
        return False
    return step.store.mesh is mesh


def touches_variables(step: Step) -> bool:
    """Whether a step reads or writes variables."""
    if isinstance(step, ReadStep):
        return step.store.kind in ("parameter", "state")
    if isinstance(step, WriteStep):
        return bool(step.variables)
    return isinstance(step, (LoopStep, BranchStep, CallStep))
