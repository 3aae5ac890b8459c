"""Errors for calls with missing, unknown or too many arguments.

    @explain_wrong_calls
    def __init__(self, mesh, shape, initializer): ...

The error shows the user's line and the parameters, and says what takes the place of arguments
of other libraries, such as `axis`; Python's TypeError shows none of this.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

from meshtf.errors import ArgumentError, explain_error, near_misses
from meshtf.names.shape import Shape
from meshtf.names.source import Source

F = TypeVar("F", bound=Callable[..., Any])

# Arguments of NumPy, TensorFlow, PyTorch and JAX for dimensions by their order, and for
# dimensions of size 1 in place of those that are summed.
_AXES = ("axis", "axes", "dim", "dims", "perm", "dimension")
_KEEP = ("keepdims", "keepdim", "keep_dims")


def explain_wrong_calls(function: F) -> F:
    """Returns a function or constructor that raises ArgumentError if a call does not match
    its signature.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # An error of the call itself has no frame of the function; that of a constructor
            # that a subclass defines has, so the signature decides.
            check_call(function, args, kwargs, error)
            raise

    functools.update_wrapper(call, function)
    # Errors show the name of the function that the user's line calls: see `Source`.
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return call  # type: ignore[return-value]


def explain_calls_of(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Has all functions among the public names of a module explain wrong calls."""
    for name in names:
        function = namespace[name]
        if isinstance(function, types.FunctionType):
            explained = explain_wrong_calls(function)
            explained.__module__ = namespace["__name__"]  # where pickle finds it
            namespace[name] = explained


def check_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: TypeError | None,
    name: str | None = None,
) -> None:
    """Raises ArgumentError if arguments do not match the signature of a function; does
    nothing if they do, as the TypeError then has another reason.

    Args:
      function: the function or constructor.
      args: the positional arguments; of a constructor with the instance.
      kwargs: the keyword arguments.
      error: the error that the call raised; None: none.
      name: the name of the function in the error; None: its own, or the instance's class.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as mismatch:
        is_method = next(iter(signature.parameters), "") == "self"
        if name is None:
            name = function.__name__
            if name == "__init__":
                name = type(args[0]).__name__
        raise wrong_call(name, signature, args, kwargs, mismatch, is_method) from error


def wrong_call(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mismatch: TypeError,
    is_method: bool = False,
) -> ArgumentError:
    """Returns the error for a call that does not match a signature.

    Args:
      name: the name of the function.
      signature: the signature.
      args: the positional arguments.
      kwargs: the keyword arguments.
      mismatch: what `signature.bind` raised.
      is_method: whether the first parameter is `self`, which a user does not pass.
    """
    parameters = list(signature.parameters.values())[1 if is_method else 0 :]
    known = [parameter.name for parameter in parameters]
    unknown_names = [key for key in kwargs if key not in known]
    problem = str(mismatch)
    facts: dict[str, Any] = {}
    if unknown_names:
        # Python names a missing argument first, which most often is the misspelt one.
        problem = f"got an unexpected keyword argument {unknown_names[0]!r}"
    shape = next((x.shape for x in args if _has_names(x)), None)
    if shape is not None:
        facts["tensor"] = repr(shape)
    return ArgumentError(
        explain_error(
            f"{name}: {problem}.",
            takes=", ".join(map(_declaration, parameters)) or "no arguments",
            **facts,
            source=Source.of_caller(),
            way_out=_way_out(unknown_names, kwargs, known, shape)
            or _missing_dims(problem, shape)
            or _lists_of_tensors(name, args, known),
        )
    )


def _way_out(
    unknown_names: list[str],
    kwargs: Mapping[str, Any],
    known: list[str],
    shape: Shape | None,
) -> str:
    """Returns what to write in place of the first unknown argument; "" if there is none."""
    if not unknown_names:
        return ""
    unknown = unknown_names[0]
    if unknown in _KEEP:
        return (
            "Leave it out: dimensions match by name, so that a result without one fits the "
            "tensor that has it."
        )
    named = next((x for x in ("dims", "dim") if x in known), None)
    if unknown in _AXES and named is not None:
        example = dims_text(kwargs[unknown], shape)
        return f"Dimensions have names: write {named}={example}."
    similar = near_misses(unknown, known)
    return f"Did you mean {similar}?" if similar else ""


def _missing_dims(problem: str, shape: Shape | None) -> str:
    """Returns what to write if the names of dimensions are missing; else ""."""
    for argument in ("dims", "dim"):
        if (
            problem.startswith("missing")
            and problem.endswith(f"{argument!r}")
            and shape
        ):
            axes = -1 if argument == "dim" else list(range(len(shape)))
            return f"Name it: {argument}={dims_text(axes, shape)}."
    return ""


def _lists_of_tensors(name: str, args: tuple[Any, ...], known: list[str]) -> str:
    """Returns what to write if tensors are passed one by one, not in a list; else ""."""
    if len(args) <= len(known) or "xs" not in known[:1]:
        return ""
    equation = next((x for x in args if isinstance(x, str) and "->" in x), None)
    if equation is not None:
        return equation_way_out(equation, [x for x in args if x is not equation])
    example = ", ".join(["[x, y]", '"batch;d_ff"'][: len(known)])
    return f"Put the tensors in a list, and name dimensions: {name}({example})."


def equation_way_out(equation: str, xs: Iterable[Any]) -> str:
    """Returns what to write in place of an einsum with an equation of letters, such as
    "bd,de->be".

    Args:
      equation: the equation.
      xs: the tensors.
    """
    inputs, _, output = equation.partition("->")
    names: dict[str, str] = {}  # of the dimension that each letter stands for
    for letters, x in zip(inputs.replace(" ", "").split(","), xs):
        if _has_names(x):
            names.update(zip(letters, x.shape.names))
    result = ";".join(names.get(letter, letter) for letter in output.strip())
    return (
        "Dimensions have names, so only those of the result are written: "
        f'mtf.einsum([x, y], "{result}").'
    )


def dims_text(axes: Any, shape: Shape | None) -> str:
    """Returns the names of the dimensions with these indices, as they are written: '"batch"'
    or '"batch;d_model"'. Names stay as they are.

    Args:
      axes: an index, a name, or a sequence of them.
      shape: the shape of the tensor; None: there is none.
    """
    if isinstance(axes, str):
        return f'"{axes}"'
    if shape is None:
        return '"d_model"'
    indices = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    names = [_name_at(index, shape) for index in indices]
    if not all(name in shape for name in names):
        names = list(shape.names)
    return f'"{";".join(names)}"'


def _name_at(index: Any, shape: Shape) -> str:
    """Returns the name of the dimension at an index; "" if there is none. A name stays as it
    is.
    """
    if isinstance(index, int):
        is_in_range = -len(shape) <= index < len(shape)
        return shape.names[index] if is_in_range else ""
    return str(index)


def _has_names(x: Any) -> bool:
    """Returns whether x is a tensor or variable of meshtf."""
    return isinstance(getattr(x, "shape", None), Shape)


def _declaration(parameter: inspect.Parameter) -> str:
    """Returns a parameter as text without its type, such as "name=None"."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))
