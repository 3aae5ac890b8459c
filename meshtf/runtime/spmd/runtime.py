"""The SPMD runtime: each device runs the program of one mesh position, with collectives by
XLA. It runs live meshes, whose devices belong to jax.

Example:

    program = SpmdRuntime().compile(recorded, arguments, jit=True)
    program(tensors)                     # a flat list, the shards of all arguments
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.graph import Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.spmd.live.jax_slot import JaxSlot
from meshtf.runtime.spmd.module.unsupported import refusal
from meshtf.runtime.spmd.stages.live_program import LiveProgram
from meshtf.runtime.spmd.stages.stage_arrays import variable_arrays


class SpmdRuntime:
    """The runtime of meshes with `devices="spmd"`; see `runtimes.Runtime`."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> LiveProgram:
        """Returns a program, which is compiled at its first call.

        Args:
          recorded: the recorded function.
          arguments: the stores (storage) of its arguments, in order.
          jit: ignored, since this runtime always compiles.

        Raises:
          PlanError: the mesh has TensorFlow's devices; or XLA cannot compile one of its
            ops, or a value goes from stage to stage in the body of a loop.
        """
        if not recorded.mesh.live:
            raise refusal(recorded.mesh)
        return LiveProgram(recorded, arguments)

    def slots(self, variable: Any) -> Sequence[JaxSlot | None]:
        """Returns the slot of each mesh position: the storage of the variable's shard on its
        device. None: the variable is on another pipeline stage.
        """
        if not variable.mesh.live:
            raise refusal(variable.mesh)
        # Called for its effect: the variable gets slots on its devices.
        variable_arrays(variable)
        slots: Sequence[JaxSlot | None] = variable.slots()
        return slots
