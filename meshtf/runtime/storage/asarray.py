"""Turns NumPy arrays and TensorFlow tensors into tensors with named dimensions.

x = mtf.asarray(mesh, np.zeros((8, 4)), "batch;d_model")
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Spec, Tensor, apply
from meshtf.graph.arguments import as_mesh
from meshtf.mesh import Mesh
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.parse import parse_pairs
from meshtf.ops.variables.fill import full, is_table, table
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.storage.argument_storage import ArrayStore, as_array


def asarray(
    mesh: Mesh,
    array: Any,
    shape: ShapeLike,
    dtype: object = None,
) -> Tensor:
    """Returns an array as a tensor with named dimensions, sharded by the layout.

    Args:
      mesh: the mesh.
      array: a NumPy array, a TensorFlow tensor, or nested lists of numbers.
      shape: the names of the array's dimensions, such as "batch;d_model", with or without
        sizes.
      dtype: the data type; None: that of the array, float32 and int32 for Python numbers.

    Raises:
      ShapeError: the names do not fit the array.
      LayoutError: the layout cannot shard the array.
    """
    as_mesh("mesh", mesh)  # raises ArgumentError unless it is a mesh
    source = Source.of_caller()
    array = as_array(array, dtype)
    spec = Spec(named_shape(array, shape, source), array.dtype.name)
    # A program reads the shards of a tensor from a store, such as this one.
    store = ArrayStore(name="asarray", spec=spec, mesh=mesh, source=source, array=array)
    return apply(Read(store), mesh=mesh)


def constant(
    mesh: Mesh,
    value: Any,
    shape: ShapeLike = (),
    dtype: object = None,
) -> Tensor:
    """Returns a tensor filled with a number, or a tensor of an array's values.

    Args:
      mesh: the mesh.
      value: a number, or an array as for `asarray`.
      shape: the shape of the tensor: with sizes for a number, see `asarray` for an array.
      dtype: the data type; None: that of the value.

    Raises:
      ShapeError: the names do not fit the array.
      LayoutError: the layout cannot shard the tensor.
      DTypeError: the data type cannot hold the number.
    """
    if is_table(value):
        (dim,) = named_shape(np.empty(len(value)), shape, Source.of_caller())
        return table(mesh, dim, value, dtype)
    if not isinstance(value, (bool, int, float, complex)):
        return asarray(mesh, value, shape, dtype=dtype)
    if dtype is None:
        dtype = type(value)
    return full(mesh, shape, value, dtype=dtype_name(dtype))


def named_shape(array: Any, shape: ShapeLike, source: object) -> Shape:
    """Returns the named shape of an array.

    Args:
      array: the array, or its tf.TensorSpec.
      shape: the names of the array's dimensions, with or without sizes.
      source: the user's line, for errors.

    Raises:
      ShapeError: the names or the sizes do not fit the array.
    """
    sizes = tuple(array.shape)
    if isinstance(shape, str):
        # (name, text of the size), where the text is empty if no size is given.
        pairs = parse_pairs(shape, kind="shape", values=False)
        if len(pairs) != len(sizes):
            names = [name for name, _size_text in pairs]
            raise ShapeError(_explain_mismatch(names, sizes, source))
        dims = []
        for (name, size_text), array_size in zip(pairs, sizes):
            dims.append((name, int(size_text) if size_text else array_size))
        shape = dims
    result = Shape(shape)
    if result.sizes != sizes:
        raise ShapeError(_explain_mismatch(result, sizes, source))
    return result


def _explain_mismatch(names: object, sizes: tuple[int, ...], source: object) -> str:
    """Returns the message for names that do not fit an array of these sizes."""
    return explain_error(
        "the names do not fit the array.",
        names=names,
        array=list(sizes),
        source=source,
        way_out="Give one name for each dimension of the array, in its order.",
    )
