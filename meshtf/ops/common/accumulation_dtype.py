"""The data type in which float16 and bfloat16 are accumulated: float32.

total = tf.reduce_sum(widen(x))        # in bfloat16, a sum of ones would stop at 256
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.names import accumulation_dtype


def widen(x: Any) -> Any:
    """Returns the TensorFlow tensor x, cast to float32 if it is float16 or bfloat16."""
    return tf.cast(x, accumulation_dtype(x.dtype.name))
