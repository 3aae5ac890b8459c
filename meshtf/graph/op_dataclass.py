"""`Frozen`: a base class whose subclasses become frozen dataclasses when they are first
instantiated.

    class Scale(Frozen):
      by: float

    Scale(2.0) == Scale(by=2.0)

Python compiles six methods for each dataclass. meshtf has about a hundred classes of ops,
and a program uses few of them: compiling all of them would take much of the time of
`import meshtf`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from meshtf.names.arguments import as_bool, as_float, as_int, as_text
from meshtf.names.nested import exact

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:

    def dataclass_transform(**kwargs: Any) -> Any:
        """Declares to type checkers that subclasses are dataclasses: for Python 3.10."""
        return lambda cls: cls


_dataclasses: set[type] = set()  # the classes that were made dataclasses so far
# Class -> its module, in which `dataclasses` looks up the names in annotations.
_modules: dict[type, Any] = {}
_lock = threading.Lock()


def _as_float_or_bool(name: str, value: Any) -> Any:
    """Returns a number as a float, and a boolean unchanged: a field of type float may be,
    for example, the value that pads a tensor, which may have the dtype bool.
    """
    if isinstance(value, bool):
        return value
    return as_float(name, value)


_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
# Class -> (name, annotation) of each field whose annotation is one of `_TYPES`.
_checked_fields: dict[type, tuple[tuple[str, str], ...]] = {}
# Annotation -> the function (name, value) -> value that checks and converts a value.
_CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "str": as_text,
    "int": as_int,
    "float": _as_float_or_bool,
    "bool": as_bool,
}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Frozen:
    """Base of classes that become frozen dataclasses; a class that is decorated as a
    dataclass stays as it is.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _modules[cls] = sys.modules.get(cls.__module__)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a new instance. Before the first one, makes the class a dataclass."""
        if cls not in _dataclasses:
            with _lock:
                _make_dataclass(cls)
        return super().__new__(cls)

    @functools.cached_property
    def _exact_fields(self) -> tuple[Any, ...]:
        """The values of all fields, which `_equal` compares."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        return tuple(exact(getattr(self, field.name)) for field in fields)

    def __post_init__(self) -> None:
        """Converts the values of fields of type str, int, float and bool to these types,
        such as NumPy scalars.

        Raises:
          ArgumentError: a value cannot be converted.
        """
        attributes = self.__dict__
        for name, annotation in _checked_fields[type(self)]:
            value = attributes[name]
            if type(value) is not _TYPES[annotation]:
                converted = _CONVERTERS[annotation](name, value)
                object.__setattr__(self, name, converted)  # the instance is frozen


def _make_dataclass(cls: type) -> None:
    """Makes a class and its bases dataclasses. The bases come first, since a dataclass
    inherits the fields of its bases.
    """
    for base in reversed(cls.__mro__):
        if not issubclass(base, Frozen) or base is Frozen or base in _dataclasses:
            continue
        has_decorator = "__dataclass_fields__" in vars(base)
        if not has_decorator:
            with _module_imported(base):
                dataclasses.dataclass(frozen=True, eq=False)(base)
                _add_comparison(base)
        fields: Any = dataclasses.fields(base)  # type: ignore[arg-type]
        # `field.type` is text in modules with `from __future__ import annotations`, which all
        # of meshtf's have; in others it is a class, and the field is not converted.
        checked = [
            (field.name, field.type) for field in fields if field.type in _CONVERTERS
        ]
        _checked_fields[base] = tuple(checked)
        _dataclasses.add(base)


def _add_comparison(cls: Any) -> None:
    """Gives a class `__eq__` and `__hash__`, unless it has its own."""
    if "__eq__" not in vars(cls):
        cls.__eq__ = _equal
        cls.__hash__ = _hash


def _equal(x: Frozen, y: object) -> bool:
    """Returns whether both are of one class and have the same fields. Caches of programs take
    equal ops for the same, so 0.0 and -0.0 differ, and so do 1, 1.0 and True.
    """
    if not isinstance(y, Frozen) or type(y) is not type(x):
        return NotImplemented
    return x._exact_fields == y._exact_fields


def _hash(x: Frozen) -> int:
    """Returns a number that is the same for equal objects."""
    return hash(x._exact_fields)


@contextlib.contextmanager
def _module_imported(cls: type) -> Iterator[None]:
    """Puts the module of a class into `sys.modules` for a `with` block, since `dataclasses`
    looks for it there.

    It may be absent: `runpy.run_path` removes the module that it has run.
    """
    name = cls.__module__
    previous = sys.modules.get(name)
    sys.modules[name] = _modules[cls]
    try:
        yield
    finally:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
