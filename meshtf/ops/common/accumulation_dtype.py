"""The data type in which half floats are added up."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.names import wide


def widen(x: Any) -> Any:
    """Returns a TensorFlow tensor in the type of statistics."""
    return tf.cast(x, wide(x.dtype.name))
