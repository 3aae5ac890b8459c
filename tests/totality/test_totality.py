"""Every public function says what it got and what it takes: wrong values end in errors
of meshtf.

Each argument of each legal call is replaced by None, a string, an int, a float, a list,
a NumPy array and a tensor of another mesh. What then comes is an error of meshtf, or a
result where the argument's annotation allows such a value: never an error of Python,
NumPy or TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import meshtf as mtf
from tests.totality import layers, objects, ops, programs
from tests.totality.calls import Call, things
from tests.totality.wrong import right_kinds, wrong_values

pytestmark = pytest.mark.every_case

FOLDERS = {
    "math": mtf.math,
    "layers": mtf.layers,
    "layers.initializers": mtf.layers.initializers,
    "optimizers": mtf.optimizers,
    "decoding": mtf.decoding,
    "pipeline": mtf.pipeline,
    "checkpoints": mtf.checkpoints,
}
# What is no function and no class with functions of its own: records.
RECORDS = {
    "Partial",
    "Placement",
    "Replicated",
    "Sharded",
    "Tensor",
    "CompiledForecast",
    "Export",
    "Forecast",
    "SearchResult",
    "layers.Bag",
    "layers.RotaryEmbedding",
    "layers.RotaryScaling",
    "layers.Cache",
    "layers.DecodeStep",
    "pipeline.Layer",
    "pipeline.Span",
    "pipeline.Task",
    "checkpoints.Restored",
    "checkpoints.Manifest",
    "optimizers.Optimizer.update",
    "optimizers.ParameterGroups.update",
}
FULL = {
    "Export",
    "Forecast",
    "SearchResult",
    "Tensor",
    "checkpoints.Manifest",
}  # but for their constructors


@functools.cache
def table() -> dict[str, Call]:
    """Returns all legal calls, by the name of what is called."""
    t = things()
    calls = (
        ops.pointwise(t)
        | ops.shaping(t)
        | ops.by_number(t)
        | ops.windows(t)
        | ops.control(t)
        | ops.around(t)
        | objects.names(t)
        | objects.values(t)
        | objects.written(t)
        | layers.layers(t)
        | programs.programs(t)
    )
    return {_path(name): call for name, call in calls.items()}


def _path(name: str) -> str:
    """Returns where `mtf` has a function: some of those of the tables in `mtf.math`."""
    return f"math.{name}" if name in mtf.math.__all__ else name


def public() -> Iterator[tuple[str, Any]]:
    """Yields the names of public functions, classes and methods, and what they are."""
    for folder, module in {"": mtf, **FOLDERS}.items():
        for name in getattr(module, "__all__", None) or [
            n for n in vars(module) if n[0] != "_"
        ]:
            thing = getattr(module, name)
            full = f"{folder}.{name}".lstrip(".")
            own = getattr(thing, "__module__", "").startswith("meshtf")
            if inspect.isclass(thing) and own and not issubclass(thing, Exception):
                yield full, thing
                yield from ((f"{full}.{method}", f) for method, f in methods(thing))
            elif callable(thing) and own and not inspect.isclass(thing):
                yield full, thing


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods of a class, and its call, that meshtf wrote; not those
    of Module.
    """
    for name, f in inspect.getmembers(cls, callable):
        own = cls is mtf.Module or f is not getattr(mtf.Module, name, None)
        if own and (name == "__call__" or not name.startswith("_")):
            if getattr(f, "__module__", "").startswith("meshtf"):
                yield name, f


def called(name: str, call: Call) -> Any:
    """Returns the function that a name of the table stands for."""
    if call.on is not None:
        return getattr(call.on, name.rpartition(".")[2])
    return functools.reduce(getattr, name.split("."), mtf)


def arguments(
    fn: Any, call: Call
) -> Iterator[
    tuple[inspect.Parameter, str, Any, inspect.Signature, inspect.BoundArguments]
]:
    """Yields each argument in turn with a value of each kind in its place, and the call
    with it.
    """
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name in call.own:
            continue
        for kind, value in wrong_values().items():
            bound = signature.bind(*call.args, **call.kwargs)
            if parameter.kind is parameter.VAR_POSITIONAL:
                value = (value, *bound.arguments.get(parameter.name, ())[1:])
            bound.arguments[parameter.name] = value
            yield parameter, kind, value, signature, bound


def run(fn: Any, call: Call, args: Any, kwargs: Any) -> None:
    """Calls a function, enters what it returns if that is a context, and does what
    comes then.
    """
    with mtf.seed(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fn(*args, **kwargs)
        if isinstance(result, contextlib.AbstractContextManager) and call.then is None:
            with result:
                pass
        elif call.then is not None:
            call.then(result)


def name_of(fn: Any) -> str:
    """Returns the name of a function."""
    return getattr(fn, "__name__", "")


def fault(
    fn: Any, call: Call, parameter: inspect.Parameter, kind: str, args: Any, kwargs: Any
) -> str | None:
    """Returns what is wrong with the answer to a wrong value; None: nothing."""
    right = right_kinds(
        str(parameter.annotation), parameter.default, call.takes.get(parameter.name, "")
    )
    try:
        run(fn, call, args, kwargs)
    except mtf.ArgumentError as error:
        has_line = "from  " in str(error) and "totality" in str(error)
        return (
            None
            if has_line or name_of(fn) == "near_misses"
            else f"names no line: {error}"
        )
    except mtf.MeshtfError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:100]!r}"
    return None if kind in right else f"gave a result; it takes {parameter.annotation}"


def test_nothing_public_is_missing_in_the_table():
    missing = sorted(
        n
        for n in dict(public()).keys() - table().keys() - RECORDS
        if n.rpartition(".")[0] not in RECORDS - FULL
    )
    assert not missing, "say in tests/totality how these are called:\n" + "\n".join(
        missing
    )


@pytest.mark.parametrize("name", sorted(table()))
def test_wrong_values_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a string is a path, it is one there
    call = table()[name]
    fn = called(name, call)
    if call.runs:
        run(fn, call, call.args, call.kwargs)
    faults = []
    for parameter, kind, _, _, bound in arguments(fn, call):
        fault_text = fault(fn, call, parameter, kind, bound.args, bound.kwargs)
        if fault_text is not None:
            faults.append(f"{parameter.name}={kind}: {fault_text}")
    assert not faults, "\n".join(faults)
