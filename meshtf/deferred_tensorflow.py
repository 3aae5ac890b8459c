"""Commands that only plan do not import TensorFlow, which takes seconds.

    defer()                       # `import tensorflow as tf` imports nothing from now on
    tf.constant(1)                # imports TensorFlow

`python -m meshtf explain` and `search` call it. The modules of meshtf import TensorFlow as
usual, but read its attributes only in functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_NAME = "tensorflow"
_deferred = False


class _DeferredModule(ModuleType):
    """Stands for TensorFlow, and imports it when an attribute is read first.

    (`importlib.util.LazyLoader` would import it at the second `import` statement already,
    which reads the module's `__spec__`.)
    """

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), attribute)


def defer() -> None:
    """Defers the import of TensorFlow until an attribute of the module is read. Does nothing
    if TensorFlow is not installed, or imported already.
    """
    global _deferred
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is not None:
        module = _DeferredModule(_NAME)
        module.__spec__ = spec
        module.__file__ = spec.origin  # which `inspect` reads of all modules
        sys.modules[_NAME] = module
        _deferred = True


def is_deferred() -> bool:
    """Returns whether the import was deferred in this process."""
    return _deferred


def is_imported() -> bool:
    """Returns whether TensorFlow is imported, and no attribute of it would import it."""
    return not isinstance(sys.modules.get(_NAME), _DeferredModule)
