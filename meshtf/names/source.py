"""The line of a user's program that calls meshtf.

    str(Source.of_caller())              # "mtf.einsum, train.py:12"

Every error names this line.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.names.public_path import TENSORFLOW, public_path

_PACKAGE = __name__.partition(".")[0]
# Packages whose frames do not belong to the user's program.
_SKIPPED_PACKAGES = (
    _PACKAGE,
    "tensorflow",
    "keras",
    "contextlib",
    "copy",
    "multiprocessing",
)
# Operator of Python, as in `__add__` and `__radd__` -> the function that it calls.
_OPERATOR_FUNCTIONS = {
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
# Method of a tensor -> the name that errors show.
_DISPLAYED_NAMES = {method: f"Tensor.{method}" for method in _METHODS}
for _operator, _function in _OPERATOR_FUNCTIONS.items():
    _DISPLAYED_NAMES[f"__{_operator}__"] = _function
    _DISPLAYED_NAMES[f"__r{_operator}__"] = _function


@functools.lru_cache(maxsize=10_000)  # a program calls from few modules
def _package(module: str) -> str:
    """Returns the root package of a module."""
    return module.partition(".")[0]


def _is_generated(frame: Any) -> bool:
    """Returns whether a frame runs the generated `__init__` of a dataclass, such as an op
    that a user defines, or code that AutoGraph has made of the user's.
    """
    code = frame.f_code
    if code.co_filename == "<string>":
        return code.co_name == "__init__"
    return "__autograph_generated_file" in code.co_filename


def _displayed_name(frame: Any) -> str:
    """Returns the name of the function that a frame runs, as errors show it."""
    name: str = frame.f_code.co_name
    if name in ("__init__", "__call__"):
        # The user's line has the name of the class.
        local = frame.f_locals
        instance = local["self"] if "self" in local else local["args"][0]
        name = type(instance).__name__
    elif name == "__getattr__":  # of a tensor, for an attribute that it does not have
        return f"Tensor.{frame.f_locals['name']}"
    return _DISPLAYED_NAMES.get(name, name)


class Source(NamedTuple):
    """The user's line that created a node, or the layer of an imported model.

    Attributes:
      function: the function of meshtf that the line calls, such as "einsum"; `TENSORFLOW` if
        it calls TensorFlow; the path of a layer, such as "encoder/attention".
      file: the path of the user's file; "": a layer of an imported model.
      line: the line number.
    """

    function: str
    file: str
    line: int

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer of an imported model."""
        return not self.file

    def __str__(self) -> str:
        if self.is_layer:
            return f"the layer {self.function}"
        path = os.path.relpath(self.file)
        if path.startswith(".."):
            path = self.file
        return f"{public_path(self.function)}, {path}:{self.line}"

    @staticmethod
    def of_caller() -> Source:
        """Returns the innermost line outside of meshtf, and the function that it calls."""
        frame = sys._getframe(1)
        # From inner to outer frames: the last function of meshtf on the way is the one that
        # the user's line calls.
        called = None
        while frame.f_back:
            package = _package(frame.f_globals.get("__name__", ""))
            if package == _PACKAGE:
                called = frame
            elif package not in _SKIPPED_PACKAGES and not _is_generated(frame):
                break
            frame = frame.f_back
        function = "" if called is None else _displayed_name(called)
        return Source(function, frame.f_code.co_filename, frame.f_lineno)

    @staticmethod
    def of_tensorflow(frames: Sequence[Any], libraries: Sequence[str]) -> Source | None:
        """Returns the innermost line of the user's that made an operation of TensorFlow; None if
        there is none.

        Args:
          frames: The lines that made it, the outer ones first: with `filename` and `lineno`.
          libraries: Folders of packages whose lines are not the user's.
        """
        for frame in reversed(frames):
            if not frame.filename.startswith((*libraries, "<")):
                return Source(TENSORFLOW, frame.filename, frame.lineno)
        return None


def users_frames(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback of an error without the frames of meshtf, for errors that explain
    themselves.
    """
    entries = []
    entry = error.__traceback__
    while entry is not None:
        if _package(entry.tb_frame.f_globals.get("__name__", "")) != _PACKAGE:
            entries.append(entry)
        entry = entry.tb_next
    traceback = None
    for entry in reversed(entries):
        traceback = types.TracebackType(
            traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno
        )
    return traceback
