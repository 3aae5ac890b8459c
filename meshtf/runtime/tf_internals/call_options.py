"""Calls of functions with a session configuration of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.trackable.base import Trackable as Trackable


@functools.cache
def _options(config: bytes) -> Any:
    return context.FunctionCallOptions(
        config_proto=tf.compat.v1.ConfigProto.FromString(config)
    )


def call_with(config: bytes, function: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a concrete function, each on the device that made it.

    Called by the raw op, a function brings all of them home to the first CPU.
    """
    eager = context.context()
    before = eager.function_call_options
    eager.function_call_options = _options(config)
    try:
        return list(function(*args))
    finally:
        eager.function_call_options = before
