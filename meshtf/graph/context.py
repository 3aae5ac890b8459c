"""The context in which ops are applied: layout changes, module names, seeds, recomputation
and more. A new node takes its attributes from the context of the current thread.

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
from meshtf.names.source import Source


class GradientRule(Protocol):
    """The custom gradient of a function, used in place of the gradients of the function's
    ops: a rule of `mtf.custom_gradient`, or the backward function of a trace (the program
    that a `mtf.function` recorded).

    Attributes:
      inputs: the arguments of the function, which get cotangents.
      captures: other tensors that the results depend on, which get no cotangents.
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
        """Returns the cotangent of each input, from the cotangents of the results.

        None, among arguments and results, is a cotangent that is zero.
        """


@dataclasses.dataclass(frozen=True)
class Context:
    """The settings that a node takes from the code that applies the node's op.

    Attributes:
      region: changes of the mesh's layout.
      path: the names of the enclosing modules, the outermost first: for seeds and names of
        variables. A name may still be unknown, see `runtime/module_paths.py`.
      seeds: the seeds of random ops; None: no seed was set.
      random_paths: the module paths of the random ops that drew numbers with these seeds;
        see `ops/control/seeds.py`.
      iterations: the iteration indices of all enclosing loops, the outermost first.
      primals: in a gradient rule, the tensors of the forward node, whose placements the new
        tensors take; empty elsewhere.
      needs_cotangent: in a gradient rule, for each input of the forward node whether its
        cotangent is needed; (): all are.
      gradient_rule: (custom gradient rule, index): the node computes result `index` of the
        rule's function; None elsewhere.
      recompute_group: in `mtf.recompute`, the `RecomputeGroup` that new nodes are added to;
        None elsewhere.
      wait_for: a control dependency: a node does not run before this tensor exists.
      substitutes: tensor -> the recomputed tensor to be used in its place; None: no tensor
        is replaced.
      stage: the pipeline stage; None: the stage of the inputs.
      microbatches: the microbatch that is computed, see
        `ops/common/batch_dimensions.py`; None: the entire batch is computed.
      deferred_calls: the list that collects calls of `once_per_batch`; None: calls run
        immediately.
      batch_means: in a microbatch, the means over all microbatches of the batch, see
        `ops/control/batch_means.py`; None: the entire batch is computed.
      stacked_dims: in a `Repeat`, the leading dimensions of new variables, such as layers.
      mesh: the mesh of new tensors; None: the mesh of the inputs.
      check_numerics: whether eager ops raise an error for NaN and infinity.
      functions_run_eagerly: whether each `mtf.function` runs op by op, without a trace.
      layer_entries: in a layer of a `Repeat`, the layer's entry of each variable, by the id
        of the variable.
      random_indices: for dimensions whose indices stand for others in random ops, see
        `ops/random/random_indices.py`; None: there are none.
      source: what reports and errors name in place of the user's line, of ops that an imported
        model is made of; None: the user's line.
      runs_again: whether code of a forward pass runs again, in a gradient rule: it does not
        write variables or print a second time.
    """

    region: Layout = NO_CHANGES
    path: tuple[Any, ...] = ()
    seeds: tuple[Any, ...] | None = None
    random_paths: Any = None
    iterations: tuple[Any, ...] = ()
    primals: tuple[Any, ...] = ()
    needs_cotangent: tuple[bool, ...] = ()
    gradient_rule: tuple[GradientRule, int] | None = None
    recompute_group: Any = None
    wait_for: Any = None
    substitutes: Any = None
    stage: int | None = None
    microbatches: Any = None
    deferred_calls: Any = None
    batch_means: Any = None
    stacked_dims: tuple[Any, ...] = ()
    mesh: Any = None
    check_numerics: bool = False
    functions_run_eagerly: bool = False
    layer_entries: Any = None
    random_indices: Any = None
    source: Source | None = None
    runs_again: bool = False


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Context)}
# A trace is the program that is recorded when a `mtf.function` is first called, and reused
# by later calls. It is recorded with the default values of these attributes.
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
# A function has another trace for other values of these attributes; for another path only
# if the function draws random numbers, which depend on the path.
_IN_TRACE_KEY = ("region", "stage", "mesh", "path")
# A trace does not depend on these attributes. The indices of iterations are arguments of the
# trace, numerics are checked while it runs, there is none if functions run eagerly, and a source
# is only shown.
_NOT_IN_TRACES = ("iterations", "check_numerics", "functions_run_eagerly", "source")
# A trace would turn the other attributes into constants, but they change from call to call,
# such as the microbatch or the layer of a `Repeat`. If one of them is set, a function runs
# op by op.
_UNTRACEABLE_DEFAULTS = {
    name: default
    for name, default in _DEFAULTS.items()
    if name not in (*RESET_IN_TRACES, *_IN_TRACE_KEY, *_NOT_IN_TRACES)
}


def is_traceable(context: Context) -> bool:
    """Returns whether a `mtf.function` that is called in this context can be traced."""
    return all(
        getattr(context, name) is default
        for name, default in _UNTRACEABLE_DEFAULTS.items()
    )


class _ThreadState(threading.local):
    """The current context of each thread."""

    def __init__(self) -> None:
        self.context = Context()


_thread = _ThreadState()


def current() -> Context:
    """Returns the context of this thread."""
    return _thread.context


@contextlib.contextmanager
def default_context() -> Iterator[None]:
    """Sets the default context for a `with` block."""
    previous = _thread.context
    _thread.context = Context()
    try:
        yield
    finally:
        _thread.context = previous


@contextlib.contextmanager
def context(**changes: Any) -> Iterator[Context]:
    """Changes attributes of the current context for a `with` block.

    Args:
      **changes: the new values of attributes of `Context`.
    """
    previous = _thread.context
    _thread.context = Context(**{**vars(previous), **changes})
    try:
        yield _thread.context
    finally:
        _thread.context = previous
