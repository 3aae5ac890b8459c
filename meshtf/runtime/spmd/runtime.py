"""The SPMD runtime: programs can be planned and exported, but not called on TensorFlow
devices; a call raises.

Example:

    SpmdRuntime().compile(recorded, arguments, jit=True)          # raises PlanError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from meshtf.graph import Store
from meshtf.graph.recorder import Recorded
from meshtf.runtime.spmd.unsupported import refusal


class SpmdRuntime:
    """A `runtimes.Runtime` whose programs cannot be called; see `spmd.export`."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> NoReturn:
        """Raises PlanError: TensorFlow cannot run it on the devices of its mesh."""
        raise refusal(recorded.mesh)

    def slots(self, variable: Any) -> NoReturn:
        """Raises PlanError: TensorFlow's devices have no slots of this runtime."""
        raise refusal(variable.mesh)
