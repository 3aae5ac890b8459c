"""Stores of arguments: a program reads the arguments of its function from them.

    ArrayStore     an array, which is sharded by the layout when it is read
    ShardsStore    an eager tensor, which is sharded already
    DeviceStore    an eager tensor whose shards are on the devices of a live mesh, which jax
                   drives

`fill` sets the values for one call of the function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tensorflow as tf

from meshtf.graph import Spec, Store, current
from meshtf.graph.layout_check import check_layout
from meshtf.mesh import Mesh, Placement
from meshtf.names import dtype_name
from meshtf.names.arguments import refuse
from meshtf.runtime.storage.sharding import shards_of


class _ArgumentStore:
    """The base class of stores of arguments; `mesh` is None while it is not known."""

    kind: Literal["argument"] = "argument"

    def __init__(self, name: str, spec: Spec, mesh: Mesh | None) -> None:
        self.name = name
        self.spec = spec
        self.mesh = mesh

    def slots(self) -> Sequence[Any]:
        """Raises NotImplementedError: an argument is never written."""
        raise NotImplementedError


class ArrayStore(_ArgumentStore):
    """An array. Each mesh position (an element of the mesh's grid) reads its shard of it.

    Args:
      name: the name of the argument.
      spec: the shape and data type of the array.
      mesh: the mesh, whose layout shards the array; None: not known yet.
      source: the user's line, for errors.
      array: the array of an eager op; None: `fill` sets the array, at each call of a
        function.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        mesh: Mesh | None,
        source: object,
        array: Any = None,
    ) -> None:
        super().__init__(name, spec, mesh)
        # The changes of the mesh's layout by enclosing `mtf.layout` regions.
        self.region = current().region
        self.source = source
        self.array = array

    @property
    def placement(self) -> Placement:
        """The placement of the array. Raises LayoutError if the layout cannot shard it."""
        assert self.mesh is not None
        layout = self.mesh.layout_in(self.region)
        check_layout([self.spec], self.mesh, layout, self.source)
        placement, _conflicts = self.mesh.place(self.spec.shape, layout)
        return placement

    def fill(self, remaining_tensors: list[Any]) -> None:
        """Takes the array of one call of the function.

        Args:
          remaining_tensors: the arrays and shards of this argument and all later ones, in
            order. The first is the array of this store, and is removed.
        """
        self.array = remaining_tensors.pop(0)

    def read(self) -> list[Any]:
        """Returns the shard of each position; positions that share a device and a shard
        get the same object.
        """
        assert self.mesh is not None
        return shards_of(self.array, self.spec, self.placement, self.mesh)


class ShardsStore(_ArgumentStore):
    """The shards of an eager tensor, passed to a function; equal shards are passed once.

    Args:
      name: the name of the argument.
      spec: the shape and data type of the tensor.
      mesh: the mesh of the tensor.
      placement: the placement of the tensor.
      distinct_index: for each mesh position, the index of its shard among the distinct
        shards; -1: the position has no shard.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        mesh: Mesh,
        placement: Placement,
        distinct_index: tuple[int, ...],
    ) -> None:
        super().__init__(name, spec, mesh)
        self.placement = placement
        self.distinct_index = distinct_index
        self.distinct_shards: list[Any] = []

    def fill(self, remaining_tensors: list[Any]) -> None:
        """Takes the distinct shards of one call: the first of `remaining_tensors`, which are
        removed (see `ArrayStore.fill`).
        """
        num_distinct = max(self.distinct_index) + 1
        self.distinct_shards = remaining_tensors[:num_distinct]
        del remaining_tensors[:num_distinct]

    def read(self) -> list[Any]:
        """Returns the shard of each position; None: the position has no shard."""
        shards = []
        for i in self.distinct_index:
            shards.append(None if i < 0 else self.distinct_shards[i])
        return shards


class DeviceStore(_ArgumentStore):
    """An eager tensor on the devices of a live mesh, passed to a function as it is.

    Args:
      name: the name of the argument.
      spec: the shape and data type of the tensor.
      mesh: the mesh of the tensor.
      placement: the placement of the tensor.
    """

    def __init__(self, name: str, spec: Spec, mesh: Mesh, placement: Placement) -> None:
        super().__init__(name, spec, mesh)
        self.placement = placement
        self.shards: Sequence[Any] = ()

    def fill(self, remaining_tensors: list[Any]) -> None:
        """Takes the shards of one call: the first of `remaining_tensors`, one object of the
        live runtime, which is removed (see `ArrayStore.fill`).
        """
        self.shards = remaining_tensors.pop(0)

    def read(self) -> Sequence[Any]:
        """Returns the shards, an object of the live runtime."""
        return self.shards


def as_array(array: Any, dtype: object = None, name: str = "array") -> tf.Tensor:
    """Returns an array-like value as a TensorFlow tensor.

    Args:
      array: a TensorFlow tensor, a NumPy array, a number, or nested lists of numbers.
      dtype: the data type; None: that of the array. Then Python floats become float32, and
        Python integers int32.
      name: the name of the argument, for errors.

    Raises:
      ArgumentError: the value is no array, or cannot be converted.
    """
    tf_dtype = None
    if dtype is not None:
        tf_dtype = tf.as_dtype(dtype_name(dtype))
    if isinstance(array, tf.Tensor):
        if tf_dtype in (None, array.dtype):
            return array
        return tf.cast(array, tf_dtype)
    has_names = hasattr(array, "spec")
    if array is None or isinstance(array, str) or has_names:
        way_out = ""
        if has_names:
            way_out = "Pass x.numpy() of a tensor that has names already."
        refuse(name, array, "an array, or numbers in lists", way_out)
    try:
        return tf.convert_to_tensor(array, tf_dtype)
    except (TypeError, ValueError) as error:
        first_line = str(error).split("\n")[0]
        refuse(
            name,
            array,
            f"an array, or numbers in lists, of {dtype or 'one type'}",
            first_line,
        )


def store_names(stores: Sequence[Store]) -> dict[Store, str]:
    """Returns a unique name for each store: "x", "x_1", ... if several are called x."""
    names = unique_names(store.name for store in stores)
    return dict(zip(stores, names))


def unique_names(names: Iterable[str]) -> list[str]:
    """Returns the names, with suffixes that make them unique: the second "x" becomes
    "x_1".
    """
    assigned_names: dict[str, None] = {}  # an ordered set
    for name in names:
        candidate = name
        suffixes = itertools.count(1)
        while candidate in assigned_names:
            candidate = f"{name}_{next(suffixes)}"
        assigned_names[candidate] = None
    return list(assigned_names)
