"""Indices as tensors: `one_hot` encodes them, `range` returns the indices of a dimension.

y = mtf.one_hot(ids, "vocab:256")            # [batch] -> [batch vocab]
i = mtf.range(mesh, "length:8")              # [length]: 0, 1, ..., 7
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.mesh import Mesh
from meshtf.names import Dimension, ShapeLike, dtype_name
from meshtf.ops.common.checks import single_dim
from meshtf.ops.indexing.index_bounds import as_index_dtype, check_ids
from meshtf.ops.variables.fill import Range


class OneHot(Op):
    """Ids [*shape] -> [*shape, dim], with 1 where the index along `dim` is the id, and 0
    elsewhere.

    Attributes:
      dim: the new dimension.
      dtype: the data type of the output.
    """

    dim: Dimension
    dtype: str = "float32"
    # Test inputs: the op's attributes, then each input's kind of values and shape.
    conformance_samples = (
        Sample((Dimension("v", 8),), ("int b:4",), gradient=False),
        Sample((Dimension("v", 4), "int32"), ("int b:4;c:3",), gradient=False),
        Sample((Dimension("v", 6), "bfloat16"), ("int b:2;c:2",), gradient=False),
        Sample((Dimension("v", 8), "bool"), ("int b:3",), gradient=False),
    )

    def output_specs(self, ids: Spec) -> Specs:
        check_ids(ids, self.dim.name)
        return (Spec(ids.shape + self.dim, self.dtype),)

    def local(self, context: LocalContext, ids: Any) -> LocalTensors:
        if context.num_shards(self.dim.name) > 1:
            # Relative to this shard; ids of other shards are out of range, and give zeros.
            offset = context.shard_offset(self.dim.name)
            ids = tf.cast(ids, tf.int64) - tf.cast(offset, tf.int64)
        ids = as_index_dtype(ids)
        size = context.local_size(self.dim.name)
        if self.dtype == "bool":
            # The default values 1 and 0 do not convert to bool.
            return (tf.one_hot(ids, size, on_value=True, off_value=False),)
        return (tf.one_hot(ids, size, dtype=tf.as_dtype(self.dtype)),)

    def gradient(self, dy: Tensor, y: Tensor, ids: Tensor) -> Cotangents:
        return [None]


def one_hot(ids: Tensor, dim: ShapeLike, dtype: object = "float32") -> Tensor:
    """Returns [*ids, dim] with 1 where the index along `dim` is the id, and 0 elsewhere.

    An id that is out of range gives zeros, as in TensorFlow.

    Args:
      ids: an integer tensor.
      dim: the new dimension, such as "vocab:256".
      dtype: the data type of the result.

    Raises:
      ShapeError: ids have `dim` already.
      DTypeError: ids are not integers.
    """
    return apply(OneHot(single_dim(dim), dtype_name(dtype)), ids)


def range(mesh: Mesh | None, dim: ShapeLike, dtype: object = "int32") -> Tensor:
    """Returns the indices 0, 1, 2... along one dimension, as a tensor [dim].

    Args:
      mesh: the mesh of the tensor; None: the current one.
      dim: the dimension, such as "length:8".
      dtype: the data type of the result.
    """
    return apply(Range(single_dim(dim), dtype_name(dtype)), mesh=mesh)
