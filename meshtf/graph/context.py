"""What is in force where an op is made: layout, name path, seeds, gradient,
recomputation.

Example:

    with context(region=Layout.changes("heads:model; batch:")):
      ...                       # here heads are cut along `model`, and the batch is not cut
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from meshtf.mesh import NO_CHANGES, Layout


@dataclasses.dataclass(frozen=True)
class Context:
    """What a node takes from the code around it."""

    region: Layout = NO_CHANGES  # changes of the mesh's layout
    path: tuple[str, ...] = ()  # names of the modules around, for seeds and variables
    seeds: tuple[Any, ...] | None = None  # of random ops; None: none was given
    random_paths: Any = None  # random ops met under these seeds: `ops/control/seeds.py`
    iterations: tuple[
        Any, ...
    ] = ()  # numbers of those of all loops around, outer first
    primals: tuple[
        Any, ...
    ] = ()  # inside a gradient rule: the tensors of the forward node
    gradient_rule: Any = (
        None  # a gradient of a user's own, and which of its results is made
    )
    recompute_group: Any = None  # inside `recompute`: what is computed again
    wait_for: Any = None  # nodes made here must not run before this tensor is there
    substitutes: Any = None  # by tensor: the same, computed again, to take in its place
    stage: int | None = None  # the stage of a pipeline; None: where the inputs are
    microbatches: Any = (
        None  # the microbatch made here: `ops/common/batch_dimensions.py`
    )
    deferred_calls: Any = None  # where `once_per_batch` keeps what is to be called
    stacked_dims: tuple[
        Any, ...
    ] = ()  # dimensions that variables made here get in front
    mesh: Any = None  # where all that is made lies; None: where its inputs do
    check_numerics: bool = False  # whether eager ops must make finite numbers
    layer_entries: Any = (
        None  # by id of a variable: the row of it that is its value here
    )


# A function that is called outside of functions is recorded without these:
RESET_IN_TRACES: dict[str, Any] = {
    field.name: field.default
    for field in dataclasses.fields(Context)
    if field.name
    in (
        "seeds",
        "random_paths",
        "primals",
        "recompute_group",
        "wait_for",
        "substitutes",
        "stacked_dims",
    )
}
# It has a trace for each of these; for each path only if it draws random numbers:
_TRACED_FOR = ("region", "stage", "mesh", "path")
# A trace gets the numbers of iterations as arguments, and its numbers are checked while
# it runs:
_NOT_IN_TRACES = ("iterations", "checked")
# Whatever else is in force would become a part of its trace, though it changes from
# call to call: a microbatch, the layer of a Repeat. There it runs op by op.
_RUN_IN_PLACE = [
    (field.name, field.default)
    for field in dataclasses.fields(Context)
    if field.name not in (*RESET_IN_TRACES, *_TRACED_FOR, *_NOT_IN_TRACES)
]


def is_traceable(around: Context) -> bool:
    """Returns whether a function that is called here can run as a trace."""
    return all(getattr(around, name) is default for name, default in _RUN_IN_PLACE)


class _Local(threading.local):
    def __init__(self) -> None:
        self.context = Context()


_local = _Local()


def current() -> Context:
    """Returns what is in force now."""
    return _local.context


@contextlib.contextmanager
def default_context() -> Iterator[None]:
    """Takes all out of force, for a `with` block."""
    before, _local.context = _local.context, Context()
    try:
        yield
    finally:
        _local.context = before


@contextlib.contextmanager
def context(**changes: Any) -> Iterator[Context]:
    """Changes what is in force, for a `with` block."""
    before = _local.context
    _local.context = dataclasses.replace(before, **changes)
    try:
        yield _local.context
    finally:
        _local.context = before
