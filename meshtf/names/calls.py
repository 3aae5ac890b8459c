"""Errors for constructor calls with missing, unknown or too many arguments.

    @explain_wrong_calls
    def __init__(self, mesh, shape, initializer): ...

The error shows the user's line and the parameters; Python's TypeError shows neither.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshtf.errors import ArgumentError, explain_error, near_misses
from meshtf.names.source import Source

F = TypeVar("F", bound=Callable[..., Any])


def explain_wrong_calls(init: F) -> F:
    """Returns a constructor that raises ArgumentError if a call does not match its
    signature.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            check_call(init, self, args=args, kwargs=kwargs, error=error)
            raise

    return __init__  # type: ignore[return-value]


def check_call(
    init: Callable[..., Any],
    instance: object,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> None:
    """Raises ArgumentError if arguments do not match the signature of a constructor; does
    nothing if they do, as the TypeError then has another reason.

    Args:
      init: the constructor.
      instance: the object that the constructor initializes.
      args: the positional arguments, without the instance.
      kwargs: the keyword arguments.
      error: the error that the call raised.
    """
    signature = inspect.signature(init)
    try:
        signature.bind(instance, *args, **kwargs)
    except TypeError as mismatch:
        _self, *parameters = signature.parameters.values()
        names = [parameter.name for parameter in parameters]
        unknown_names = [name for name in kwargs if name not in names]
        similar = near_misses(unknown_names[0], names) if unknown_names else ""
        raise ArgumentError(
            explain_error(
                f"{type(instance).__name__}: {mismatch}.",
                takes=", ".join(map(_declaration, parameters)),
                source=Source.of_caller(),
                way_out=f"Did you mean {similar}?" if similar else "",
            )
        ) from error


def _declaration(parameter: inspect.Parameter) -> str:
    """Returns a parameter as text without its type, such as "name=None"."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))
