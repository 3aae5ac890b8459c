"""Copies of Python functions together with the objects that they are bound to.

    self.step = mtf.function(self.loss)              # in the constructor of a module
    copy.deepcopy(module).step                       # runs the loss of the copy

`copy.deepcopy` copies a method with its object, but takes a function as it is, with the
objects that its closure refers to. A copied module would go on to train the original.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from meshtf.names import nested
from meshtf.runtime.tf_internals.tracking import is_module
from meshtf.runtime.variable import Variable


def copy_with_objects(fn: Callable[..., Any], memo: dict[int, Any]) -> Any:
    """Returns a function that refers to copies of the objects that `fn` refers to.

    Args:
      fn: a function, a method, or another callable.
      memo: the copies that `copy.deepcopy` has made so far, by the id of the original.
    """
    if not isinstance(fn, types.FunctionType):
        return copy.deepcopy(fn, memo)
    if id(fn) in memo:
        return memo[id(fn)]
    if not _refers_to_copied(fn, memo, seen=set()):
        return fn
    cells = tuple(types.CellType() for _ in fn.__closure__ or ())
    duplicate = types.FunctionType(
        fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells
    )
    functools.update_wrapper(duplicate, fn)
    duplicate.__kwdefaults__ = fn.__kwdefaults__
    memo[id(fn)] = duplicate  # before its cells are copied, which may refer to it
    for cell, original in zip(cells, fn.__closure__ or ()):
        contents = _contents(original)
        if _refers_to_copied(contents, memo, seen=set()):
            contents = copy_with_objects(contents, memo)
        cell.cell_contents = contents
    return duplicate


def _refers_to_copied(x: Any, memo: dict[int, Any], seen: set[int]) -> bool:
    """Returns whether a value, in any nesting and through closures, has a variable, a module
    or an object that is copied already. `seen` has the ids of visited functions.
    """
    for leaf in nested.flatten(x):
        if id(leaf) in memo or isinstance(leaf, Variable) or is_module(leaf):
            return True
        fn = getattr(leaf, "__wrapped__", leaf)  # a `mtf.function` wraps a function
        if isinstance(fn, types.FunctionType) and id(fn) not in seen:
            seen.add(id(fn))
            cells = fn.__closure__ or ()
            if any(_refers_to_copied(_contents(cell), memo, seen) for cell in cells):
                return True
    return False


def _contents(cell: Any) -> Any:
    """Returns what a variable of a closure refers to; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
