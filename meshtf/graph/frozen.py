"""Frozen dataclasses by inheritance, each made one when its first object is made.

    class Scale(Frozen):
      by: float

    Scale(2.0) == Scale(by=2.0)

Python compiles six methods for a dataclass. meshtf has a hundred classes of ops and a program uses
a few: made at once, they would take much of the time of importing meshtf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
  from typing import dataclass_transform
else:
  def dataclass_transform(**kwargs: Any) -> Any:
    """Tells type checkers that subclasses are dataclasses; Python 3.10 has none."""
    return lambda cls: cls

_made: set[type] = set()
_modules: dict[type, Any] = {}      # of each class, whose names its annotations use
_making = threading.Lock()


@dataclass_transform(frozen_default=True)
class Frozen:
  """Base of classes that are frozen dataclasses; one that is decorated as one stays as it is."""

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    _modules[cls] = sys.modules.get(cls.__module__)

  def __new__(cls, *args: Any, **kwargs: Any) -> Any:
    """Returns an object without attributes, of a class that is a dataclass."""
    if cls not in _made:
      with _making:
        _make(cls)
    return super().__new__(cls)


def _make(cls: type) -> None:
  """Makes a class and its bases dataclasses, bases first, whose fields it inherits."""
  for base in reversed(cls.__mro__):
    if issubclass(base, Frozen) and base is not Frozen and base not in _made:
      if "__dataclass_fields__" not in vars(base):
        with _present(base):
          dataclasses.dataclass(frozen=True)(base)
      _made.add(base)


@contextlib.contextmanager
def _present(cls: type) -> Iterator[None]:
  """Has a class's module among those that are imported, as when the class was made: what
  `runpy.run_path` runs is not."""
  name, now = cls.__module__, sys.modules.get(cls.__module__)
  sys.modules[name] = _modules[cls]
  try:
    yield
  finally:
    if now is None:
      del sys.modules[name]
    else:
      sys.modules[name] = now
