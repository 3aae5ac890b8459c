"""Frozen dataclasses by inheritance, each made one when its first object is made.

    class Scale(Frozen):
      by: float

    Scale(2.0) == Scale(by=2.0)

Python compiles six methods for a dataclass. meshtf has a hundred classes of ops and a
program uses a few: made at once, they would take much of the time of importing meshtf.
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
        """Tells type checkers that subclasses are dataclasses; Python 3.10 has none."""
        return lambda cls: cls


_made: set[type] = set()
_modules: dict[type, Any] = {}  # of each class, whose names its annotations use
_making = threading.Lock()


def _as_value(name: str, value: Any) -> Any:
    return (
        value if isinstance(value, bool) else as_float(name, value)
    )  # of a tensor of bool


# What is checked of attributes: those of plain types, as annotations name these.
_plain: dict[type, tuple[tuple[str, str], ...]] = {}
_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_CONVERT: dict[str, Callable[[str, Any], Any]] = {
    "str": as_text,
    "int": as_int,
    "float": _as_value,
    "bool": as_bool,
}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Frozen:
    """Base of classes that are frozen dataclasses; one that is decorated as one stays
    as it is.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _modules[cls] = sys.modules.get(cls.__module__)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns an object without attributes, of a class that is a dataclass."""
        if cls not in _made:
            with _making:
                _make(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuses what is no string, integer, number or truth value where a field says
        so; NumPy's become Python's."""
        attributes = self.__dict__
        for name, kind in _plain[type(self)]:
            value = attributes[name]
            if type(value) is not _TYPES[kind]:
                object.__setattr__(self, name, _CONVERT[kind](name, value))


def _make(cls: type) -> None:
    """Makes a class and its bases dataclasses, bases first, whose fields it
    inherits.
    """
    for base in reversed(cls.__mro__):
        if issubclass(base, Frozen) and base is not Frozen and base not in _made:
            if "__dataclass_fields__" not in vars(base):
                with _present(base):
                    dataclasses.dataclass(frozen=True)(base)
            fields: Any = dataclasses.fields(base)  # type: ignore[arg-type]
            _plain[base] = tuple((f.name, f.type) for f in fields if f.type in _CONVERT)
            _made.add(base)


@contextlib.contextmanager
def _present(cls: type) -> Iterator[None]:
    """Has a class's module among those that are imported, as when the class was made:
    what `runpy.run_path` runs is not."""
    name, now = cls.__module__, sys.modules.get(cls.__module__)
    sys.modules[name] = _modules[cls]
    try:
        yield
    finally:
        if now is None:
            del sys.modules[name]
        else:
            sys.modules[name] = now
