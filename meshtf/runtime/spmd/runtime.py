"""The SPMD runtime: each device runs the program of one mesh position, with collectives by
XLA. jax is the host of the devices.

Example:

    executable = SpmdRuntime().compile(recorded, arguments, jit=True)
    executable(arrays)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.graph import Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.spmd.live.jax_slot import JaxSlot, variable_array
from meshtf.runtime.spmd.live.live_program import LiveProgram
from meshtf.runtime.spmd.module.unsupported import refusal
from meshtf.runtime.spmd.stages.stage_arrays import variable_arrays
from meshtf.runtime.spmd.stages.stage_meshes import num_stages
from meshtf.runtime.spmd.stages.staged_program import StagedProgram


class SpmdRuntime:
    """The runtime of meshes with `devices="spmd"`; see `runtimes.Runtime`."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> LiveProgram | StagedProgram:
        """Returns a program, which is compiled at its first call.

        Raises:
          PlanError: the mesh has TensorFlow's devices; or XLA cannot compile one of its
            ops, or a value goes from stage to stage in the body of a loop.
        """
        if not recorded.mesh.live:
            raise refusal(recorded.mesh)
        if num_stages(recorded.mesh) > 1:
            return StagedProgram(recorded, arguments)
        return LiveProgram(recorded, arguments)

    def slots(self, variable: Any) -> Sequence[JaxSlot | None]:
        """Returns the slot of each position, on its device; None: the position has none."""
        if not variable.mesh.live:
            raise refusal(variable.mesh)
        if num_stages(variable.mesh) > 1:
            variable_arrays(variable)
        else:
            variable_array(variable)
        slots: Sequence[JaxSlot | None] = variable.slots()
        return slots
