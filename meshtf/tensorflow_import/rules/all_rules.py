"""All rules: importing their modules enters them in the table."""

from __future__ import annotations

from meshtf.tensorflow_import.rules import replicated
from meshtf.tensorflow_import.rules.compute import (
    elementwise,
    fourier,
    gradients,
    products,
    random,
    reductions,
    windows,
)
from meshtf.tensorflow_import.rules.control import (
    branches,
    custom_gradients,
    lists,
    loops,
)
from meshtf.tensorflow_import.rules.layout import (
    batches,
    gathers,
    reshapes,
    slices,
    updates,
)
from meshtf.tensorflow_import.rules.table import RULES, Rule

_MODULES = (
    # First: other rules of its kinds replace its own.
    replicated,
    batches,
    branches,
    custom_gradients,
    elementwise,
    fourier,
    gathers,
    gradients,
    lists,
    loops,
    products,
    random,
    reductions,
    reshapes,
    slices,
    updates,
    windows,
)


def all_rules() -> dict[str, Rule]:
    """Returns the rules by kind of operation."""
    assert all(_MODULES)
    return RULES
