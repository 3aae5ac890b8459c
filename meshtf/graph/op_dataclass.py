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
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from meshtf.names.arguments import as_bool, as_float, as_int, as_text

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:

    def dataclass_transform(**kwargs: Any) -> Any:
        """Declares to type checkers that subclasses are dataclasses: for Python 3.10."""
        return lambda cls: cls


_generated: set[type] = set()  # the classes that were made dataclasses so far
# Class -> its module, in which `dataclasses` looks up the names in annotations.
_modules: dict[type, Any] = {}
_lock = threading.Lock()


def _as_float_or_bool(name: str, value: Any) -> Any:
    """Returns a float; or a boolean unchanged, such as the value that pads a boolean
    tensor.
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
        if cls not in _generated:
            with _lock:
                _generate(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Converts the values of fields of type str, int, float and bool to these types,
        such as NumPy scalars.

        Raises:
          ArgumentError: a value cannot be converted.
        """
        attributes = self.__dict__
        for name, kind in _checked_fields[type(self)]:
            value = attributes[name]
            if type(value) is not _TYPES[kind]:
                object.__setattr__(self, name, _CONVERTERS[kind](name, value))


def _generate(cls: type) -> None:
    """Makes a class and its bases dataclasses. The bases come first, since a dataclass
    inherits the fields of its bases.
    """
    for base in reversed(cls.__mro__):
        if not issubclass(base, Frozen) or base is Frozen or base in _generated:
            continue
        if "__dataclass_fields__" not in vars(base):
            with _module_imported(base):
                dataclasses.dataclass(frozen=True)(base)
        fields: Any = dataclasses.fields(base)  # type: ignore[arg-type]
        checked = [(f.name, f.type) for f in fields if f.type in _CONVERTERS]
        _checked_fields[base] = tuple(checked)
        _generated.add(base)


@contextlib.contextmanager
def _module_imported(cls: type) -> Iterator[None]:
    """Puts the module of a class into `sys.modules`, where `dataclasses` looks for it.

    It may be absent: `runpy.run_path` removes the module that it has run.
    """
    name = cls.__module__
    current = sys.modules.get(name)
    sys.modules[name] = _modules[cls]
    try:
        yield
    finally:
        if current is None:
            del sys.modules[name]
        else:
            sys.modules[name] = current
