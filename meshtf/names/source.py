"""Which line of a user's program called meshtf: what every error names.

Example:

    Source.here()              # mtf.einsum, train.py:12
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

_PACKAGE = __name__.partition(".")[0]
_BETWEEN = (
    _PACKAGE,
    "tensorflow",
    "contextlib",
)  # frames that are not of the user's program
_NAMES = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floordiv",
    "mod": "floormod",
    "pow": "pow",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "neg": "negative",
    "abs": "abs",
    "invert": "logical_not",
}
_OPERATORS = {f"__{r}{k}__": v for k, v in _NAMES.items() for r in ("", "r")}


def _package(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _is_made(frame: Any) -> bool:
    """Whether Python wrote the function itself: __init__ of a dataclass, such as a
    user's own op.
    """
    return frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "__init__"


class Source(NamedTuple):
    """Where a node was made: the function of meshtf that was called, and the line that
    called it.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        near = os.path.relpath(self.file)
        return f"mtf.{self.function}, {self.file if near.startswith('..') else near}:{self.line}"

    @staticmethod
    def of_caller() -> Source:
        """Returns the innermost line outside of meshtf."""
        frame, function = sys._getframe(1), ""
        while frame.f_back and (_package(frame) in _BETWEEN or _is_made(frame)):
            function = frame.f_code.co_name if _package(frame) == _PACKAGE else function
            if function in ("__init__", "__call__"):
                function = type(frame.f_locals.get("self")).__name__
            function = _OPERATORS.get(function, function)  # x + y is mtf.add
            frame = frame.f_back
        return Source(function, frame.f_code.co_filename, frame.f_lineno)
