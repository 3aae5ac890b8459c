"""The arguments of one call of a `mtf.function`: arrays, tensors and Python values, in
any nesting.

Example:

    call = Call(mesh)
    call.add_array("x", array, "batch;d_model")
    call.add_structure("training", True)
    fn(**call.arguments())          # to record it; call.key tells whether it was recorded before
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.graph import Context, Spec, Tensor, apply
from meshtf.mesh import Mesh
from meshtf.names import has_gradient
from meshtf.names.arguments import refuse
from meshtf.ops.control.nested_values import flatten
from meshtf.ops.variables.read_write import Read
from meshtf.runtime.storage.argument_storage import ArrayStore, SlicesStore, as_array
from meshtf.runtime.storage.import_tensor import named_shape
from meshtf.runtime.storage.sharding import distinct


class Entry(NamedTuple):
    """What a trace was made for, of one argument; "" stands for what is in force."""

    argument: str
    kind: str  # "value", "shape", "structure", or the name of a field of a `Context`
    facts: tuple[Any, ...]  # which: first the one that people read


def traced_for(around: Context) -> tuple[Entry, ...]:
    """Returns what of all that is in force makes a trace of its own."""
    region = Entry("", "region", (around.region,))
    if around.stage is None and around.mesh is None:
        return (region,)
    return (
        region,
        Entry("", "stage", (around.stage,)),
        Entry("", "mesh", (around.mesh,)),
    )


class Call:
    """A key for the cache, stores to record with, tensors to run with.

    Args:
      mesh: where the function runs, if that is known.
      runs: whether there will be a run; else arrays are asked for shape and data type
        alone.
      in_place: whether its ops are made where it is called; it gets the tensors
        themselves.
    """

    def __init__(
        self, mesh: Mesh | None, runs: bool = True, in_place: bool = False
    ) -> None:
        self.mesh, self.runs, self.in_place = mesh, runs, in_place
        self.key: tuple[Entry, ...] = ()
        self.stores: list[Any] = []
        self.flat: list[Any] = []
        self.tensors: list[
            Tensor
        ] = []  # of the arguments: those that can have gradients
        self._makers: dict[str, Callable[[], Any]] = {}

    def add_array(self, name: str, value: Any, dims: str | Mapping[str, str]) -> None:
        """Adds an array whose dimensions are called `dims`, or a dict of some with
        names in `dims`.

        Raises:
          ShapeError, LayoutError: an array does not fit its names, or the layout cannot
            hold it.
          PlanError: a dict has what has no names.
        """
        if isinstance(dims, str):
            self._makers[name] = self._array(name, value, dims)
            return
        if not isinstance(value, Mapping) or not set(value) <= set(dims):
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise PlanError(
                explain_error(
                    f"argument {name!r} is a dict of some of {', '.join(dims)}.",
                    got=got,
                    way_out="Leave out the others, or name their dimensions: "
                    f"{name}={{...}}.",
                )
            )
        makers = {
            key: self._array(f"{name}_{key}", value[key], dims[key])
            for key in sorted(value)
        }
        self._makers[name] = lambda: {key: make() for key, make in makers.items()}

    def _array(self, name: str, value: Any, dims: str) -> Callable[[], Any]:
        if value is None or isinstance(value, Tensor) or hasattr(value, "tensor"):
            return self._structure(name, value)
        source = f"argument {name!r}"
        known = not self.runs and hasattr(value, "shape") and hasattr(value, "dtype")
        array = value if known else as_array(value)
        spec = Spec(named_shape(array, dims, source), tf.as_dtype(array.dtype).name)
        store = ArrayStore(
            name, spec, self.mesh, source, array if self.in_place else None
        )
        self._add(store, Entry(name, "shape", tuple(spec)), [array])
        if self.mesh is not None:
            _ = store.placement  # refuses what the layout cannot hold
        return lambda: apply(Read(store), mesh=store.mesh)

    def add_structure(self, name: str, value: Any) -> None:
        """Adds tensors and Python values. Raises PlanError, MeshError."""
        self._makers[name] = self._structure(name, value)

    def _structure(self, name: str, value: Any) -> Callable[[], Any]:
        leaves = flatten(value)
        names = leaf_names(name, value)
        makers = [
            self._leaf(name, leaf, own) for leaf, own in zip(leaves, names, strict=True)
        ]
        if len(leaves) != 1 or leaves[0] is not value:
            self.key += (
                Entry(
                    name,
                    "structure",
                    (repr(tf.nest.map_structure(lambda x: 0, value)),),
                ),
            )
        return lambda: tf.nest.pack_sequence_as(value, [make() for make in makers])

    def arguments(self) -> dict[str, Any]:
        """Returns what the function is traced with. Raises LayoutError."""
        for store in self.stores:
            if store.mesh is None and self.mesh is not None:  # a later argument told it
                store.mesh = self.mesh
                _ = store.placement  # refuses what the layout cannot hold
        return {name: make() for name, make in self._makers.items()}

    def _leaf(self, name: str, leaf: Any, own: str) -> Callable[[], Any]:
        """Returns what makes a leaf of argument `name`, whose own name is `own`."""
        if isinstance(leaf, (np.ndarray, tf.Tensor, tf.Variable)):
            raise PlanError(
                explain_error(
                    f"argument {name!r} is an array without named dimensions.",
                    array=list(leaf.shape),
                    way_out=f'Name them: @mtf.function({name}="batch;...").',
                )
            )
        if not isinstance(leaf, Tensor):
            self.key += (Entry(name, "value", (_static(leaf), type(leaf))),)
            return lambda: leaf
        if self.in_place:
            self.mesh = self.mesh or leaf.mesh
            return lambda: leaf
        if leaf.sharded_value is None:
            raise PlanError(
                explain_error(
                    "a recorded tensor cannot be passed to a function from outside.",
                    tensor=repr(leaf),
                    **{"made by": leaf.node.source},
                )
            )
        if self.mesh is not None and leaf.mesh is not self.mesh:
            raise MeshError(
                explain_error(
                    "the arguments of one function lie on two meshes.",
                    argument=name,
                    meshes=f"{self.mesh!r} and {leaf.mesh!r}",
                    way_out="Make all of them on one Mesh object.",
                )
            )
        self.mesh = leaf.mesh
        return self._passed(name, leaf, own)

    def _passed(self, name: str, leaf: Tensor, own: str) -> Callable[[], Any]:
        """Adds a tensor that is passed to a trace."""
        assert leaf.mesh is not None and leaf.sharded_value is not None
        different, pattern = distinct(leaf.sharded_value.values)
        store = SlicesStore(
            own, leaf.spec, leaf.mesh, leaf.sharded_value.placement, pattern
        )
        facts = (*leaf.spec, leaf.sharded_value.placement, pattern, leaf.mesh)
        self._add(store, Entry(name, "shape", facts), different)
        if has_gradient(leaf.dtype):
            self.tensors.append(leaf)
        return lambda: apply(Read(store), mesh=store.mesh)

    def _add(self, store: Any, entry: Entry, tensors: list[Any]) -> None:
        self.stores.append(store)
        self.key += (entry,)
        self.flat += tensors


def leaf_names(name: str, value: Any) -> list[str]:
    """Returns a name for each leaf of a nesting, in the order of `tf.nest`.

    >>> leaf_names("batch", {"tokens": 0, "parts": (1, 2)})
    ['batch_parts_0', 'batch_parts_1', 'batch_tokens']
    """
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = [(key, value[key]) for key in sorted(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return [name] * len(tf.nest.flatten(value))
    return [
        leaf
        for key, x in items
        for leaf in leaf_names(f"{name}_{key}" if name else str(key), x)
    ]


def signature_of(fn: Callable[..., Any], names: Mapping[str, Any]) -> inspect.Signature:
    """Returns what a function takes. Raises ArgumentError if it, or one of `names`, is
    refused.
    """
    for name, dims in names.items():
        each = dims.values() if isinstance(dims, Mapping) else [dims]
        if not all(isinstance(d, str) for d in each):
            refuse(
                name,
                dims,
                'names of dimensions, such as "batch;d_model", or a dict of them',
            )
    try:
        return inspect.signature(fn)
    except ValueError:
        refuse(
            "fn",
            fn,
            "a function of which Python knows the arguments",
            "Write a lambda around it.",
        )


class Itself:
    """A Python value that cannot be hashed: equal to itself alone, and kept while its
    trace is.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value


def _static(value: Any) -> Any:
    """Returns what stands for a Python value in a key: 0.0 and -0.0 are two, nan is
    one.
    """
    if isinstance(value, float):
        return repr(value)
    return value if value.__hash__ is not None else Itself(value)
