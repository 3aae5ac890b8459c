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

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Source, Spec, Store, Tensor, apply, current
from meshtf.graph.arguments import as_mesh
from meshtf.graph.layout_check import check_layout
from meshtf.mesh import Mesh, Placement, Split
from meshtf.names import Shape, ShapeLike, dtype_name
from meshtf.names.arguments import refuse
from meshtf.names.parse import parse_pairs
from meshtf.ops.variables.read_write import Read, full
from meshtf.runtime.devices.resolve import devices_of, one_memory


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
        self.name, self.spec, self.mesh, self.region = (
            name,
            spec,
            mesh,
            current().region,
        )
        self.source, self.array = source, array

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
        return slices_of(self.array, self.spec, self.placement, self.mesh)

    def cells(self) -> Sequence[Any]:
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
        self.name, self.spec, self.placement = name, spec, placement
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

    def cells(self) -> Sequence[Any]:
        """An argument is not written."""
        raise NotImplementedError


def import_tensor(
    mesh: Mesh, array: Any, shape: ShapeLike, dtype: object = None
) -> Tensor:
    """Returns an array as a tensor; `shape` may be names alone, such as
    "batch;d_model".

    Raises:
      ShapeError: the array has another shape.
      LayoutError: the layout cannot hold it.
    """
    as_mesh("mesh", mesh)
    source = Source.here()
    array = as_array(array, dtype)
    spec = Spec(named_shape(array, shape, source), array.dtype.name)
    store = ArrayStore("import_tensor", spec, mesh, source, array)
    return apply(Read(store), mesh=mesh)


def constant(
    mesh: Mesh, value: Any, shape: ShapeLike = (), dtype: object = None
) -> Tensor:
    """Returns a tensor of one number everywhere, or of an array's values."""
    if isinstance(value, (bool, int, float, complex)):
        return full(
            mesh, shape, value, dtype_name(type(value) if dtype is None else dtype)
        )
    return import_tensor(mesh, value, shape, dtype)


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


def named_shape(array: tf.Tensor, shape: ShapeLike, source: object) -> Shape:
    """Returns the named shape of an array. Raises ShapeError where names or sizes do
    not fit.
    """
    sizes = tuple(array.shape)
    if isinstance(shape, str):
        pairs = parse_pairs(shape, what="shape", values=False)
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


def distinct(values: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the different objects among `values`, and the number of each value's
    object.
    """
    first: dict[int, int] = {id(None): -1}  # of a tensor that lies at one stage
    found: list[Any] = []
    for x in values:
        if id(x) not in first:
            first[id(x)] = len(found)
            found.append(x)
    return found, tuple(first[id(x)] for x in values)


def slice_keys(placement: Placement, mesh: Mesh) -> list[tuple[int, ...]]:
    """Returns for each position which slice it holds: equal keys, equal slices."""
    return [
        tuple(c if isinstance(s, Split) else 0 for s, c in zip(placement, coord))
        for coord in mesh.coords
    ]


def region(
    shape: Shape, placement: Placement, key: tuple[int, ...], mesh: Mesh
) -> tuple[slice, ...]:
    """Returns which part of a whole the slice of these coordinates is."""
    spans = {d.name: (0, d.size) for d in shape}
    for state, c, parts in zip(placement, key, mesh.axes.values()):
        if isinstance(state, Split):
            start, stop = spans[state.dim]
            size = (stop - start) // parts
            spans[state.dim] = start + c * size, start + (c + 1) * size
    return tuple(slice(*span) for span in spans.values())


def slices_of(array: Any, spec: Spec, placement: Placement, mesh: Mesh) -> list[Any]:
    """Returns each position's slice of a whole array, cut where the array is.

    Where devices see one memory, nobody in a graph brings a slice to its device:
    TensorFlow does so.
    """
    pieces = pieces_of(array, spec, placement, mesh)
    if not tf.executing_eagerly() and one_memory(mesh):
        return pieces
    done: dict[Any, Any] = {}
    out: list[Any] = []
    for device, x in zip(devices_of(mesh), pieces):
        if x is not None and (device, id(x)) not in done:
            with tf.device(device):
                done[device, id(x)] = tf.identity(x)
        out.append(None if x is None else done[device, id(x)])
    return out


def pieces_of(array: Any, spec: Spec, placement: Placement, mesh: Mesh) -> list[Any]:
    """Returns each position's slice of a whole array, on the device of the array."""
    with tf.device(getattr(array, "device", "") or "/device:CPU:0"):
        cut = _cut(array, spec, placement, mesh)
    return [
        cut[key] if there else None
        for key, there in zip(slice_keys(placement, mesh), mesh.has(placement))
    ]


def _cut(
    array: Any, spec: Spec, placement: Placement, mesh: Mesh
) -> dict[tuple[int, ...], Any]:
    """Returns the different slices of a whole array, by their keys as `slice_keys` has
    them.
    """
    cut: dict[tuple[int, ...], Any] = {(): array}
    for state, parts in zip(placement, mesh.axes.values()):
        if isinstance(state, Split):
            axis = spec.shape.index(state.dim)
            cut = {
                (*key, j): part
                for key, whole in cut.items()
                for j, part in enumerate(tf.split(whole, parts, axis))
            }
        else:
            cut = {(*key, 0): whole for key, whole in cut.items()}
    return cut
