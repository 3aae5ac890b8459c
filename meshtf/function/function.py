"""`mtf.function`: a Python function becomes one program for all devices of a mesh.

    @mtf.function(x="batch;d_model")
    def step(x):
      h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
      return mtf.reduce_mean(h)

    step(array)        # traced, planned and run; run alone from the second call on

It is traced again only when names, shapes, data types, mesh, layout or Python values
change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import tensorflow as tf

from meshtf.errors import MeshError, MeshtfError, PlanError, explain_error
from meshtf.forecast import Forecast, forecast
from meshtf.function.arguments import Call, Entry, leaf_names, signature_of, traced_for
from meshtf.function.layout_warnings import warn_of_unmatched
from meshtf.function.retracing_warning import MANY_TRACES, warn_of_many_traces
from meshtf.function.traced_gradients import Trace
from meshtf.graph import (
    Graph,
    Node,
    Store,
    Tensor,
    WriteOp,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.apply import set_eager_executor
from meshtf.graph.arguments import as_mesh
from meshtf.graph.context import OUT_OF_FORCE, is_traceable
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_bool, as_callable, as_choice
from meshtf.ops.control.nested_values import flattened
from meshtf.ops.control.seeds import iterations
from meshtf.runtime.eager import EAGER, InPlace
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.placed.program_function import on_another_mesh
from meshtf.runtime.spmd import Export, refusal
from meshtf.runtime.spmd import export as export_program

Runtime: TypeAlias = Literal["placed", "spmd"]
set_eager_executor(EAGER)


def function(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: Runtime = "placed",
    **names: str | Mapping[str, str],
) -> Any:
    """Turns a Python function on named tensors into one planned program.

    Args:
      fn: the function; without it, a decorator is returned.
      mesh: where it runs; needed only if no argument and no variable in it tells.
      jit: whether XLA compiles the local work. Pays off where a program runs for long.
      runtime: "placed", one program that drives all devices, or "spmd", one program
        that each device runs, with collectives by XLA. TensorFlow runs the latter on no
        hardware that was tried so
        far: a call is refused, `explain` and `export` work.
      **names: the dimensions of arguments that are arrays: x="batch;d_model" (x="": a
        scalar). Of a dict of arrays, a dict: batch={"tokens": "batch;length", "labels":
        "batch"}; it may have some of these.

    Returns:
      A callable that takes Tensors, the named arrays and Python values, in any nesting,
      and returns Tensors. Python values are part of the program: another value, another
      trace. Results have gradients outside, unless the function writes variables.
    """
    if fn is None:
        return lambda f: Function(f, mesh, jit, names, runtime)
    return Function(fn, mesh, jit, names, runtime)


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Forecast:
    """Returns what a call fn(*args, **kwargs) would do and cost, without running
    anything.

    It needs no devices: with `Mesh(..., devices="abstract")` the variables hold no
    memory either, so a large model on thousands of positions can be looked at on a
    laptop.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: its arguments; of an array only shape and data type are asked, so a
        `tf.TensorSpec` will do.
      **kwargs: likewise.

    Returns:
      A `Forecast`: print it, or save it as JSON or HTML. If the program is refused, it
        shows what was
      planned before, and its `error`.
    """
    function, args = as_function(fn, args)
    return function.explain(*args, **kwargs)


def export(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Export:
    """Returns a call fn(*args, **kwargs) as one StableHLO module, which each device of
    the mesh runs.

    The mesh may be abstract. Arguments are as those of `explain`.

    Raises:
      PlanError: XLA cannot compile an op.
    """
    function, args = as_function(fn, args)
    return function.export(*args, **kwargs)


def as_function(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Function, tuple[Any, ...]]:
    """Returns a `mtf.function`, made of a function of tensors if need be, and its
    arguments.

    A method that is one is called with the object to which it belongs.
    """
    if (
        isinstance(fn, functools.partial)
        and isinstance(fn.func, Function)
        and not fn.keywords
    ):
        return fn.func, (*fn.args, *args)
    return (fn if isinstance(fn, Function) else Function(fn, None, False, {})), args


class Recorded(NamedTuple):
    """What a call of a function records: tensors with names, and the stores of its
    arguments.
    """

    nodes: list[Node]
    results: list[tuple[str, Tensor]]
    arguments: list[Store]


class Function:
    """What `mtf.function` returns."""

    def __init__(
        self,
        fn: Callable[..., Any],
        mesh: Mesh | None,
        jit: bool,
        names: dict[str, str | Mapping[str, str]],
        runtime: Runtime = "placed",
    ) -> None:
        self._fn, self._mesh, self._jit = (
            as_callable("fn", fn),
            mesh,
            as_bool("jit", jit),
        )
        self._names, self._runtime = (
            names,
            as_choice("runtime", runtime, get_args(Runtime)),
        )
        if mesh is not None:
            as_mesh("mesh", mesh)
        self._signature, self.name = (
            signature_of(fn, names),
            getattr(fn, "__name__", repr(fn)),
        )
        self._warned = False  # of many traces
        self._compiled: dict[Any, tuple[Trace, Any]] = {}
        functools.update_wrapper(self, fn)
        unknown = set(names) - set(self._signature.parameters)
        if unknown:
            raise PlanError(
                f"mtf.function names the dimensions of {sorted(unknown)}, but "
                f"{self.name}{self._signature} has no such argument."
            )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(current_executor(), Graph):  # within another function: its part
            return self._in_place(args, kwargs)
        if not is_traceable(current()):
            with context(**OUT_OF_FORCE):
                return self._in_place(args, kwargs)
        call = self._bind(args, kwargs)
        beat(f"{'runs' if call.key in self._compiled else 'traces'} {self.name}")
        trace, structure = self._get(call)
        results = iter(trace.call(call.flat, call.tensors))
        beat(f"ran {self.name}")
        return tf.nest.map_structure(
            lambda y: next(results) if y is _RESULT else y, structure
        )

    def lower(self, *args: Any, **kwargs: Any) -> Trace:
        """Returns the planned program for these arguments, without running it."""
        return self._get(self._bind(args, kwargs))[0]

    def explain(self, *args: Any, **kwargs: Any) -> Forecast:
        """Returns what a call would do and cost, without running anything: see
        `mtf.explain`.
        """
        call = self._bind(args, kwargs, runs=False)
        graph = Graph(call.mesh)
        results, error = None, None
        try:
            results, _ = self._record(graph, call)
        except MeshtfError as problem:
            error = problem
            if graph.mesh is None:
                raise
        if graph.mesh is None:
            raise self._no_mesh()
        return forecast(self.name, graph.nodes, results, graph.mesh, error)

    def export(self, *args: Any, **kwargs: Any) -> Export:
        """Returns the program of a call as a StableHLO module: see `mtf.export`."""
        call = self._bind(args, kwargs, runs=False)
        graph = Graph(call.mesh)
        results, _ = self._record(graph, call)
        if graph.mesh is None:
            raise self._no_mesh()
        return export_program(graph.nodes, results, call.stores, graph.mesh)

    def record_on(
        self, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recorded:
        """Returns what a call records, as if all that it uses lay on another mesh."""
        there = functools.partial(on_another_mesh, mesh=mesh)
        args, kwargs = tf.nest.map_structure(there, (args, kwargs))
        with context(mesh=mesh):
            call = self._bind(args, kwargs, runs=False)
            graph = Graph(mesh)
            results, structure = self._record(graph, call)
        names = _result_names(structure)
        return Recorded(
            graph.nodes, list(zip(names, results, strict=True)), call.stores
        )

    @property
    def traces(self) -> int:
        """The number of programs made so far."""
        return len(self._compiled)

    def _in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes the ops of the function where it is called."""
        call, executor = self._bind(args, kwargs, in_place=True), current_executor()
        with executing(executor if isinstance(executor, Graph) else InPlace(call.mesh)):
            return self._run(call)

    def _get(self, call: Call) -> tuple[Trace, Any]:
        if not is_traceable(current()):
            return self._trace(call)  # to be looked at alone
        key, path = call.key, current().path
        found = self._compiled.get(key)
        if found is not None and found[0].path not in (None, path):
            key = (
                *key,
                Entry("", "path", (path,)),
            )  # it draws other random numbers there
            found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._trace(call)
            self._warn_of_many_traces(key)
        return found

    def _warn_of_many_traces(self, key: tuple[Entry, ...]) -> None:
        """Warns once; each object whose method it is may have traces of its own."""
        same = [
            k for k in self._compiled if k[:1] == key[:1] or key[0].argument != "self"
        ]
        if len(same) >= MANY_TRACES and not self._warned:
            self._warned = True
            warn_of_many_traces(self.name, same)

    def _bind(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        runs: bool = True,
        in_place: bool = False,
    ) -> Call:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        around = current()
        mesh = (
            around.mesh or self._mesh or (current_executor().mesh if in_place else None)
        )
        call = Call(mesh, runs, in_place)
        for name, value in bound.arguments.items():
            if name in self._names:
                call.add_array(name, value, self._names[name])
            else:
                call.add_structure(name, value)
        for depth, index in enumerate(
            () if in_place else iterations()
        ):  # of loops in Python
            call.add_array(f"{_ITERATION}{depth}", index, "")
        call.key += traced_for(around)
        return call

    def _trace(self, call: Call) -> tuple[Trace, Any]:
        graph = Graph(call.mesh)
        results, structure = self._record(graph, call)
        if graph.mesh is None:
            raise self._no_mesh()
        if self._runtime == "spmd":
            raise refusal(graph.mesh)
        trace = Trace(self.name, graph, graph.nodes, results, call.stores, self._jit)
        warn_of_unmatched(
            graph.mesh, any(isinstance(n.op, WriteOp) for n in graph.nodes)
        )
        return trace, structure

    def _record(self, graph: Graph, call: Call) -> tuple[list[Tensor], Any]:
        """Records the function; returns its tensors, and the structure in which they
        belong.
        """
        with executing(graph), context(**OUT_OF_FORCE):
            returned = self._run(call)
            flat = flattened(returned)
            results = [
                self._result(y) for y in flat if hasattr(y, "spec")
            ]  # variables are read here
        marks = [_RESULT if hasattr(y, "spec") else y for y in flat]
        return results, tf.nest.pack_sequence_as(returned, marks)

    def _run(self, call: Call) -> Any:
        arguments = call.arguments()
        passed = tuple(
            arguments.pop(name) for name in [*arguments] if name.startswith(_ITERATION)
        )
        bound = self._signature.bind_partial()
        bound.arguments.update(arguments)
        with context(iterations=passed or current().iterations):
            return self._fn(*bound.args, **bound.kwargs)

    def _no_mesh(self) -> MeshError:
        return MeshError(
            explain_error(
                f"nothing in {self.name} tells on which mesh it runs.",
                way_out="Write @mtf.function(mesh=mesh, ...), or pass or use a tensor "
                "or variable.",
            )
        )

    def _result(self, y: Any) -> Tensor:
        return y if isinstance(y, Tensor) else y.tensor()


class _Result:
    """Stands for a tensor in the structure that a function returns."""


_RESULT = _Result()
_ITERATION = (
    "loop iteration "  # no name of an argument: with the numbers, random ops draw anew
)


def _result_names(structure: Any) -> list[str]:
    """Returns the names of the tensors that a function returns: their keys, or
    output_0, ...
    """
    named = isinstance(structure, Mapping) or hasattr(structure, "_fields")
    root = "" if named else "output" if tf.nest.is_nested(structure) else "output_0"
    names = leaf_names(root, structure)
    return [
        n
        for n, y in zip(names, tf.nest.flatten(structure), strict=True)
        if y is _RESULT
    ]
