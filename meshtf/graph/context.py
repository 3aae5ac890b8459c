"""The context of the code that applies an op: layout changes, names of modules, seeds,
recomputation and more. Each node takes its attributes from it.

Example:

    with context(region=Layout.changes("heads:model; batch:")):
      ...                       # heads are sharded along axis model, batch is not sharded
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from meshtf.mesh import NO_CHANGES, Layout


class GradientRule(Protocol):
    """What replaces the gradients of all ops between `inputs` and the results of a
    function: a user's rule, or a call of a traced function.

    Attributes:
      inputs: the tensors to differentiate by.
      captures: other tensors that the results depend on; they get no gradient.
      intermediates: tensors of the forward pass that the rule may read.
      num_results: the number of results of the function.
    """

    @property
    def inputs(self) -> tuple[Any, ...]: ...
    @property
    def captures(self) -> tuple[Any, ...]: ...
    @property
    def intermediates(self) -> tuple[Any, ...]: ...
    @property
    def num_results(self) -> int: ...

    def gradient(self, dys: Sequence[Any], /) -> Sequence[Any]:
        """Returns the cotangent of each input, from those of the results. A cotangent
        that is zero may be None.
        """


@dataclasses.dataclass(frozen=True)
class Context:
    """What a node takes from the code that applies its op.

    Attributes:
      region: changes of the mesh's layout.
      path: the names of the enclosing modules, outer first: for seeds and variables; a
        name may be pending, see `runtime/module_paths.py`.
      seeds: those of random ops; None: none was set.
      random_paths: the random ops that drew under these seeds; see
        `ops/control/seeds.py`.
      iterations: the indices of the iterations of all enclosing loops, outer first.
      primals: in a gradient rule, the tensors of the forward node; else empty.
      gradient_rule: a custom gradient rule, and the index of its result that is made.
      recompute_group: in `mtf.recompute`, the group of nodes to recompute.
      wait_for: a tensor before which no node may run (a control dependency).
      substitutes: for tensors that were recomputed, the tensor to take in their place.
      stage: the stage of a pipeline; None: that of the inputs.
      microbatches: the microbatch that is computed, see
        `ops/common/batch_dimensions.py`; None: the batch.
      deferred_calls: the list that collects calls of `once_per_batch`; None: they run at
        once.
      stacked_dims: dimensions that new variables get in front, as layers of a `Repeat`.
      mesh: the mesh of all new tensors; None: that of the inputs.
      check_numerics: whether eager ops raise an error for NaN and infinity.
      functions_run_eagerly: whether functions run op by op, without a trace.
      layer_entries: in a layer of a `Repeat`, the entry of each variable of the layer, by
        the id of the variable.
    """

    region: Layout = NO_CHANGES
    path: tuple[Any, ...] = ()
    seeds: tuple[Any, ...] | None = None
    random_paths: Any = None
    iterations: tuple[Any, ...] = ()
    primals: tuple[Any, ...] = ()
    gradient_rule: tuple[GradientRule, int] | None = None
    recompute_group: Any = None
    wait_for: Any = None
    substitutes: Any = None
    stage: int | None = None
    microbatches: Any = None
    deferred_calls: Any = None
    stacked_dims: tuple[Any, ...] = ()
    mesh: Any = None
    check_numerics: bool = False
    functions_run_eagerly: bool = False
    layer_entries: Any = None


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Context)}
# A function that is called outside of functions is recorded with defaults for these:
RESET_IN_TRACES: dict[str, Any] = {
    name: _DEFAULTS[name]
    for name in (
        "seeds",
        "random_paths",
        "primals",
        "recompute_group",
        "wait_for",
        "substitutes",
        "stacked_dims",
    )
}
# It has one trace for each value of these; of the path only if it draws random numbers:
_IN_TRACE_KEY = ("region", "stage", "mesh", "path")
# These are no part of a trace: the indices of iterations are arguments of it, numerics
# are checked while it runs, and there is none where functions run eagerly.
_OUTSIDE_OF_TRACES = ("iterations", "check_numerics", "functions_run_eagerly")
# All other attributes would become constants of a trace, although they change from call
# to call, as a microbatch does, or the layer of a Repeat. Where one of them is set, the
# function runs op by op.
_UNTRACEABLE = {
    name: default
    for name, default in _DEFAULTS.items()
    if name not in (*RESET_IN_TRACES, *_IN_TRACE_KEY, *_OUTSIDE_OF_TRACES)
}


def is_traceable(context: Context) -> bool:
    """Returns whether a function that is called in this context can run as a trace."""
    return all(
        getattr(context, name) is default for name, default in _UNTRACEABLE.items()
    )


class _Local(threading.local):
    def __init__(self) -> None:
        self.context = Context()


_local = _Local()


def current() -> Context:
    """Returns the context of this thread."""
    return _local.context


@contextlib.contextmanager
def default_context() -> Iterator[None]:
    """Sets the default context for a `with` block."""
    before = _local.context
    _local.context = Context()
    try:
        yield
    finally:
        _local.context = before


@contextlib.contextmanager
def context(**changes: Any) -> Iterator[Context]:
    """Changes attributes of the context for a `with` block."""
    before = _local.context
    _local.context = dataclasses.replace(before, **changes)
    try:
        yield _local.context
    finally:
        _local.context = before
