"""Checks and conversions of arguments of public functions.

    rate = as_float("rate", rate)
    dim = as_dim("dim", dim)              # a name, or the name of a `Dimension`

Each function takes the name and the value of an argument, and returns the converted value
or raises ArgumentError. The error shows the argument, its value, what the argument takes,
the user's line, and what to write instead.

>>> from meshtf.names.arguments import as_int
>>> as_int("microbatches", "four")
Traceback (most recent call last):
meshtf.errors.ArgumentError: the argument "microbatches" takes an integer, not the str
'four'.
...
"""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, SupportsFloat

from meshtf.errors import ArgumentError, MeshtfError, explain_error, near_misses
from meshtf.names.dimension import Dimension
from meshtf.names.source import Source

_BOOL = "True or False"
_NUMBER = "a number"
_BYTES_OF_UNITS = {
    "": 1,
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def refuse(
    name: str,
    value: object,
    takes: str,
    way_out: str = "",
    error: type[MeshtfError] = ArgumentError,
) -> NoReturn:
    """Raises an error that shows the value of an argument and what the argument takes.

    Args:
      name: the name of the argument.
      value: the value of the argument.
      takes: what the argument takes, such as "an integer".
      way_out: a sentence that says what to write instead; "" for none.
      error: the class of the error.
    """
    raise error(
        explain_error(
            f'the argument "{name}" takes {takes}, not {described(value)}.',
            source=Source.of_caller(),
            way_out=way_out,
        )
    )


def described(value: object) -> str:
    """Returns a short description of a value, such as "the str 'four'" or, for an array,
    "a ndarray of float32 [8, 4]".
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = list(value.shape) if isinstance(value.shape, tuple) else value.shape
        return f"a {kind} of {value.dtype} {shape!r}"
    return f"the {kind} {reprlib.repr(value)}"


def as_int(name: str, value: Any, least: int | None = None) -> int:
    """Returns an integer of Python or NumPy as a Python int. Raises ArgumentError.

    Args:
      name: the name of the argument.
      value: the value of the argument.
      least: the smallest allowed integer; None: any integer.
    """
    if isinstance(value, bool):
        refuse(name, value, "an integer")
    try:
        integer = operator.index(value)
    except TypeError:
        refuse(name, value, "an integer")
    if least is not None and integer < least:
        refuse(name, value, f"an integer of at least {least}")
    return integer


def as_float(name: str, value: Any, takes: str = _NUMBER) -> float:
    """Returns a real number of Python or NumPy as a Python number. Raises ArgumentError."""
    if type(value) is float or type(value) is int:
        return value
    is_number = isinstance(value, SupportsFloat) and not isinstance(
        value, (bool, str, bytes)
    )
    is_scalar = getattr(value, "shape", ()) == ()
    is_tensor = hasattr(value, "spec")  # a tensor or variable of meshtf
    if is_number and is_scalar and not is_tensor:
        return value.item() if hasattr(value, "item") else float(value)
    refuse(name, value, takes)


def as_bytes(name: str, value: Any) -> float:
    """Returns a positive number of bytes; the value is a number, or text such as "40GiB" or
    "80 GB". Raises ArgumentError.
    """
    takes = 'bytes: a positive number, or text such as "40GiB" or "80GB"'
    if not isinstance(value, str):
        amount = as_float(name, value, takes)
    else:
        match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([a-zA-Z]*)\s*", value)
        if match is None or match[2] not in _BYTES_OF_UNITS:
            refuse(name, value, takes)
        digits, unit = match.groups()
        amount = float(digits) * _BYTES_OF_UNITS[unit]
    if not amount > 0:
        refuse(name, value, takes)
    return amount


def as_number(name: str, value: Any) -> bool | int | float | complex:
    """Returns a real or complex number or a boolean, of Python or NumPy, as a Python value.
    Raises ArgumentError.
    """
    if isinstance(value, (bool, int, float, complex)):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    refuse(name, value, _NUMBER)


def as_bool(name: str, value: Any) -> bool:
    """Returns a boolean of Python or NumPy as a Python bool. Raises ArgumentError."""
    if value is True or value is False:
        return value
    # NumPy's class is `bool_` or, from NumPy 2 on, `bool`.
    is_numpy_bool = type(value).__name__ in ("bool_", "bool")
    if is_numpy_bool and getattr(value, "shape", None) == ():
        return bool(value)
    refuse(name, value, _BOOL)


def check_floats(**values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are real numbers."""
    for name, value in values.items():
        as_float(name, value)


def check_fractions(**values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are real numbers in [0, 1)."""
    for name, value in values.items():
        if not 0 <= as_float(name, value) < 1:
            refuse(name, value, "a number from 0 to below 1")


def check_ints(**values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are integers."""
    for name, value in values.items():
        as_int(name, value)


def check_bools(**values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are booleans."""
    for name, value in values.items():
        as_bool(name, value)


def check_callables(**values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are callable or None."""
    for name, value in values.items():
        if value is not None:
            as_callable(name, value)


def as_text(name: str, value: Any, takes: str = "a string") -> str:
    """Returns a string. Raises ArgumentError."""
    if not isinstance(value, str):
        refuse(name, value, takes)
    return value


def as_dim(name: str, value: Any, shape: object = "") -> str:
    """Returns the name of a dimension: a string, or the name of a `Dimension`.

    Args:
      name: the name of the argument.
      value: the value of the argument.
      shape: the shape of the tensor, for the error; "": there is no tensor.

    Raises:
      ArgumentError: the value is neither a string nor a `Dimension`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Dimension):
        return value.name
    if shape:
        way_out = not_indices(shape)
    else:
        way_out = 'Write a name, such as "d_model".'
    refuse(name, value, takes="the name of a dimension", way_out=way_out)


def not_indices(shape: object) -> str:
    """Returns the way out for an index in place of a name."""
    return f"Dimensions have names, not indices: the shape is {shape!r}."


def as_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Returns a string that must be one of the choices. Raises ArgumentError."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return value
    similar = near_misses(value, choices) if isinstance(value, str) else ""
    refuse(
        name,
        value,
        takes="one of " + ", ".join(map(repr, choices)),
        way_out=f"Did you mean {similar}?" if similar else "",
    )


def as_callable(name: str, value: Any, takes: str = "a function") -> Callable[..., Any]:
    """Returns a callable. Raises ArgumentError."""
    if not callable(value):
        refuse(name, value, takes)
    return value


def as_sequence(name: str, value: Any, takes: str) -> Sequence[Any]:
    """Returns a list or a tuple unchanged, and any other iterable as a list. Raises
    ArgumentError for strings, mappings and arrays.
    """
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (str, bytes, Mapping)) or hasattr(value, "dtype"):
        refuse(name, value, takes, way_out="Put it in a list: [...].")
    if not isinstance(value, Iterable):
        refuse(name, value, takes)
    return list(value)


def check_record(kind: type, **values: Any) -> None:
    """Raises ArgumentError unless all keyword arguments are instances of a class."""
    for name, value in values.items():
        if not isinstance(value, kind):
            refuse(name, value, f"a {kind.__name__}")


def as_numbers(name: str, value: Any, takes: str) -> Sequence[Any]:
    """Returns a sequence of real numbers; a NumPy array `[n]` becomes a list. Raises
    ArgumentError.
    """
    if hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1:
        sequence = value.tolist()
    else:
        sequence = as_sequence(name, value, takes)
    for item in sequence:
        as_float(name, item)
    return sequence


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
