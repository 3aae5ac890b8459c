"""Computations of one device for `cross_entropy` with integer labels, the indices of classes.

The dimension of classes may be sharded, so labels may lie in the shard of another device.

local_labels = to_local_labels(labels, context, "vocab")        # [batch]
label_logits = logits_at_labels(logits, local_labels, axis=1)   # [batch], 0 in other shards
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.names import Shape
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.local_reshape import reshape
from meshtf.ops.shapes.reshape import arrange


def arrange_labels(labels: Any, labels_shape: Shape, shape: Shape) -> Any:
    """Returns labels as int32, with the dimensions in the order of `shape`.

    Args:
      labels: the labels, a TensorFlow tensor.
      labels_shape: the named shape of the labels.
      shape: a shape with the same names.
    """
    return arrange(tf.cast(labels, tf.int32), labels_shape.names, shape.names)


def to_local_labels(labels: Any, context: LocalContext, dim: str) -> Any:
    """Returns labels relative to the start of the local shard of `dim`, which are negative or
    too large for labels of other shards.
    """
    if context.num_shards(dim) == 1:
        return labels
    local_labels = labels - context.shard_offset(dim)
    if not context.is_padded(dim):
        return local_labels
    # The padding of a shard may have the indices of the next shard's elements.
    return tf.where(local_labels < context.num_elements(dim), local_labels, -1)


def logits_at_labels(logits: Any, local_labels: Any, axis: int) -> Any:
    """Returns the logit of each label, [*batch]; 0 if the label lies in another shard.

    Args:
      logits: the local shard, [*batch] with the classes inserted at `axis`.
      local_labels: labels relative to the start of the shard, [*batch].
      axis: the axis of the classes.
    """
    size = logits.shape[axis]
    if axis == len(logits.shape) - 1:
        is_local = (local_labels >= 0) & (local_labels < size)
        indices = tf.where(is_local, local_labels, 0)
        label_logits = widen(tf.gather(logits, indices, batch_dims=axis))
        return tf.where(is_local, label_logits, tf.zeros([], label_logits.dtype))
    # tf.gather would transpose the logits.
    one_hot = tf.one_hot(
        local_labels, size, on_value=True, off_value=False, axis=axis, dtype=tf.bool
    )
    logits = widen(logits)
    return tf.reduce_sum(tf.where(one_hot, logits, tf.zeros([], logits.dtype)), axis)


def mask_invalid(loss: Any, labels: Any, context: LocalContext, dim: str) -> Any:
    """Returns the loss, or its cotangent, with 0 for negative labels. Under XLA, which
    cannot raise errors, it is NaN for labels that are too large.

    Args:
      loss: the loss or its cotangent, [*batch].
      labels: the global labels, [*batch].
      context: the shard; says whether XLA compiles the program.
      dim: the dimension of classes.
    """
    loss = tf.where(labels < 0, tf.zeros([], loss.dtype), loss)
    if not context.compiled:
        return loss
    is_valid = labels < context.global_size(dim)
    return tf.where(is_valid, loss, tf.constant(math.nan, loss.dtype))


def subtract_at(x: Any, local_labels: Any, amount: Any, context: LocalContext) -> Any:
    """Returns x [*batch, size] with `amount` subtracted at the labels.

    Args:
      x: the tensor, [*batch, size].
      local_labels: the indices along the last axis, [*batch]. Nothing is subtracted for a
        label that lies in another shard, and so is out of range.
      amount: the numbers to subtract, [*batch].
      context: the shard; says whether XLA compiles the program.
    """
    size = x.shape[-1]
    if context.compiled:
        # One kernel with what computes x and reads the result: a scatter would write both.
        is_label = tf.range(size, dtype=local_labels.dtype) == local_labels[..., None]
        return tf.where(is_label, x - amount[..., None], x)
    batch_size = local_labels.shape.num_elements()
    is_local = (local_labels >= 0) & (local_labels < size)
    last_index = reshape(tf.where(is_local, local_labels, 0), [batch_size])
    amount = tf.where(is_local, amount, tf.zeros([], amount.dtype))
    amount = reshape(amount, [batch_size])
    batch_index = tf.range(batch_size, dtype=last_index.dtype)
    indices = tf.stack([batch_index, last_index], axis=1)
    # It works in place if x is not used again, while tensor_scatter_nd_sub copies x.
    y = tf.raw_ops.ScatterNdNonAliasingAdd(
        input=reshape(x, [batch_size, size]), indices=indices, updates=-amount
    )
    return reshape(y, local_labels.shape + [size])
