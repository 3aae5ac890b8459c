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

from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, Placement
from meshtf.partition import (
    BranchStep,
    CallStep,
    Compute,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WriteStep,
)
from meshtf.partition.steps import outputs_of
from meshtf.runtime.spmd.stages.step_stages import data_inputs, is_chunk_pass, is_drop
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
    stores: tuple[ValueStore, ...]
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
            self._steps.update(dict.fromkeys(outputs_of(step), step))

    def before_drop(self, value: Value) -> Value:
        """Returns the value from which drops made this one; the value itself if none did."""
        step = self._steps.get(value)
        while isinstance(step, ReshardStep) and is_drop(step):
            value = step.src
            step = self._steps.get(value)
        return value

    def drop_step(self, value: Value) -> Step:
        """Returns the step that computes a dropped value from the one before all drops."""
        step = self._steps[value]
        assert isinstance(step, ReshardStep)
        return dataclasses.replace(step, src=self.before_drop(value))

    def scalar_store(self, value: Value) -> Store | None:
        """Returns the store of a value that is a number from Python; None for others."""
        step = self._steps.get(self.before_drop(value))
        if isinstance(step, ReadStep) and step.store.kind == "number":
            return step.store
        return None

    def variable_read(self, value: Value) -> ReadStep | None:
        """Returns the step that read a variable, if the array of the value may be the array
        of this variable itself: drops and broadcasts need not copy. None for other values.
        """
        step = self._steps.get(value)
        while isinstance(step, ReshardStep) and step.reshard.kind in (
            "drop",
            "broadcast",
        ):
            step = self._steps.get(step.src)
        if isinstance(step, ReadStep) and step.store.kind in ("parameter", "state"):
            return step
        return None


def needed_values(task: Task, sources: Sources) -> list[Value]:
    """Returns the values of other tasks that a task needs, without duplicates."""
    if isinstance(task, TransferTask):
        values = [sources.before_drop(step.src) for step, _ in task.transfers]
        return list(dict.fromkeys(values))
    if not isinstance(task, ComputeTask):
        return []
    computed = {out for step in task.steps for out in outputs_of(step)}
    needed: dict[Value, None] = {}
    for step in task.steps:
        for value in data_inputs(step):
            source = sources.before_drop(value)
            # An argument of a pass differs between microbatches that share a module, so it
            # is an input of the module even if it is a number.
            is_argument = is_chunk_pass(step) and value in step.arguments
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
        if isinstance(step, WriteStep):
            written_variables.update(dict.fromkeys(step.variables))
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
        for out in outputs_of(step)
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
    available = {out for step in steps for out in outputs_of(step)}
    for step in task_steps:
        if isinstance(step, ReadStep) and step.out not in results:
            continue  # a number, which is read where it is needed
        for value in data_inputs(step):
            if value in available:
                continue
            available.add(value)
            store = sources.scalar_store(value)
            if store is not None:
                steps.append(ReadStep(store, value))
            else:
                steps.append(sources.drop_step(value))
        available.update(outputs_of(step))
        steps.append(_with_local_wait(step, available))
    return steps


def _with_local_wait(step: Step, available: set[Value]) -> Step:
    """Returns a step that waits only for values of its own task, `available`. Waiting for
    others is unnecessary: their tasks come before this one.
    """
    if isinstance(step, CallStep):
        awaited = tuple(value for value in step.wait_for if value in available)
        return dataclasses.replace(step, wait_for=awaited)
    if isinstance(step, (Compute, LoopStep, BranchStep, ReshardStep)):
        if step.wait_for not in available:
            return dataclasses.replace(step, wait_for=None)
    return step
