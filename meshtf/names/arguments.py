"""Arguments of public functions: each is converted, or refused with the line that gave
it.

    rate = as_float("rate", rate)
    dim = as_dim("dim", dim)              # a name, or a dimension whose name counts

A refusal names the argument, what came, what is taken, the user's line, and the way
out.

>>> from meshtf.names.arguments import as_int
>>> as_int("microbatches", "four")
Traceback (most recent call last):
meshtf.errors.ArgumentError: the argument "microbatches" takes an integer, not the str
'four'.
...
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, SupportsFloat

from meshtf.errors import ArgumentError, MeshtfError, explain_error, near_misses
from meshtf.names.dimension import Dimension
from meshtf.names.source import Source

_BOOL, _NUMBER = "True or False", "a number"


def refuse(
    name: str,
    value: object,
    takes: str,
    way_out: str = "",
    error: type[MeshtfError] = ArgumentError,
) -> NoReturn:
    """Raises an error that says what an argument got, and what it takes."""
    raise error(
        explain_error(
            f'the argument "{name}" takes {takes}, not {described(value)}.',
            **{"from": Source.of_caller()},
            way_out=way_out,
        )
    )


def described(value: object) -> str:
    """Returns a value in few words: its type, and what it is if that is short."""
    if value is None or isinstance(value, bool):
        return repr(value)
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = list(value.shape) if isinstance(value.shape, tuple) else value.shape
        return f"a {kind} of {value.dtype} {shape!r}"
    return f"the {kind} {reprlib.repr(value)}"


def as_int(name: str, value: Any, least: int | None = None) -> int:
    """Returns an integer, which NumPy may have made. Raises ArgumentError."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if least is not None and number < least:
                refuse(name, value, f"an integer of at least {least}")
            return number
    refuse(name, value, "an integer")


def as_float(name: str, value: Any, takes: str = _NUMBER) -> float:
    """Returns a real number as it is, or as Python's where NumPy made it. Raises
    ArgumentError.
    """
    if type(value) is float or type(value) is int:
        return value
    if not isinstance(value, (bool, str, bytes)) and isinstance(value, SupportsFloat):
        if getattr(value, "shape", ()) == () and not hasattr(value, "spec"):
            return value.item() if hasattr(value, "item") else float(value)
    refuse(name, value, takes)


def as_number(name: str, value: Any) -> bool | int | float | complex:
    """Returns a number of any kind, Python's own where NumPy made it. Raises
    ArgumentError.
    """
    if isinstance(value, (bool, int, float, complex)):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    refuse(name, value, _NUMBER)


def as_bool(name: str, value: Any) -> bool:
    """Returns True or False, which NumPy may have made. Raises ArgumentError."""
    if value is True or value is False:
        return value
    if (
        type(value).__name__ in ("bool_", "bool")
        and getattr(value, "shape", None) == ()
    ):
        return bool(value)
    refuse(name, value, _BOOL)


def check_floats(**values: Any) -> None:
    """Refuses what is no real number, by the names of arguments. Raises
    ArgumentError.
    """
    for name, value in values.items():
        as_float(name, value)


def check_fractions(**values: Any) -> None:
    """Refuses what is no real number from 0 to below 1. Raises ArgumentError."""
    for name, value in values.items():
        if not 0 <= as_float(name, value) < 1:
            refuse(name, value, "a number from 0 to below 1")


def check_ints(**values: Any) -> None:
    """Refuses what is no integer, by the names of arguments. Raises ArgumentError."""
    for name, value in values.items():
        as_int(name, value)


def check_bools(**values: Any) -> None:
    """Refuses what is neither True nor False, by the names of arguments. Raises
    ArgumentError.
    """
    for name, value in values.items():
        as_bool(name, value)


def check_callables(**values: Any) -> None:
    """Refuses what can neither be called nor is None, by the names of arguments."""
    for name, value in values.items():
        if value is not None:
            as_callable(name, value)


def as_text(name: str, value: Any, takes: str = "a string") -> str:
    """Returns a string. Raises ArgumentError."""
    if not isinstance(value, str):
        refuse(name, value, takes)
    return value


def as_dim(name: str, value: Any, there: object = "") -> str:
    """Returns the name of a dimension: a string, or the name of a `Dimension`.

    Args:
      name: of the argument.
      value: what it got.
      there: the shape in which the dimension is looked for, which an error then shows.

    Raises:
      ArgumentError: it is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Dimension):
        return value.name
    refuse(
        name,
        value,
        "the name of a dimension",
        f"Dimensions go by name, not by number: there is {there!r}."
        if there
        else 'Write a name, such as "d_model".',
    )


def as_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Returns one of some strings. Raises ArgumentError."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    close = near_misses(value, known) if isinstance(value, str) else ""
    refuse(
        name,
        value,
        "one of " + ", ".join(map(repr, known)),
        f"Did you mean {close}?" if close else "",
    )


def as_callable(name: str, value: Any, takes: str = "a function") -> Callable[..., Any]:
    """Returns what can be called. Raises ArgumentError."""
    if not callable(value):
        refuse(name, value, takes)
    return value


def as_sequence(name: str, value: Any, takes: str) -> Sequence[Any]:
    """Returns a list or tuple, or a list of what another iterable gives. Raises
    ArgumentError.
    """
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (str, bytes, Mapping)) or hasattr(value, "dtype"):
        refuse(name, value, takes, "Put it in a list: [...].")
    if not isinstance(value, Iterable):
        refuse(name, value, takes)
    return list(value)


def check_record(kind: type, **values: Any) -> None:
    """Refuses what is not of a class, by the names of arguments. Raises
    ArgumentError.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            refuse(name, value, f"a {kind.__name__}")


def as_numbers(name: str, value: Any, takes: str) -> Sequence[Any]:
    """Returns a list of real numbers, or of those in an array of NumPy. Raises
    ArgumentError.
    """
    of_numpy = hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1
    numbers = value.tolist() if of_numpy else as_sequence(name, value, takes)
    for number in numbers:
        as_float(name, number)
    return numbers


def as_mapping(name: str, value: Any, takes: str) -> Mapping[Any, Any]:
    """Returns a dict or another mapping. Raises ArgumentError."""
    if not isinstance(value, Mapping):
        refuse(name, value, takes)
    return value


def as_path(name: str, value: Any) -> str:
    """Returns a path as a string. Raises ArgumentError."""
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return str(value.__fspath__())
    refuse(name, value, "a path")
