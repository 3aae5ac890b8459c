"""Reorders the steps between two segments into phases, so that all reads of a phase, and
all its writes, can each be one call on a device.

    for reads, slices, remaining, writes in phases_of(segment.before, mesh): ...

A segment is a sequence of computations without communication; the steps between two
segments read and write variables, and reshard values. A store is a variable, or an argument
of the program: where a read takes its value from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshtf.graph import Store, is_variable
from meshtf.mesh import Mesh
from meshtf.partition import ReshardStep, Step, Value


class Phase(NamedTuple):
    """Steps that may run in this order: reads, slices, remaining, writes.

    Attributes:
      reads: the reads of variables.
      slices: the slices of values that `reads` read.
      remaining: all other steps.
      writes: the writes of variables.
    """

    reads: list[Step]
    slices: list[ReshardStep]
    remaining: list[Step]
    writes: list[Step]


class _PhaseIndices:
    """Computes the index of each step's phase, for steps in program order.

    Attributes:
      _available_from: {value or store: the first phase that can use or read it}.
      _last_use: {store: the last phase that uses it}; the key None is for host ops.
    """

    def __init__(self) -> None:
        self._available_from: dict[Value | Store, int] = {}
        self._last_use: dict[Store | None, int] = {}

    def phase_of(self, step: Step) -> int:
        """Returns the index of the phase of the next step."""
        used: tuple[Value | Store, ...] = (*step.dependencies, *step.reads)
        phase = max([0, *(self._available_from.get(x, 0) for x in used)])
        for store in step.reads:
            self._last_use[store] = max(phase, self._last_use.get(store, 0))
        # The first phase that can use the results of the step.
        results_from = phase
        if step.has_effect:
            stores = step.writes or (None,)  # None: a host op, such as a print
            phase = max([phase, *(self._last_use.get(store, 0) for store in stores)])
            # Writes are the last steps of a phase, so the next phase sees them.
            results_from = phase + 1
            self._last_use.update(dict.fromkeys(stores, phase))
            self._available_from.update(dict.fromkeys(step.writes, results_from))
        self._available_from.update(dict.fromkeys(step.outputs, results_from))
        return phase


def phases_of(steps: Sequence[Step], mesh: Mesh) -> list[Phase]:
    """Returns steps in phases. A read of a variable after a write of it is in a later
    phase than the write, and so is a use of the write's output.

    Args:
      steps: the steps, in program order.
      mesh: the mesh of the program.
    """
    if any(step.bodies for step in steps):
        # Bodies may read and write variables, so the steps keep their order.
        return [Phase(reads=[], slices=[], remaining=list(steps), writes=[])]
    phase_indices = _PhaseIndices()
    phases: dict[int, Phase] = {}
    values_read: set[Value] = set()
    for step in steps:
        empty_phase = Phase(reads=[], slices=[], remaining=[], writes=[])
        phase = phases.setdefault(phase_indices.phase_of(step), empty_phase)
        # Slices of what was read, so that each position gets its shard.
        slices = [
            x for x in step.reshards if x.kind == "slice" and x.src in values_read
        ]
        if any(is_variable(store) and store.mesh is mesh for store in step.reads):
            phase.reads.append(step)
            values_read.update(step.outputs)
        elif slices:
            phase.slices.extend(slices)
        elif step.writes:
            phase.writes.append(step)
        else:
            phase.remaining.append(step)
    return [phases[index] for index in sorted(phases)]


def touches_variables(step: Step) -> bool:
    """Returns whether a step reads or writes variables, or may do so in a body."""
    reads = any(map(is_variable, step.reads))
    return reads or bool(step.writes) or bool(step.bodies)
