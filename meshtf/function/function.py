"""`mtf.function`: a Python function becomes one program for all devices of a mesh.

    @mtf.function(x="batch;d_model")
    def step(x):
      h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
      return mtf.reduce_mean(h)

    step(array)        # the first call traces, plans and runs; later calls only run

The function is traced again only when names, shapes, dtypes, mesh, layout or Python values
of a call change. Beyond `MAX_PROGRAMS` programs the least recently used one is dropped.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from meshtf.errors import DeviceMemoryError, MeshtfError
from meshtf.forecast import Forecast, forecast
from meshtf.forecast.memory_advice import advice
from meshtf.forecast.reports.units import bytes_text
from meshtf.function.arguments import CallArguments, KeyEntry
from meshtf.function.bound_objects import copy_with_objects
from meshtf.function.layout_warnings import warn_of_unmatched
from meshtf.function.recording import RESULT, PythonFunction, Recording, check_names
from meshtf.function.retracing_warning import (
    MANY_TRACES,
    keys_of_object,
    warn_of_many_traces,
)
from meshtf.function.traced_gradients import Trace
from meshtf.graph import (
    Graph,
    context,
    current,
    current_executor,
    executing,
)
from meshtf.graph.apply import set_eager_executor
from meshtf.graph.arguments import as_mesh
from meshtf.graph.context import RESET_IN_TRACES, is_traceable
from meshtf.hardware import Hardware
from meshtf.mesh import Mesh
from meshtf.names import nested
from meshtf.names.arguments import as_bool
from meshtf.runtime.eager import EAGER, InPlace, refuse_in_tf_function
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.runtimes import (
    Executable,
    RuntimeName,
    as_runtime_name,
    runtime_of,
    xla_of_forecast,
)
from meshtf.runtime.spmd import CompiledProgram, Export
from meshtf.runtime.spmd import compile_for as compile_program_for
from meshtf.runtime.spmd import export as export_program

P = ParamSpec("P")
R = TypeVar("R")
MAX_PROGRAMS = 256  # of one function; all objects of a class share a method's limit

# Ops outside of functions run on this executor: `meshtf.graph`, which applies ops, does not
# import TensorFlow, so it cannot import the executor itself.
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


# With `names`, callers pass arrays where `fn` declares tensors. So a type checker knows the
# type of the result only, not of the arguments.
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
      fn: the function; None: `function` returns a decorator.
      mesh: the mesh that the function runs on; None: the mesh of its arguments and
        variables.
      jit: whether XLA compiles the computation of each device. Compilation takes time, so
        it pays off for programs that run many times.
      runtime: "placed", one program that drives all devices of TensorFlow, or "spmd",
        one program that each of jax's devices runs, with collectives by XLA. Default:
        what the devices of the mesh need.
      **names: the dimensions of arguments that are arrays: x="batch;d_model" (x="": a
        scalar). For a dict of arrays, a dict: batch={"tokens": "batch;length", "labels":
        "batch"}; the argument may lack keys.

    Returns:
      A callable that takes Tensors, the named arrays and Python values, in any nesting,
      and returns Tensors. Python values are constants of the program: another value needs
      another trace. From the 20th trace on a warning names the argument that changes.
      At most 256 programs are cached: beyond that the least recently used program is
      dropped, and traced again at its next call. Callers can differentiate the results,
      unless the function writes variables.
    """
    check_names(names)
    decorator = functools.partial(
        Function, mesh=mesh, jit=jit, names=names, runtime=runtime
    )
    if fn is None:
        return decorator
    return decorator(fn)


class _CompiledCall(NamedTuple):
    """A trace (the compiled program of a function, for calls with equal keys), and the
    structure of its results.

    Attributes:
      trace: the compiled function.
      structure: the nesting that the function returns, with `RESULT` for each tensor.
    """

    trace: Trace
    structure: Any


class Function(Generic[P, R]):
    """The result of `mtf.function`: a callable with a cache of the `MAX_PROGRAMS` most
    recently used programs.

    The arguments are those of `mtf.function`.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        mesh: Mesh | None = None,
        jit: bool = False,
        names: Mapping[str, str | Mapping[str, str]] | None = None,
        runtime: RuntimeName | None = None,
    ) -> None:
        if mesh is not None:
            mesh = as_mesh("mesh", mesh)
        self._python = PythonFunction(fn, mesh=mesh, names=names or {})
        self._jit = as_bool("jit", jit)
        self._runtime = None if runtime is None else as_runtime_name(runtime)
        self.name = self._python.name
        # Key of a call -> trace; the least recently used one comes first.
        self._compiled: collections.OrderedDict[Any, _CompiledCall]
        self._compiled = collections.OrderedDict()
        self._num_traces = 0  # so far, traces that were dropped included
        self._has_warned = False  # of too many traces
        functools.update_wrapper(self, fn)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Function[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: Any = None) -> Callable[..., R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function[P, R]:
        """Returns the function of copies of the objects that this one is bound to."""
        mesh, names = self._python.mesh, self._python.names
        fn = copy_with_objects(self._python.fn, memo)
        return Function(
            fn, mesh=mesh, jit=self._jit, names=names, runtime=self._runtime
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        results: R = self._call(args, kwargs)
        return results

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call: as part of the calling function, op by op, or as a program."""
        executor = current_executor()
        runs_eagerly = current().functions_run_eagerly
        # The caller is another `mtf.function`, which is being recorded, or runs op by op.
        caller_is_recorded = isinstance(executor, Graph)
        caller_runs_eagerly = runs_eagerly and isinstance(executor, InPlace)
        if caller_is_recorded or caller_runs_eagerly:
            return self._run_in_place(args, kwargs)
        if runs_eagerly or not is_traceable(current()):
            with context(**RESET_IN_TRACES):  # the settings that a trace would have
                return self._run_in_place(args, kwargs)
        refuse_in_tf_function(f"the mtf.function {self.name!r} is called")
        call = self._python.bind(args, kwargs)
        # The heartbeats say to a process that monitors this one what it does.
        activity = "runs" if call.key in self._compiled else "traces"
        beat(f"{activity} {self.name}")
        trace, structure = self._compiled_call(call)
        try:
            results = iter(trace.call(call.flat_values, call.tensors))
        except DeviceMemoryError as error:
            if error.program != self.name:  # that of the initial values of variables
                raise
            raise self._with_forecast(error, args, kwargs) from None
        beat(f"ran {self.name}")
        return nested.map_structure(
            lambda y: next(results) if y is RESULT else y, structure
        )

    def _with_forecast(
        self, error: DeviceMemoryError, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> DeviceMemoryError:
        """Returns the error with the forecast of a call, and what would save memory."""
        result = self.explain(*args, **kwargs)
        peak = f"{bytes_text(result.memory.peak)} on a device at the peak"
        return DeviceMemoryError(error.program, error.reason, peak, advice(result))

    def __repr__(self) -> str:
        programs = f"{len(self._compiled)} programs"
        if len(self._compiled) == 1:
            programs = "1 program"
        signature = self._python.signature_text()
        return f"<mtf.function {self.name}{signature}: {programs} compiled>"

    def lower(self, *args: Any, **kwargs: Any) -> Executable:
        """Returns the planned program for these arguments, without running it."""
        call = self._python.bind(args, kwargs)
        return self._compiled_call(call).trace.executable

    def explain(self, *args: Any, **kwargs: Any) -> Forecast:
        """Returns a forecast of a call, without running it: see `mtf.explain`."""
        return self.forecast_call(args, kwargs)

    def forecast_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        under_xla: bool | None = None,
        hardware: Hardware | None = None,
    ) -> Forecast:
        """Returns a forecast of a call: see `mtf.explain`.

        Args:
          under_xla: whether memory is that of the SPMD runtime; None: see `xla_of_forecast`.
          hardware: the profile of the devices; None: the forecast has no times.

        Raises:
          LayoutError: the mesh is strict, and has rules for dimensions that no program has.
        """
        call = self._python.bind(args, kwargs, runs=False)
        graph = Graph(call.mesh)
        results = None
        error = None
        try:
            results = self._python.record(graph, call).recorded.results
        except MeshtfError as raised:
            if graph.mesh is None:
                raise  # there is nothing to forecast without a mesh
            error = raised
        assert graph.mesh is not None
        if error is None:
            warn_of_unmatched(graph.mesh, graph.nodes)
        under_xla, platform = xla_of_forecast(graph.mesh, hardware, under_xla)
        return forecast(
            self.name,
            graph.nodes,
            results,
            mesh=graph.mesh,
            error=error,
            under_xla=under_xla,
            platform=platform,
            hardware=hardware,
        )

    def export(self, *args: Any, platform: str = "", **kwargs: Any) -> Export:
        """Returns the program of a call as a StableHLO module: see `mtf.export`."""
        recording = self.record_call(args, kwargs)
        return export_program(recording.recorded, recording.arguments, platform)

    def compile_for(self, topology: str, *args: Any, **kwargs: Any) -> CompiledProgram:
        """Compiles a call for devices that need not be there: see `mtf.compile_for`."""
        recording = self.record_call(args, kwargs)
        return compile_program_for(recording.recorded, recording.arguments, topology)

    def record_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
        """Returns a call as it is recorded; nothing runs."""
        call = self._python.bind(args, kwargs, runs=False)
        graph = Graph(call.mesh)
        return self._python.record(graph, call)

    def record_on(
        self, mesh: Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recording:
        """Records a call as if its tensors and variables were on another mesh."""
        return self._python.record_on(mesh, args, kwargs)

    @property
    def traces(self) -> int:
        """The number of traces so far, traces that were dropped included."""
        return self._num_traces

    def _run_in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Applies the ops of a call in the calling function, or runs them op by op."""
        call = self._python.bind(args, kwargs, in_place=True)
        executor = current_executor()
        if not isinstance(executor, Graph):
            executor = InPlace(call.mesh)
        with executing(executor):
            return self._python.run(call)

    def _compiled_call(self, call: CallArguments) -> _CompiledCall:
        """Returns the compiled function for a call, from the cache if it is there."""
        # In such a context `lower` is the only caller. The trace depends on settings that
        # are not in its key, so it is not cached.
        if not is_traceable(current()):
            return self._trace(call)
        key = self._cache_key(call)
        compiled = self._compiled.get(key)
        if compiled is not None:
            self._compiled.move_to_end(key)
            return compiled
        compiled = self._trace(call)
        self._compiled[key] = compiled
        self._num_traces += 1
        self._warn_of_many_traces(key)
        if len(self._compiled) > MAX_PROGRAMS:
            _key, least_recent = self._compiled.popitem(last=False)
            least_recent.trace.retire()
        return compiled

    def _cache_key(self, call: CallArguments) -> tuple[KeyEntry, ...]:
        """Returns the key of a call.

        Random numbers depend on the path of modules. So the key has the path if there is a
        trace without it that draws random numbers under another path.
        """
        path = current().path
        compiled = self._compiled.get(call.key)
        if compiled is None or compiled.trace.path in (None, path):
            return call.key
        return (*call.key, KeyEntry(argument="", kind="path", facts=(path,)))

    def _warn_of_many_traces(self, last_key: tuple[KeyEntry, ...]) -> None:
        """Warns once if the function has many traces; of a method, if one object has many."""
        keys = keys_of_object(self._compiled, last_key)
        if len(keys) >= MANY_TRACES and not self._has_warned:
            self._has_warned = True
            warn_of_many_traces(self.name, keys)

    def _trace(self, call: CallArguments) -> _CompiledCall:
        """Records and compiles a call."""
        graph = Graph(call.mesh)
        recording = self._python.record(graph, call)
        runtime = runtime_of(recording.recorded.mesh, self._runtime)
        trace = Trace(
            name=self.name,
            graph=graph,
            recorded=recording.recorded,
            stores=recording.arguments,
            compile_recorded=functools.partial(runtime.compile, jit=self._jit),
        )
        warn_of_unmatched(recording.recorded.mesh, graph.nodes)
        return _CompiledCall(trace, recording.structure)
