"""The placed runtime: one TensorFlow program drives all devices of a mesh.

Example:

    executable = PlacedRuntime().compile(recorded, arguments, jit=False)
    results = executable(tensors)         # of all arguments, in order
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
    """The runtime that drives all devices of TensorFlow from one program. It implements the
    protocol `runtimes.Runtime`.
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
        """Returns the slot of each mesh position, which stores the position's shard of a
        variable, on its device; None: the position has no shard.
        """
        return tensorflow_slots(variable)
