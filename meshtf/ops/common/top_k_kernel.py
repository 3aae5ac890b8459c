"""The k largest elements along the last axis, in the same order with and without XLA.

values, indices = largest(context, x, 3)             # one device: both [..., 3]
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.graph import LocalContext


def largest(context: LocalContext, x: Any, k: int) -> tuple[Any, Any]:
    """Returns the k largest elements along the last axis of x, the largest first, and their
    indices, of which the lowest comes first among equal elements.
    """
    if not context.compiled or not x.dtype.is_floating:
        values, indices = tf.math.top_k(x, k)
        return values, indices
    # XLA puts 0.0 before -0.0, which are equal.
    zero = tf.zeros([], x.dtype)
    _, indices = tf.math.top_k(tf.where(tf.equal(x, zero), zero, x), k)
    return tf.gather(x, indices, batch_dims=len(x.shape) - 1), indices
