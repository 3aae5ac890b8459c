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


class SpmdRuntime:
    """The runtime of meshes with `devices="spmd"`; see `runtimes.Runtime`."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> LiveProgram:
        """Returns a program, which is compiled at its first call.

        Raises:
          PlanError: the mesh has TensorFlow's devices; or XLA cannot compile one of its
            ops, it prints or writes summaries, or runs on pipeline stages.
        """
        if not recorded.mesh.live:
            raise refusal(recorded.mesh)
        return LiveProgram(recorded, arguments)

    def slots(self, variable: Any) -> Sequence[JaxSlot]:
        """Returns the slot of each position, on its device."""
        if not variable.mesh.live:
            raise refusal(variable.mesh)
        variable_array(variable)
        slots: Sequence[JaxSlot] = variable.slots()
        return slots
