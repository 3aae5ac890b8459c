"""All rules: importing their modules enters them in the table."""

from __future__ import annotations

from meshtf.tensorflow_import.rules import (
    elementwise,
    gathers,
    lists,
    loops,
    products,
    random,
    reductions,
    shapes,
    slices,
    windows,
)
from meshtf.tensorflow_import.rules.table import RULES, Rule

_MODULES = (
    elementwise,
    gathers,
    lists,
    loops,
    products,
    random,
    reductions,
    shapes,
    slices,
    windows,
)


def all_rules() -> dict[str, Rule]:
    """Returns the rules by kind of operation."""
    assert all(_MODULES)
    return RULES
