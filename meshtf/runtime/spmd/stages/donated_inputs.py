"""Which inputs a compute task may overwrite: those that no later task needs, if an output
fits into their memory. So the gradients that are summed over microbatches are one array.

    tasks = with_donated_inputs(tasks)

In jax's terms the inputs are donated: their arrays are deleted by the call.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence

from meshtf.partition import Value
from meshtf.runtime.spmd.stages.task_programs import TaskProgram
from meshtf.runtime.spmd.stages.task_values import PlannedTask
from meshtf.runtime.spmd.stages.tasks import ComputeTask, StageValue, TransferTask


def with_donated_inputs(tasks: Sequence[PlannedTask]) -> list[PlannedTask]:
    """Returns the tasks with `donated_inputs`. Tasks that share a module donate the same
    inputs, since donation is compiled into the module.
    """
    owned = _owned_values(tasks)
    donated: dict[Hashable, set[int]] = {}
    for planned in tasks:
        if planned.program is None:
            continue
        key = planned.program.key
        last_used = set(_last_used_inputs(planned, owned))
        donated[key] = donated.get(key, last_used) & last_used
    with_inputs = []
    for planned in tasks:
        if planned.program is not None:
            indices = sorted(donated[planned.program.key])
            usable = _usable(planned.program, indices)
            planned = dataclasses.replace(planned, donated_inputs=tuple(usable))
        with_inputs.append(planned)
    return with_inputs


def _owned_values(tasks: Sequence[PlannedTask]) -> set[StageValue]:
    """Returns the values whose array belongs to no variable, no caller and no other value."""
    owned: set[StageValue] = set()
    shared: set[StageValue] = set()
    for planned in tasks:
        if isinstance(planned.task, ComputeTask):
            assert planned.program is not None
            stage = planned.task.stage
            owned.update(StageValue(out, stage) for out in planned.program.outputs)
        elif isinstance(planned.task, TransferTask):
            for transfer, source in zip(planned.task.transfers, planned.sources):
                if transfer.step.reshard.kind == "send":
                    out = transfer.step.out
                    owned.update(StageValue(out, stage) for stage in transfer.stages)
                else:
                    # On the stage of the source, a broadcast copies nothing: its output
                    # is the array of the source.
                    shared.add(source)
    return owned - shared


def _last_used_inputs(planned: PlannedTask, owned: set[StageValue]) -> list[int]:
    """Returns the indices of the owned inputs of a compute task that no later task needs."""
    assert isinstance(planned.task, ComputeTask)
    assert planned.program is not None
    stage = planned.task.stage
    inputs = planned.program.inputs
    freed = owned.intersection(planned.freed)
    num_uses = Counter(inputs)
    return [
        index
        for index, value in enumerate(inputs)
        if StageValue(value, stage) in freed and num_uses[value] == 1
    ]


def _usable(program: TaskProgram, indices: Sequence[int]) -> list[int]:
    """Returns those of the inputs at `indices` whose memory a result can take. Each result
    takes the memory of one input of equal shape; jax warns of donated inputs that no result
    takes.
    """
    unmatched_results = Counter(map(_array_form, program.results))
    usable = []
    for index in indices:
        store = program.stores[index]
        form = (store.spec, store.placement)
        if unmatched_results[form] > 0:
            unmatched_results[form] -= 1
            usable.append(index)
    return usable


def _array_form(value: Value) -> Hashable:
    """Returns what determines the shape, the dtype and the sharding of a value's array."""
    return (value.spec, value.placement)
