"""The program of a compute task as a module, compiled for the devices of its stage.

module = StageModule(task_program, mesh, ..., name="step forward.0", runs_once=False)
results, new_variables, records = module(variables, inputs)
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import Program, Value
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout
from meshtf.runtime.spmd.live.jax_host import jax_mesh, platform_of
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.module.index_checks import (
    NO_FAILURE,
    RECORD_SPEC,
    IndexChecks,
)
from meshtf.runtime.spmd.module.replica_function import ReplicaFunction
from meshtf.runtime.spmd.stages.task_programs import TaskProgram


class StageModule:
    """The module of a compute task; tasks whose programs have equal keys share it.

    Args:
      task_program: the program of the task.
      mesh: the mesh of the stage.
      donated_variables: the variables whose memory a call may overwrite.
      donated_inputs: the indices in `task_program.inputs` of the inputs that a call may
        overwrite.
      name: the name of the program, for logs and profiles.
      runs_once: whether a short compile time matters more than fast code.

    Raises:
      PlanError: XLA cannot compile an op.
    """

    def __init__(
        self,
        task_program: TaskProgram,
        mesh: Mesh,
        donated_variables: Collection[Store],
        donated_inputs: Collection[int],
        name: str,
        runs_once: bool,
    ) -> None:
        self._mesh = mesh
        self._name = name
        self._runs_once = runs_once
        variables = task_program.variables
        stores = task_program.stores
        self._variables = variables
        # The arguments of the module: variables, then inputs, then the record of checks.
        self._donated_arguments = [
            index
            for index, variable in enumerate(variables)
            if variable in donated_variables
        ]
        self._donated_arguments += [len(variables) + index for index in donated_inputs]
        self._num_results = len(task_program.results)
        checks = IndexChecks()
        program = Program(mesh, task_program.steps, task_program.results)
        function = ReplicaFunction(
            program, variables, stores, checks, platform=platform_of(mesh)
        )
        self._module = function.compile()
        self._checks = checks or None  # falsy: no step of the program checks indices
        self._argument_layouts = [self._layout(s) for s in (*variables, *stores)]
        self._result_layouts = [self._layout(value) for value in task_program.results]

    def __call__(
        self, variables: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[tuple[IndexChecks, Any]]]:
        """Starts the module on the devices and returns without waiting for them.

        Args:
          variables: the arrays of the variables that the task writes.
          inputs: the arrays of `task_program.inputs`.

        Returns:
          (arrays of the results, new arrays of the variables, the checks with their record:
          one pair or none)
        """
        record = [] if self._record_layout is None else [self._no_failure]
        outputs = self.compiled([*variables, *inputs, *record])
        records = []
        if self._checks is not None:
            records.append((self._checks, outputs.pop()))
        results = outputs[: self._num_results]
        new_variables = outputs[self._num_results :]
        return results, new_variables, records

    @property
    def has_checks(self) -> bool:
        """Whether the devices check indices while the module runs."""
        return self._checks is not None

    @functools.cached_property
    def compiled(self) -> ModuleCall:
        """The module, which the first use of this property compiles."""
        record_layouts = [] if self._record_layout is None else [self._record_layout]
        device_mesh = jax_mesh(self._mesh)
        is_quick = self._runs_once and device_mesh.devices.flat[0].platform == "cpu"
        variable_layouts = self._argument_layouts[: len(self._variables)]
        return ModuleCall(
            name=self._name,
            module=self._module,
            inputs=[*self._argument_layouts, *record_layouts],
            outputs=[*self._result_layouts, *variable_layouts, *record_layouts],
            mesh=device_mesh,
            options=QUICK if is_quick else None,
            donated=self._donated_arguments,
        )

    @functools.cached_property
    def _record_layout(self) -> ArrayLayout | None:
        """The layout of the record in which a run notes its first index out of range; None:
        there are no checks.
        """
        if self._checks is None:
            return None
        return ArrayLayout(RECORD_SPEC, self._mesh.replicated, self._mesh)

    @functools.cached_property
    def _no_failure(self) -> Any:
        """The record before a run, as a `jax.Array`."""
        assert self._record_layout is not None
        return self._record_layout.global_array(NO_FAILURE)

    def _layout(self, value: Store | Value) -> ArrayLayout:
        """Returns how the shards of a value or store form one `jax.Array`."""
        assert value.spec is not None
        return ArrayLayout(value.spec, value.placement, self._mesh)
