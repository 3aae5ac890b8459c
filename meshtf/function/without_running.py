"""What a call would do, without running it: its forecast, its module, and what XLA makes of
it for other devices.

    mtf.explain(step, batch)                         # a Forecast
    mtf.export(step, batch).save("folder")           # a StableHLO module
    mtf.compile_for(step, batch, topology="h100:8")  # what XLA makes of it
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from meshtf.forecast import Forecast
from meshtf.function.compiled_forecast import CompiledForecast
from meshtf.function.function import Function
from meshtf.hardware import Hardware, as_hardware
from meshtf.names.arguments import as_bytes
from meshtf.runtime.runtimes import RuntimeName, as_runtime_name
from meshtf.runtime.spmd import Export, check_topology, hardware_of


def explain(
    fn: Callable[..., Any],
    *args: Any,
    device_memory: float | str | None = None,
    hardware: Hardware | str | None = None,
    runtime: RuntimeName | None = None,
    **kwargs: Any,
) -> Forecast:
    """Returns a forecast of a call fn(*args, **kwargs): its ops, communication, FLOPs and
    memory, and its time on given hardware. Nothing runs.

    With `Mesh(..., devices="abstract")` neither devices nor memory for variables are
    needed, so a laptop can explain a large model on thousands of mesh positions.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: the arguments of the call; only the shape and dtype of an array are read, so a
        `tf.TensorSpec` may replace it.
      device_memory: the bytes of one device, as a number or as text such as "40GiB": the
        forecast then says whether the program fits, and if not, what would save memory;
        None: that of `hardware`.
      hardware: the profile of the devices, such as "h100", or the path of a file that
        `python -m meshtf calibrate` wrote: the forecast then has the time of a step; None:
        it has none.
      runtime: whose memory it is, that of "placed" or that of "spmd", which XLA plans; None:
        that which the devices of the mesh need. On an abstract mesh it is "spmd" if
        `hardware` has XLA, as accelerators do, and as `mtf.search` counts, else "placed".
      **kwargs: the keyword arguments of the call.

    Returns:
      A `Forecast`: print it, or save it as JSON or HTML. If recording raises an error, the
      forecast has the ops before it, and `error` is its text.

    Raises:
      LayoutError: the mesh is strict, and has a rule for a dimension that no program has, as
        a call would raise it; otherwise that is a warning.
    """
    function, args = as_function(fn, args)
    profile = None if hardware is None else as_hardware(hardware)
    under_xla = None if runtime is None else as_runtime_name(runtime) == "spmd"
    result = function.forecast_call(args, kwargs, under_xla, hardware=profile)
    size = None if profile is None else profile.memory
    if device_memory is not None:
        size = as_bytes("device_memory", device_memory)
    return dataclasses.replace(result, device_memory=size)


def export(
    fn: Callable[..., Any], *args: Any, platform: str = "", **kwargs: Any
) -> Export:
    """Returns a call fn(*args, **kwargs) as one StableHLO module, which each device of
    the mesh runs.

    The mesh may be abstract.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: the arguments of the call, as in `explain`.
      platform: the devices that the module is for, "cpu", "cuda" or "tpu", whose kernels it may
        call, such as those for attention; "": any devices.
      **kwargs: the keyword arguments of the call.

    Raises:
      ArgumentError: an unknown platform.
      PlanError: XLA cannot compile an op.
    """
    function, args = as_function(fn, args)
    return function.export(*args, platform=platform, **kwargs)


def compile_for(
    fn: Callable[..., Any], *args: Any, topology: str, **kwargs: Any
) -> CompiledForecast:
    """Returns what XLA makes of a call fn(*args, **kwargs) on devices that need not be
    there: its peak of memory and its collectives, compared with the forecast.

    The mesh may be abstract; it must have as many positions as the topology has devices.

    Args:
      fn: a `mtf.function`, or a function of tensors.
      *args: the arguments of the call, as in `explain`.
      topology: the kind and the number of devices: "h100:8", "v5e:8", "v5p:16", or the
        grid of TPUs: "v5e:2x4". Compilers are in the extras "cuda" and "tpu".
      **kwargs: the keyword arguments of the call.

    Raises:
      MeshError: the topology is unknown or does not fit the mesh, or its compiler is not
        installed.
      PlanError: XLA cannot compile an op.
    """
    check_topology(topology)  # before the function is recorded
    function, args = as_function(fn, args)
    return CompiledForecast(
        compiled=function.compile_for(topology, *args, **kwargs),
        forecast=function.forecast_call(
            args, kwargs, under_xla=True, hardware=hardware_of(topology)
        ),
    )


def as_function(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Function[..., Any], tuple[Any, ...]]:
    """Returns `fn` as a `mtf.function`, and the positional arguments of a call.

    Args:
      fn: a `mtf.function`, a bound method that is one, an imported function, or a function
        of tensors.
      args: the positional arguments of a call, without the object of a bound method.
    """
    # An imported function has one, which knows the dimensions of its arguments.
    fn = getattr(fn, "bound_function", fn)
    if isinstance(fn, Function):
        return fn, args
    # For a bound method `Function.__get__` returns a `functools.partial` with the object. A
    # partial with keywords is one that the user made: it is treated like any other callable.
    if isinstance(fn, functools.partial) and isinstance(fn.func, Function):
        if not fn.keywords:
            return fn.func, (*fn.args, *args)
    return Function(fn), args
