"""The SPMD runtime, as far as it goes: programs are planned and exported, and a call
says why it is refused.

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
    """Runs nothing yet; see `runtimes.Runtime`, and `export` for what hosts can run."""

    def compile(
        self, recorded: Recorded, arguments: Sequence[Store], jit: bool
    ) -> NoReturn:
        """Refuses a call on the devices of its mesh. Raises PlanError."""
        raise refusal(recorded.mesh)

    def slots(self, variable: Any) -> NoReturn:
        """Refuses to hold a variable. Raises PlanError."""
        raise refusal(variable.mesh)
