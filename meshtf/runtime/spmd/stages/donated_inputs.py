"""Which inputs of pieces may be overwritten: those that no later task needs, if an output can
take their memory. So the gradients that are summed over microbatches are one array.

    tasks = with_donated_inputs(tasks)
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence

from meshtf.partition import Value
from meshtf.runtime.spmd.stages.piece_programs import PieceProgram
from meshtf.runtime.spmd.stages.task_values import Key, PlannedTask
from meshtf.runtime.spmd.stages.tasks import MoveTask, Piece


def with_donated_inputs(tasks: Sequence[PlannedTask]) -> list[PlannedTask]:
    """Returns the tasks with `donated_inputs`. Pieces that share a module have equal ones."""
    owned = _owned_values(tasks)
    donated: dict[Hashable, set[int]] = {}
    for planned in tasks:
        if planned.program is not None:
            indices = set(_last_used_inputs(planned, owned))
            donated.setdefault(planned.program.key, indices).intersection_update(
                indices
            )
    with_inputs = []
    for planned in tasks:
        if planned.program is not None:
            indices = donated[planned.program.key]
            usable = _usable(planned.program, sorted(indices))
            planned = dataclasses.replace(planned, donated_inputs=tuple(usable))
        with_inputs.append(planned)
    return with_inputs


def _owned_values(tasks: Sequence[PlannedTask]) -> set[Key]:
    """Returns the values whose arrays are no variable's, no user's, and no other value's."""
    owned: set[Key] = set()
    shared: set[Key] = set()
    for planned in tasks:
        if isinstance(planned.task, Piece):
            assert planned.program is not None
            stage = planned.task.stage
            owned.update((out, stage) for out in planned.program.outputs)
        elif isinstance(planned.task, MoveTask):
            for (step, stages), source in zip(planned.task.steps, planned.sources):
                if step.reshard.kind == "send":
                    owned.update((step.out, stage) for stage in stages)
                else:
                    # On the stage of the source, a broadcast copies nothing.
                    shared.add(source)
    return owned - shared


def _last_used_inputs(planned: PlannedTask, owned: set[Key]) -> list[int]:
    """Returns the indices of the inputs of a piece that no later task needs."""
    assert isinstance(planned.task, Piece)
    assert planned.program is not None
    stage = planned.task.stage
    inputs = planned.program.inputs
    freed = owned.intersection(planned.freed)
    uses = Counter(inputs)
    return [
        index
        for index, value in enumerate(inputs)
        if (value, stage) in freed and uses[value] == 1
    ]


def _usable(program: PieceProgram, indices: Sequence[int]) -> list[int]:
    """Returns those of the inputs at `indices` whose memory a result can take; jax warns of
    others.
    """
    results = Counter(map(_form, program.results))
    usable = []
    for index in indices:
        store = program.stores[index]
        form = (store.spec, store.placement)
        if results[form] > 0:
            results[form] -= 1
            usable.append(index)
    return usable


def _form(value: Value) -> Hashable:
    """Returns what values with arrays of equal form have in common."""
    return (value.spec, value.placement)
