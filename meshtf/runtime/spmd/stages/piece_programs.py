"""The program of each piece, which is compiled as a module of one stage.

    pieces = piece_programs(program, tasks)      # {piece: its PieceProgram}

The values that other tasks compute are inputs of a piece, and those of its values that
other tasks need are outputs. A number is read again wherever it is needed, and a value that
was dropped from other stages is the one before the drop.
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
from meshtf.runtime.spmd.stages.step_stages import data_inputs, is_chunk, is_drop
from meshtf.runtime.spmd.stages.tasks import MoveTask, Piece, Task


class ValueStore:
    """A value of another task, which a piece reads.

    Args:
      value: the value.
    """

    kind: Literal["argument"] = "argument"
    mesh: Mesh | None = None
    name = "a value"

    def __init__(self, value: Value) -> None:
        assert value.spec is not None, "a tuple of statistics stays within a piece"
        self.spec: Spec = value.spec
        self.placement: Placement = value.placement

    def read(self) -> list[Any]:
        """Raises NotImplementedError: the piece gets its array."""
        raise NotImplementedError

    def slots(self) -> Sequence[Any]:
        """Raises NotImplementedError: it is no variable."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class PieceProgram:
    """The program of a piece.

    Attributes:
      key: equal for pieces that one module can run.
      steps: its steps; the first of them read the inputs.
      results: the values that the module returns.
      stores: the stores from which `steps` read the inputs.
      inputs: the values of other tasks that they have.
      outputs: the values of the program that the results are.
      variables: the variables that the piece writes.
    """

    key: Hashable
    steps: tuple[Step, ...]
    results: tuple[Value, ...]
    stores: tuple[ValueStore, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    variables: tuple[Store, ...]


class Sources:
    """Where the values of a program come from.

    Args:
      program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._steps: dict[Value, Step] = {}
        for step in program.steps:
            self._steps.update(dict.fromkeys(outputs_of(step), step))

    def before_drop(self, value: Value) -> Value:
        """Returns the value that a stage has before and after drops."""
        step = self._steps.get(value)
        while isinstance(step, ReshardStep) and is_drop(step):
            value = step.src
            step = self._steps.get(value)
        return value

    def drop(self, value: Value) -> Step:
        """Returns the step that computes a dropped value from the one before all drops."""
        step = self._steps[value]
        assert isinstance(step, ReshardStep)
        return dataclasses.replace(step, src=self.before_drop(value))

    def scalar_store(self, value: Value) -> Store | None:
        """Returns the store of a value that is a number; None for other values."""
        step = self._steps.get(self.before_drop(value))
        if isinstance(step, ReadStep) and step.store.kind == "number":
            return step.store
        return None

    def variable_read(self, value: Value) -> ReadStep | None:
        """Returns the step that read a variable, if a value on some stage may be the array of
        this variable itself; None for other values.
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
    """Returns the values that a task needs of other tasks, each once."""
    if isinstance(task, MoveTask):
        values = [sources.before_drop(step.src) for step, _ in task.steps]
        return list(dict.fromkeys(values))
    if not isinstance(task, Piece):
        return []
    computed = {out for step in task.steps for out in outputs_of(step)}
    needed: dict[Value, None] = {}
    for step in task.steps:
        for value in data_inputs(step):
            source = sources.before_drop(value)
            is_scalar = sources.scalar_store(value) is not None
            if is_scalar and not (is_chunk(step) and value in _arguments(step)):
                continue
            if source not in computed:
                needed[source] = None
    return list(needed)


def _arguments(step: Step) -> tuple[Value, ...]:
    assert isinstance(step, CallStep)
    return step.arguments


def chunk_program(step: CallStep, sources: Sources, stage: int) -> PieceProgram:
    """Returns the program of a pass of a microbatch through a chunk. All passes through a
    chunk have one key.
    """
    parameters: list[Value] = list(step.body_arguments)
    inputs = [sources.before_drop(value) for value in step.arguments]
    steps: list[Step] = []
    for value in step.captured_values:
        store = sources.scalar_store(value)
        if store is not None:
            steps.append(ReadStep(store, value))
        else:
            parameters.append(value)
            inputs.append(sources.before_drop(value))
    stores = tuple(map(ValueStore, parameters))
    steps += map(ReadStep, stores, parameters)
    return PieceProgram(
        key=(step.body, stage),
        steps=(*steps, *step.body.steps),
        results=step.body.results,
        stores=stores,
        inputs=tuple(inputs),
        outputs=step.outs,
        variables=(),
    )


def piece_program(
    piece: Piece,
    sources: Sources,
    needed_later: set[tuple[Value, int]],
    present: dict[Value, Store],
) -> PieceProgram:
    """Returns the program of a piece that is no pass through a chunk.

    Args:
      piece: the piece.
      sources: where values come from.
      needed_later: the values, with their stage, that other tasks or results need.
      present: {value of another task: the variable whose present value it is}.
    """
    variables = tuple(
        dict.fromkeys(
            store
            for step in piece.steps
            if isinstance(step, WriteStep)
            for store in step.variables
        )
    )
    reads: list[Step] = []
    stores: list[ValueStore] = []
    inputs: list[Value] = []
    for value in needed_values(piece, sources):
        if present.get(value) in variables:
            # The array of a variable that the module may overwrite can be no other input.
            reads.append(ReadStep(present[value], value))
            continue
        stores.append(ValueStore(value))
        inputs.append(value)
        reads.append(ReadStep(stores[-1], value))
    outputs = tuple(
        out
        for step in piece.steps
        for out in outputs_of(step)
        if (out, piece.stage) in needed_later
    )
    steps = _with_local_reads(reads, piece.steps, sources, set(outputs))
    return PieceProgram(
        key=piece,
        steps=tuple(steps),
        results=outputs,
        stores=tuple(stores),
        inputs=tuple(inputs),
        outputs=outputs,
        variables=variables,
    )


def _with_local_reads(
    reads: Iterable[Step],
    piece_steps: Iterable[Step],
    sources: Sources,
    results: set[Value],
) -> list[Step]:
    """Returns the steps of a piece after those that read its inputs, with steps that read
    numbers, and that drop values, where they are needed.
    """
    steps = list(reads)
    available = {out for step in steps for out in outputs_of(step)}
    for step in piece_steps:
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
                steps.append(sources.drop(value))
        available.update(outputs_of(step))
        steps.append(_without_waiting(step, available))
    return steps


def _without_waiting(step: Step, available: set[Value]) -> Step:
    """Returns a step that waits for no value of another task: the order of the tasks has
    made sure of that.
    """
    if isinstance(step, CallStep):
        awaited = tuple(value for value in step.wait_for if value in available)
        return dataclasses.replace(step, wait_for=awaited)
    if isinstance(step, (Compute, LoopStep, BranchStep, ReshardStep)):
        if step.wait_for not in available:
            return dataclasses.replace(step, wait_for=None)
    return step
