"""The few ops that tensors and gradients themselves call, filled in by `meshtf.ops`.

`graph` must not import `ops`, yet `x + y` must find `add`:

    OPERATORS["add"](x, y)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS: dict[str, Callable[..., Any]] = {}
