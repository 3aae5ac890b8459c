"""Functions of TensorFlow by name, for tables of kernels.

    KERNELS = {"exp": tf_function("exp"), "erf": tf_function("math.erf")}

A name is looked up at the first call, so that such a table does not need TensorFlow: commands
that only plan do not import it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf


@functools.cache
def tf_function(name: str) -> Callable[..., Any]:
    """Returns a function that calls a function of TensorFlow.

    Args:
      name: its public name without "tf.", such as "math.erf".
    """

    @functools.cache
    def kernel() -> Callable[..., Any]:
        """Returns the function of TensorFlow."""
        function: Callable[..., Any] = operator.attrgetter(name)(tf)
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel()(*args, **kwargs)

    call.__name__ = name.rpartition(".")[-1]
    return call
