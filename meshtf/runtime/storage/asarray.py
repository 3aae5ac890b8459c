"""NumPy arrays and TensorFlow tensors as tensors with named dimensions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Spec, Tensor, apply
from meshtf.graph.arguments import as_mesh
from meshtf.mesh import Mesh
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.parse import parse_pairs
from meshtf.ops.variables.fill import full
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.storage.argument_storage import ArrayStore, as_array


def asarray(mesh: Mesh, array: Any, shape: ShapeLike, dtype: object = None) -> Tensor:
    """Returns an array as a tensor; `shape` may be names alone, such as
    "batch;d_model".

    Raises:
      ShapeError: the array has another shape.
      LayoutError: the layout cannot hold it.
    """
    as_mesh("mesh", mesh)
    source = Source.of_caller()
    array = as_array(array, dtype)
    spec = Spec(named_shape(array, shape, source), array.dtype.name)
    store = ArrayStore("asarray", spec, mesh, source, array)
    return apply(Read(store), mesh=mesh)


def constant(
    mesh: Mesh, value: Any, shape: ShapeLike = (), dtype: object = None
) -> Tensor:
    """Returns a tensor of one number everywhere, or of an array's values."""
    if isinstance(value, (bool, int, float, complex)):
        return full(
            mesh, shape, value, dtype_name(type(value) if dtype is None else dtype)
        )
    return asarray(mesh, value, shape, dtype)


def named_shape(array: tf.Tensor, shape: ShapeLike, source: object) -> Shape:
    """Returns the named shape of an array. Raises ShapeError where names or sizes do
    not fit.
    """
    sizes = tuple(array.shape)
    if isinstance(shape, str):
        pairs = parse_pairs(shape, kind="shape", values=False)
        if len(pairs) == len(sizes):
            shape = [
                (name, int(size) if size else n)
                for (name, size), n in zip(pairs, sizes)
            ]
        else:
            raise ShapeError(_unlike([n for n, _ in pairs], sizes, source))
    named = Shape(shape)
    if named.sizes != sizes:
        raise ShapeError(_unlike(named, sizes, source))
    return named


def _unlike(named: object, sizes: tuple[int, ...], source: object) -> str:
    return explain_error(
        "the names do not fit the array.",
        names=named,
        array=list(sizes),
        **{"from": source},
        way_out="Give one name for each dimension of the array, in its order.",
    )
