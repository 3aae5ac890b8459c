"""Zeros that take no memory, for lowering: TensorFlow wants tensors of the arguments' shapes,
but never reads them.

    x = untouched_zeros([30522, 4096], "float32")    # half a gigabyte of address space

The operating system gives a process memory for new zeros when they are first touched. NumPy
leaves them untouched, and TensorFlow shares NumPy's memory by DLPack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNMENT = 64  # bytes, of TensorFlow's tensors
# The NumPy types that DLPack knows and TensorFlow's Bitcast takes, by bytes of an element.
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def untouched_zeros(sizes: Sequence[int], dtype: str) -> Any:
    """Returns zeros as a tensor on the CPU. Nothing may write to it.

    Args:
      sizes: the shape.
      dtype: the data type.
    """
    tf_dtype = tf.as_dtype(dtype)
    if tf_dtype == tf.bool or tf_dtype.size not in _UNSIGNED:  # Bitcast takes no bool
        return tf.zeros(sizes, tf_dtype)
    num_bytes = math.prod(sizes) * tf_dtype.size
    buffer = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    zeros = buffer[start : start + num_bytes].view(_UNSIGNED[tf_dtype.size])
    tensor = tf.experimental.dlpack.from_dlpack(zeros.reshape(sizes).__dlpack__())
    return tf.bitcast(tensor, tf_dtype)
