"""The order in which steps between two segments run, so that what is alike runs side by
side.

Example:

    for reads, cuts, others, writes in sort_out(segment.before, mesh): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import (
    BranchStep,
    CallStep,
    LoopStep,
    MoveStep,
    ReadStep,
    Step,
    Value,
    WriteStep,
)
from meshtf.partition.steps import makes, needs


class Phase(NamedTuple):
    """Steps in an order that they may have too."""

    reads: list[ReadStep]  # of variables
    cuts: list[MoveStep]  # of what was read just now
    others: list[Step]
    writes: list[WriteStep]


def phases_of(steps: Sequence[Step], mesh: Mesh) -> list[Phase]:
    """Returns steps in phases: a read after a write, or a use of what it gives, starts
    another.
    """
    if any(isinstance(s, (LoopStep, BranchStep, CallStep)) for s in steps):
        return [Phase([], [], list(steps), [])]  # bodies may read
    phases: dict[int, Phase] = {}
    there: dict[Value | Store, int] = {}  # the first phase that may have it
    used: dict[Store | None, int] = {}  # the last phase that reads or writes it
    read: set[Value] = set()
    for step in steps:
        number = max([0, *(there.get(v, 0) for v in needs(step))])
        if isinstance(step, ReadStep):
            number = there.get(step.store, 0)
            used[step.store] = max(number, used.get(step.store, 0))
        elif isinstance(step, WriteStep):
            # What tells the world keeps its order, too.
            written = step.variables or (None,)
            number = max([number, *(used.get(store, 0) for store in written)])
            used.update(dict.fromkeys(written, number))
            there.update(dict.fromkeys(step.variables, number + 1))
        there.update(dict.fromkeys(makes(step), number + isinstance(step, WriteStep)))
        phase = phases.setdefault(number, Phase([], [], [], []))
        if (
            isinstance(step, ReadStep)
            and touches_variables(step)
            and step.store.mesh is mesh
        ):
            phase.reads.append(step)
            read.add(step.out)
        elif (
            isinstance(step, MoveStep)
            and step.move.kind == "slice"
            and step.src in read
        ):
            phase.cuts.append(step)
        elif isinstance(step, WriteStep) and step.variables:
            phase.writes.append(step)
        else:
            phase.others.append(step)
    return [phases[number] for number in sorted(phases)]


def touches_variables(step: Step) -> bool:
    """Whether a step reads or writes variables."""
    if isinstance(step, ReadStep):
        return step.store.kind in ("parameter", "state")
    return isinstance(step, (LoopStep, BranchStep, CallStep)) or bool(
        isinstance(step, WriteStep) and step.variables
    )
