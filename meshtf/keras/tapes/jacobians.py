"""Jacobians by one gradient for each element of the target: TensorFlow's loop over elements would
take its own gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Returns the gradient of a target, weighted by a tensor, by each source; None for those that
# it does not depend on.
WeightedGradients = Callable[[tf.Tensor], list[Any]]


def jacobian(
    gradients_for: WeightedGradients, target: tf.Tensor, sources: Sequence[Any]
) -> list[tf.Tensor | None]:
    """Returns, for each source, the derivatives of each element of a target by each of its
    elements, [*target, *source].

    Args:
        gradients_for: The gradients of the weighted target.
        target: A tensor.
        sources: Tensors or variables.
    """
    size = math.prod(target.shape)
    rows = [gradients_for(_one_at(k, target.shape, target)) for k in range(size)]
    results: list[tf.Tensor | None] = []
    for k, source in enumerate(sources):
        entries = [row[k] for row in rows]
        if any(x is None for x in entries):
            results.append(None)
            continue
        stacked = tf.stack([tf.convert_to_tensor(x) for x in entries])
        results.append(tf.reshape(stacked, [*target.shape, *source.shape]))
    return results


def batch_jacobian(
    gradients_for: WeightedGradients, target: tf.Tensor, source: tf.Tensor
) -> tf.Tensor | None:
    """Returns the derivatives of each element of a target by those of a source that belong to
    the same example, [batch, *target, *source].

    Args:
        gradients_for: The gradients of the weighted target, by the source alone.
        target: [batch, *target].
        source: [batch, *source].
    """
    batch, *sizes = target.shape
    columns = []
    for k in range(math.prod(sizes)):
        weights = tf.broadcast_to(_one_at(k, sizes, target), target.shape)
        (column,) = gradients_for(weights)
        if column is None:
            return None
        columns.append(column)
    stacked = tf.stack(columns, 1)
    return tf.reshape(stacked, [batch, *sizes, *source.shape[1:]])


def _one_at(index: int, shape: Sequence[int], like: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of zeros with a 1 at an index of its elements."""
    values = np.zeros(math.prod(shape), like.dtype.as_numpy_dtype)
    values[index] = 1
    return tf.constant(values.reshape(shape))
