"""Where in the user's program an instruction of a compiled program comes from: module paths,
read from the `op_name` that XLA keeps beside instructions.

>>> origin(["jit(step)/shard_map/call_exported/gradients/lm/loop.7/while/gradients/lm/"
...         "block/wi/einsum.9/XlaCallModule/all-gather.2"])
'gradients/lm/block/wi'

XLA merges collectives, and writes what differs in their names in parentheses. Then the module that
has them all is told:

>>> origin(["jit(step)/lm/block/(norm/add.1/all-gather.0:attention/q/einsum.2/all-gather.1)"])
'lm/block'
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# What jax adds around the program.
_AROUND = re.compile(r"jit\(.*\)|shard_map|call_exported")
# "einsum.9", as our modules name ops, or the call of a module.
_OP = re.compile(r".*\.\d+(_\d+)?|XlaCallModule")
_GRADIENTS = "gradients"
UNKNOWN = "?"


def origin(op_names: Sequence[str], num_tensors: int = 1) -> str:
    """Returns the module path that all of some instructions come from.

    An op of a gradient has the path of its forward op, after "gradients/"; what a backward
    loop computes again is told as of the gradient, too. An op that is in no module has its
    own name, such as "einsum".

    Args:
      op_names: the names that XLA wrote; each may stand for several instructions.
      num_tensors: the number of tensors that the instructions make. XLA for TPUs keeps the
        name of one of those that it merges.

    Returns:
      The path; "a, b" if several have no common path; with " and others" if some tensors
      have no name; "?" if none is known.
    """
    names = [x for op_name in op_names for x in _alternatives(op_name)]
    paths = dict.fromkeys(_path(name) for name in names)
    paths.pop((), None)
    if not paths:
        return UNKNOWN
    unnamed = " and others" if len(names) < num_tensors else ""
    common = os.path.commonprefix(list(paths))
    if tuple(common) not in ((), (_GRADIENTS,)):
        return "/".join(common) + unnamed
    modules = dict.fromkeys(_outermost(path) for path in paths)
    return ", ".join(modules) + unnamed


def _outermost(path: Sequence[str]) -> str:
    """Returns the outermost module of a path, with "gradients/" before it."""
    return "/".join(path[: 2 if path[0] == _GRADIENTS else 1])


def _alternatives(op_name: str) -> list[str]:
    """Returns the names of the instructions that were merged: "a/(b:c)" is "a/b" and "a/c"."""
    opening = re.search(r"(^|(?<=/))\(", op_name)
    if opening is None:
        return [op_name]
    start = opening.start()
    depth = 0
    ends = [start]
    for index in range(start, len(op_name)):
        character = op_name[index]
        depth += (character == "(") - (character == ")")
        if depth == 0 or (depth == 1 and character == ":"):
            ends.append(index)
        if depth == 0:
            break
    prefix = op_name[:start]
    suffix = op_name[ends[-1] + 1 :]
    pairs = zip(ends, ends[1:])
    merged = [f"{prefix}{op_name[a + 1 : b]}{suffix}" for a, b in pairs]
    return [name for text in merged for name in _alternatives(text)]


def _path(op_name: str) -> tuple[str, ...]:
    """Returns the module path in the name of one instruction; () if it has none."""
    components = [x for x in op_name.split("/") if x and not _AROUND.fullmatch(x)]
    is_gradient = _GRADIENTS in components
    if "while" in components:
        # The body of a loop has the paths of its ops from the outermost module on.
        last = len(components) - components[::-1].index("while")
        components = components[last:]
    path: list[str] = []
    for component in components:
        if _OP.fullmatch(component):
            # Outside of all modules only the op says what it is.
            path = path if any(x != _GRADIENTS for x in path) else [*path, component]
            break
        path.append(component)
    path = [re.sub(r"\.\d+(_\d+)?$", "", component) for component in path]
    if is_gradient and path and path[0] != _GRADIENTS:
        path.insert(0, _GRADIENTS)
    return tuple(path)
