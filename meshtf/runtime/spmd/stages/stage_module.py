"""A piece of a program as a module, compiled for the devices of its stage.

module = StageModule(piece_program, mesh, donated, donated_inputs, name, runs_once)
outputs, written, run = module(inputs, variables)
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import Program, Value
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout
from meshtf.runtime.spmd.live.jax_host import jax_mesh
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.live.run_checks import RunChecks
from meshtf.runtime.spmd.module.index_checks import (
    NO_FAILURE,
    RECORD_SPEC,
    IndexChecks,
)
from meshtf.runtime.spmd.module.replica_function import ReplicaFunction
from meshtf.runtime.spmd.stages.piece_programs import PieceProgram


class StageModule:
    """The module of a piece; pieces with equal keys share it.

    Args:
      piece: the program of the piece.
      mesh: the mesh of the stage.
      donated: the variables whose memory a call may overwrite.
      donated_inputs: the indices of those of its other inputs.
      name: the name of the program, for logs and profiles.
      runs_once: whether to compile it in little time rather than to fast code.

    Raises:
      PlanError: XLA cannot compile an op.
    """

    def __init__(
        self,
        piece: PieceProgram,
        mesh: Mesh,
        donated: Collection[Store],
        donated_inputs: Collection[int],
        name: str,
        runs_once: bool,
    ) -> None:
        self._mesh = mesh
        self._name = name
        self._runs_once = runs_once
        self._variables = piece.variables
        self._donated = [k for k, s in enumerate(piece.variables) if s in donated]
        self._donated += [len(piece.variables) + index for index in donated_inputs]
        self._num_results = len(piece.results)
        checks = IndexChecks()
        program = Program(mesh, piece.steps, piece.results)
        function = ReplicaFunction(program, piece.variables, piece.stores, checks)
        self._module = function.compile()
        self._checks = checks or None
        self._inputs = [self._layout(s) for s in (*piece.variables, *piece.stores)]
        self._results = [self._layout(value) for value in piece.results]

    def __call__(
        self, variables: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], RunChecks | None]:
        """Runs the module; does not wait.

        Args:
          variables: the arrays of the variables that it writes.
          inputs: the arrays of its other inputs.

        Returns:
          (arrays of the results, new arrays of the variables, checks of this run)
        """
        record = [] if self._record is None else [self._no_failure]
        outputs = self._call([*variables, *inputs, *record])
        run = None
        if self._checks is not None:
            run = RunChecks(self._checks, outputs.pop())
        return outputs[: self._num_results], outputs[self._num_results :], run

    def compile(self) -> None:
        """Compiles the module, unless it is compiled."""
        _ = self._call

    @functools.cached_property
    def _call(self) -> ModuleCall:
        """The compiled module."""
        record = [] if self._record is None else [self._record]
        device_mesh = jax_mesh(self._mesh)
        is_quick = self._runs_once and device_mesh.devices.flat[0].platform == "cpu"
        written = self._inputs[: len(self._variables)]
        return ModuleCall(
            name=self._name,
            module=self._module,
            inputs=[*self._inputs, *record],
            outputs=[*self._results, *written, *record],
            mesh=device_mesh,
            options=QUICK if is_quick else None,
            donated=self._donated,
        )

    @functools.cached_property
    def _record(self) -> ArrayLayout | None:
        """How the record of the checks is one array; None: there are no checks."""
        if self._checks is None:
            return None
        return ArrayLayout(RECORD_SPEC, self._mesh.replicated, self._mesh)

    @functools.cached_property
    def _no_failure(self) -> Any:
        """The record before a run, as a `jax.Array`."""
        assert self._record is not None
        return self._record.global_array(NO_FAILURE)

    def _layout(self, value: Store | Value) -> ArrayLayout:
        """Returns how the shards of a value or store are one array."""
        assert value.spec is not None
        return ArrayLayout(value.spec, value.placement, self._mesh)
