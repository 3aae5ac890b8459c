"""The SPMD runtime as `mtf.function` calls it. Its programs can be planned and exported, but
not called on TensorFlow devices.

    SpmdRuntime().compile(recorded, arguments, jit=True)          # raises PlanError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from meshtf.graph import Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.spmd.unsupported import refusal


class SpmdRuntime:
    """A `runtimes.Runtime` whose programs can be exported by `spmd.export`, but not called."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> NoReturn:
        """Raises PlanError: TensorFlow cannot run the program on the devices of its mesh."""
        raise refusal(recorded.mesh)

    def slots(self, variable: Any) -> NoReturn:
        """Raises PlanError: this runtime has no storage slots on TensorFlow's devices."""
        raise refusal(variable.mesh)
