"""Public names that are imported when they are first used: what they need takes seconds."""

from __future__ import annotations

import importlib
from typing import Any

# Of each name the module, or the module and an attribute of it.
LATE = {
    "from_tensorflow": "meshtf.tensorflow_import.from_tensorflow:from_tensorflow",
    "keras": "meshtf.keras",
}


def late_value(name: str) -> Any:
    """Returns what one of these names stands for."""
    module, _, attribute = LATE[name].partition(":")
    value = importlib.import_module(module)
    return getattr(value, attribute) if attribute else value
