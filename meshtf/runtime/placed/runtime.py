"""The placed runtime: one TensorFlow program drives all devices of a mesh.

Example:

    executable = PlacedRuntime().compile(recorded, arguments, jit=False)
    executable(arrays)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.graph import Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.placed.program_function import PlacedExecutable
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.storage.variable_slots import tensorflow_slots


class PlacedRuntime:
    """The runtime that drives all devices of TensorFlow from one program; see
    `runtimes.Runtime`.
    """

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> PlacedExecutable:
        """Returns an executable, whose TensorFlow function is written at its first
        call.
        """
        return PlacedExecutable(recorded, arguments, jit)

    def slots(self, variable: Any) -> Sequence[TensorFlowSlot | None]:
        """Returns the slot of each mesh position, on the device of the position; None:
        the position has no shard of the variable.
        """
        return tensorflow_slots(variable)
