"""The program of each compute task, which is compiled as a module of one stage.

    chunk_pass_program(step, sources, stage)    # the pass of a microbatch through a chunk
    task_program(task, sources, ...)            # any other compute task

Values that other tasks compute are inputs of the program; those of its own values that other
tasks need are its outputs. Two steps need no transfer between tasks:

- a number that Python passes in, such as the index of the training step: each program that
  needs it reads it;
- a "drop", which keeps on one stage a value that all stages have: its output has the same
  array as its input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

from meshtf.graph import Spec, Store, is_variable
from meshtf.mesh import Mesh, Placement
from meshtf.partition import CallStep, Program, ReadStep, ReshardStep, Step, Value
from meshtf.runtime.spmd.stages.step_stages import chunk_pass_of
from meshtf.runtime.spmd.stages.tasks import (
    ComputeTask,
    StageValue,
    Task,
    TransferTask,
)


class ValueStore:
    """A `graph.Store` for an input that another task computes: the module of the task has
    it as an argument.

    Args:
      value: the value that the other task computes.
    """

    kind: Literal["argument"] = "argument"
    mesh: Mesh | None = None
    name = "a value"

    def __init__(self, value: Value) -> None:
        assert value.spec is not None, "a tuple of statistics stays within a task"
        self.spec: Spec = value.spec
        self.placement: Placement = value.placement

    def read(self) -> list[Any]:
        """Raises NotImplementedError: the module takes the array of the value instead."""
        raise NotImplementedError

    def slots(self) -> Sequence[Any]:
        """Raises NotImplementedError: only variables have slots (storage for shards)."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class TaskProgram:
    """The program of a compute task.

    Attributes:
      key: the identity of the compiled module; tasks with equal keys share the module.
      steps: the steps of the module; the first of them read the inputs.
      results: the values that the module returns, named as in `steps`.
      stores: the stores from which `steps` read the inputs.
      inputs: the values of other tasks that fill `stores`, one for each.
      outputs: the values of the planned program that `results` compute, one for each. They
        differ from `results` in a pass through a chunk, whose steps all passes share.
      variables: the variables that the task writes.
    """

    key: Hashable
    steps: tuple[Step, ...]
    results: tuple[Value, ...]
    stores: tuple[Store, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    variables: tuple[Store, ...]


class Sources:
    """The step that computes each value of a program.

    Args:
      program: the planned program.
    """

    def __init__(self, program: Program) -> None:
        self._steps: dict[Value, Step] = {}
        for step in program.steps:
            self._steps.update(dict.fromkeys(step.outputs, step))

    def before_drop(self, value: Value) -> Value:
        """Returns the value from which drops made this one; the value itself if none did."""
        while (drop := self._copy(value, ("drop",))) is not None:
            value = drop.src
        return value

    def _copy(self, value: Value, kinds: Sequence[str]) -> ReshardStep | None:
        """Returns the reshard that computes a value, if it is of one of these kinds."""
        step = self._steps.get(value)
        reshards = () if step is None else step.reshards
        return next((x for x in reshards if x.kind in kinds), None)

    def drop_step(self, value: Value) -> Step:
        """Returns the step that computes a dropped value from the one before all drops."""
        (step,) = self._steps[value].reshards
        return dataclasses.replace(step, src=self.before_drop(value))

    def scalar_store(self, value: Value) -> Store | None:
        """Returns the store of a value that is a number from Python; None for others."""
        step = self._steps.get(self.before_drop(value))
        stores = () if step is None else step.reads
        return next((store for store in stores if store.kind == "number"), None)

    def variable_read(self, value: Value) -> Step | None:
        """Returns the step that read a variable, if the array of the value may be the array
        of this variable itself: drops and broadcasts need not copy. None for other values.
        """
        while (copy := self._copy(value, ("drop", "broadcast"))) is not None:
            value = copy.src
        step = self._steps.get(value)
        is_read = step is not None and any(map(is_variable, step.reads))
        return step if is_read else None


def needed_values(task: Task, sources: Sources) -> list[Value]:
    """Returns the values of other tasks that a task needs, without duplicates."""
    if isinstance(task, TransferTask):
        values = [sources.before_drop(step.src) for step, _ in task.transfers]
        return list(dict.fromkeys(values))
    if not isinstance(task, ComputeTask):
        return []
    computed = {out for step in task.steps for out in step.outputs}
    needed: dict[Value, None] = {}
    for step in task.steps:
        for value in step.inputs:
            source = sources.before_drop(value)
            # An argument of a pass differs between microbatches that share a module, so it
            # is an input of the module even if it is a number.
            chunk_pass = chunk_pass_of(step)
            is_argument = chunk_pass is not None and value in chunk_pass.arguments
            if sources.scalar_store(value) is not None and not is_argument:
                continue
            if source not in computed:
                needed[source] = None
    return list(needed)


def chunk_pass_program(step: CallStep, sources: Sources, stage: int) -> TaskProgram:
    """Returns the program of a pass of one microbatch through a chunk (consecutive layers of
    the pipeline). All passes through a chunk have the same key, so they share a module.
    """
    # `parameters` are the values that the steps of the chunk use; `inputs` are the values of
    # the planned program that this pass has for them.
    parameters: list[Value] = list(step.body_arguments)
    inputs = [sources.before_drop(value) for value in step.arguments]
    reads: list[Step] = []
    for value in step.captured_values:
        store = sources.scalar_store(value)
        if store is not None:
            reads.append(ReadStep(store, value))
        else:
            parameters.append(value)
            inputs.append(sources.before_drop(value))
    stores = tuple(map(ValueStore, parameters))
    reads += map(ReadStep, stores, parameters)
    return TaskProgram(
        key=(step.body, stage),
        steps=(*reads, *step.body.steps),
        results=step.body.results,
        stores=stores,
        inputs=tuple(inputs),
        outputs=step.outs,
        variables=(),
    )


def task_program(
    task: ComputeTask,
    sources: Sources,
    needed_later: set[StageValue],
    current_variables: dict[Value, Store],
) -> TaskProgram:
    """Returns the program of a compute task that is not a pass through a chunk.

    Args:
      task: the task.
      sources: the step that computes each value.
      needed_later: the values that other tasks or results need.
      current_variables: {value of another task: the variable whose current value it is}.
    """
    written_variables: dict[Store, None] = {}  # a dict, since the order matters
    for step in task.steps:
        written_variables.update(dict.fromkeys(step.writes))
    reads: list[Step] = []
    stores: list[ValueStore] = []
    inputs: list[Value] = []
    for value in needed_values(task, sources):
        variable = current_variables.get(value)
        if variable is not None and variable in written_variables:
            # The module already takes the variable's array, to overwrite it. jax refuses a
            # donated array that is another input as well.
            reads.append(ReadStep(variable, value))
            continue
        store = ValueStore(value)
        stores.append(store)
        inputs.append(value)
        reads.append(ReadStep(store, value))
    outputs = tuple(
        out
        for step in task.steps
        for out in step.outputs
        if StageValue(out, task.stage) in needed_later
    )
    steps = _with_local_reads(reads, task.steps, sources, results=set(outputs))
    return TaskProgram(
        key=task,
        steps=tuple(steps),
        results=outputs,
        stores=tuple(stores),
        inputs=tuple(inputs),
        outputs=outputs,
        variables=tuple(written_variables),
    )


def _with_local_reads(
    reads: Iterable[Step],
    task_steps: Iterable[Step],
    sources: Sources,
    results: set[Value],
) -> list[Step]:
    """Returns `reads`, followed by the steps of a task. Before the first step that needs a
    number from Python, or the output of a drop, comes the step that reads or drops it.

    Args:
      reads: the steps that read the inputs of the task.
      task_steps: the steps of the task.
      sources: the step that computes each value.
      results: the values that the module returns.
    """
    steps = list(reads)
    available = {out for step in steps for out in step.outputs}
    for step in task_steps:
        if step.reads and results.isdisjoint(step.outputs):
            continue  # a number, which is read where it is needed
        for value in step.inputs:
            if value in available:
                continue
            available.add(value)
            store = sources.scalar_store(value)
            if store is not None:
                steps.append(ReadStep(store, value))
            else:
                steps.append(sources.drop_step(value))
        available.update(step.outputs)
        # Tasks with what else it waits for come before this one.
        steps.append(step.waiting_for(available))
    return steps
