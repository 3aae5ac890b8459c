"""`mtf.function`: a Python function becomes one program for all devices of a mesh.

    @mtf.function(x="batch;d_model")
    def step(x):
      h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
      return mtf.reduce_mean(h)

    step(array)        # the first call traces, plans and runs; later calls only run

It is traced again only when names, shapes, data types, mesh, layout or Python values
change. It holds at most `MAX_PROGRAMS` programs. Then the least recently used one is
dropped, and traced again if it is called again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import tensorflow as tf

from meshtf.errors import MeshtfError
from meshtf.forecast import Forecast, forecast
from meshtf.function.arguments import Call, Entry
from meshtf.function.layout_warnings import warn_of_unmatched
from meshtf.function.recording import RESULT, PythonFunction, Recording
from meshtf.function.retracing_warning import MANY_TRACES, warn_of_many_traces
from meshtf.function.traced_gradients import Trace
from meshtf.graph import (
    Graph,
    WriteOp,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.apply import set_eager_executor
from meshtf.graph.arguments import as_mesh
from meshtf.graph.context import RESET_IN_TRACES, is_traceable
from meshtf.graph.used_layouts import recorded_layout_use
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_bool, as_bytes
from meshtf.runtime.eager import EAGER, InPlace
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.runtimes import (
    Executable,
    RuntimeName,
    runtime_named,
    runtime_of,
)
from meshtf.runtime.spmd import CompiledForecast, Export
from meshtf.runtime.spmd import compile_for as compile_program_for
from meshtf.runtime.spmd import export as export_program

P = ParamSpec("P")
R = TypeVar("R")
MAX_PROGRAMS = 256  # of one function; a method has one limit for all objects

set_eager_executor(EAGER)


@overload
def function(
    fn: Callable[P, R],
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: RuntimeName | None = None,
) -> Function[P, R]: ...


@overload
def function(
    fn: None = None,
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: RuntimeName | None = None,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


# Arguments with names are arrays in a call, and tensors in the function: `fn` says the types
# of the latter. So a type checker sees the result, and not the arguments.
@overload
def function(
    fn: Callable[..., R],
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: RuntimeName | None = None,
    **names: str | Mapping[str, str],
) -> Function[..., R]: ...


@overload
def function(
    fn: None = None,
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: RuntimeName | None = None,
    **names: str | Mapping[str, str],
) -> Callable[[Callable[..., R]], Function[..., R]]: ...


def function(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | None = None,
    jit: bool = False,
    runtime: RuntimeName | None = None,
    **names: str | Mapping[str, str],
) -> Any:
    """Turns a Python function on named tensors into one planned program.

    Args:
      fn: the function; without it, a decorator is returned.
      mesh: the mesh that it runs on; needed only if no argument and no variable in it
        has one.
      jit: whether XLA compiles the local work. Pays off where a program runs for long.
      runtime: "placed", one program that drives all devices of TensorFlow, or "spmd",
        one program that each of jax's devices runs, with collectives by XLA. Default:
        what the devices of the mesh need.
      **names: the dimensions of arguments that are arrays: x="batch;d_model" (x="": a
        scalar). For a dict of arrays, a dict: batch={"tokens": "batch;length", "labels":
        "batch"}; the argument may lack keys.

    Returns:
      A callable that takes Tensors, the named arrays and Python values, in any nesting,
      and returns Tensors. Python values are constants of the program: another value needs
      another trace. From 20 traces on a warning says what changes. At most 256 programs
      are held: of more, the least recently used one is dropped, and traced again at its
      next call. Results have gradients outside, unless the function writes variables.
    """
    if fn is None:
        return lambda f: Function(f, mesh, jit, names, runtime)
    return Function(fn, mesh, jit, names, runtime)


@contextlib.contextmanager
def run_functions_eagerly() -> Iterator[None]:
    """Runs each `mtf.function` that is called inside op by op, without a trace, so that a
    debugger stops in it and `print` shows values.

        with mtf.run_functions_eagerly():
            train_step(batch)
    """
    with context(functions_run_eagerly=True):
        yield


def explain(
    fn: Callable[..., Any],
    *args: Any,
    device_memory: float | str | None = None,
    **kwargs: Any,
) -> Forecast:
    """Returns a forecast of a call fn(*args, **kwargs): what it would do and cost,
    without running anything.

    It needs no devices. With `Mesh(..., devices="abstract")` variables take no memory
    either, so a laptop can explain a large model on thousands of mesh positions.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: its arguments; of an array only shape and data type are read, so a
        `tf.TensorSpec` is enough.
      device_memory: the bytes of one device, as a number or as text such as "40GiB":
        the forecast then says whether the program fits, and if not, what would save
        memory.
      **kwargs: likewise arguments of fn.

    Returns:
      A `Forecast`: print it, or save it as JSON or HTML. If the program has an error, it
      shows the steps planned before, and its `error`.
    """
    function, args = as_function(fn, args)
    result = function.explain(*args, **kwargs)
    if device_memory is None:
        return result
    size = as_bytes("device_memory", device_memory)
    return dataclasses.replace(result, device_memory=size)


def export(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Export:
    """Returns a call fn(*args, **kwargs) as one StableHLO module, which each device of
    the mesh runs.

    The mesh may be abstract. Arguments are as those of `explain`.

    Raises:
      PlanError: XLA cannot compile an op.
    """
    function, args = as_function(fn, args)
    return function.export(*args, **kwargs)


def compile_for(
    fn: Callable[..., Any], *args: Any, topology: str, **kwargs: Any
) -> CompiledForecast:
    """Returns what XLA makes of a call fn(*args, **kwargs) on devices that need not be
    there: its peak of memory and its collectives, beside the forecast.

    The mesh may be abstract; it must have as many positions as the topology has devices.
    Arguments are as those of `explain`.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: its arguments.
      topology: the kind and the number of devices: "h100:8", "v5e:8", "v5p:16", or the
        grid of TPUs: "v5e:2x4". Compilers are in the extras "cuda" and "tpu".
      **kwargs: likewise arguments of fn.

    Raises:
      MeshError: the topology is unknown or does not fit the mesh, or its compiler is not
        installed.
      PlanError: XLA cannot compile an op.
    """
    function, args = as_function(fn, args)
    return function.compile_for(topology, *args, **kwargs)


def as_function(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Function[..., Any], tuple[Any, ...]]:
    """Returns a `mtf.function`, and its arguments.

    Args:
      fn: a `mtf.function`, a method that is one (its object becomes the first argument),
        or a function of tensors.
      args: the arguments of a call.
    """
    if (
        isinstance(fn, functools.partial)
        and isinstance(fn.func, Function)
        and not fn.keywords
    ):
        return fn.func, (*fn.args, *args)
    if isinstance(fn, Function):
        return fn, args
    return Function(fn, None, False, {}), args


class Function(Generic[P, R]):
    """The result of `mtf.function`: a callable with a cache of the `MAX_PROGRAMS`
    programs that were used last.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        mesh: Mesh | None,
        jit: bool,
        names: dict[str, str | Mapping[str, str]],
        runtime: RuntimeName | None = None,
    ) -> None:
        if mesh is not None:
            as_mesh("mesh", mesh)
        self._python = PythonFunction(fn, mesh, names)
        self._jit = as_bool("jit", jit)
        self._runtime = None if runtime is None else runtime_named(runtime)
        self.name = self._python.name
        self._warned = False  # whether the warning of many traces was given
        # By key: the trace and the structure of its results. The least recently used one
        # comes first.
        self._compiled: collections.OrderedDict[Any, tuple[Trace, Any]] = (
            collections.OrderedDict()
        )
        self._traces = 0
        functools.update_wrapper(self, fn)

    @overload
    def __get__(
        self,
        instance: None,
        owner: Any = None,
    ) -> Function[P, R]: ...

    @overload
    def __get__(
        self,
        instance: object,
        owner: Any = None,
    ) -> Callable[..., R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        results: R = self._call(args, kwargs)
        return results

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        executor = current_executor()
        eager = current().functions_run_eagerly
        if isinstance(executor, Graph) or (eager and isinstance(executor, InPlace)):
            return self._in_place(args, kwargs)  # it is called by another function
        if eager or not is_traceable(current()):
            with context(**RESET_IN_TRACES):
                return self._in_place(args, kwargs)
        call = self._python.bind(args, kwargs)
        activity = "runs" if call.key in self._compiled else "traces"
        beat(f"{activity} {self.name}")
        trace, structure = self._get(call)
        results = iter(trace.call(call.flat, call.tensors))
        beat(f"ran {self.name}")
        return tf.nest.map_structure(
            lambda y: next(results) if y is RESULT else y, structure
        )

    def __repr__(self) -> str:
        programs = f"{len(self._compiled)} programs"
        if len(self._compiled) == 1:
            programs = "1 program"
        signature = self._python.signature_text()
        return f"<mtf.function {self.name}{signature}: {programs} compiled>"

    def lower(self, *args: Any, **kwargs: Any) -> Executable:
        """Returns the planned program for these arguments, without running it."""
        return self._get(self._python.bind(args, kwargs))[0].executable

    def explain(self, *args: Any, **kwargs: Any) -> Forecast:
        """Returns a forecast of a call, without running anything: see `mtf.explain`."""
        call = self._python.bind(args, kwargs, runs=False)
        graph = Graph(call.mesh)
        results = None
        error = None
        try:
            results = self._python.record(graph, call).recorded.results
        except MeshtfError as problem:
            error = problem
            if graph.mesh is None:
                raise
        assert graph.mesh is not None
        return forecast(self.name, graph.nodes, results, graph.mesh, error)

    def export(self, *args: Any, **kwargs: Any) -> Export:
        """Returns the program of a call as a StableHLO module: see `mtf.export`."""
        call = self._python.bind(args, kwargs, runs=False)
        recording = self._python.record(Graph(call.mesh), call)
        return export_program(recording.recorded, recording.arguments)

    def compile_for(self, topology: str, *args: Any, **kwargs: Any) -> CompiledForecast:
        """Compiles a call for devices that need not be there: see `mtf.compile_for`."""
        call = self._python.bind(args, kwargs, runs=False)
        recording = self._python.record(Graph(call.mesh), call)
        return compile_program_for(
            recording.recorded,
            recording.arguments,
            self.explain(*args, **kwargs),
            topology,
        )

    def record_on(
        self, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording:
        """Records a call as if its tensors and variables were on another mesh."""
        return self._python.record_on(mesh, args, kwargs)

    @property
    def traces(self) -> int:
        """The number of traces so far, with those that were dropped."""
        return self._traces

    def _in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Applies the ops of the function where it is called, without a trace."""
        call = self._python.bind(args, kwargs, in_place=True)
        executor = current_executor()
        if not isinstance(executor, Graph):
            executor = InPlace(call.mesh)
        with executing(executor):
            return self._python.run(call)

    def _get(self, call: Call) -> tuple[Trace, Any]:
        """Returns the trace for a call, and the structure of its results."""
        if not is_traceable(current()):
            # For `lower` only, so it is not cached.
            return self._trace(call)
        key = self._cache_key(call)
        entry = self._compiled.get(key)
        if entry is not None:
            self._compiled.move_to_end(key)
            return entry
        entry = self._trace(call)
        self._compiled[key] = entry
        self._traces += 1
        self._warn_of_many_traces(key)
        if len(self._compiled) > MAX_PROGRAMS:
            _, (oldest, _) = self._compiled.popitem(last=False)
            oldest.retire()
        return entry

    def _cache_key(self, call: Call) -> tuple[Entry, ...]:
        """Returns the key of a call: with the path of modules, if the trace without it
        draws random numbers under another path.
        """
        path = current().path
        entry = self._compiled.get(call.key)
        if entry is None or entry[0].path in (None, path):
            return call.key
        return (*call.key, Entry("", "path", (path,)))

    def _warn_of_many_traces(self, key: tuple[Entry, ...]) -> None:
        """Warns once, of a method if it has many traces for one object."""
        if self._warned:
            return
        keys = list(self._compiled)
        if key[0].argument == "self":
            keys = [k for k in keys if k[:1] == key[:1]]
        if len(keys) >= MANY_TRACES:
            self._warned = True
            warn_of_many_traces(self.name, keys)

    def _trace(self, call: Call) -> tuple[Trace, Any]:
        """Records and compiles a call; returns the trace and the structure of its
        results.
        """
        graph = Graph(call.mesh)
        recording = self._python.record(graph, call)
        runtime = self._runtime or runtime_of(recording.recorded.mesh)
        trace = Trace(
            self.name,
            graph,
            recording.recorded,
            recording.arguments,
            functools.partial(runtime.compile, jit=self._jit),
        )
        writes = any(isinstance(node.op, WriteOp) for node in graph.nodes)
        mesh = recording.recorded.mesh
        warn_of_unmatched(mesh, recorded_layout_use(mesh), writes)
        return trace, recording.structure
