"""Private modules of TensorFlow, which are imported when they are used first."""

from __future__ import annotations

import importlib
from typing import Any


class PrivateModule:
    """A private module of TensorFlow: `PrivateModule("tensorflow.python.eager.context")`.

    Commands that only plan import this folder, and do not need TensorFlow.

    Args:
      name: the name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # the next time it is found without this method
        return value
