"""A recorded function on the pipeline stages of a live mesh: the SPMD runtime's `Executable`
for meshes with an axis of stages.

    program = StagedProgram(recorded, arguments)
    program(arrays)                              # a `ShardedValue` of each result

Each stage runs its own modules on its own devices, and the host starts them in the order of
the pipeline's schedule, without waiting: a module runs when its inputs are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from meshtf.graph import ShardedValue, Store
from meshtf.graph.recorder import Recorded
from meshtf.partition import Value, WriteStep, build
from meshtf.runtime.lowering.program_summary import (
    ProgramMemory,
    collectives_of,
    memory_of,
)
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.jax_slot import VariableArray
from meshtf.runtime.spmd.live.run_checks import RunChecks, add_run, raise_ready
from meshtf.runtime.spmd.stages.donated_inputs import with_donated_inputs
from meshtf.runtime.spmd.stages.stage_arrays import (
    StageShards,
    argument_array,
    variable_arrays,
)
from meshtf.runtime.spmd.stages.stage_meshes import stage_meshes, stages_of
from meshtf.runtime.spmd.stages.stage_module import StageModule
from meshtf.runtime.spmd.stages.step_stages import is_chunk, is_host_step
from meshtf.runtime.spmd.stages.task_values import Key, PlannedTask, plan_tasks
from meshtf.runtime.spmd.stages.tasks import MoveTask, Piece, ReadTask


class StagedProgram:
    """A recorded function for one combination of argument specs, compiled by its first
    call.

    Args:
      recorded: the function.
      stores: the stores of the arguments, in order; each call fills them from the flat
        list of its tensors.
      runs_once: whether to compile it in little time rather than to fast code.

    Raises:
      MeshError: several processes have the devices.
      PlanError: XLA cannot compile an op, or a value goes from stage to stage in the body
        of a loop, branch or call.
    """

    def __init__(
        self, recorded: Recorded, stores: Sequence[Any], runs_once: bool = False
    ) -> None:
        self._runs_once = runs_once
        self._name = recorded.name
        self.mesh = recorded.mesh
        self.stores = stores
        self.program = build(recorded.nodes, recorded.results, recorded.mesh)
        self._specs = [result.spec for result in recorded.results]
        self._stage_meshes = stage_meshes(self.mesh)
        self._plan = plan_tasks(self.program)
        # {key of a piece: its module}
        self._modules: dict[Hashable, StageModule] = {}
        self._tasks = with_donated_inputs(self._plan.tasks)
        for planned in self._tasks:
            self._add_module(planned)
        self._variables: dict[Store, None] = {}
        for planned in self._tasks:
            if planned.program is not None:
                self._variables.update(dict.fromkeys(planned.program.variables))
            elif isinstance(planned.task, ReadTask):
                store = planned.task.step.store
                if store.kind in ("parameter", "state"):
                    self._variables[store] = None

    def __call__(self, flat: Sequence[Any]) -> list[ShardedValue]:
        """Runs the program on the arguments' tensors and returns the results' shards."""
        remaining = list(flat)
        for store in self.stores:
            store.fill(remaining)
        raise_ready(self.mesh)
        for module in self._modules.values():
            module.compile()
        call = _Call(self, {store: variable_arrays(store) for store in self._variables})
        for planned in self._tasks:
            call.run(planned)
        self._run_on_host(call)
        return [
            self._sharded_value(call, index, source)
            for index, source in enumerate(self._plan.results)
        ]

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call."""
        return collectives_of(self.program)

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""
        return memory_of(self.program, self.stores)

    def module(self, key: Hashable) -> StageModule:
        """Returns the module of the pieces with a key."""
        return self._modules[key]

    def layout(self, value: Store | Value, stage: int) -> ArrayLayout:
        """Returns how the shards of a value or store on a stage are one array."""
        assert value.spec is not None
        return ArrayLayout(value.spec, value.placement, self._stage_meshes[stage])

    def _add_module(self, planned: PlannedTask) -> None:
        """Lowers the module of a piece, unless another piece has it."""
        piece = planned.program
        if piece is None or piece.key in self._modules:
            return
        assert isinstance(planned.task, Piece)
        stage = planned.task.stage
        self._modules[piece.key] = StageModule(
            piece,
            self._stage_meshes[stage],
            planned.donated,
            planned.donated_inputs,
            name=f"{self._name} {_label(planned.task)}",
            runs_once=self._runs_once,
        )

    def _sharded_value(self, call: _Call, index: int, source: Value) -> ShardedValue:
        """Returns a result of a call."""
        placement = self.program.results[index].placement
        shards = {}
        for stage in stages_of(self.mesh, placement):
            layout = ArrayLayout(
                self._specs[index], placement, self._stage_meshes[stage]
            )
            array = call.arrays[source, stage]
            shards[stage] = DeviceShards(array, layout, call.check)
        return ShardedValue(placement, StageShards(self.mesh, shards))

    def _run_on_host(self, call: _Call) -> None:
        """Runs the ops that print or write summaries, in order. Waits for their inputs."""
        sources = iter(self._plan.host_inputs)
        for step in self.program.steps:
            if isinstance(step, WriteStep) and is_host_step(step):
                inputs = []
                for value in step.values:
                    array = call.arrays[next(sources), 0]
                    inputs.append(DeviceShards(array, self.layout(value, 0))[0])
                step.host_op.run_on_host(*inputs)


def _label(piece: Piece) -> str:
    """Returns what a piece is, such as "forward.0" or "stage 1"."""
    (first, *_) = piece.steps
    if is_chunk(first):
        return first.node.op.display_name
    return f"stage {piece.stage}"


class _Call:
    """The arrays of one call.

    Args:
      program: the program.
      variables: the arrays of its variables.

    Attributes:
      arrays: the `jax.Array` of each value on each stage that later tasks need.
    """

    def __init__(
        self,
        program: StagedProgram,
        variables: dict[Store, dict[int, VariableArray]],
    ) -> None:
        self.arrays: dict[Key, Any] = {}
        self._program = program
        self._variables = variables
        self._runs: list[RunChecks] = []

    @property
    def check(self) -> Callable[[], None] | None:
        """The function that raises the error of this call; None: nothing is checked."""
        if not self._runs:
            return None
        return functools.partial(_raise_failures, self._runs)

    def run(self, planned: PlannedTask) -> None:
        """Starts a task."""
        if isinstance(planned.task, ReadTask):
            self._read(planned.task)
        elif isinstance(planned.task, MoveTask):
            self._move(planned.task, planned.sources)
        else:
            self._run_piece(planned, planned.task.stage)
        for key in planned.freed:
            self.arrays.pop(key, None)

    def _read(self, task: ReadTask) -> None:
        """Takes the arrays of a variable, or those of an argument."""
        store = task.step.store
        for stage in task.stages:
            if store in self._variables:
                array = self._variables[store][stage].array
            else:
                layout = self._program.layout(store, stage)
                array = argument_array(store, layout, self._program.mesh, stage)
            self.arrays[task.step.out, stage] = array

    def _move(self, task: MoveTask, sources: Sequence[Key]) -> None:
        """Copies arrays to other stages."""
        keys = []
        arrays = []
        shardings = []
        for (step, stages), source in zip(task.steps, sources):
            for stage in stages:
                if stage == source[1]:
                    self.arrays[step.out, stage] = self.arrays[source]
                    continue
                keys.append((step.out, stage))
                arrays.append(self.arrays[source])
                shardings.append(self._program.layout(step.out, stage).sharding)
        self.arrays.update(zip(keys, load_jax().device_put(arrays, shardings)))

    def _run_piece(self, planned: PlannedTask, stage: int) -> None:
        """Runs the module of a piece."""
        piece = planned.program
        assert piece is not None
        variables = [self._variables[store][stage] for store in piece.variables]
        outputs, written, run = self._program.module(piece.key)(
            variables=[variable.array for variable in variables],
            inputs=[self.arrays[value, stage] for value in piece.inputs],
        )
        for variable, array in zip(variables, written, strict=True):
            variable.array = array
        self.arrays.update(
            ((value, stage), array) for value, array in zip(piece.outputs, outputs)
        )
        if run is not None:
            self._runs.append(run)
            add_run(self._program.mesh, run)


def _raise_failures(runs: Sequence[RunChecks]) -> None:
    """Raises the error of the first run that failed, if one did. Waits."""
    for run in runs:
        run.raise_failure()
