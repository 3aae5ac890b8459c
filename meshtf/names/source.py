"""The line of a user's program that called meshtf, which every error names.

Example:

    Source.here()              # mtf.einsum, train.py:12
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from meshtf.names.public_path import public_path

_PACKAGE = __name__.partition(".")[0]
# Packages whose frames do not belong to the user's program.
_SKIPPED_PACKAGES = (_PACKAGE, "tensorflow", "contextlib")
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
    "getitem": "Tensor[...]",
    "matmul": "Tensor.__matmul__",
}
_METHODS = ("sum", "mean", "max", "min", "astype", "assign_add", "assign_sub")
_OPERATORS = {
    f"__{reflected}{operator}__": function
    for operator, function in _NAMES.items()
    for reflected in ("", "r")
} | {method: f"Tensor.{method}" for method in _METHODS}


def _package(frame: Any) -> str:
    """Returns the root package of the module that a frame runs."""
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _is_generated(frame: Any) -> bool:
    """Whether a frame runs the generated __init__ of a dataclass, such as a user's op."""
    return frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "__init__"


class Source(NamedTuple):
    """Where a node was made: the function of meshtf, and the line that called it."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        path = os.path.relpath(self.file)
        if path.startswith(".."):
            path = self.file
        return f"{public_path(self.function)}, {path}:{self.line}"

    @staticmethod
    def of_caller() -> Source:
        """Returns the innermost line outside of meshtf."""
        frame = sys._getframe(1)
        function = ""
        while frame.f_back and (
            _package(frame) in _SKIPPED_PACKAGES or _is_generated(frame)
        ):
            if _package(frame) == _PACKAGE:
                function = frame.f_code.co_name
            if function in ("__init__", "__call__"):
                function = type(frame.f_locals.get("self")).__name__
            function = _OPERATORS.get(function, function)  # of x + y it is add
            frame = frame.f_back
        return Source(function, frame.f_code.co_filename, frame.f_lineno)
