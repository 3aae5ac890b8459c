"""Checks values bound in gin against the annotations of the parameters.

    fits("four", int)                   # False
    described(int | None)               # "an integer or None"

References are checked as far as possible without a call. What cannot be checked fits.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from gin.config import ConfigurableReference

_SIMPLE: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
}
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    types.NoneType: "None",
}
_UNIONS = (typing.Union, types.UnionType)


def fits(value: Any, hint: Any) -> bool:
    """Returns whether a value fits an annotation."""
    if isinstance(value, ConfigurableReference):
        return _reference_fits(value, hint)
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, alternative) for alternative in inner)
    if hint in _SIMPLE:
        if hint is bool:
            return isinstance(value, (bool, int)) and value in (0, 1)
        return isinstance(value, _SIMPLE[hint]) and not isinstance(value, bool)
    if hint in (None, types.NoneType):
        return value is None
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return (
            _is_list(value)
            and len(value) == len(inner)
            and all(map(fits, value, inner))
        )
    if origin in (tuple, list, collections.abc.Sequence):
        return _is_list(value) and all(fits(element, inner[0]) for element in value)
    if origin is collections.abc.Callable:
        return callable(value)
    return _is_instance(value, origin or hint)


def described(hint: Any) -> str:
    """Returns an annotation in words."""
    if typing.get_origin(hint) in _UNIONS:
        return " or ".join(map(described, typing.get_args(hint)))
    if hint in _WORDS:
        return _WORDS[hint]
    if typing.get_origin(hint) is collections.abc.Callable:
        return "a function or class, as in @name without brackets,"
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is not Ellipsis:
        return f"({', '.join(map(described, typing.get_args(hint)))})"
    if _is_class(hint):
        return f"a {hint.__name__}, as in @name() with brackets,"
    return str(hint).replace("collections.abc.", "")


def _reference_fits(reference: ConfigurableReference, hint: Any) -> bool:
    """Returns whether a reference, `@name` or `@name()`, fits an annotation."""
    alternatives = [one for one in _alternatives(hint) if one is not types.NoneType]
    target = reference.configurable.wrapped
    if not reference.evaluate:
        return not all(one in _SIMPLE or _is_class(one) for one in alternatives)
    value_type = target if inspect.isclass(target) else result(target)
    if all(one in _SIMPLE for one in alternatives):
        of_class = inspect.isclass(value_type) and value_type not in _SIMPLE
        return not (
            of_class or typing.get_origin(value_type) is collections.abc.Callable
        )
    # `@name()`, an object, where `@name`, a function that returns such objects, is expected.
    return_types = [
        typing.get_args(one)[-1]
        for one in alternatives
        if typing.get_origin(one) is collections.abc.Callable and typing.get_args(one)
    ]
    return not (
        return_types
        and len(return_types) == len(alternatives)
        and inspect.isclass(value_type)
        and any(
            inspect.isclass(kind) and issubclass(value_type, kind)
            for kind in return_types
        )
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)


def _is_class(hint: Any) -> bool:
    """Returns whether a hint is a class whose objects are not callable."""
    return (
        inspect.isclass(hint)
        and typing.get_origin(hint) is None
        and "__call__" not in vars(hint)
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_instance(value: Any, kind: Any) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # `Any`, and other hints that isinstance does not accept
        return True


def result(function: Callable[..., Any]) -> Any:
    """Returns the return annotation of a function, or None."""
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
