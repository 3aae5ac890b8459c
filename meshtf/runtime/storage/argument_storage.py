"""Stores: where values come from when a program starts.

    ArrayStore     a whole array, cut by the layout when it is read
    SlicesStore    a tensor that already lies in slices

Both are filled anew for each call of a function (`fill`).
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


class ArrayStore:
    """A whole array, of which each position reads its slice."""

    kind: Literal["argument"] = "argument"

    def __init__(
        self,
        name: str,
        spec: Spec,
        mesh: Mesh | None,
        source: object,
        array: Any = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.mesh = mesh
        self.region = current().region
        self.source = source
        self.array = array

    @property
    def placement(self) -> Placement:
        """Where the layout puts the array. Raises LayoutError where it cannot."""
        assert self.mesh is not None
        layout = self.mesh.layout_in(self.region)
        check_layout([self.spec], self.mesh, layout, self.source)
        return self.mesh.place(self.spec.shape, layout)[0]

    def fill(self, flat: list[Any]) -> None:
        """Takes the array from the front of `flat`."""
        self.array = flat.pop(0)

    def read(self) -> list[Any]:
        """Returns each position's slice; one object for equal slices on one device."""
        assert self.mesh is not None
        return shards_of(self.array, self.spec, self.placement, self.mesh)

    def slots(self) -> Sequence[Any]:
        """An array is not written."""
        raise NotImplementedError


class SlicesStore:
    """An eager tensor's slices, passed to a function; equal slices are passed once."""

    kind: Literal["argument"] = "argument"

    def __init__(
        self,
        name: str,
        spec: Spec,
        mesh: Mesh,
        placement: Placement,
        pattern: tuple[int, ...],
    ) -> None:
        self.name = name
        self.spec = spec
        self.placement = placement
        self.mesh: Mesh | None = mesh
        self.pattern = pattern  # position -> number of its slice
        self.different: list[Any] = []

    def fill(self, flat: list[Any]) -> None:
        """Takes the different slices from the front of `flat`."""
        number = max(self.pattern) + 1
        self.different, flat[:number] = flat[:number], []

    def read(self) -> list[Any]:
        """Returns each position's slice."""
        return [None if k < 0 else self.different[k] for k in self.pattern]

    def slots(self) -> Sequence[Any]:
        """An argument is not written."""
        raise NotImplementedError


def as_array(array: Any, dtype: object = None, name: str = "array") -> tf.Tensor:
    """Returns a TensorFlow tensor; Python floats become float32, Python
    integers int32.
    """
    wanted = None if dtype is None else tf.as_dtype(dtype_name(dtype))
    if isinstance(array, tf.Tensor):
        return array if wanted in (None, array.dtype) else tf.cast(array, wanted)
    if array is None or isinstance(array, str) or hasattr(array, "spec"):
        refuse(
            name,
            array,
            "an array, or numbers in lists",
            "Pass x.numpy() of a tensor that has names already."
            if hasattr(array, "spec")
            else "",
        )
    try:
        return tf.convert_to_tensor(array, wanted)
    except (TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        refuse(
            name,
            array,
            f"an array, or numbers in lists, of {dtype or 'one type'}",
            reason,
        )


def names_of(stores: Sequence[Store]) -> dict[Store, str]:
    """Returns a name for each store; "x", "x_1", ... where several are called x."""
    return dict(zip(stores, told_apart(store.name for store in stores)))


def told_apart(names: Iterable[str]) -> list[str]:
    """Returns names that differ: "x", "x_1", ... where several are "x"."""
    found: dict[str, None] = {}
    for name in names:
        every = (f"{name}_{i}" if i else name for i in itertools.count())
        found[next(new for new in every if new not in found)] = None
    return list(found)
