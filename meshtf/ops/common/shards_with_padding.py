"""Means along a dimension whose shards may end with padding, elements of undefined value.

    mean = mean_of_shard(context, "d", x, axis=1)         # one device: [batch d] -> [batch 1]
    means = gathered                                      # of all shards: [shards batch 1]
    global_mean = mean_over_shards(context, "d", means)   # [batch 1]

Where no shard has padding, these are the means of TensorFlow.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.ops.common.trace_cache import constant


def zero_padding(context: LocalContext, dim: str, x: Any, axis: int) -> Any:
    """Returns x with zeros in its padding.

    Args:
      context: the shard.
      dim: the dimension.
      x: a tensor of this device.
      axis: the axis of `dim` in x.
    """
    if not context.is_padded(dim):
        return x
    sizes = [1] * len(x.shape)
    sizes[axis] = int(x.shape[axis])
    is_element = tf.range(sizes[axis]) < context.num_elements(dim)
    return tf.where(tf.reshape(is_element, sizes), x, tf.zeros([], x.dtype))


def mean_of_shard(context: LocalContext, dim: str, x: Any, axis: int) -> Any:
    """Returns the mean of this device's elements along `dim`, which stays with size 1; 0 if
    the device has none. The arguments are those of `zero_padding`.
    """
    if not context.is_padded(dim):
        return tf.reduce_mean(x, constant(axis), keepdims=True)
    total = tf.reduce_sum(zero_padding(context, dim, x, axis), axis, keepdims=True)
    return total / tf.cast(tf.maximum(context.num_elements(dim), 1), x.dtype)


def mean_over_shards(context: LocalContext, dim: str, means: Any) -> Any:
    """Returns the mean of the means of all shards, which count by their elements.

    Args:
      context: the shard.
      dim: the dimension along which the means were computed.
      means: the mean of each shard, [shards, ...].
    """
    if not context.is_padded(dim):
        return tf.reduce_mean(means, axis=0)
    global_size = context.global_size(dim)
    weights = [count / global_size for count in context.elements_of_shards(dim)]
    sizes = [len(weights)] + [1] * (len(means.shape) - 1)
    return tf.reduce_sum(means * tf.constant(weights, means.dtype, sizes), axis=0)
