"""Ragged ids and weights as tensors of fixed shape, for functions of a mesh.

ids = pad_ragged(tf.ragged.constant([[3, 7], [], [5]]), 4)       # int32 [3, 4], -1 is padding
batches = batches.map(lambda x: {**x, "clicked": pad_ragged(x["clicked"], 4)})
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError
from meshtf.layers.tables.features import located_error
from meshtf.names.arguments import as_float, as_int, refuse


def pad_ragged(ragged: Any, length: int, padding: float = -1) -> Any:
    """Returns the values of a ragged tensor [batch, (slot)] as a TensorFlow tensor [batch, length].

    In `tf.data` pipelines, too, where a row that is too long raises InvalidArgumentError.

    Args:
      ragged: ids, or their weights: a `tf.RaggedTensor` with one ragged dimension.
      length: the number of values of each row of the result.
      padding: the value after the end of a row: -1 for ids; weights may have any.

    Raises:
      ArgumentError: `ragged` is no such tensor.
      ShapeError: a row has more than `length` values.
    """
    length = as_int("length", length, least=1)
    as_float("padding", padding)
    if not isinstance(ragged, tf.RaggedTensor) or ragged.shape.rank != 2:
        refuse("ragged", ragged, "a tf.RaggedTensor [batch, (slot)]")
    longest = ragged.bounding_shape(axis=1)
    message = f"a row has more than {length} values"
    if not tf.executing_eagerly():
        check = tf.debugging.assert_less_equal(
            longest, tf.cast(length, longest.dtype), message
        )
        with tf.control_dependencies([check]):
            return _padded(ragged, length, padding)
    if longest > length:
        raise located_error(
            ShapeError,
            f"{message}: {int(longest)}.",
            {"ragged": f"{ragged.shape}"},
            f"Use a greater length, or leave values out before: ragged[:, :{length}].",
        )
    return _padded(ragged, length, padding)


def _padded(ragged: Any, length: int, padding: float) -> Any:
    """Returns `pad_ragged` of rows that are not too long."""
    return ragged.to_tensor(tf.cast(padding, ragged.dtype), shape=[None, length])
