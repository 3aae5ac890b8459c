"""Constant tensors: full, zeros, ones, indices and tables of numbers.

x = mtf.zeros(mesh, "batch:8;d_model:4")
y = mtf.ones_like(x)
z = table(mesh, Dimension("d_model", 3), [1.0, 0.5, 2.0], "float32")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import (
    ConstantOp,
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
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape, ShapeLike, dtype_name
from meshtf.names.arguments import as_number
from meshtf.ops.common.broadcasting import check_scalar

Number = bool | int | float | complex
_PYTHON_TYPES = [bool, int, float, complex]  # each one holds those before it


class Range(Op):
    """The indices 0, 1, 2... along one dimension."""

    dim: Dimension
    dtype: str = "int32"
    conformance_samples = (
        Sample((Dimension("a", 8),), gradient=False),
        Sample((Dimension("a", 6), "float32"), gradient=False),
        Sample((Dimension("a", 5), "int64"), gradient=False),
    )

    def output_specs(self) -> Specs:
        return (Spec(Shape(self.dim), self.dtype),)

    def local(self, context: LocalContext) -> LocalTensors:
        # The offset is added after tf.range: as an argument, which is a tensor where the
        # dimension is sharded, it would make the length dynamic.
        indices = tf.range(context.local_size(self.dim.name))
        if context.compiled:
            # Otherwise TensorFlow would compute all that depends on indices alone while it
            # lowers a program, and the text of the program would contain the numbers, such
            # as attention masks of [length, length].
            indices = context.optimization_barrier(indices)
        if context.num_shards(self.dim.name) > 1:
            indices += context.shard_offset(self.dim.name)
        return (tf.cast(indices, tf.as_dtype(self.dtype)),)

    def gradient(self, dy: Tensor, y: Tensor) -> Cotangents:
        return []


class Fill(ConstantOp):
    """A tensor whose elements all have one value."""

    shape: Shape
    value: Number
    dtype: str
    # Test inputs: the attributes (shape, value, dtype); there are no input tensors.
    conformance_samples = (
        Sample((Shape("b:4;h:8"), 1.5, "float32")),
        Sample((Shape(""), 3, "int32")),
        Sample((Shape("h:3"), True, "bool")),
    )

    @property
    def is_zero(self) -> bool:
        # The sum of -0.0 and of zeros of other devices would be 0.0.
        return repr(complex(self.value)) == "0j"

    def output_specs(self, *xs: Spec) -> Specs:
        return (Spec(self.shape, self.dtype),)

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        sizes = context.outputs[0].sizes
        # An array: TensorFlow keeps numbers in a cache, which takes -0.0 for 0.0.
        value = np.asarray(self.value, tf.as_dtype(self.dtype).as_numpy_dtype)
        return (tf.constant(value, shape=sizes),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return []


class Table(Op):
    """The numbers of a list along one dimension: [dim].

    The op has the numbers, so a program with a short table is planned without TensorFlow.

    Attributes:
      dim: the dimension.
      values: as many numbers.
      dtype: the data type of the output.
    """

    dim: Dimension
    values: tuple[Number, ...]
    dtype: str
    # Test inputs: the attributes (dim, values, dtype); there are no input tensors.
    conformance_samples = (
        Sample((Dimension("a", 4), (1.5, -0.0, 2, 0.25), "float32"), gradient=False),
        Sample((Dimension("a", 5), (3, 1, -7, 2, 4), "int32"), gradient=False),
        Sample((Dimension("a", 3), (True, False, True), "bool"), gradient=False),
    )

    def output_specs(self) -> Specs:
        return (Spec(Shape(self.dim), self.dtype),)

    def local(self, context: LocalContext) -> LocalTensors:
        name = self.dim.name
        local_size = context.local_size(name)
        num_shards = context.num_shards(name)
        values = np.asarray(self.values, tf.as_dtype(self.dtype).as_numpy_dtype)
        if num_shards == 1:
            return (tf.constant(values),)
        # The last shards may end with padding.
        num_missing = local_size * num_shards - self.dim.size
        all_shards = tf.constant(np.pad(values, [0, num_missing]))
        return (tf.slice(all_shards, [context.shard_offset(name)], [local_size]),)

    def gradient(self, dy: Tensor, y: Tensor) -> Cotangents:
        return []


def is_table(value: Any) -> bool:
    """Returns whether a value is a list of Python numbers, and nothing else, that has some."""
    is_list = isinstance(value, (list, tuple))
    return is_list and bool(value) and all(type(x) in _PYTHON_TYPES for x in value)


def table(
    mesh: Mesh, dim: Dimension, values: Sequence[Number], dtype: object = None
) -> Tensor:
    """Returns the numbers of a list as a tensor [dim].

    Args:
      mesh: the mesh of the tensor.
      dim: the dimension.
      values: as many Python numbers, at least one.
      dtype: the data type of the tensor; None: that of the numbers, such as float32.

    Raises:
      DTypeError: the data type cannot hold one of the numbers.
    """
    if dtype is None:
        dtype = max(map(type, values), key=_PYTHON_TYPES.index)
    name = dtype_name(dtype)
    for value in values:
        check_scalar(value, name)
    return apply(Table(dim, tuple(values), name), mesh=mesh)


def full(
    mesh: Mesh | None, shape: ShapeLike, value: Number, dtype: object = "float32"
) -> Tensor:
    """Returns a tensor [*shape] whose elements all are `value`.

    Args:
      mesh: the mesh of the tensor; None: the mesh of the tensors that it is combined with.
      shape: the named shape, such as "batch:8;d_model:4".
      value: a Python number or boolean.
      dtype: the data type of the tensor.

    Raises:
      DTypeError: the data type cannot hold `value`.
    """
    name = dtype_name(dtype)
    value = as_number("value", value)
    if name == "bool":
        value = bool(value)
    check_scalar(value, name)
    return apply(Fill(Shape(shape), value, name), mesh=mesh)


def zeros(mesh: Mesh | None, shape: ShapeLike, dtype: object = "float32") -> Tensor:
    """Returns zeros [*shape]. Arguments are those of `full`."""
    return full(mesh, shape, value=0, dtype=dtype)


def ones(mesh: Mesh | None, shape: ShapeLike, dtype: object = "float32") -> Tensor:
    """Returns ones [*shape]. Arguments are those of `full`."""
    return full(mesh, shape, value=1, dtype=dtype)


def zeros_like(x: Tensor) -> Tensor:
    """Returns zeros with the shape of x and its data type."""
    x = as_tensor("x", x)
    return zeros(x.mesh, x.shape, x.dtype)


def ones_like(x: Tensor) -> Tensor:
    """Returns ones with the shape of x and its data type."""
    x = as_tensor("x", x)
    return ones(x.mesh, x.shape, x.dtype)
