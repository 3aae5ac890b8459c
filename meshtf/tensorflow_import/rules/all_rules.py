"""All rules: importing their modules enters them in the table."""

from __future__ import annotations

from meshtf.tensorflow_import.rules.compute import (
    elementwise,
    gradients,
    products,
    random,
    reductions,
    windows,
)
from meshtf.tensorflow_import.rules.control import lists, loops
from meshtf.tensorflow_import.rules.layout import gathers, reshapes, slices
from meshtf.tensorflow_import.rules.table import RULES, Rule

_MODULES = (
    elementwise,
    gathers,
    gradients,
    lists,
    loops,
    products,
    random,
    reductions,
    reshapes,
    slices,
    windows,
)


def all_rules() -> dict[str, Rule]:
    """Returns the rules by kind of operation."""
    assert all(_MODULES)
    return RULES
