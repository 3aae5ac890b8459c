"""Constant tensors: full, zeros, ones.

x = mtf.zeros(mesh, "batch:8;d_model:4")
y = mtf.ones_like(x)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import (
    ConstantOp,
    Cotangents,
    LocalTensors,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Mesh
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.arguments import as_number
from meshtf.ops.common.broadcasting import check_scalar

Number = bool | int | float | complex


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
