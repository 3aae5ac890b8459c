"""Checks values that gin binds against the annotations of parameters.

    fits("four", int)                   # False
    describe(int | None)                # "an integer or None"

A reference, `@name` or `@name()`, is checked as far as possible without calling it. A value
that cannot be checked fits.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from gin.config import ConfigurableReference

# Annotation of a plain value -> the types of values that fit it.
_PLAIN_TYPES: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
}
# Annotation -> its description in messages.
_DESCRIPTIONS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    types.NoneType: "None",
}
# The origins of `Union[int, str]` and of `int | str`.
_UNIONS = (typing.Union, types.UnionType)


def fits(value: Any, hint: Any) -> bool:
    """Returns whether a value fits an annotation.

    Args:
      value: a value that gin binds, perhaps a reference.
      hint: an annotation, as `typing.get_type_hints` returns it.
    """
    if isinstance(value, ConfigurableReference):
        return _reference_fits(value, hint)
    # In `tuple[int, str]`, `tuple` is the origin, and `int` and `str` are the arguments.
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, alternative) for alternative in arguments)
    if hint is bool:
        return isinstance(value, (bool, int)) and value in (0, 1)
    if hint in _PLAIN_TYPES:
        # In Python a bool is an integer, too.
        return isinstance(value, _PLAIN_TYPES[hint]) and not isinstance(value, bool)
    if hint in (None, types.NoneType):
        return value is None
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        has_same_length = _is_list(value) and len(value) == len(arguments)
        return has_same_length and all(map(fits, value, arguments))
    if origin in (tuple, list, collections.abc.Sequence):
        return _is_list(value) and all(fits(element, arguments[0]) for element in value)
    if origin is collections.abc.Callable:
        return callable(value)
    return _is_instance(value, origin or hint)


def describe(hint: Any) -> str:
    """Returns an annotation in words, such as "an integer or None"."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(map(describe, arguments))
    if hint in _DESCRIPTIONS:
        return _DESCRIPTIONS[hint]
    if origin is collections.abc.Callable:
        return "a function or class, as in @name without brackets,"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"({', '.join(map(describe, arguments))})"
    if _is_class(hint):
        return f"a {hint.__name__}, as in @name() with brackets,"
    return str(hint).replace("collections.abc.", "")


def _reference_fits(reference: ConfigurableReference, hint: Any) -> bool:
    """Returns whether a reference, `@name` or `@name()`, fits an annotation."""
    alternatives = [
        alternative
        for alternative in _alternatives(hint)
        if alternative is not types.NoneType
    ]
    if not reference.evaluate:
        # `@name`: a function or class. It does not fit where only values or objects do.
        return not all(
            alternative in _PLAIN_TYPES or _is_class(alternative)
            for alternative in alternatives
        )
    # `@name()`: the result of a call.
    target = reference.configurable.wrapped
    if inspect.isclass(target):
        result_type = target
    else:
        result_type = return_annotation(target)
    if all(alternative in _PLAIN_TYPES for alternative in alternatives):
        is_object = inspect.isclass(result_type) and result_type not in _PLAIN_TYPES
        is_function = typing.get_origin(result_type) is collections.abc.Callable
        return not is_object and not is_function
    return not _has_extra_call(result_type, alternatives)


def _has_extra_call(result_type: Any, alternatives: list[Any]) -> bool:
    """Returns whether `@name()` is an object, but the annotation expects `@name`, a function
    or class that returns such objects: the brackets are a mistake.

    Args:
      result_type: the type of the object.
      alternatives: the members of the annotation, a union, without None.
    """
    callables = [
        alternative
        for alternative in alternatives
        if typing.get_origin(alternative) is collections.abc.Callable
        and typing.get_args(alternative)
    ]
    if not callables or len(callables) < len(alternatives):
        return False
    if not inspect.isclass(result_type):
        return False
    # The last argument of `Callable[[int], Model]` is the type that it returns.
    expected_types = [typing.get_args(alternative)[-1] for alternative in callables]
    return any(
        inspect.isclass(expected) and issubclass(result_type, expected)
        for expected in expected_types
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of another annotation only itself."""
    if typing.get_origin(hint) in _UNIONS:
        return typing.get_args(hint)
    return (hint,)


def _is_class(hint: Any) -> bool:
    """Returns whether a hint is a class whose objects are not callable."""
    return (
        inspect.isclass(hint)
        and typing.get_origin(hint) is None
        and "__call__" not in vars(hint)
    )


def _is_list(value: Any) -> bool:
    """Returns whether a value is a list or tuple."""
    return isinstance(value, (list, tuple))


def _is_instance(value: Any, hint: Any) -> bool:
    """Returns whether a value is an instance of an annotation; True if `isinstance` does
    not accept the annotation, such as `Any`.
    """
    try:
        return isinstance(value, hint)
    except TypeError:
        return True


def return_annotation(function: Callable[..., Any]) -> Any:
    """Returns the annotation of what a function returns; None if it has none, or if it
    cannot be resolved.
    """
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
