"""All rules: importing their modules enters them in the table."""

from __future__ import annotations

# First: other rules of its kinds replace its own.
from meshtf.tensorflow_import.rules import replicated  # noqa: F401
from meshtf.tensorflow_import.rules.compute import (  # noqa: F401
    elementwise,
    fourier,
    gradients,
    products,
    random,
    reductions,
    windows,
)
from meshtf.tensorflow_import.rules.control import (  # noqa: F401
    branches,
    custom_gradients,
    effects,
    lists,
    loops,
)
from meshtf.tensorflow_import.rules.layout import (  # noqa: F401
    batches,
    gathers,
    reshapes,
    slices,
    updates,
)
from meshtf.tensorflow_import.rules.table import RULES, Rule


def all_rules() -> dict[str, Rule]:
    """Returns the rules by kind of operation."""
    return RULES
