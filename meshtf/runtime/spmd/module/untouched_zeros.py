"""Zeros that take no memory, for lowering: TensorFlow wants tensors of the arguments' shapes,
but never reads them.

    x = untouched_zeros([30522, 4096], "float32")    # half a gigabyte of address space

The operating system gives a process memory for a new mapping when it is first touched. This
leaves it untouched, and TensorFlow shares it by DLPack. NumPy's zeros may be blocks that were
freed before, and so get cleared, where `configure_process` keeps freed memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Private, not shared with other processes, where the operating system tells these apart.
_PRIVATE = {}
if hasattr(mmap, "MAP_PRIVATE"):
    _PRIVATE["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
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
    mapping = mmap.mmap(-1, max(num_bytes, 1), **_PRIVATE)
    zeros = np.ndarray(sizes, _UNSIGNED[tf_dtype.size], buffer=mapping)
    tensor = tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())
    return tf.bitcast(tensor, tf_dtype)
